// coda/cpu/plain_gemm.h: products without the library. Behind gemm.h.
#pragma once

#include "coda/cpu/gemm.h"

namespace coda::cpu {

// f32 and f64; any steps.
void plain_multiply(const TileShape& shape, const MatrixRef& a, const MatrixRef& b, std::byte* c,
                    Onto onto);

}  // namespace coda::cpu
