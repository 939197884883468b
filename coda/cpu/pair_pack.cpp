// coda/cpu/pair_pack.cpp: pairs of k, side by side: 16 × 16 pairs at a time.
#include "coda/cpu/pair_pack.h"

// NOTE: g++ 12 warns of the intrinsics' own undefined values.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop

#include <algorithm>
#include <cstring>

// NOTE: what is compiled for AVX-512 may run only where has_vectors(): no function of the standard
// library is called from it, whose copy for all would then be compiled for AVX-512.
#define CODA_AVX512 __attribute__((target("avx512f,avx512bw")))

namespace coda::cpu {
namespace {

using Int = std::int64_t;
using Half = std::uint16_t;

bool has_vectors() {
  static const bool has = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw");
  return has;
}

Half* halves(std::byte* data) {
  return reinterpret_cast<Half*>(data);
}
const Half* halves(const std::byte* data) {
  return reinterpret_cast<const Half*>(data);
}

// Pairs [p0, p1) of columns [0, columns) of a panel, element by element; past k there are zeros.
void pack_slowly(Int k, const Half* b, Int row_step, Int column_step, Int columns, Int p0, Int p1,
                 Half* panel) {
  for (Int p = p0; p < p1; ++p) {
    for (Int c = 0; c < kPanel; ++c) {
      for (Int i = 0; i < 2; ++i) {
        const Int row = 2 * p + i;
        const bool inside = row < k && c < columns;
        panel[(p * kPanel + c) * 2 + i] = inside ? b[row * row_step + c * column_step] : Half{0};
      }
    }
  }
}

// rows[i] = the i-th pair of 16 lines → the i-th line of 16 pairs.
CODA_AVX512 inline void transpose(__m512i (&rows)[16]) {
  __m512i t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    rows[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    rows[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    rows[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    rows[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(rows[i], rows[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(rows[i], rows[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(rows[i + 8], rows[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(rows[i + 8], rows[i + 12], 0xdd);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    rows[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    rows[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    rows[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
    rows[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
  }
}

// Two rows of 32 halves → 16 pairs and 16 pairs.
CODA_AVX512 inline void interleave(__m512i first, __m512i second, __m512i& low, __m512i& high) {
  const __m512i a = _mm512_unpacklo_epi16(first, second);
  const __m512i b = _mm512_unpackhi_epi16(first, second);
  const __m512i left = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
  const __m512i right = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
  low = _mm512_permutex2var_epi64(a, left, b);
  high = _mm512_permutex2var_epi64(a, right, b);
}

// 16 whole pairs of 16 columns, each of which runs along memory.
CODA_AVX512 void pack_columns(const Half* b, Int column_step, Half* panel) {
  __m512i rows[16];
#pragma GCC unroll 16
  for (int c = 0; c < 16; ++c) rows[c] = _mm512_loadu_si512(b + c * column_step);
  transpose(rows);
#pragma GCC unroll 16
  for (int p = 0; p < 16; ++p) _mm512_storeu_si512(panel + p * 2 * kPanel, rows[p]);
}

// The same of 32 columns, rows run along memory.
CODA_AVX512 void pack_rows(const Half* b, Int row_step, Half* panel) {
  for (Int p = 0; p < kStep / 2; ++p) {
    __m512i low, high;
    interleave(_mm512_loadu_si512(b + 2 * p * row_step),
               _mm512_loadu_si512(b + (2 * p + 1) * row_step), low, high);
    _mm512_storeu_si512(panel + p * 2 * kPanel, low);
    _mm512_storeu_si512(panel + p * 2 * kPanel + kPanel, high);
  }
}

// 32 of m × 32 of k.
CODA_AVX512 void turn_block(const Half* a, Int column_step, Half* to, Int row_step) {
  __m512i low[16], high[16];
#pragma GCC unroll 16
  for (int p = 0; p < 16; ++p) {
    interleave(_mm512_loadu_si512(a + 2 * p * column_step),
               _mm512_loadu_si512(a + (2 * p + 1) * column_step), low[p], high[p]);
  }
  transpose(low);
  transpose(high);
#pragma GCC unroll 16
  for (int r = 0; r < 16; ++r) {
    _mm512_storeu_si512(to + r * row_step, low[r]);
    _mm512_storeu_si512(to + (r + 16) * row_step, high[r]);
  }
}

void turn_slowly(Int m0, Int m1, Int k0, Int k1, const Half* a, Int column_step, Half* to,
                 Int row_step) {
  for (Int i = m0; i < m1; ++i) {
    for (Int p = k0; p < k1; ++p) to[i * row_step + p] = a[p * column_step + i];
  }
}

}  // namespace

void pack_pairs_plainly(std::int64_t k, std::int64_t n, const MatrixRef& b, std::byte* to) {
  for (Int j = 0; j < n; j += kPanel) {
    pack_slowly(k, halves(b.data) + j * b.column_step, b.row_step, b.column_step,
                std::min(kPanel, n - j), 0, padded(k, kStep) / 2,
                halves(to) + j * padded(k, kStep));
  }
}

void pack_pairs(std::int64_t k, std::int64_t n, const MatrixRef& b, std::byte* to) {
  const bool rows = b.column_step == 1;
  if (!has_vectors() || !(rows || b.row_step == 1)) return pack_pairs_plainly(k, n, b, to);
  const Int whole_k = k / kStep * kStep, whole_n = n / kPanel * kPanel, depth = padded(k, kStep);
  const Half* const from = halves(b.data);
  Half* const panels = halves(to);
  // 32 of k at a time through all panels: rows are read along memory, and columns by cache lines.
  for (Int p = 0; p < whole_k; p += kStep) {
    for (Int j = 0; j < whole_n; j += kPanel) {
      const Half* const corner = from + p * b.row_step + j * b.column_step;
      Half* const panel = panels + j * depth + p * kPanel;
      if (rows) {
        pack_rows(corner, b.row_step, panel);
      } else {
        pack_columns(corner, b.column_step, panel);
        pack_columns(corner + 16 * b.column_step, b.column_step, panel + kPanel);
      }
    }
  }
  for (Int j = 0; j < n; j += kPanel) {
    pack_slowly(k, from + j * b.column_step, b.row_step, b.column_step, std::min(kPanel, n - j),
                j < whole_n ? whole_k / 2 : 0, depth / 2, panels + j * depth);
  }
}

void turn_pairs(std::int64_t m, std::int64_t k, const std::byte* a, std::int64_t column_step,
                std::byte* to) {
  const bool vectors = has_vectors();
  const Int rows = vectors ? m / 32 * 32 : 0, whole = vectors ? k / kStep * kStep : 0;
  for (Int i = 0; i < rows; i += 32) {
    for (Int p = 0; p < whole; p += kStep) {
      turn_block(halves(a) + p * column_step + i, column_step, halves(to) + i * k + p, k);
    }
  }
  turn_slowly(0, rows, whole, k, halves(a), column_step, halves(to), k);
  turn_slowly(rows, m, 0, k, halves(a), column_step, halves(to), k);
}

}  // namespace coda::cpu
