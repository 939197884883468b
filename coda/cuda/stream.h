// coda/cuda/stream.h: programs without a product, at the speed of memory: one launch.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "coda/cuda/plan.h"

namespace coda::cuda {

// How threads share the work: `team` of them take a row (or neighbouring columns of some rows),
// `teams` are a block, and each loads `unroll` vectors at once where a row is too long to be kept.
struct StreamTile {
  int team = 32, teams = 8, unroll = 1;
  std::string text() const;  // "stream/32x8/4"
  bool operator==(const StreamTile&) const = default;
};

// nullopt where the fast path does not take the program, with the reason added to `reasons`.
// `tile`: one of stream_tiles; nullptr: chosen.
std::optional<Plan> plan_stream(const Checked& checked, const Sizes& sizes,
                                std::span<const Layout> layouts, const Target& target,
                                std::vector<std::string>& reasons,
                                const StreamTile* tile = nullptr);

// Candidates for a program, the chosen one first; none where there is nothing to choose. Each
// compiles; they differ in speed, and where sums are split otherwise, in the last bits.
std::vector<StreamTile> stream_tiles(const Checked& checked, const Sizes& sizes,
                                     std::span<const Layout> layouts, const Target& target);

}  // namespace coda::cuda
