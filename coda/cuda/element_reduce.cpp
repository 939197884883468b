// coda/cuda/element_reduce.cpp: reductions as loops.
//
// Sums add parts of 64 terms, whatever the caller does around: the order is a function of the
// extent alone.
#include <algorithm>
#include <limits>

#include "coda/core/error.h"
#include "coda/cuda/element.h"

namespace coda::cuda {

Emitted ElementEmitter::sum(std::string_view stem, Lane lane, int depth, const std::string& first,
                            const std::string& last, const Term& element) {
  const std::string name = fresh(stem), part = fresh("part");
  const std::string from = fresh("from"), to = fresh("to"), k = fresh("k");
  const std::string type(type_of(lane)), zero = literal(0, lane);
  in_scope(depth, [&] {
    line(type + " " + name + " = " + zero + ";");
    open("for (long long " + from + " = " + first + "; " + from + " < " + last + "; " + from +
         " += " + std::to_string(kBlock) + ")");
    line("const long long " + to + " = exact::minimum(" + from + " + " + std::to_string(kBlock) +
         ", " + last + ");");
    line(type + " " + part + " = " + zero + ";");
    open("for (long long " + k + " = " + from + "; " + k + " < " + to + "; ++" + k + ")");
    const Emitted term = element({k, this->depth()});
    line(part + " = " + call(Op::add, {part, term.text}) + ";");
    close();
    line(name + " = " + call(Op::add, {name, part}) + ";");
    close();
  });
  return {name, lane, depth};
}

Emitted ElementEmitter::maximum(std::string_view stem, Lane lane, int depth,
                                const std::string& first, const std::string& last,
                                const Term& element) {
  const std::string name = fresh(stem), k = fresh("k");
  in_scope(depth, [&] {
    line(std::string(type_of(lane)) + " " + name + " = " +
         literal(-std::numeric_limits<double>::infinity(), lane) + ";");
    open("for (long long " + k + " = " + first + "; " + k + " < " + last + "; ++" + k + ")");
    const Emitted term = element({k, this->depth()});
    line(name + " = " + call(Op::maximum, {name, term.text}) + ";");
    close();
  });
  return {name, lane, depth};
}

// NOTE: an infinite maximum is the result: inf - inf would make it a NaN.
Emitted ElementEmitter::finish_logsumexp(std::string_view stem, const Emitted& largest,
                                         const Emitted& total) {
  const int depth = std::max(largest.depth, total.depth);
  const std::string finite =
      call(Op::add, {largest.text, map_name(Op::log, Precision::exact) + "(" + total.text + ")"});
  const std::string text = call(Op::abs, {largest.text}) +
                           " == " + literal(std::numeric_limits<double>::infinity(), largest.lane) +
                           " ? " + largest.text + " : " + finite;
  return {define(type_of(largest.lane), stem, text, depth), largest.lane, depth};
}

Emitted ElementEmitter::reduce(Value value, const Coordinates& coordinates) {
  const Node& node = program_.node(value);
  const Attr& attr = node.attr;
  const Lane lane = lane_of(program_, value, real_);
  const Value arg = node.args[0];
  Named here = named(value, coordinates);
  const int depth = depth_of(coordinates);
  const std::string stem = stem_of(value);
  std::string first = "0LL", last = arguments_.extent(attr.axis);
  if (class_of(node.op) == OpClass::block_reduce) {
    const Factor blocks = Factor::blocks(attr.axis, attr.block);
    const auto at = std::ranges::find(here.factors, blocks) - here.factors.begin();
    const Coordinate block = here.coordinates[static_cast<std::size_t>(at)];
    first = coordinate("first", block.text + " * " + std::to_string(attr.block), block.depth).text;
    last = coordinate(
               "last",
               "exact::minimum(" + first + " + " + std::to_string(attr.block) + ", " + last + ")",
               block.depth)
               .text;
  }
  comment(value, depth);
  const Term element = [&](const Coordinate& k) {
    Named all = here;
    all.add(attr.axis.factors, divide(k, attr.axis));
    return this->value(arg, by_name(arg, all), lane);
  };
  switch (node.op) {
    case Op::sum:
    case Op::block_sum:
      return sum(stem, lane, depth, first, last, element);
    case Op::reduce_max:
    case Op::block_max:
      return maximum(stem, lane, depth, first, last, element);
    default:
      break;
  }
  const Emitted largest = maximum("largest", lane, depth, first, last, element);
  const Term share = [&](const Coordinate& k) {
    const Emitted term = element(k);
    const std::string text = call(Op::exp, {call(Op::sub, {term.text, largest.text})});
    return Emitted{text, lane, k.depth};
  };
  const Emitted total = sum("total", lane, depth, first, last, share);
  return finish_logsumexp(stem, largest, total);
}

}  // namespace coda::cuda
