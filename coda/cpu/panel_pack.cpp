// coda/cpu/panel_pack.cpp: units side by side, 16 × 16 of them at a time.
#include "coda/cpu/panel_pack.h"

// NOTE: g++ 12 warns of the intrinsics' own undefined values.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop

#include <algorithm>

// NOTE: what is compiled for AVX-512 may run only where has_vectors(): no function of the standard
// library is called from it, whose copy for all would then be compiled for AVX-512.
#define CODA_AVX512 __attribute__((target("avx512f,avx512bw")))

namespace coda::cpu {
namespace {

using Int = std::int64_t;
using Half = std::uint16_t;
using Single = std::uint32_t;  // bits of an f32

bool has_vectors() {
  static const bool has = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw");
  return has;
}

// Element by element, rows [first, last) of a panel of which `columns` columns are there; past k
// there are zeros. Two halves are a unit.
template <class T>
void pack_slowly(Int k, const T* b, Int row_step, Int column_step, Int columns, Int first, Int last,
                 T* panel) {
  constexpr Int kIn = kUnitBytes / static_cast<Int>(sizeof(T));
  for (Int u = first; u < last; ++u) {
    for (Int c = 0; c < kPanel; ++c) {
      for (Int i = 0; i < kIn; ++i) {
        const Int row = kIn * u + i;
        const bool inside = row < k && c < columns;
        panel[(u * kPanel + c) * kIn + i] = inside ? b[row * row_step + c * column_step] : T{0};
      }
    }
  }
}

// Unit j of line i → unit i of line j.
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

// Two rows of 32 halves → 16 units and 16 units.
CODA_AVX512 inline void interleave(__m512i first, __m512i second, __m512i& low, __m512i& high) {
  const __m512i a = _mm512_unpacklo_epi16(first, second);
  const __m512i b = _mm512_unpackhi_epi16(first, second);
  const __m512i left = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
  const __m512i right = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
  low = _mm512_permutex2var_epi64(a, left, b);
  high = _mm512_permutex2var_epi64(a, right, b);
}

// 16 units of 16 columns, each of which runs along memory.
template <class T>
CODA_AVX512 void pack_columns(const T* b, Int column_step, T* panel) {
  constexpr Int kIn = kUnitBytes / static_cast<Int>(sizeof(T));
  __m512i rows[16];
#pragma GCC unroll 16
  for (int c = 0; c < 16; ++c) rows[c] = _mm512_loadu_si512(b + c * column_step);
  transpose(rows);
#pragma GCC unroll 16
  for (int u = 0; u < 16; ++u) _mm512_storeu_si512(panel + u * kIn * kPanel, rows[u]);
}

// 16 units of 32 columns, rows run along memory.
CODA_AVX512 void pack_rows(const Half* b, Int row_step, Half* panel) {
  for (Int p = 0; p < 16; ++p) {
    __m512i low, high;
    interleave(_mm512_loadu_si512(b + 2 * p * row_step),
               _mm512_loadu_si512(b + (2 * p + 1) * row_step), low, high);
    _mm512_storeu_si512(panel + p * 2 * kPanel, low);
    _mm512_storeu_si512(panel + p * 2 * kPanel + kPanel, high);
  }
}
CODA_AVX512 void pack_rows(const Single* b, Int row_step, Single* panel) {
  for (Int p = 0; p < 16; ++p) {
    _mm512_storeu_si512(panel + p * kPanel, _mm512_loadu_si512(b + p * row_step));
    _mm512_storeu_si512(panel + p * kPanel + 16, _mm512_loadu_si512(b + p * row_step + 16));
  }
}

// 32 of m × 16 units of k.
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
CODA_AVX512 void turn_block(const Single* a, Int column_step, Single* to, Int row_step) {
  for (int half = 0; half < 32; half += 16) {
    __m512i rows[16];
#pragma GCC unroll 16
    for (int p = 0; p < 16; ++p) rows[p] = _mm512_loadu_si512(a + half + p * column_step);
    transpose(rows);
#pragma GCC unroll 16
    for (int r = 0; r < 16; ++r) _mm512_storeu_si512(to + (half + r) * row_step, rows[r]);
  }
}

template <class T>
void turn_slowly(Int m0, Int m1, Int k0, Int k1, const T* a, Int column_step, T* to, Int row_step) {
  for (Int i = m0; i < m1; ++i) {
    for (Int p = k0; p < k1; ++p) to[i * row_step + p] = a[p * column_step + i];
  }
}

template <class T>
void pack_all(Int k, Int n, const MatrixRef& b, Int units, bool vectors, T* panels) {
  constexpr Int kIn = kUnitBytes / static_cast<Int>(sizeof(T)), kBlock = 16 * kIn;
  const auto* const from = reinterpret_cast<const T*>(b.data);
  const bool rows = b.column_step == 1;
  vectors = vectors && (rows || b.row_step == 1);
  const Int whole_k = vectors ? k / kBlock * kBlock : 0, whole_n = n / kPanel * kPanel;
  // A block of k through all panels: rows are read along memory, and columns by cache lines.
  for (Int p = 0; p < whole_k; p += kBlock) {
    for (Int j = 0; j < whole_n; j += kPanel) {
      const T* const corner = from + p * b.row_step + j * b.column_step;
      T* const panel = panels + (j * units + p / kIn * kPanel) * kIn;
      if (rows) {
        pack_rows(corner, b.row_step, panel);
      } else {
        pack_columns(corner, b.column_step, panel);
        pack_columns(corner + 16 * b.column_step, b.column_step, panel + 16 * kIn);
      }
    }
  }
  for (Int j = 0; j < n; j += kPanel) {
    pack_slowly(k, from + j * b.column_step, b.row_step, b.column_step, std::min(kPanel, n - j),
                j < whole_n ? whole_k / kIn : 0, units, panels + j * units * kIn);
  }
}

template <class T>
void turn_all(Int m, Int k, const T* a, Int column_step, T* to) {
  constexpr Int kBlock = 16 * kUnitBytes / static_cast<Int>(sizeof(T));
  const bool vectors = has_vectors();
  const Int rows = vectors ? m / 32 * 32 : 0, whole = vectors ? k / kBlock * kBlock : 0;
  for (Int i = 0; i < rows; i += 32) {
    for (Int p = 0; p < whole; p += kBlock) {
      turn_block(a + p * column_step + i, column_step, to + i * k + p, k);
    }
  }
  turn_slowly(0, rows, whole, k, a, column_step, to, k);
  turn_slowly(rows, m, 0, k, a, column_step, to, k);
}

void pack_as(DType dtype, Int k, Int n, const MatrixRef& b, bool vectors, std::byte* to) {
  const Int units = panel_units(dtype, k);
  if (dtype == DType::bf16) return pack_all(k, n, b, units, vectors, reinterpret_cast<Half*>(to));
  pack_all(k, n, b, units, vectors, reinterpret_cast<Single*>(to));
}

}  // namespace

void pack_panels_plainly(DType dtype, std::int64_t k, std::int64_t n, const MatrixRef& b,
                         std::byte* to) {
  pack_as(dtype, k, n, b, false, to);
}

void pack_panels(DType dtype, std::int64_t k, std::int64_t n, const MatrixRef& b, std::byte* to) {
  pack_as(dtype, k, n, b, has_vectors(), to);
}

void turn_left(DType dtype, std::int64_t m, std::int64_t k, const std::byte* a,
               std::int64_t column_step, std::byte* to) {
  if (dtype == DType::bf16) {
    return turn_all(m, k, reinterpret_cast<const Half*>(a), column_step,
                    reinterpret_cast<Half*>(to));
  }
  turn_all(m, k, reinterpret_cast<const Single*>(a), column_step, reinterpret_cast<Single*>(to));
}

}  // namespace coda::cpu
