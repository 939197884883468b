// coda/cuda/gemm.h: plans for programs with products on Hopper's tensor cores: one kernel, fed by
// the copy engine, with the program's epilogue on each output tile (device/sm90_gemm.cuh).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "coda/cuda/plan.h"

namespace coda::cuda {

// A candidate: 128 rows x columns of accumulators of a tile, all paired products together.
struct GemmTile {
  int columns = 192;
  int cluster = 1;      // 2: pairs of blocks share an operand
  bool whole = false;   // no tile is shared along k: bits are those of every other whole tile
  bool across = false;  // the pair stands side by side, with heads across both
  bool drawn = false;   // workers draw what they do next: for GPUs that others use too
  // "128x192", "128x192x2", "128x192x2-whole", "128x192x2-across", "128x192-drawn"
  std::string text() const;
  bool operator==(const GemmTile&) const = default;
};

// The candidates for a program, the default first; a reason for each one refused, and for a program
// that has none.
std::vector<GemmTile> gemm_tiles(const Checked& checked, const Sizes& sizes,
                                 std::span<const Layout> layouts, const Target& target,
                                 std::vector<std::string>& reasons);

// nullopt with reasons where the fast path does not fit. `pinned`: that candidate, or nothing.
std::optional<Plan> plan_gemm(const Checked& checked, const Sizes& sizes,
                              std::span<const Layout> layouts, const Target& target,
                              const GemmTile* pinned, std::vector<std::string>& reasons);

}  // namespace coda::cuda
