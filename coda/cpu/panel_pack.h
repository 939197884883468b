// coda/cpu/panel_pack.h: operands in the order in which our own kernels read them.
//
// A right operand B[k, n] is panels of 32 columns; a panel is rows of 32 units of 32 bits. A unit
// is one f32, or two bf16 that are neighbours in k: what one instruction takes of a column. k is
// padded to whole units, in bf16 to 16 of them, and n to 32, with zeros.
#pragma once

#include <cstddef>
#include <cstdint>

#include "coda/cpu/gemm.h"

namespace coda::cpu {

inline constexpr std::int64_t kPanel = 32;  // columns
inline constexpr std::int64_t kUnitBytes = 4;
inline constexpr std::int64_t kStep = 32;  // of k, in bf16: what a tile register holds

constexpr std::int64_t padded(std::int64_t n, std::int64_t to) {
  return (n + to - 1) / to * to;
}

// Rows of a panel.
constexpr std::int64_t panel_units(DType dtype, std::int64_t k) {
  return dtype == DType::bf16 ? padded(k, kStep) / 2 : k;
}

constexpr std::size_t panel_bytes(DType dtype, std::int64_t k, std::int64_t n) {
  return static_cast<std::size_t>(panel_units(dtype, k) * padded(n, kPanel) * kUnitBytes);
}

// bf16 or f32, any steps; fast where k or n runs along memory.
void pack_panels(DType dtype, std::int64_t k, std::int64_t n, const MatrixRef& b, std::byte* to);

// A[m, k] that runs along m in memory, `column_step` elements from one k to the next: to dense
// [m][k].
void turn_left(DType dtype, std::int64_t m, std::int64_t k, const std::byte* a,
               std::int64_t column_step, std::byte* to);

// The same without vectors, for every processor.
void pack_panels_plainly(DType dtype, std::int64_t k, std::int64_t n, const MatrixRef& b,
                         std::byte* to);

}  // namespace coda::cpu
