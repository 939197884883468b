// coda/algebra/vanishing.cpp: (x - detach(x))·y = 0 once gradients are taken: a term that is there
// for its gradient alone.
#include "coda/algebra/factors.h"
#include "coda/algebra/rebuild.h"
#include "coda/algebra/rule.h"

namespace coda {

Program vanishing(const Program& program, Situation&) {
  const auto is_zero = [&](Value v) {
    if (is_op(program, v, Op::where)) {  // or 0, where rows are empty
      const std::vector<Value>& choice = program.node(v).args;
      if (!is_op(program, choice[2], Op::constant) || program.node(choice[2]).attr.number != 0) {
        return false;
      }
      v = choice[1];
    }
    if (!is_op(program, v, Op::sub)) return false;
    const Node& node = program.node(v);
    return is_op(program, node.args[1], Op::detach) &&
           program.node(node.args[1]).args[0] == node.args[0];
  };
  Rebuild build(program);
  return std::move(build).run([&](const Node& node) -> std::optional<std::vector<Expr>> {
    if (node.op != Op::mul && node.op != Op::neg && node.op != Op::div) return std::nullopt;
    for (const Term::Part& part : factorize(program, node.results[0]).parts) {
      if (part.inverse || !is_zero(part.value)) continue;
      return std::vector{zeros(*build(node.args[0]).builder, program.type(node.results[0]).dims)};
    }
    return std::nullopt;
  });
}

}  // namespace coda
