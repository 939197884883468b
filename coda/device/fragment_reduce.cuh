// coda/device/fragment_reduce.cuh: what a tile leaves of its rows, heads, blocks and columns.
#pragma once

#include "fragment.cuh"

namespace coda {

// ---- what lies past the last column or row of the results

template <int R, int C>
__device__ __forceinline__ Tile tile_of(const Fragment<R, C>& value) {
  return {{{value.at(0, 0), value.at(0, 1)}, {value.at(1, 0), value.at(1, 1)}}};
}
template <int R, int C>
__device__ __forceinline__ Tile inside_columns(const Fragment<R, C>& value, int column, int count,
                                               float identity) {
  Tile out;
#pragma unroll
  for (int h = 0; h < 2; h++)
#pragma unroll
    for (int c = 0; c < 2; c++) out.x[h][c] = column + c < count ? value.at(h, c) : identity;
  return out;
}
__device__ __forceinline__ Tile inside_rows(const Tile& value, int row, int count, float identity) {
  Tile out;
#pragma unroll
  for (int h = 0; h < 2; h++)
#pragma unroll
    for (int c = 0; c < 2; c++) out.x[h][c] = row + h * 8 < count ? value.x[h][c] : identity;
  return out;
}

// ---- reductions along the columns of a head: one value a row

template <int R, class T>
__device__ __forceinline__ RowOf<T> rows_of(const Fragment<R, 1, T>& value) {
  return {{{value.at(0, 0)}, {value.at(1, 0)}}};
}
struct GroupSum {
  float x[2][2] = {};
  template <int R, int C>
  __device__ __forceinline__ void take(const Fragment<R, C>& tile) {
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
      for (int c = 0; c < 2; c++) x[h][c] += tile.at(h, c);
  }
  __device__ __forceinline__ Row finish() const {
    return {{{quad_sum(x[0][0] + x[0][1])}, {quad_sum(x[1][0] + x[1][1])}}};
  }
};
struct GroupMax {
  float x[2] = {-infinity(), -infinity()};
  template <int R, int C>
  __device__ __forceinline__ void take(const Fragment<R, C>& tile) {
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
      for (int c = 0; c < 2; c++) x[h] = exact::maximum(x[h], tile.at(h, c));
  }
  __device__ __forceinline__ Row finish() const {
    Row out;
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const float pair = exact::maximum(x[h], shuffle_xor(x[h], 1));
      out.x[h][0] = exact::maximum(pair, shuffle_xor(pair, 2));
    }
    return out;
  }
};

// ---- block reductions along columns: one value a row and block of 64

struct BlockSum {
  float x[2] = {};
  __device__ __forceinline__ void take(const Tile& tile) {
#pragma unroll
    for (int h = 0; h < 2; h++) x[h] += tile.x[h][0] + tile.x[h][1];
  }
  __device__ __forceinline__ Row finish() const { return {{{quad_sum(x[0])}, {quad_sum(x[1])}}}; }
};
using BlockMax = GroupMax;
// Both halves of a chunk together.
struct Chunk {
  float x[2][4];
  __device__ __forceinline__ void put(int g, const Tile& tile) {
#pragma unroll
    for (int h = 0; h < 2; h++) x[h][g * 2] = tile.x[h][0], x[h][g * 2 + 1] = tile.x[h][1];
  }
};
// A product that is no part of a fused multiply-add.
__device__ __forceinline__ float rounded_product(float a, float b) {
  float c;
  asm("mul.rn.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
}
// A running maximum and the sum of exp(x - maximum).
struct BlockLogsumexp {
  float largest[2] = {-infinity(), -infinity()}, sum[2] = {};
  // NOTE: nothing is subtracted from an infinite maximum: inf - inf is a NaN.
  static __device__ __forceinline__ float shift(float largest) {
    return ::fabsf(largest) == infinity() ? 0.0f : largest;
  }
  __device__ __forceinline__ void take(const Chunk& tile) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      float top = largest[h];
#pragma unroll
      for (int c = 0; c < 4; c++) top = exact::maximum(top, tile.x[h][c]);
      const float by = shift(top);
      float added = 0;
#pragma unroll
      for (int c = 0; c < 4; c++) added += CODA_MAPS::exp(tile.x[h][c] - by);
      sum[h] = sum[h] * CODA_MAPS::exp(largest[h] - by) + added;
      largest[h] = top;
    }
  }
  __device__ __forceinline__ Row finish() const {
    Row out;
#pragma unroll
    for (int h = 0; h < 2; h++) {
      float top = largest[h], total = sum[h];
#pragma unroll
      for (int lanes = 1; lanes <= 2; lanes *= 2) {
        const float other = shuffle_xor(top, lanes), more = shuffle_xor(total, lanes);
        const float both = exact::maximum(top, other), by = shift(both);
        // NOTE: rounded both, so that all four lanes have the same bits.
        total = rounded_product(total, CODA_MAPS::exp(top - by)) +
                rounded_product(more, CODA_MAPS::exp(other - by));
        top = both;
      }
      out.x[h][0] = ::fabsf(top) == infinity() ? top : top + ::logf(total);
    }
    return out;
  }
};

