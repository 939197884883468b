// coda/check/report.cpp: mistakes with their statements, and the expressions that messages quote.

#include "coda/check/report.h"

#include <utility>

#include "coda/program/quote.h"
#include "coda/program/text.h"

namespace coda {
namespace {

// A value's name, or the op that made it; where the printer gives it a name, which the statement
// then shows, its statement: "t1 = x @ w".
std::string introduced(const Program& program, Value value) {
  const ValueInfo& info = program.value(value);
  if (info.node < 0 || !info.name.empty()) return describe(program, value);
  const std::string statement = print_node(program, static_cast<std::size_t>(info.node));
  const std::size_t assigned = statement.find(" = ");
  const bool is_single = assigned != std::string::npos && statement.find(',') > assigned &&
                         statement.size() <= ast::kPiece;
  return is_single ? statement : describe(program, value);
}

}  // namespace

void Mistakes::refuse(int node, std::string message, const std::vector<Value>& values,
                      std::string rule, std::string fix) {
  if (wording_ == Wording::none) {
    diagnostics_.resize(1);
    return;
  }
  Diagnostic diagnostic;
  diagnostic.where = program_->where();
  if (node >= 0) {
    const auto i = static_cast<std::size_t>(node);
    if (program_->nodes()[i].where.line > 0) diagnostic.where = program_->nodes()[i].where;
    diagnostic.statement = print_node(*program_, i);
  }
  for (Value value : values)
    diagnostic.types.push_back(introduced(*program_, value) + ": " + program_->type(value).text());
  diagnostic.message = std::move(message);
  diagnostic.rule = std::move(rule);
  diagnostic.fix = std::move(fix);
  // Two paths to one mistake are one mistake.
  for (const Diagnostic& known : diagnostics_)
    if (known.message == diagnostic.message && known.statement == diagnostic.statement) return;
  diagnostics_.push_back(std::move(diagnostic));
}

std::string Mistakes::text(int node) const {
  return wording_ == Wording::none ? "" : expression(*program_, node);
}

std::string Mistakes::text(Value value) const {
  return wording_ == Wording::none ? "" : expression(*program_, value);
}

void Mistakes::add(const Mistakes& other) {
  diagnostics_.insert(diagnostics_.end(), other.diagnostics_.begin(), other.diagnostics_.end());
}

std::string expression(const Program& program, int node) {
  const std::string statement = print_node(program, static_cast<std::size_t>(node));
  const std::size_t assigned = statement.find(" = ");
  return assigned == std::string::npos ? statement : statement.substr(assigned + 3);
}

std::string expression(const Program& program, Value value) {
  const ValueInfo& info = program.value(value);
  return info.node < 0 || !info.name.empty() ? describe(program, value)
                                             : expression(program, info.node);
}

}  // namespace coda
