// coda/cuda/stream_scatter.h: programs that are one scatter_sum.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "coda/cuda/plan.h"

namespace coda::cuda::streaming {

// nullopt: the program is none. Throws Refused where its layout does not fit.
std::optional<Plan> plan_scatter(const Checked& checked, const Sizes& sizes,
                                 std::span<const Layout> layouts, const Target& target);

}  // namespace coda::cuda::streaming
