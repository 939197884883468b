// coda/algebra/merged_sums.cpp: sum(a) ± sum(b) = sum(a ± b): one row of partial results instead of
// two.
#include <algorithm>

#include "coda/algebra/factors.h"
#include "coda/algebra/rebuild.h"
#include "coda/algebra/rule.h"

namespace coda {

Program merged_sums(const Program& program, Situation&) {
  const Uses uses(program);
  const auto is_sum = [&](Value v) {
    return is_op(program, v, Op::sum) && uses.of(v).size() == 1 && !uses.in_result(v);
  };
  // The sums that each sum of sums has become: what it adds up, before it is summed.
  std::vector<std::optional<Expr>> merged(program.values().size());
  const auto summand = [&](Rebuild& build, Value v) {
    const auto& before = merged[static_cast<std::size_t>(v.id)];
    return before ? *before : build(program.node(v).args[0]);
  };
  const auto axis_of = [&](Value v) -> std::optional<Dim> {
    for (;;) {
      if (is_sum(v)) return program.node(v).attr.axis;
      if (!merged[static_cast<std::size_t>(v.id)] || uses.of(v).size() != 1) return std::nullopt;
      v = program.node(v).args[0];
    }
  };
  Rebuild build(program);
  return std::move(build).run([&](const Node& node) -> std::optional<std::vector<Expr>> {
    if (node.op != Op::add && node.op != Op::sub) return std::nullopt;
    const std::optional<Dim> axis = axis_of(node.args[0]), other = axis_of(node.args[1]);
    if (!axis || !other || *axis != *other || node.args[0] == node.args[1]) return std::nullopt;
    const Expr a = summand(build, node.args[0]), b = summand(build, node.args[1]);
    if (a.type().dims != b.type().dims) return std::nullopt;
    const Expr both = node.op == Op::add ? a + b : a - b;
    const Expr sum = reduce(Op::sum, both, *axis);
    if (sum.type().dims != program.type(node.results[0]).dims) return std::nullopt;
    merged[static_cast<std::size_t>(node.results[0].id)] = both;
    return std::vector{sum};
  });
}

}  // namespace coda
