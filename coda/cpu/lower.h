// coda/cpu/lower.h: Checked + Sizes → tile programs, a pure function.
#pragma once

#include "coda/cpu/frame.h"
#include "coda/cpu/tile_program.h"

namespace coda::cpu {

// The lanes of reals: f64 where any value of the program is f64.
Lane real_lane(const Program& program);

// A space for tiles of `width` columns and at most `tile_rows` rows. Throws NeedsFullWidth
// (lowering.h) where only one tile of all columns can hold what it computes.
TileProgram lower(const Frame& frame, std::int64_t width, std::int64_t tile_rows, Lane real);

}  // namespace coda::cpu