// What leaves after a tile's last unit, as a global store before a unit's proxy fence would stall
// it: in registers, where lane l keeps the blocks l%4, l%4 + 4, … of its rows (`nth` counts blocks,
// then halves), …
template <int kCount, int kBlock = 64>
struct RowBlocks {
  float x[(kCount + 3) / 4][2];
  __device__ __forceinline__ void keep(int nth, const Row& value, int lane) {
    if (nth % 4 == 0 || lane % 4 == nth % 4)
      x[nth / 4][0] = value.x[0][0], x[nth / 4][1] = value.x[1][0];
  }
  template <class T>
  __device__ __forceinline__ void store(T* out, long long row_stride, long long block_stride,
                                        int row, int block0, int rows, int columns,
                                        int lane) const {
#pragma unroll
    for (int v = 0; v < (kCount + 3) / 4; v++) {
      const int nth = v * 4 + lane % 4, block = block0 + nth / 2, r = row + nth % 2 * 64;
      if (nth >= kCount || block * kBlock >= columns) continue;
      if (r < rows) out[r * row_stride + block * block_stride] = Element<T>::rounded(x[v][0]);
      if (r + 8 < rows)
        out[(r + 8) * row_stride + block * block_stride] = Element<T>::rounded(x[v][1]);
    }
  }
};
// … or in shared memory, beside what its row needs. `at`: where this lane's first row of the half
// (or, to store, of the tile) has it; kRowBytes from row to row.
template <int kRowBytes>
__device__ __forceinline__ void keep_block(u32 at, int block, const Row& value, int lane) {
  if (lane % 4 == 0)
#pragma unroll
    for (int h = 0; h < 2; h++) put_shared(at + h * 8 * kRowBytes + block * 4, value.x[h][0]);
}
// kBlocks of kBlock columns; lane l stores those of (block, half) l%4, l%4 + 4, ….
template <int kBlocks, int kBlock, int kRowBytes, class T>
__device__ __forceinline__ void store_blocks(u32 at, T* out, long long row_stride,
                                             long long block_stride, int row, int block0, int rows,
                                             int columns, int lane) {
  __syncwarp();
#pragma unroll
  for (int nth = lane % 4; nth < kBlocks * 2; nth += 4) {
    const int block = block0 + nth / 2;
    if (block * kBlock >= columns) continue;
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const int below = nth % 2 * 64 + h * 8;
      float value;
      get_shared(at + below * kRowBytes + nth / 2 * 4, value);
      if (row + below < rows)
        out[(row + below) * row_stride + block * block_stride] = Element<T>::rounded(value);
    }
  }
}

// ---- one element of a row, by its column: the lane that finds it keeps it, as above

