// coda/device/fragment.cuh: values of a tile in registers, 16 rows x 16 columns of a warp at a time.
//
// Lane l holds rows l/4 and l/4 + 8, columns 2(l%4) + {0, 1} and those 8 further: Fragment<2, 4>, x[h][c]
// with c = 2 (column / 8) + p. A value without columns is a Fragment<2, 1>, one without rows a
// Fragment<1, 4>, a scalar a Fragment<1, 1>. Maps combine them all, eight independent chains at a time.
#pragma once

#include "maps.cuh"
#include "ptx_barrier.cuh"

namespace coda {

template <int kRows, int kColumns, class T = float>
struct Fragment {
  T x[kRows][kColumns];
  __device__ __forceinline__ T at(int h, int c) const {
    return x[kRows == 1 ? 0 : h][kColumns == 1 ? 0 : c];
  }
};
template <class T = float>
using TileOf = Fragment<2, 4, T>;
template <class T = float>
using RowOf = Fragment<2, 1, T>;
template <class T = float>
using ColumnOf = Fragment<1, 4, T>;
template <class T = float>
using ScalarOf = Fragment<1, 1, T>;
using Tile = TileOf<>;
using Row = RowOf<>;
using Column = ColumnOf<>;
using Scalar = ScalarOf<>;

__device__ __forceinline__ Scalar scalar(float x) {
  return {{{x}}};
}
__device__ __forceinline__ ScalarOf<long long> scalar(long long x) {
  return {{{x}}};
}

__device__ constexpr int larger(int a, int b) { return a > b ? a : b; }

// f of each element; operands without rows or columns repeat.
template <class F, int R, int C, class T>
__device__ __forceinline__ auto lift(F f, const Fragment<R, C, T>& a) {
  Fragment<R, C, decltype(f(T()))> out;
#pragma unroll
  for (int h = 0; h < R; h++)
#pragma unroll
    for (int c = 0; c < C; c++) out.x[h][c] = f(a.x[h][c]);
  return out;
}
template <class F, int R, int C, class T, int S, int D, class U>
__device__ __forceinline__ auto lift(F f, const Fragment<R, C, T>& a, const Fragment<S, D, U>& b) {
  Fragment<larger(R, S), larger(C, D), decltype(f(T(), U()))> out;
#pragma unroll
  for (int h = 0; h < larger(R, S); h++)
#pragma unroll
    for (int c = 0; c < larger(C, D); c++) out.x[h][c] = f(a.at(h, c), b.at(h, c));
  return out;
}
template <class F, int R, int C, class T, int S, int D, class U, int Q, int E, class V>
__device__ __forceinline__ auto lift(F f, const Fragment<R, C, T>& a, const Fragment<S, D, U>& b,
                                     const Fragment<Q, E, V>& d) {
  constexpr int kRows = larger(R, larger(S, Q)), kColumns = larger(C, larger(D, E));
  Fragment<kRows, kColumns, decltype(f(T(), U(), V()))> out;
#pragma unroll
  for (int h = 0; h < kRows; h++)
#pragma unroll
    for (int c = 0; c < kColumns; c++) out.x[h][c] = f(a.at(h, c), b.at(h, c), d.at(h, c));
  return out;
}

// The maps of the language on fragments, from the set that the page names: `fast` or `exact`.
#ifndef CODA_MAPS
#define CODA_MAPS exact
#endif
#define CODA_LIFT1(name)                                                \
  template <int R, int C, class T>                                      \
  __device__ __forceinline__ auto name(const Fragment<R, C, T>& a) {    \
    return lift([](T x) { return CODA_MAPS::name(x); }, a);             \
  }
#define CODA_LIFT2(name)                                                                     \
  template <int R, int C, class T, int S, int D>                                             \
  __device__ __forceinline__ auto name(const Fragment<R, C, T>& a, const Fragment<S, D, T>& b) { \
    return lift([](T x, T y) { return CODA_MAPS::name(x, y); }, a, b);                       \
  }
CODA_LIFT1(neg)
CODA_LIFT1(abs)
CODA_LIFT1(exp)
CODA_LIFT1(log)
CODA_LIFT1(sqrt)
CODA_LIFT1(rsqrt)
CODA_LIFT1(tanh)
CODA_LIFT1(sigmoid)
CODA_LIFT1(erf)
CODA_LIFT2(add)
CODA_LIFT2(sub)
CODA_LIFT2(mul)
CODA_LIFT2(div)
CODA_LIFT2(minimum)
CODA_LIFT2(maximum)
CODA_LIFT2(eq)
CODA_LIFT2(ne)
CODA_LIFT2(lt)
CODA_LIFT2(le)
CODA_LIFT2(gt)
CODA_LIFT2(ge)
#undef CODA_LIFT1
#undef CODA_LIFT2
template <int R, int C, class B, int S, int D, class T, int Q, int E>
__device__ __forceinline__ auto where(const Fragment<R, C, B>& condition,
                                      const Fragment<S, D, T>& a, const Fragment<Q, E, T>& b) {
  return lift([](B c, T x, T y) { return CODA_MAPS::where(lane<bool>(c), x, y); }, condition, a, b);
}
// Into another lane; and rounded as an element of type E would hold it.
template <class To, int R, int C, class T>
__device__ __forceinline__ Fragment<R, C, To> lane(const Fragment<R, C, T>& a) {
  return lift([](T x) { return lane<To>(x); }, a);
}
template <class E, int R, int C, class T>
__device__ __forceinline__ Fragment<R, C, T> round_to(const Fragment<R, C, T>& a) {
  return lift([](T x) { return round_to<E>(x); }, a);
}

// The two-lane patterns of a row: four neighbouring lanes.
__device__ __forceinline__ float shuffle_xor(float x, int lanes) {
  float y;
  asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 0x1f, 0xffffffff;" : "=f"(y) : "f"(x), "r"(lanes));
  return y;
}
__device__ __forceinline__ int shuffle(int x, int lane) {
  int y;
  asm volatile("shfl.sync.idx.b32 %0, %1, %2, 0x1f, 0xffffffff;" : "=r"(y) : "r"(x), "r"(lane));
  return y;
}
__device__ __forceinline__ float quad_sum(float x) {
  x += shuffle_xor(x, 1);
  return x + shuffle_xor(x, 2);
}

// ---- shared memory: slots of 64 rows, swizzled as the copy engine writes and reads them

// Where this lane finds its 16-byte pieces in rows of kBytes (128 or 64): rows row0 … row0 + 15 of the
// slot, for ldmatrix and stmatrix. `j` counts 16 columns of 2 bytes.
template <int kBytes>
struct MatrixLane {
  u32 row, swizzle, half;
  __device__ __forceinline__ MatrixLane(int row0, int lane) {
    const int r = row0 + (lane & 15);
    row = r * kBytes;
    swizzle = kBytes == 128 ? r & 7 : (r >> 1) & 3;
    half = lane >> 4;
  }
  __device__ __forceinline__ u32 at(int j) const { return row + (((j * 2 + half) ^ swizzle) * 16); }
};
// The same for pairs of 4-byte elements in rows of 128 bytes: 32 columns a slot; `j` counts 16 columns.
struct PairLane {
  u32 row, swizzle, quarter, odd;
  __device__ __forceinline__ PairLane(int row0, int lane) {
    const int r = row0 + lane / 4;
    row = r * 128, swizzle = r & 7, quarter = (lane & 3) >> 1, odd = (lane & 1) * 8;
  }
  // Of columns 8 (2j + half8) + 2 (lane % 4); 8 rows further is + 1024 bytes.
  __device__ __forceinline__ u32 at(int j, int half8) const {
    return row + ((((j & 1) * 4 + half8 * 2 + quarter) ^ swizzle) * 16) + odd;
  }
};

__device__ __forceinline__ void load_matrix(u32 (&v)[4], u32 at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
               : "r"(at)
               : "memory");
}
__device__ __forceinline__ void store_matrix(u32 at, const u32 (&v)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at),
               "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
               : "memory");
}

