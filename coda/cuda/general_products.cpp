// coda/cuda/general_products.cpp: accumulators: a loop over the contraction for each element.
#include "coda/cuda/general_phases.h"

namespace coda::cuda {

void GeneralPlanner::products() {
  for (const Space& space : checked_.spaces()) {
    for (const Accumulator& accumulator : space.accumulators) {
      if (kept_.contains(representative(accumulator.value).id)) continue;
      const std::vector<Factor> factors = factors_of(program_.type(accumulator.value));
      const ValueInfo& info = program_.value(accumulator.value);
      const std::string name =
          info.name.empty() ? "product" + std::to_string(accumulator.value.id) : info.name;
      const Stored to = stored(name, factors, real_);
      each(name, text_of(accumulator.value), Dim{factors},
           [&](Phase& phase, const Coordinates& at) {
             ElementEmitter& emitter = phase.emitter;
             std::string total;
             for (const Accumulator::Term& term : accumulator.terms) {
               const Node& node = program_.nodes()[static_cast<std::size_t>(term.node)];
               const ElementEmitter::Named named{factors, at};
               const Emitted sum = emitter.sum(
                   "product", real_, depth_of(at), "0LL", phase.arguments.extent(node.attr.axis),
                   [&](const Coordinate& k) {
                     ElementEmitter::Named all = named;
                     all.add(node.attr.axis.factors, emitter.divide(k, node.attr.axis));
                     const auto operand = [&](Value value) {
                       return emitter.value(value, emitter.by_name(value, all), real_).text;
                     };
                     const std::string left = operand(node.args[0]);
                     return Emitted{emitter.call(Op::mul, {left, operand(node.args[1])}), real_,
                                    k.depth};
                   });
               total = total.empty() ? sum.text : emitter.call(Op::add, {total, sum.text});
             }
             write(phase, to, at, total);
           });
      keep(accumulator.value, to);
    }
  }
}

}  // namespace coda::cuda
