// coda/cuda/pack.h: products whose tensors the copy engine (TMA) cannot read as they lie: they are
// copied into workspace first, as rows that it can, and results out of it last
// (device/pack.cuh).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "coda/cuda/gemm.h"
#include "coda/cuda/plan.h"

namespace coda::cuda {

enum class Copies : std::uint8_t { where_they_pay, always };

// plan_gemm() on the copies. nullopt, with reasons, where no copy helps, or where copying would
// take longer than the predicated path. Parameters of f32 that are rounded to 16 bits before they
// are multiplied are rounded by the copy.
std::optional<Plan> plan_packed(const Checked& checked, const Sizes& sizes,
                                std::span<const Layout> layouts, const Target& target,
                                const GemmTile* pinned, std::vector<std::string>& reasons,
                                Copies copies = Copies::where_they_pay);

}  // namespace coda::cuda
