// coda/device/fragment.cuh: values of a tile in registers, 16 rows x 8 columns of a warp at a time.
//
// Lane l holds rows l/4 and l/4 + 8, columns 2(l%4) + {0, 1}: Fragment<2, 2>, x[h][c]. A value
// without columns is a Fragment<2, 1>, one without rows a Fragment<1, 2>, a scalar a
// Fragment<1, 1>. Maps combine them all. Memory is read and written a chunk of 16 columns at a
// time: halves g = 0 and 1.
// NOTE: with 16 columns at a time what lives beside the accumulators passes 40 registers, and ptxas
// serialises the products (C7511).
#pragma once

#include "maps.cuh"
#include "philox.cuh"
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
using TileOf = Fragment<2, 2, T>;
template <class T = float>
using RowOf = Fragment<2, 1, T>;
template <class T = float>
using ColumnOf = Fragment<1, 2, T>;
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

__device__ constexpr int larger(int a, int b) {
  return a > b ? a : b;
}

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
#define CODA_LIFT1(name)                                             \
  template <int R, int C, class T>                                   \
  __device__ __forceinline__ auto name(const Fragment<R, C, T>& a) { \
    return lift([](T x) { return CODA_MAPS::name(x); }, a);          \
  }
#define CODA_LIFT2(name)                                                                         \
  template <int R, int C, class T, int S, int D>                                                 \
  __device__ __forceinline__ auto name(const Fragment<R, C, T>& a, const Fragment<S, D, T>& b) { \
    return lift([](T x, T y) { return CODA_MAPS::name(x, y); }, a, b);                           \
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
__device__ __forceinline__ float shuffle_float(float x, int lane) {
  float y;
  asm volatile("shfl.sync.idx.b32 %0, %1, %2, 0x1f, 0xffffffff;" : "=f"(y) : "f"(x), "r"(lane));
  return y;
}
__device__ __forceinline__ float quad_sum(float x) {
  x += shuffle_xor(x, 1);
  return x + shuffle_xor(x, 2);
}

// The sum of `count` contiguous numbers, kBatch of them read at a time.
__device__ __forceinline__ float row_sum(const float* from, long long count) {
  constexpr int kBatch = 8;
  float sum[2] = {};
#pragma unroll 1
  for (long long k = 0; k < count; k += kBatch) {
    float part[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; i++) part[i] = k + i < count ? from[k + i] : 0.0f;
#pragma unroll
    for (int i = 0; i < kBatch; i++) sum[i % 2] += part[i];
  }
  return sum[0] + sum[1];
}
// The same of a multiple of 4, at a multiple of 16 bytes.
struct alignas(16) FourFloats {
  float x[4];
};
__device__ __forceinline__ float row_sum_wide(const float* from, long long count) {
  constexpr int kBatch = 8;
  const FourFloats* fours = reinterpret_cast<const FourFloats*>(from);
  const int all = static_cast<int>(count / 4);
  FourFloats sum = {};
#pragma unroll 1
  for (int k = 0; k < all; k += kBatch) {
    FourFloats part[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; i++) part[i] = k + i < all ? fours[k + i] : FourFloats{};
#pragma unroll
    for (int i = 0; i < kBatch; i++)
#pragma unroll
      for (int c = 0; c < 4; c++) sum.x[c] += part[i].x[c];
  }
  return (sum.x[0] + sum.x[1]) + (sum.x[2] + sum.x[3]);
}

// ---- shared memory: slots of 64 rows, swizzled as the copy engine writes and reads them

// Where this lane finds its 16-byte pieces in rows of kBytes (128 or 64): rows row0 … row0 + 15 of
// the slot, for ldmatrix and stmatrix. `j` counts 16 columns of 2 bytes.
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
// The same for pairs of 4-byte elements in rows of 128 bytes: 32 columns a slot; `j` counts 16
// columns.
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

// Half g of a chunk, from and to what load_matrix and store_matrix move.
template <class Pair>
__device__ __forceinline__ Tile unpacked(const u32 (&words)[4], int g) {
  Tile tile;
#pragma unroll
  for (int h = 0; h < 2; h++) Pair::unpack(words[g * 2 + h], tile.x[h][0], tile.x[h][1]);
  return tile;
}
template <class Pair, int R, int C>
__device__ __forceinline__ void pack(u32 (&words)[4], int g, const Fragment<R, C>& tile) {
#pragma unroll
  for (int h = 0; h < 2; h++) words[g * 2 + h] = Pair::pack(tile.at(h, 0), tile.at(h, 1));
}
// The same of 4-byte elements, straight from and to a slot.
__device__ __forceinline__ Tile load_pairs(u32 slot, const PairLane& lane, int j, int g) {
  Tile tile;
#pragma unroll
  for (int h = 0; h < 2; h++)
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                 : "=f"(tile.x[h][0]), "=f"(tile.x[h][1])
                 : "r"(slot + lane.at(j, g) + h * 1024)
                 : "memory");
  return tile;
}
template <int R, int C>
__device__ __forceinline__ void store_pairs(u32 slot, const PairLane& lane, int j, int g,
                                            const Fragment<R, C>& tile) {
#pragma unroll
  for (int h = 0; h < 2; h++)
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(slot + lane.at(j, g) + h * 1024),
                 "f"(tile.at(h, 0)), "f"(tile.at(h, 1))
                 : "memory");
}

