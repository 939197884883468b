// coda/check/report.h: the mistakes of one program, each with its statement.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coda/program/program.h"

namespace coda {

// Whether a report is for people, or only says that there are mistakes.
enum class Wording : std::uint8_t { full, none };

class Mistakes {
 public:
  explicit Mistakes(const Program& program, Wording wording = Wording::full)
      : program_(&program), wording_(wording) {}

  Wording wording() const { return wording_; }
  // expression(), for messages; empty where there are none.
  std::string text(int node) const;
  std::string text(Value value) const;

  // A mistake in statement `node` (-1: in the program as a whole) that concerns `values`, whose
  // types it shows.
  void refuse(int node, std::string message, const std::vector<Value>& values, std::string rule,
              std::string fix);
  bool empty() const { return diagnostics_.empty(); }
  const std::vector<Diagnostic>& diagnostics() const { return diagnostics_; }
  void add(const Mistakes& other);

 private:
  const Program* program_;
  Wording wording_;
  std::vector<Diagnostic> diagnostics_;
};

// The expression that node `node` computes, as text: "sum(h * h, N)".
std::string expression(const Program& program, int node);
// The same of a value: a name, or the expression of its node.
std::string expression(const Program& program, Value value);

}  // namespace coda