// Two elements of 16 bits in a register, the even column low.
struct Bf16Pair {
  static __device__ __forceinline__ u32 pack(float even, float odd) { return pack_bf16(even, odd); }
  static __device__ __forceinline__ void unpack(u32 v, float& even, float& odd) {
    even = float_of(v << 16), odd = float_of(v & 0xffff0000u);
  }
};
struct F16Pair {
  static __device__ __forceinline__ u32 pack(float even, float odd) { return pack_f16(even, odd); }
  static __device__ __forceinline__ void unpack(u32 v, float& even, float& odd) {
    even = f16_value(v & 0xffff), odd = f16_value(v >> 16);
  }
};

template <class Pair>
__device__ __forceinline__ Tile load_tile(u32 at) {
  u32 v[4];
  load_matrix(v, at);
  Tile tile;
#pragma unroll
  for (int q = 0; q < 4; q++)
    Pair::unpack(v[q], tile.x[q & 1][q & 2], tile.x[q & 1][(q & 2) + 1]);
  return tile;
}
template <class Pair>
__device__ __forceinline__ void store_tile(u32 at, const Tile& tile) {
  u32 v[4];
#pragma unroll
  for (int q = 0; q < 4; q++) v[q] = Pair::pack(tile.x[q & 1][q & 2], tile.x[q & 1][(q & 2) + 1]);
  store_matrix(at, v);
}
__device__ __forceinline__ void store_pair(u32 at, float a, float b) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(a), "f"(b) : "memory");
}
__device__ __forceinline__ void load_pair(u32 at, float& a, float& b) {
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(a), "=f"(b) : "r"(at) : "memory");
}
__device__ __forceinline__ Tile load_tile_f32(u32 slot, const PairLane& lane, int j) {
  Tile tile;
#pragma unroll
  for (int e = 0; e < 4; e++)
    load_pair(slot + lane.at(j, e >> 1) + (e & 1) * 1024, tile.x[e & 1][e & 2],
              tile.x[e & 1][(e & 2) + 1]);
  return tile;
}
__device__ __forceinline__ void store_tile_f32(u32 slot, const PairLane& lane, int j,
                                               const Tile& tile) {
#pragma unroll
  for (int e = 0; e < 4; e++)
    store_pair(slot + lane.at(j, e >> 1) + (e & 1) * 1024, tile.x[e & 1][e & 2],
               tile.x[e & 1][(e & 2) + 1]);
}