// One element for two columns, of a slot of 32: 4 bytes each, or 2.
__device__ __forceinline__ Row load_singles(u32 slot, const PairLane& lane, int j, int g,
                                            int lane_id) {
  Row out;
  const u32 at = lane.row + (((j * 2 + g) ^ lane.swizzle) * 16) + (lane_id % 4) * 4;
#pragma unroll
  for (int h = 0; h < 2; h++)
    asm volatile("ld.shared.f32 %0, [%1];"
                 : "=f"(out.x[h][0])
                 : "r"(slot + at + h * 1024)
                 : "memory");
  return out;
}
template <class Pair>
__device__ __forceinline__ Row load_halves(u32 slot, const PairLane& lane, int j, int g,
                                           int lane_id) {
  Row out;
  const u32 at = lane.row / 2 + ((j ^ (lane.row >> 8 & 3)) * 16) + g * 8 + (lane_id % 4) * 2;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    u16 bits;
    float none;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(bits) : "r"(slot + at + h * 512) : "memory");
    Pair::unpack(bits, out.x[h][0], none);
  }
  return out;
}
// The even columns, the odd ones, and both together again.
template <int R, class T>
__device__ __forceinline__ Fragment<R, 1, T> even_columns(const Fragment<R, 2, T>& a) {
  Fragment<R, 1, T> out;
#pragma unroll
  for (int h = 0; h < R; h++) out.x[h][0] = a.x[h][0];
  return out;
}
template <int R, class T>
__device__ __forceinline__ Fragment<R, 1, T> odd_columns(const Fragment<R, 2, T>& a) {
  Fragment<R, 1, T> out;
#pragma unroll
  for (int h = 0; h < R; h++) out.x[h][0] = a.x[h][1];
  return out;
}
template <int R, int S, class T>
__device__ __forceinline__ Fragment<larger(R, S), 2, T> pair_columns(const Fragment<R, 1, T>& even,
                                                                     const Fragment<S, 1, T>& odd) {
  Fragment<larger(R, S), 2, T> out;
#pragma unroll
  for (int h = 0; h < larger(R, S); h++) out.x[h][0] = even.at(h, 0), out.x[h][1] = odd.at(h, 0);
  return out;
}

// ---- vectors along columns, read once a unit: pairs of a 16-bit vector

// A count of columns where no unit reaches past the last one: nothing is compared.
struct Whole {};
__device__ __forceinline__ bool is_inside(int column, int further, int count) {
  return column < count - further;
}
__device__ __forceinline__ bool is_inside(int, int, Whole) {
  return true;
}

