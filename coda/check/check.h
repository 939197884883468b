// coda/check/check.h: Program → Checked. What is one kernel, and the structure that every backend
// executes.
//
// Only check() makes a Checked, so no later stage validates again. The six rules are those of
// docs/language.md, "One kernel".
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "coda/program/program.h"

namespace coda {

enum class KernelKind : std::uint8_t {
  gemm,    // products, tile-local work after them
  stream,  // no product: a row at a time
  opaque,  // nothing but one opaque call
};

// Where in a tile space a factor of a value lives.
enum class Role : std::uint8_t {
  row,     // along the space's rows
  column,  // along its columns
  local,   // neither: whole in every tile (blocks(K) of a statistic, a table's dimension)
};

// An operand of a product: an input, seen through casts, ranges (split pieces) and renames only.
struct Operand {
  Value input;             // the parameter
  Value value;             // the node's operand, with the type that the product sees
  std::vector<int> chain;  // the nodes between, input first
};

// One accumulator: a sum of products over the same output. `node` makes its value (the last add, or
// the product).
struct Accumulator {
  struct Term {
    int node = -1;  // the product
    Operand left, right;
  };
  Value value;
  std::vector<Term> terms;
};

// One output space, rows × columns, and what is computed on it. Side-by-side and stacked products
// are several spaces of one kernel, paired products several accumulators of one space. A stream has
// spaces without accumulators.
struct Space {
  std::vector<Dim> rows;     // outermost first; empty: a single row
  std::vector<Dim> columns;  // empty: a single column
  std::vector<Accumulator> accumulators;
  std::vector<int> nodes;    // every node that this space evaluates, in order; summing adds of
                             // accumulators and products not among them
  std::vector<int> results;  // indices into results() that this space stores
};

class Checked {
 public:
  const Program& program() const { return *program_; }
  KernelKind kind() const { return kind_; }
  std::span<const Space> spaces() const { return spaces_; }
  // The role in space `s` of each factor of value `v`, in factors_of(type) order.
  const std::vector<Role>& roles(std::size_t s, Value v) const;

 private:
  friend Checked check(const Program& program);
  std::shared_ptr<const Program> program_;
  KernelKind kind_ = KernelKind::stream;
  std::vector<Space> spaces_;
  std::vector<std::vector<std::vector<Role>>> roles_;  // [space][value][factor]
};

// Throws ProgramError with every broken rule: the statement, the types, the rule, the fix.
Checked check(const Program& program);

}  // namespace coda
