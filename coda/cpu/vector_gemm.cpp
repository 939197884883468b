// coda/cpu/vector_gemm.cpp: the loops over panels of B, blocks of k and rows of A.
//
// bf16 and f32 differ in one instruction: both take 16 units of B, one unit of A, and add to 16
// columns of C. B streams from the second cache as fast as it is used.
#include "coda/cpu/vector_gemm.h"

// NOTE: g++ 12 warns of the intrinsics' own undefined values.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop

#include <algorithm>

#include "coda/cpu/panel_pack.h"

// NOTE: as in panel_pack.cpp, nothing of the standard library inside.
#define CODA_AVX512 __attribute__((target("avx512f,avx512bw,avx512bf16")))

namespace coda::cpu {
namespace {

using Int = std::int64_t;

constexpr Int kRows = 6;
// Units of a block of k. Shorter ones would keep B in the first cache, and load C more often, which
// costs more.
constexpr Int kDepth = 1024;

struct Dot {
  CODA_AVX512 static __m512 add(__m512 sum, int a, __m512i b) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(_mm512_set1_epi32(a)),
                            reinterpret_cast<__m512bh>(b));
  }
};
struct Fma {
  CODA_AVX512 static __m512 add(__m512 sum, int a, __m512i b) {
    return _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_set1_epi32(a)), _mm512_castsi512_ps(b), sum);
  }
};

// Rows of B [0, units) from two panels (the second may be the first again), those of A from `a`.
template <class Kind, int kHeight, int kVectors>
CODA_AVX512 inline void accumulate(__m512 (&sums)[kHeight][kVectors], const std::byte* a, Int step,
                                   const std::byte* b0, const std::byte* b1, Int units) {
  constexpr Int kRow = kPanel * kUnitBytes;
  for (Int u = 0; u < units; ++u) {
    __m512i b[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      b[v] = _mm512_loadu_si512((v < 2 ? b0 : b1) + u * kRow + v % 2 * (kRow / 2));
    }
#pragma GCC unroll 6
    for (int r = 0; r < kHeight; ++r) {
      int unit = 0;
      __builtin_memcpy(&unit, a + r * step + u * kUnitBytes, sizeof unit);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[r][v] = Kind::add(sums[r][v], unit, b[v]);
    }
  }
}

struct Block {
  const LeftUnits* a;
  Int row;
  Int first, last;  // units; past whole_units: the padded step
  const std::byte* b[2];
  float* c;
  Int n, columns;  // of C's rows; of the last vectors, how many are there
  bool fresh;
};

template <class Kind, int kHeight, int kVectors>
CODA_AVX512 void multiply_block(const Block& block) {
  __m512 sums[kHeight][kVectors];
  __mmask16 mask[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    const Int here = block.columns - 16 * v;
    mask[v] = here >= 16 ? 0xffff : here <= 0 ? 0 : static_cast<__mmask16>((1 << here) - 1);
  }
#pragma GCC unroll 6
  for (int r = 0; r < kHeight; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      sums[r][v] = block.fresh ? _mm512_setzero_ps()
                               : _mm512_maskz_loadu_ps(mask[v], block.c + r * block.n + 16 * v);
    }
  }
  const LeftUnits& a = *block.a;
  const Int whole = block.last < a.whole_units ? block.last : a.whole_units;
  constexpr Int kRow = kPanel * kUnitBytes;
  accumulate<Kind, kHeight, kVectors>(sums, a.whole + block.row * a.step + block.first * kUnitBytes,
                                      a.step, block.b[0] + block.first * kRow,
                                      block.b[1] + block.first * kRow, whole - block.first);
  if (block.last > a.whole_units) {
    constexpr Int kLast = kStep / 2;
    accumulate<Kind, kHeight, kVectors>(sums, a.last + block.row * kLast * kUnitBytes,
                                        kLast * kUnitBytes, block.b[0] + a.whole_units * kRow,
                                        block.b[1] + a.whole_units * kRow, kLast);
  }
#pragma GCC unroll 6
  for (int r = 0; r < kHeight; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      _mm512_mask_storeu_ps(block.c + r * block.n + 16 * v, mask[v], sums[r][v]);
    }
  }
}

template <class Kind>
void multiply_all(Int m, Int n, Int units, const LeftUnits& a, const std::byte* b, float* c,
                  Onto onto) {
  using Run = void (*)(const Block&);
  static constexpr Run runs[kRows][2] = {{multiply_block<Kind, 1, 2>, multiply_block<Kind, 1, 4>},
                                         {multiply_block<Kind, 2, 2>, multiply_block<Kind, 2, 4>},
                                         {multiply_block<Kind, 3, 2>, multiply_block<Kind, 3, 4>},
                                         {multiply_block<Kind, 4, 2>, multiply_block<Kind, 4, 4>},
                                         {multiply_block<Kind, 5, 2>, multiply_block<Kind, 5, 4>},
                                         {multiply_block<Kind, 6, 2>, multiply_block<Kind, 6, 4>}};
  const Int panel = units * kPanel * kUnitBytes;
  for (Int j = 0; j < n; j += 2 * kPanel) {
    const Int columns = std::min(2 * kPanel, n - j);
    const std::byte* const first = b + j / kPanel * panel;
    const std::byte* const second = columns > kPanel ? first + panel : first;
    for (Int k = 0; k < units; k += kDepth) {
      const Int last = std::min(units, k + kDepth);
      for (Int i = 0; i < m; i += kRows) {
        const Int rows = std::min(kRows, m - i);
        runs[rows - 1][columns > kPanel ? 1 : 0]({.a = &a,
                                                  .row = i,
                                                  .first = k,
                                                  .last = last,
                                                  .b = {first, second},
                                                  .c = c + i * n + j,
                                                  .n = n,
                                                  .columns = columns,
                                                  .fresh = k == 0 && onto == Onto::fresh});
      }
    }
  }
}

}  // namespace

const char* vector_problem(DType dtype) {
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw")) {
    return "the processor has no AVX-512";
  }
  if (dtype == DType::bf16 && !__builtin_cpu_supports("avx512bf16")) {
    return "the processor has no AVX-512 with bf16";
  }
  return "";
}

void multiply_vectors(DType dtype, std::int64_t m, std::int64_t n, std::int64_t units,
                      const LeftUnits& a, const std::byte* b, float* c, Onto onto) {
  if (dtype == DType::bf16) return multiply_all<Dot>(m, n, units, a, b, c, onto);
  multiply_all<Fma>(m, n, units, a, b, c, onto);
}

}  // namespace coda::cpu
