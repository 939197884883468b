// coda/algebra/factors.cpp: small questions about the graph of a program.
#include "coda/algebra/factors.h"

#include <algorithm>
#include <set>

namespace coda {

Uses::Uses(const Program& program)
    : users(program.values().size()), results(program.values().size()) {
  for (std::size_t n = 0; n < program.nodes().size(); ++n) {
    for (const Value v : program.nodes()[n].args) {
      users[static_cast<std::size_t>(v.id)].push_back(static_cast<int>(n));
    }
  }
  for (const Result& result : program.results()) {
    results[static_cast<std::size_t>(result.value.id)] = 1;
  }
}

bool has_any(const Type& type, const Dim& factors) {
  return std::ranges::any_of(factors.factors,
                             [&](const Factor& factor) { return has_factor(type, factor); });
}

bool has_all(const Type& type, const Dim& factors) {
  return std::ranges::all_of(factors.factors,
                             [&](const Factor& factor) { return has_factor(type, factor); });
}

const Node* node_of(const Program& program, Value v) {
  return program.is_param(v) ? nullptr : &program.node(v);
}

bool is_op(const Program& program, Value v, Op op) {
  return !program.is_param(v) && program.node(v).op == op;
}

Value behind_casts(const Program& program, Value v) {
  while (is_op(program, v, Op::cast) && is_float(program.node(v).attr.dtype) &&
         is_float(program.type(program.node(v).args[0]).dtype)) {
    v = program.node(v).args[0];
  }
  return v;
}

std::optional<Value> mean_of(const Program& program, Value v, const Dim& axis) {
  v = behind_casts(program, v);
  if (!is_op(program, v, Op::div)) return std::nullopt;
  const Node& mean = program.node(v);
  const Value sum = behind_casts(program, mean.args[0]);
  const Value count = behind_casts(program, mean.args[1]);
  if (!is_op(program, sum, Op::sum) || !is_op(program, count, Op::size)) return std::nullopt;
  if (program.node(sum).attr.axis != axis || program.node(count).attr.axis != axis) {
    return std::nullopt;
  }
  return program.node(sum).args[0];
}

bool is_made_in_tiles(const Program& program, Value v) {
  std::set<Value> seen;
  std::vector<Value> todo{v};
  while (!todo.empty()) {
    const Node* node = node_of(program, todo.back());
    todo.pop_back();
    if (node == nullptr) continue;
    if (node->op == Op::product) return true;
    if (!is_map(node->op) && class_of(node->op) != OpClass::layout) continue;
    for (const Value arg : node->args) {
      if (seen.insert(arg).second) todo.push_back(arg);
    }
  }
  return false;
}

Value without_guard(const Program& program, Value v) {
  if (!is_op(program, v, Op::where)) return v;
  const std::vector<Value>& choice = program.node(v).args;
  const bool or_zero =
      is_op(program, choice[2], Op::constant) && program.node(choice[2]).attr.number == 0;
  return or_zero ? choice[1] : v;
}

bool is_accumulator(const Program& program, Value v) {
  const Node* node = node_of(program, v);
  if (node == nullptr) return false;
  if (node->op == Op::product) return true;
  return node->op == Op::add &&
         std::ranges::all_of(node->args, [&](Value arg) { return is_accumulator(program, arg); });
}

namespace {

void collect(const Program& program, Value v, bool inverse, Term& term) {
  const Value seen = behind_casts(program, v);
  const Node* node = node_of(program, seen);
  if (node != nullptr && (node->op == Op::mul || node->op == Op::div)) {
    collect(program, node->args[0], inverse, term);
    collect(program, node->args[1], node->op == Op::div ? !inverse : inverse, term);
  } else if (node != nullptr && node->op == Op::neg) {
    term.negative = !term.negative;
    collect(program, node->args[0], inverse, term);
  } else {
    term.parts.push_back({program.is_param(seen) ? v : seen, inverse});
  }
}

}  // namespace

Term factorize(const Program& program, Value v) {
  Term term;
  collect(program, v, false, term);
  return term;
}

}  // namespace coda
