// coda/cpu/pair_pack.h: bf16 operands in the order in which the pair kernels read them.
//
// A right operand B[k, n] is panels of 32 columns; a panel is [k / 2][32][2]: two neighbours in k
// lie side by side, as the instructions multiply them. k is padded to 32 and n to 32, with zeros.
#pragma once

#include <cstddef>
#include <cstdint>

#include "coda/cpu/gemm.h"

namespace coda::cpu {

inline constexpr std::int64_t kPanel = 32;  // columns
inline constexpr std::int64_t kStep = 32;   // of k

constexpr std::int64_t padded(std::int64_t n, std::int64_t to) {
  return (n + to - 1) / to * to;
}

constexpr std::size_t pair_bytes(std::int64_t k, std::int64_t n) {
  return static_cast<std::size_t>(padded(k, kStep) * padded(n, kPanel) * 2);
}

// Any steps; fast where k or n runs along memory.
void pack_pairs(std::int64_t k, std::int64_t n, const MatrixRef& b, std::byte* to);

// A[m, k] that runs along m in memory, `column_step` elements from one k to the next: to dense
// [m][k].
void turn_pairs(std::int64_t m, std::int64_t k, const std::byte* a, std::int64_t column_step,
                std::byte* to);

// The same without vectors, for every processor.
void pack_pairs_plainly(std::int64_t k, std::int64_t n, const MatrixRef& b, std::byte* to);

}  // namespace coda::cpu
