// bench/tiles.cpp: what the benchmarks ask of the CUDA backend beside running programs.
#include "bench/tiles.h"

#include "coda/core/error.h"

#if __has_include("coda/cuda/cuda.h")
#include "coda/cuda/cuda.h"
#endif

namespace coda::bench {

std::unique_ptr<Backend> cuda_backend(const std::string& tile) {
#if __has_include("coda/cuda/cuda.h")
  cuda::Options options;
  options.plan.tile = tile;
  return cuda::backend(options);
#else
  throw Unsupported("this build has no CUDA backend (tile " + tile + ")");
#endif
}

std::vector<std::string> candidate_tiles(const Checked&, const Sizes&) {
  return {};
}

}  // namespace coda::bench