template <int kChunks>
struct ColumnPairs {
  u32 v[kChunks * 2];
};
// NOTE: one address, and constants from it: of 64-bit addresses for each read there would be too
// many registers.
// Columns column + 16j + {0, 1, 8, 9} of a vector of `count` elements (even), 4-byte aligned.
template <int kChunks, class Count>
__device__ __forceinline__ ColumnPairs<kChunks> load_columns(const void* vector, int column,
                                                             Count count) {
  ColumnPairs<kChunks> out;
  const char* first = static_cast<const char*>(vector) + column * 2ll;
#pragma unroll
  for (int j = 0; j < kChunks * 2; j++) {
    out.v[j] = 0;
    if (is_inside(column, j * 8, count))
      asm("ld.global.nc.b32 %0, [%1];" : "=r"(out.v[j]) : "l"(first + j * 16));
  }
  return out;
}
// One pair, column + `further`, read where it is used.
template <class Pair, class Count>
__device__ __forceinline__ Column load_column_of(const void* vector, int column, int further,
                                                 Count count) {
  u32 word = 0;
  const char* first = static_cast<const char*>(vector) + column * 2ll;
  if (is_inside(column, further, count))
    asm volatile("ld.global.b32 %0, [%1];" : "=r"(word) : "l"(first + further * 2) : "memory");
  Column out;
  Pair::unpack(word, out.x[0][0], out.x[0][1]);
  return out;
}
template <class Pair, int kChunks>
__device__ __forceinline__ Column column_of(const ColumnPairs<kChunks>& pairs, int j, int g) {
  Column out;
  Pair::unpack(pairs.v[j * 2 + g], out.x[0][0], out.x[0][1]);
  return out;
}

// Elements `column` + {0, 1} of a vector; 0 past `count`.
template <class T, class Count>
__device__ __forceinline__ auto load_column(const T* vector, int column, long long step,
                                            Count count) {
  ColumnOf<decltype(Element<T>::value(T()))> out;
#pragma unroll
  for (int c = 0; c < 2; c++) {
    out.x[0][c] = 0;
    if (is_inside(column, c, count)) out.x[0][c] = Element<T>::value(vector[(column + c) * step]);
  }
  return out;
}
// The same of contiguous floats, of an even number, at a multiple of 8 bytes.
template <class Count>
__device__ __forceinline__ Column load_column_pair(const float* vector, int column, int further,
                                                   Count count) {
  Column out = {};
  const float* first = vector + column;
  if (is_inside(column, further, count))
    asm("ld.global.nc.v2.f32 {%0, %1}, [%2];"
        : "=f"(out.x[0][0]), "=f"(out.x[0][1])
        : "l"(first + further));
  return out;
}
// The same of a vector that repeats after `period`.
template <class T, class Count>
__device__ __forceinline__ auto load_column(const T* vector, int column, long long period,
                                            long long step, Count count) {
  ColumnOf<decltype(Element<T>::value(T()))> out;
#pragma unroll
  for (int c = 0; c < 2; c++) {
    const int at = column + c;
    out.x[0][c] = 0;
    if (is_inside(at, 0, count))
      out.x[0][c] = Element<T>::value(vector[at % static_cast<int>(period) * step]);
  }
  return out;
}
__device__ __forceinline__ ColumnOf<long long> column_index(int column) {
  return {{{column, column + 1}}};
}

// ---- accumulators

template <int N>
__device__ __forceinline__ Tile accumulator(const float (&acc)[N], int at) {
  Tile tile;
#pragma unroll
  for (int e = 0; e < 4; e++) tile.x[e >> 1][e & 1] = acc[at + e];
  return tile;
}

// ---- random numbers by position: row · row_step + column · column_step

template <int R, int C>
__device__ __forceinline__ Tile uniform_tile(const Fragment<R, C, long long>& seed, int row,
                                             int column, long long row_step,
                                             long long column_step) {
  Tile tile;
  // NOTE: one element at a time: four copies of the generator would fill the instruction cache.
#pragma unroll 1
  for (int e = 0; e < 4; e++) {
    const float x = uniform_at(seed.at(0, 0),
                               (row + (e >> 1) * 8) * row_step + (column + (e & 1)) * column_step);
#pragma unroll
    for (int k = 0; k < 4; k++)
      if (e == k) tile.x[k >> 1][k & 1] = x;
  }
  return tile;
}

}  // namespace coda
