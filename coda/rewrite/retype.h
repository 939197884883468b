// coda/rewrite/retype.h: the same program in other dtypes.
#pragma once

#include "coda/program/program.h"

namespace coda {

// Every parameter, result and cast of dtype `from` becomes `to`: one text in bf16 serves f16, f32
// and f64 (gradient checks). With `to` f64 every float does, so that nothing stays in single
// precision. Throws ProgramError where the text cannot be typed so.
Program retype(const Program& program, DType from, DType to);

}  // namespace coda
