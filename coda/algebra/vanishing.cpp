// coda/algebra/vanishing.cpp: x - detach(x) = 0 once gradients are taken, and so is all that it
// scales: a term that is there for its gradient alone.
#include <algorithm>

#include "coda/algebra/factors.h"
#include "coda/algebra/rebuild.h"
#include "coda/algebra/rule.h"

namespace coda {

namespace {

// x - detach(x), or where(c, that, 0).
bool is_difference(const Program& program, Value v) {
  v = without_guard(program, v);
  if (!is_op(program, v, Op::sub)) return false;
  const std::vector<Value>& args = program.node(v).args;
  return is_op(program, args[1], Op::detach) && program.node(args[1]).args[0] == args[0];
}

}  // namespace

Program vanishing(const Program& program, Situation&) {
  std::vector<char> zero(program.values().size());
  const auto is_zero = [&](Value v) {
    return zero[static_cast<std::size_t>(v.id)] != 0;
  };
  const auto vanishes = [&](const Node& node) {
    switch (node.op) {
      case Op::mul:
      case Op::product:
        return std::ranges::any_of(node.args, is_zero);
      case Op::neg:
      case Op::div:
      case Op::cast:
      case Op::pin:
      case Op::as:
      case Op::spread:
      case Op::sum:
      case Op::block_sum:
        return is_zero(node.args[0]);
      default:
        return is_difference(program, node.results[0]);
    }
  };
  Rebuild build(program);
  return std::move(build).run([&](const Node& node) -> std::optional<std::vector<Expr>> {
    if (node.results.size() != 1 || node.args.empty() || !vanishes(node)) return std::nullopt;
    zero[static_cast<std::size_t>(node.results[0].id)] = 1;
    return std::vector{zeros(*build(node.args[0]).builder, program.type(node.results[0]).dims)};
  });
}

}  // namespace coda
