// bench/tiles.cpp: what the benchmarks ask of the CUDA backend beside running programs.
#include "bench/tiles.h"

#include "coda/core/error.h"
#include "coda/cuda/choose.h"
#include "coda/cuda/cuda.h"

namespace coda::bench {

std::unique_ptr<Backend> cuda_backend(const std::string& tile) {
  return cuda::backend({.plan = {.tile = tile}});
}

std::vector<std::string> candidate_tiles(const Checked& program, const Sizes& sizes) {
  const std::vector<cuda::Layout> layouts = cuda::canonical_layouts(
      program.program(), sizes, cuda::dense_layouts(program.program(), sizes));
  std::vector<std::string> tiles;
  const auto consider = [&](const std::string& tile) {
    try {
      // A planner that cannot be pinned answers with its own path.
      const cuda::Plan plan = cuda::choose_plan(program, sizes, layouts, {}, {.tile = tile});
      if (plan.path.find(tile) != std::string::npos) tiles.push_back(tile);
    } catch (const ProgramError&) {
    } catch (const Unsupported&) {
    }
  };
  for (const int rows : {64, 128, 256}) {
    for (int columns = 64; columns <= 256; columns += 32) {
      consider(std::to_string(rows) + "x" + std::to_string(columns));
    }
  }
  consider("general");
  return tiles;
}

}  // namespace coda::bench
