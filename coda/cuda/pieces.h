// coda/cuda/pieces.h: what runs as one kernel each: the steps of a schedule, with their sizes, and
// how each would run. Nothing is compiled, and no device is needed.
#pragma once

#include <string>
#include <vector>

#include "coda/core/tensor.h"
#include "coda/cuda/choose.h"
#include "coda/program/schedule.h"

namespace coda::cuda {

struct KernelPiece {
  Program program;
  Sizes sizes;  // of a step in a loop: those of a full chunk
  // As running the schedule will pass them, without data: rows of what lies between steps may be
  // apart.
  std::vector<Tensor> params, results;
  std::vector<Layout> layouts;  // canonical, of both
};

std::vector<KernelPiece> pieces_of(const Schedule& schedule, const Sizes& sizes);

// This machine's GPU, or an H200.
Target machine_target();

// The plan, with what was measured for that GPU.
Plan machine_plan(const KernelPiece& piece, const std::string& tile = "");

}  // namespace coda::cuda
