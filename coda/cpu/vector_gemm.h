// coda/cpu/vector_gemm.h: products by AVX-512: six rows by 64 columns of C in vector registers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "coda/cpu/gemm.h"

namespace coda::cpu {

// A[m, k] in units of 32 bits, in two parts: what lies whole in the caller's memory, and a last,
// zero-padded step. Steps in bytes from row to row.
struct LeftUnits {
  const std::byte* whole = nullptr;
  std::int64_t step = 0;
  std::int64_t whole_units = 0;
  const std::byte* last = nullptr;  // [m][kStep / 2]; null: there is none
};

// Why the machine cannot; empty: it can.
const char* vector_problem(DType dtype);

// C[m, n] (+)= A · B over `units` rows of B's panels. bf16 (vdpbf16ps) or f32.
void multiply_vectors(DType dtype, std::int64_t m, std::int64_t n, std::int64_t units,
                      const LeftUnits& a, const std::byte* b, float* c, Onto onto);

}  // namespace coda::cpu
