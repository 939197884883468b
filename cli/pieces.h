// cli/pieces.h: what runs as one kernel each: the steps of what a command line names, with their
// sizes.
#pragma once

#include <string>
#include <vector>

#include "cli/sources.h"
#include "coda/cuda/pieces.h"

namespace coda {

using cuda::machine_plan;
using cuda::machine_target;
using Piece = cuda::KernelPiece;
using cuda::pieces_of;

// A program as it is, a schedule, or the schedule that rewriting makes of a block; with all sizes.
struct Pieces {
  Schedule schedule;
  Sizes sizes;
  std::vector<Piece> pieces;
};
// `assignments` are those of --size; 128 where neither given nor implied.
Pieces load_pieces(const std::string& file, const std::string& name,
                   const std::vector<std::string>& assignments);

// How each kernel of the schedule runs on that GPU: its path and tile, launches, bytes and flops,
// and why other candidates were refused.
std::string device_text(const Schedule& schedule, const Sizes& sizes);
// [{"kernel", "path", "launches": [], "notes": [], "workspace", "bytes", "flops"}]; "refused" in
// place of the path where no kernel takes the program.
nlohmann::json device_json(const Schedule& schedule, const Sizes& sizes);

// "norm_1: 132 × 1 × 1 blocks of 384 threads, 224.0 KiB of shared memory".
std::string launch_text(const cuda::Launch& launch);

}  // namespace coda
