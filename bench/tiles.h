// bench/tiles.h: what the benchmarks ask of the CUDA backend beside running programs.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "coda/backend/backend.h"
#include "coda/check/check.h"

namespace coda::bench {

// `tile` pins a candidate; empty: chosen for each program.
std::unique_ptr<Backend> cuda_backend(const std::string& tile);

// What a program of these sizes may be pinned to.
std::vector<std::string> candidate_tiles(const Checked& program, const Sizes& sizes);

}  // namespace coda::bench