struct Picked {
  unsigned found = 0;
  template <int kRowBytes, int R>
  __device__ __forceinline__ void take(u32 at, int i, const Tile& tile,
                                       const Fragment<R, 1, long long>& id, int column, int count) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const long long whole = id.at(h, 0);
      const int wanted = whole >= 0 && whole < count ? static_cast<int>(whole) : -1;
      const unsigned c = static_cast<unsigned>(wanted - column);
      if (c < 2) {
        put_shared(at + h * 8 * kRowBytes, c == 0 ? tile.x[h][0] : tile.x[h][1]);
        found |= 1u << (i * 2 + h);
      }
    }
  }
  // Whether this lane stores row h of half i: it found the column, or no column can be found.
  template <int R>
  __device__ __forceinline__ bool here(int i, int h, const Fragment<R, 1, long long>& id,
                                       bool first, int count, int lane) const {
    if (found >> (i * 2 + h) & 1) return true;
    const bool outside = id.at(h, 0) < 0 || id.at(h, 0) >= count;
    return outside && first && lane % 4 == 0;
  }
  template <int kRowBytes>
  __device__ __forceinline__ Row value(u32 at, int i) const {
    Row out;
#pragma unroll
    for (int h = 0; h < 2; h++) {
      out.x[h][0] = 0;
      if (found >> (i * 2 + h) & 1) get_shared(at + h * 8 * kRowBytes, out.x[h][0]);
    }
    return out;
  }
};
template <class T>
__device__ __forceinline__ void store_rows(T* out, long long stride, int row, int count,
                                           const Row& value, const bool (&here)[2]) {
#pragma unroll
  for (int h = 0; h < 2; h++)
    if (here[h] && row + h * 8 < count)
      out[(row + h * 8) * stride] = Element<T>::rounded(value.x[h][0]);
}

// A value of each row and head, by one of the four lanes that have it.
template <class T>
__device__ __forceinline__ void store_head(T* out, long long row_stride, long long head_stride,
                                           int row, int head, int rows, const Row& value,
                                           int lane) {
  if (lane % 4 != 0) return;
#pragma unroll
  for (int h = 0; h < 2; h++)
    if (row + h * 8 < rows)
      out[(row + h * 8) * row_stride + head * head_stride] = Element<T>::rounded(value.x[h][0]);
}

// ---- column sums of a unit's 64 rows

// Both halves of a chunk, rows r and r + 8 added.
struct ColumnChunk {
  float x[4];
  __device__ __forceinline__ void put(int g, const Tile& tile) {
#pragma unroll
    for (int c = 0; c < 2; c++) x[g * 2 + c] = tile.x[0][c] + tile.x[1][c];
  }
};
// The sum over this warp's 16 rows of a chunk, spread over lanes: lane l holds column
// 8 (l / 16) + 2 (l % 4) + (l / 8) % 2; lanes 4 apart hold the same.
__device__ __forceinline__ float column_sum(const ColumnChunk& chunk, int lane) {
  const float(&v)[4] = chunk.x;
  const bool high = lane & 16, odd = lane & 8;
  float a = high ? v[2] : v[0], b = high ? v[3] : v[1];
  a += shuffle_xor(high ? v[0] : v[2], 16);
  b += shuffle_xor(high ? v[1] : v[3], 16);
  float s = odd ? b : a;
  s += shuffle_xor(odd ? a : b, 8);
  return s + shuffle_xor(s, 4);
}

// A warp's sums into its part of a slot, as floats in column order: of chunk j, or of a unit.
__device__ __forceinline__ void put_column_sum(u32 to, int j, float sum, int lane) {
  const int column = (lane >> 4) * 8 + (lane % 4) * 2 + (lane >> 3 & 1);
  __syncwarp();  // all lanes have read what may have been there
  if ((lane & 4) == 0)
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(to + (j * 16 + column) * 4), "f"(sum) : "memory");
}
template <int kChunks>
__device__ __forceinline__ void put_column_sums(u32 to, const float (&sums)[kChunks], int lane) {
#pragma unroll
  for (int j = 0; j < kChunks; j++) put_column_sum(to, j, sums[j], lane);
}
// The four warps' sums of `kColumns` columns, kPart bytes apart, added and stored.
template <int kColumns, int kPart>
__device__ __forceinline__ void drain_columns(u32 from, float* out, long long block_stride,
                                              long long column_stride, int row, int column,
                                              int rows, int columns, int lane) {
#pragma unroll
  for (int c = lane; c < kColumns; c += 32) {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < 4; w++) {
      float part;
      asm volatile("ld.shared.f32 %0, [%1];"
                   : "=f"(part)
                   : "r"(from + w * kPart + c * 4)
                   : "memory");
      sum += part;
    }
    if (row < rows && column + c < columns)
      out[row / 64 * block_stride + (column + c) * column_stride] = sum;
  }
}

}  // namespace coda
