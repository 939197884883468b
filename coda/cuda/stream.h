// coda/cuda/stream.h: programs without a product, at the speed of memory: one launch.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "coda/cuda/plan.h"

namespace coda::cuda {

// nullopt where the fast path does not take the program, with the reason added to `reasons`.
std::optional<Plan> plan_stream(const Checked& checked, const Sizes& sizes,
                                std::span<const Layout> layouts, const Target& target,
                                std::vector<std::string>& reasons);

}  // namespace coda::cuda
