// coda/algebra/centred_sum.cpp: sum((x - mean x)·s) = 0 for a scale s that is the same for the
// whole sum. A LayerNorm's gradient is full of these; each would be a pass over whole rows.
#include <algorithm>

#include "coda/algebra/factors.h"
#include "coda/algebra/rebuild.h"
#include "coda/algebra/rule.h"

namespace coda {

Program centred_sum(const Program& program, Situation&) {
  const auto vanishes = [&](const Node& node) {
    if (node.op != Op::sum) return false;
    std::optional<Value> whole;
    for (const Term::Part& part : factorize(program, node.args[0]).parts) {
      if (!has_any(program.type(part.value), node.attr.axis)) continue;
      if (whole || part.inverse) return false;
      whole = part.value;
    }
    if (!whole || !is_op(program, *whole, Op::sub)) return false;
    const Node& centred = program.node(*whole);
    const std::optional<Value> of = mean_of(program, centred.args[1], node.attr.axis);
    return of && behind_casts(program, *of) == behind_casts(program, centred.args[0]);
  };
  Rebuild build(program);
  return std::move(build).run([&](const Node& node) -> std::optional<std::vector<Expr>> {
    if (!vanishes(node)) return std::nullopt;
    return std::vector{zeros(*build(node.args[0]).builder, program.type(node.results[0]).dims)};
  });
}

}  // namespace coda
