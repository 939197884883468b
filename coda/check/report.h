// coda/check/report.h: the mistakes of one program, each with its statement.
#pragma once

#include <string>
#include <vector>

#include "coda/program/program.h"

namespace coda {

class Report {
 public:
  explicit Report(const Program& program) : program_(&program) {}

  // A mistake in statement `node` (-1: in the program as a whole) that concerns `values`, whose
  // types it shows.
  void refuse(int node, std::string message, const std::vector<Value>& values, std::string rule,
              std::string fix);
  bool empty() const { return diagnostics_.empty(); }
  const std::vector<Diagnostic>& diagnostics() const { return diagnostics_; }
  void add(const Report& other);

 private:
  const Program* program_;
  std::vector<Diagnostic> diagnostics_;
};

// The expression that node `node` computes, as text: "sum(h * h, N)".
std::string expression(const Program& program, int node);
// The same of a value: a name, or the expression of its node.
std::string expression(const Program& program, Value value);

}  // namespace coda
