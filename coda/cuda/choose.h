// coda/cuda/choose.h: which way a program runs on the GPU: the first planner that takes it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "coda/cuda/plan.h"

namespace coda::cuda {

class Tuning;

struct PlanOptions {
  // "128x192": that candidate for products; "general": the predicated path; empty: chosen.
  std::string tile;
  // Where that tile is no candidate: an error, or another one is chosen, for schedules whose steps
  // have different ones.
  enum class Elsewhere : std::uint8_t { refuse, choose } elsewhere = Elsewhere::refuse;
  // Measured choices, which go before the planner's own where no tile is pinned.
  std::shared_ptr<const Tuning> tuning = nullptr;
};

// The tiles that `tile` may name for a program, the planner's choice first: what tuning measures.
// None where there is nothing to choose. The reasons for those refused.
std::vector<std::string> tile_candidates(const Checked& checked, const Sizes& sizes,
                                         std::span<const Layout> layouts, const Target& target,
                                         std::vector<std::string>& reasons);

// A product goes to plan_gemm, or plan_packed, a stream to plan_stream, and to plan_general what is
// neither or what these refused; their reasons then stand in the notes. Throws ProgramError where
// the pinned tile is no candidate for dense tensors (unless another may be chosen), and Unsupported
// where no planner takes the program.
Plan choose_plan(const Checked& checked, const Sizes& sizes, std::span<const Layout> layouts,
                 const Target& target, const PlanOptions& options = {});

// Of layouts that no planner tells apart, one for all: alignments past the 16 bytes that the copy
// engine asks for, strides of axes with one element and of empty tensors.
std::vector<Layout> canonical_layouts(const Program& program, const Sizes& sizes,
                                      std::vector<Layout> layouts);

}  // namespace coda::cuda
