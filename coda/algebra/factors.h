// coda/algebra/factors.h: what rules ask of values: which factors they have, who reads them, what
// they are made of.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "coda/program/program.h"

namespace coda {

// Nodes that read each value, and whether a result does.
struct Uses {
  explicit Uses(const Program& program);
  const std::vector<int>& of(Value v) const { return users[static_cast<std::size_t>(v.id)]; }
  bool in_result(Value v) const { return results[static_cast<std::size_t>(v.id)] != 0; }

  std::vector<std::vector<int>> users;  // one entry for each operand
  std::vector<char> results;
};

bool has_any(const Type& type, const Dim& factors);  // shares a factor
bool has_all(const Type& type, const Dim& factors);

// v is what `node` makes, or nullptr for a parameter.
const Node* node_of(const Program& program, Value v);
bool is_op(const Program& program, Value v, Op op);
// `v` seen through plain casts between floats.
Value behind_casts(const Program& program, Value v);

// The value whose mean over `axis` this is: sum(v, axis) / size(axis).
std::optional<Value> mean_of(const Program& program, Value v, const Dim& axis);

// Whether a tile of some product makes `v`: then no kernel sees a whole row of it.
bool is_made_in_tiles(const Program& program, Value v);

// x of where(c, x, 0), else `v` itself.
Value without_guard(const Program& program, Value v);

// A product, or sums of such: what a kernel accumulates on chip.
bool is_accumulator(const Program& program, Value v);

// v as a product of factors, seen through multiplications, divisions, negations and plain casts.
struct Term {
  struct Part {
    Value value;
    bool inverse = false;
  };
  std::vector<Part> parts;
  bool negative = false;
};
Term factorize(const Program& program, Value v);

}  // namespace coda
