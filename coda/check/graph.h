// coda/check/graph.h: how the factors of a node's results come from the factors of its operands.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "coda/program/program.h"

namespace coda {

// Factors of a value by their place in factors_of(type).
struct FactorRange {
  Value value;
  std::size_t first = 0;
  std::size_t count = 1;
};

struct Link {
  enum class Kind : std::uint8_t {
    same,     // one factor on both sides, same coordinate
    regroup,  // `as`: the same index, in other factors
    piece,    // the axis of a split or join and one piece
    blocks,   // blocks(X) and X
  };
  Kind kind = Kind::same;
  FactorRange from, to;  // of an operand, of a result
};

// Every link of one node. Factors that a node reads whole (a reduction's axis, a table's rows) have
// none.
std::vector<Link> links_of(const Program& program, int node);

// The place of `axis` in `type`; count 0 where it has no factors.
FactorRange find_axis(const Program& program, Value value, const Dim& axis);

// What a node reads whole: the axis of a reduction or pick in its operand, the axis or piece of a
// split or join, a table's rows.
std::vector<FactorRange> read_whole(const Program& program, int node);

// For each value: is it a parameter seen through casts, splits and `as` only?
std::vector<char> find_inputs(const Program& program);

// Indices of the nodes that `values` need, in order. Values for which `stop` holds need nothing.
std::vector<int> needed_nodes(const Program& program, std::span<const Value> values,
                              const std::function<bool(Value)>& stop);

// Sets of (value, factor) places, united by links.
class PlaceSets {
 public:
  explicit PlaceSets(const Program& program);
  std::size_t at(Value value, std::size_t factor) const {
    return offsets_[static_cast<std::size_t>(value.id)] + factor;
  }
  std::size_t size() const { return parent_.size(); }
  std::size_t set_of(Value value, std::size_t factor) { return root(at(value, factor)); }
  void unite(const FactorRange& a, const FactorRange& b);

 private:
  std::size_t root(std::size_t place);
  std::vector<std::size_t> offsets_, parent_;
};

// Index of a node's value in `program.values()`, its type's factors.
inline std::size_t factor_count(const Program& program, Value value) {
  return factors_of(program.type(value)).size();
}

}  // namespace coda