// ---- vectors along columns, read once a unit: pairs of a 16-bit vector

template <int kChunks>
struct ColumnPairs {
  u32 v[kChunks * 2];
};
// Columns column + 16j + {0, 1, 8, 9} of a vector of `count` elements (even), 4-byte aligned.
template <int kChunks>
__device__ __forceinline__ ColumnPairs<kChunks> load_columns(const void* vector, int column,
                                                             int count) {
  ColumnPairs<kChunks> out;
#pragma unroll
  for (int j = 0; j < kChunks * 2; j++) {
    out.v[j] = 0;
    if (column + j * 8 < count)
      asm("ld.global.nc.b32 %0, [%1];"
          : "=r"(out.v[j])
          : "l"(static_cast<const char*>(vector) + (column + j * 8) * 2ll));
  }
  return out;
}
template <class Pair, int kChunks>
__device__ __forceinline__ Column column(const ColumnPairs<kChunks>& pairs, int j) {
  Column out;
  Pair::unpack(pairs.v[j * 2], out.x[0][0], out.x[0][1]);
  Pair::unpack(pairs.v[j * 2 + 1], out.x[0][2], out.x[0][3]);
  return out;
}

// ---- block reductions along rows' columns: one value a row and block of 64 columns

// Lane l keeps the blocks l%4, l%4 + 4, … of its rows, so that a tile's sums leave after its last unit.
template <int kCount>
struct RowBlocks {
  float x[(kCount + 3) / 4][2];
  __device__ __forceinline__ void keep(int nth, const Row& value, int lane) {
    if (nth % 4 == 0 || lane % 4 == nth % 4)
      x[nth / 4][0] = value.x[0][0], x[nth / 4][1] = value.x[1][0];
  }
};

// ---- column sums of a unit's 64 rows

// The sum over this warp's 16 rows of a chunk, spread over lanes: lane l holds column
// 8 (l / 16) + 2 (l % 4) + (l / 8) % 2; lanes 4 apart hold the same.
__device__ __forceinline__ float column_sum(const Tile& tile, int lane) {
  float v[4];
#pragma unroll
  for (int c = 0; c < 4; c++) v[c] = tile.x[0][c] + tile.x[1][c];
  const bool high = lane & 16, odd = lane & 8;
  float a = high ? v[2] : v[0], b = high ? v[3] : v[1];
  a += shuffle_xor(high ? v[0] : v[2], 16);
  b += shuffle_xor(high ? v[1] : v[3], 16);
  float s = odd ? b : a;
  s += shuffle_xor(odd ? a : b, 8);
  return s + shuffle_xor(s, 4);
}

}  // namespace coda
