// coda/cuda/gemm_problem.h: what a kernel of products multiplies, before a tile is chosen.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "coda/cuda/matrix.h"
#include "coda/cuda/region.h"

namespace coda::cuda {

constexpr std::int64_t kTileRows = 128, kTileDepth = 64;

struct Term {
  OperandMatrix left;
  std::vector<OperandMatrix> right;  // one for each paired product
};
struct SpaceOperands {
  std::vector<Term> terms;
};

struct Problem {
  std::vector<Region> places;
  std::vector<SpaceOperands> operands;
  bool stacked = false;
  // Side by side, and a tile may hold units of several spaces; may, if each leaves nothing behind
  // for a tile's later units.
  bool joined = false, mixes_units = false;
  int pairs = 1;
  std::int64_t head = 0, group = 0;  // elements of heads that meet, and that are reduced
  bool row_blocks = false;
  std::vector<std::int64_t> depths;  // of each term

  std::int64_t steps(std::size_t t) const { return (depths[t] + kTileDepth - 1) / kTileDepth; }
  // Of all terms: the main loop of a tile.
  std::int64_t steps() const {
    std::int64_t all = 0;
    for (std::size_t t = 0; t < depths.size(); ++t) all += steps(t);
    return all;
  }
  const OperandMatrix& left(std::size_t s = 0, std::size_t t = 0) const {
    return operands[s].terms[t].left;
  }
  const OperandMatrix& right(std::size_t s = 0, std::size_t t = 0, std::size_t p = 0) const {
    return operands[s].terms[t].right[p];
  }
};

// Throws Refusal, with a reason, where the fast path has no place for the program.
Problem problem_of(const Checked& checked, const Sizes& sizes, std::span<const Layout> layouts);

}  // namespace coda::cuda
