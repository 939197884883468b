// coda/check/check.h: Program → Checked. What is one kernel, and the structure that every backend
// executes.
//
// Only check() makes a Checked, so no later stage validates again. The six rules are those of
// docs/language.md, "One kernel".
//
// What a backend may rely on, beside what the types below say. An "input" is a parameter seen
// through casts, splits and `as` only; a "tile value" is computed from an accumulator.
//
// Every space:
//   * `nodes` is in topological order and holds all that `results` need, except products, the adds
//     that sum them, and what only their operands read. A node may be in several spaces; a result
//     is in exactly one.
//   * Row r is the flat index over `rows`; row_inner() turns it into coordinates of any value's row
//     factors. Factors that one `as` merges have one role.
//   * A split of a row factor is a range of an input. A join of row factors is a result, and its
//     pieces are inputs.
//
// Gemm:
//   * An operand's factors are free or contracted, each in storage order; the two may interleave,
//     and the right operand's contracted factors may come in another order than attr.axis (pack
//     what is no matrix). Every term of a space has its rows × columns, in order; left is the
//     operand that gives the rows, even where the text has it on the right.
//   * Tile values have row and column factors only. The first column factor is the leading one,
//     those after it are its head. Reductions, spreads, splits and joins of tile values act inside
//     heads, so a tile of whole heads holds all that they need. Beside these: split and join of the
//     leading factor (packed weights: pieces of one split never meet in a map, and all pieces of a
//     join are tile values); pick along all columns, whose result has no column factor and only
//     maps, casts and `as` lead from it to results.
//   * Block reductions of tile values, and spreads of blocks: along all rows, along all columns, or
//     inside a head; the blocks of rows and of all columns have at most kMaxTileBlock elements.
//   * At most kMaxPaired accumulators a space. Spaces of one program have an operand in common,
//     contracted over the same factors.
//   * Values without accumulators may be reduced over local factors: finished statistics. A result
//     without accumulators has row and column factors only; where it lacks the columns (rows), one
//     tile of each row (column) stores it.
//   * gather: the table is a parameter, its first dimension local; ids are no tile values.
//
// Stream:
//   * Every row stands alone, with all its columns and local factors at hand; `columns` are those
//     of the widest value. Only these look at several rows: block reductions along the last row
//     factors (blocks restart where the factors before advance), and split and join of rows.
//   * Values without a row factor are the same in every row.
//   * Rows may be empty: then columns are independent of each other wherever no node reads a column
//     factor whole.
//   * An input may be reduced, block-reduced or picked along its first factor, which is then no
//   row.
//   * scatter_sum is the only node of its program: its rows are the new axis, the dimensions of the
//     ids are local.
//
// Opaque: no spaces. The operands of the one node are parameters or constants; results are stored
// as they are.
#pragma once

#include <memory>
#include <optional>
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

inline constexpr std::int64_t kMaxTileBlock = 256;  // elements of a block of a tile's values
inline constexpr std::size_t kMaxPaired = 4;        // accumulators on chip together

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

class Mistakes;

class Checked {
 public:
  const Program& program() const { return *program_; }
  KernelKind kind() const { return kind_; }
  std::span<const Space> spaces() const { return spaces_; }
  // The role in space `s` of each factor of value `v`, in factors_of(type) order; empty where the
  // space does not evaluate v.
  const std::vector<Role>& roles(std::size_t s, Value v) const;
  // For each factor of `v` that is a row: what stands inside it, so that its coordinate in row r is
  // (r / extent(inner)) % extent(factor). For a factor blocks(X, n) of rows X: ((r / extent(inner))
  // % extent(X)) / n. Empty Dims for the other factors.
  const std::vector<Dim>& row_inner(std::size_t s, Value v) const;

 private:
  friend std::optional<Checked> check_into(const Program& program, Mistakes& report);
  std::shared_ptr<const Program> program_;
  KernelKind kind_ = KernelKind::stream;
  std::vector<Space> spaces_;
  std::vector<std::vector<std::vector<Role>>> roles_;     // [space][value][factor]
  std::vector<std::vector<std::vector<Dim>>> row_inner_;  // [space][value][factor]
};

// Throws ProgramError with every broken rule: the statement, the types, the rule, the fix. A
// Checked shares the program with its copies, which any thread may read.
Checked check(const Program& program);
// The same; nullopt instead of the reasons, which takes much less time.
std::optional<Checked> try_check(const Program& program);

}  // namespace coda
