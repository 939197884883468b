// coda/cuda/general_reduce.cpp: reductions, and what else reads other elements.
//
// A long reduction of few elements is a tree of kernels, 64 terms a thread: else one thread would
// walk all of it.
#include <set>

#include "coda/cuda/general_phases.h"

namespace coda::cuda {
namespace {

constexpr std::int64_t kLong = 4096;  // terms that one thread may walk, where threads are few
constexpr std::int64_t kFewThreads = 16384;

}  // namespace

// In the order of the program, those that the results need.
void GeneralPlanner::reductions() {
  std::set<std::int32_t> needed;
  std::vector<Value> todo;
  for (const Result& result : program_.results()) todo.push_back(representative(result.value));
  while (!todo.empty()) {
    const Value value = todo.back();
    todo.pop_back();
    if (!needed.insert(value.id).second || program_.is_param(value) || kept_.contains(value.id)) {
      continue;
    }
    for (const Value arg : program_.node(value).args) todo.push_back(representative(arg));
  }
  for (const Node& node : program_.nodes()) {
    const Value value = node.results[0];
    if (!needed.contains(value.id)) continue;
    const OpClass own = class_of(node.op);
    if (own == OpClass::reduce) reduce(value);
    if (own == OpClass::block_reduce || node.op == Op::pick) materialise(value);
  }
}

void GeneralPlanner::reduce(Value value) {
  const Node& node = program_.node(value);
  std::int64_t threads = 1;
  for (const Factor& factor : factors_of(program_.type(value))) {
    threads *= require_extent(factor, sizes_);
  }
  if (kept_.contains(value.id)) return;
  if (threads >= kFewThreads || require_extent(node.attr.axis, sizes_) <= kLong) {
    return materialise(value);
  }
  const Value arg = node.args[0];
  const Lane lane = lane_of(program_, value, real_);
  const Term element = [&](Phase& phase, const ElementEmitter::Named& here, const Coordinate& k) {
    ElementEmitter::Named all = here;
    all.add(node.attr.axis.factors, phase.emitter.divide(k, node.attr.axis));
    return phase.emitter.value(arg, phase.emitter.by_name(arg, all), lane);
  };
  if (node.op != Op::logsumexp) {
    keep(value, tree(value, node.op == Op::sum ? Op::sum : Op::reduce_max, element));
    return;
  }
  const std::vector<Factor> factors = factors_of(program_.type(value));
  const auto at = [&](Phase& phase, const Stored& stored, const ElementEmitter::Named& here) {
    return read(phase.emitter, stored, phase.emitter.by_name(value, here));
  };
  const Stored largest = tree(value, Op::reduce_max, element);
  const Stored total = tree(
      value, Op::sum, [&](Phase& phase, const ElementEmitter::Named& here, const Coordinate& k) {
        ElementEmitter& emitter = phase.emitter;
        const Emitted term = element(phase, here, k);
        const std::string shifted =
            emitter.call(Op::sub, {term.text, at(phase, largest, here).text});
        return Emitted{emitter.call(Op::exp, {shifted}), lane, k.depth};
      });
  const Stored out = stored("logsumexp", factors, lane);
  each("logsumexp", text_of(value), Dim{factors}, [&](Phase& phase, const Coordinates& place) {
    const ElementEmitter::Named here{factors, place};
    write(phase, out, place,
          phase.emitter
              .finish_logsumexp("logsumexp", at(phase, largest, here), at(phase, total, here))
              .text);
  });
  keep(value, out);
}

Stored GeneralPlanner::tree(Value value, Op op, const Term& element) {
  const std::vector<Factor> factors = factors_of(program_.type(value));
  const Lane lane = lane_of(program_, value, real_);
  const std::string stem(name_of(op));
  const auto fold = [&](Phase& phase, int depth, const std::string& first, const std::string& last,
                        const ElementEmitter::Term& term) {
    return op == Op::sum ? phase.emitter.sum(stem, lane, depth, first, last, term)
                         : phase.emitter.maximum(stem, lane, depth, first, last, term);
  };
  Dim axis = program_.node(value).attr.axis;
  Term terms = element;
  while (require_extent(axis, sizes_) > kLong) {
    const Factor blocks = Factor::blocks(axis, kBlock);
    std::vector<Factor> domain = factors;
    domain.push_back(blocks);
    const Stored parts = stored("parts", domain, lane);
    each(stem, text_of(value) + ": blocks", Dim{domain},
         [&](Phase& phase, const Coordinates& place) {
           ElementEmitter& emitter = phase.emitter;
           const int depth = depth_of(place);
           const std::string block = std::to_string(kBlock);
           const std::string first =
               emitter.coordinate("first", place.back().text + " * " + block, depth).text;
           const std::string last = emitter
                                        .coordinate("last",
                                                    "exact::minimum(" + first + " + " + block +
                                                        ", " + phase.arguments.extent(axis) + ")",
                                                    depth)
                                        .text;
           const ElementEmitter::Named here{factors, {place.begin(), place.end() - 1}};
           const Emitted part = fold(phase, depth, first, last,
                                     [&](const Coordinate& k) { return terms(phase, here, k); });
           write(phase, parts, place, part.text);
         });
    axis = dim_of(blocks);
    terms = [this, parts](Phase& phase, const ElementEmitter::Named& here, const Coordinate& k) {
      Coordinates place = here.coordinates;
      place.push_back(k);
      return read(phase.emitter, parts, place);
    };
  }
  const Stored out = stored(stem, factors, lane);
  each(stem, text_of(value), Dim{factors}, [&](Phase& phase, const Coordinates& place) {
    const ElementEmitter::Named here{factors, place};
    const Emitted all = fold(phase, depth_of(place), "0LL", phase.arguments.extent(axis),
                             [&](const Coordinate& k) { return terms(phase, here, k); });
    write(phase, out, place, all.text);
  });
  return out;
}

}  // namespace coda::cuda
