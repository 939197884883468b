// coda/device/products.cuh: products of any operands on the FP32 units: tiles in shared memory, a
// square of the result in each thread's registers.
//
// A block has 16 x 16 threads, and a thread kEach x kEach elements of a tile of 16 kEach rows and
// columns. Steps of 16 along k are loaded one ahead of those that are multiplied. Each element's
// sum is in parts of 64 terms, both in ascending order, whatever the tile.
#pragma once

#include "maps.cuh"
#include "steps.cuh"

namespace coda {

inline constexpr int kProductThreads = 256, kProductSide = 16, kProductDepth = 16;
inline constexpr int kProductPart = 64 / kProductDepth;  // steps

// One side of a product: an element of side `s` at depth `k` is at first[side.at(s) + depth.at(k)].
template <class T, int S, int K>
struct ProductOperand {
  using Element = T;
  const T* first;
  Steps<S> side;
  Steps<K> depth;
  bool across;  // neighbours along the side, not along k, are closer in memory
};

// What an element stands for.
struct PlainValue {
  template <class T>
  __device__ __forceinline__ float operator()(T x) const {
    return lane<float>(Element<T>::value(x));
  }
};

struct alignas(16) Quad {
  float x[4];
};

template <int kEach>
struct ProductMemory {
  static constexpr int kTile = kProductSide * kEach;
  static constexpr int kPitch = kTile + 4;  // of a row of one k: whole quads, spread over the banks
  Quad tiles[2][2][kProductDepth * kPitch / 4];  // [buffer][left, right]
  long long side[2][kTile];                      // [left, right]: offsets of rows, of columns
  long long depth[2][2][kProductDepth];          // [buffer][left, right]: offsets of k
};

// The place in a tile of the i-th element of a step that this thread loads.
struct ProductPlace {
  int side, depth;
};
template <int kTile, bool kAcross>
__device__ __forceinline__ ProductPlace product_place(int i) {
  const int t = threadIdx.x;
  if (kAcross) return {t % kTile, t / kTile + i * (kProductThreads / kTile)};
  return {t / kProductDepth + i * (kProductThreads / kProductDepth), t % kProductDepth};
}

template <int kEach>
struct ProductTile {
  static constexpr int kTile = ProductMemory<kEach>::kTile, kPitch = ProductMemory<kEach>::kPitch;
  static constexpr int kLoads = kTile * kProductDepth / kProductThreads;

  ProductMemory<kEach>& memory;
  long long row0, column0, rows, columns;
  float total[kEach][kEach];

  __device__ __forceinline__ ProductTile(ProductMemory<kEach>& memory, long long tile,
                                         long long rows, long long columns)
      : memory(memory), rows(rows), columns(columns) {
    const long long across = (columns + kTile - 1) / kTile;
    row0 = tile / across * kTile;
    column0 = tile % across * kTile;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
#pragma unroll
      for (int j = 0; j < kEach; ++j) total[i][j] = 0.0f;
    }
  }

  // Offsets of the tile's rows and columns; those past the end repeat the last one.
  template <class Rows, class Columns>
  __device__ __forceinline__ void set_sides(const Rows& row, const Columns& column) {
    for (int t = threadIdx.x; t < 2 * kTile; t += kProductThreads) {
      const long long r = row0 + t, c = column0 + t - kTile;
      if (t < kTile) {
        memory.side[0][t] = row.at(r < rows ? r : rows - 1);
      } else {
        memory.side[1][t - kTile] = column.at(c < columns ? c : columns - 1);
      }
    }
  }

  template <class Left, class Right>
  __device__ __forceinline__ void set_depths(const Left& left, const Right& right, long long k0,
                                             int buffer) {
    const int t = threadIdx.x;
    if (t < kProductDepth) {
      memory.depth[buffer][0][t] = left.depth.at(k0 + t);
    } else if (t < 2 * kProductDepth) {
      memory.depth[buffer][1][t - kProductDepth] = right.depth.at(k0 + t - kProductDepth);
    }
  }

  template <int kWhich, bool kAcross, class Operand>
  __device__ __forceinline__ void load_along(const Operand& operand, long long k0, long long depth,
                                             int buffer,
                                             typename Operand::Element (&to)[kLoads]) const {
    const ProductPlace own = product_place<kTile, kAcross>(0);
    const long long* sides = memory.side[kWhich];
    const long long* depths = memory.depth[buffer][kWhich];
    const int inside = depth - k0 < kProductDepth ? static_cast<int>(depth - k0) : kProductDepth;
    const auto* first = operand.first + (kAcross ? sides[own.side] : depths[own.depth]);
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const ProductPlace place = product_place<kTile, kAcross>(i);
      const bool is_there = (kAcross ? place.depth : own.depth) < inside;
      to[i] = is_there ? first[kAcross ? depths[place.depth] : sides[place.side]]
                       : typename Operand::Element();
    }
  }
  template <int kWhich, class Operand>
  __device__ __forceinline__ void load(const Operand& operand, long long k0, long long depth,
                                       int buffer, typename Operand::Element (&to)[kLoads]) const {
    if (operand.across) {
      load_along<kWhich, true>(operand, k0, depth, buffer, to);
    } else {
      load_along<kWhich, false>(operand, k0, depth, buffer, to);
    }
  }

  template <int kWhich, bool kAcross, class Element, class Value>
  __device__ __forceinline__ void put_along(const Value& value, int buffer,
                                            const Element (&from)[kLoads]) {
    float* tile = memory.tiles[buffer][kWhich][0].x;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const ProductPlace place = product_place<kTile, kAcross>(i);
      tile[place.depth * kPitch + place.side] = value(from[i]);
    }
  }
  template <int kWhich, class Operand, class Value>
  __device__ __forceinline__ void put(const Operand& operand, const Value& value, int buffer,
                                      const typename Operand::Element (&from)[kLoads]) {
    if (operand.across) {
      put_along<kWhich, true>(value, buffer, from);
    } else {
      put_along<kWhich, false>(value, buffer, from);
    }
  }

  // The rows (columns) of a thread: quads that are 64 apart.
  static __device__ __forceinline__ int mine(int thread, int i) {
    return i / 4 * (4 * kProductSide) + thread * 4 + i % 4;
  }

  __device__ __forceinline__ void multiply(float (&part)[kEach][kEach], int buffer) const {
    const int row = threadIdx.x / kProductSide, column = threadIdx.x % kProductSide;
#pragma unroll
    for (int k = 0; k < kProductDepth; ++k) {
      Quad left[kEach / 4], right[kEach / 4];
#pragma unroll
      for (int q = 0; q < kEach / 4; ++q) {
        left[q] = memory.tiles[buffer][0][(k * kPitch + mine(row, 4 * q)) / 4];
        right[q] = memory.tiles[buffer][1][(k * kPitch + mine(column, 4 * q)) / 4];
      }
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
#pragma unroll
        for (int j = 0; j < kEach; ++j) part[i][j] += left[i / 4].x[i % 4] * right[j / 4].x[j % 4];
      }
    }
  }

  // total += left @ right, whose elements are turned into numbers by the last two arguments.
  template <class Left, class Right, class LeftValue, class RightValue>
  __device__ __forceinline__ void add(const Left& left, const Right& right, long long depth,
                                      const LeftValue& left_value, const RightValue& right_value) {
    const long long steps = (depth + kProductDepth - 1) / kProductDepth;
    typename Left::Element left_next[kLoads];
    typename Right::Element right_next[kLoads];
    __syncthreads();
    set_sides(left.side, right.side);
    set_depths(left, right, 0, 0);
    set_depths(left, right, kProductDepth, 1);
    __syncthreads();
    if (steps > 0) {
      load<0>(left, 0, depth, 0, left_next);
      load<1>(right, 0, depth, 0, right_next);
      put<0>(left, left_value, 0, left_next);
      put<1>(right, right_value, 0, right_next);
    }
    __syncthreads();
    float part[kEach][kEach] = {};
    for (long long step = 0; step < steps; ++step) {
      const int now = step & 1, next = now ^ 1;
      const long long k0 = (step + 1) * kProductDepth;
      const bool more = step + 1 < steps;
      if (more) {
        load<0>(left, k0, depth, next, left_next);
        load<1>(right, k0, depth, next, right_next);
      }
      multiply(part, now);
      if (more) {
        put<0>(left, left_value, next, left_next);
        put<1>(right, right_value, next, right_next);
        set_depths(left, right, k0 + kProductDepth, now);
      }
      if (!more || step % kProductPart == kProductPart - 1) {
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
#pragma unroll
          for (int j = 0; j < kEach; ++j) {
            total[i][j] += part[i][j];
            part[i][j] = 0.0f;
          }
        }
      }
      __syncthreads();
    }
  }

  // to[row.at(r) + column.at(c)] = total.
  template <class Rows, class Columns>
  __device__ __forceinline__ void store(float* to, const Rows& row, const Columns& column) {
    __syncthreads();
    set_sides(row, column);
    __syncthreads();
    const int thread_row = threadIdx.x / kProductSide, thread_column = threadIdx.x % kProductSide;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int r = mine(thread_row, i);
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        const int c = mine(thread_column, j);
        if (row0 + r >= rows || column0 + c >= columns) continue;
        to[memory.side[0][r] + memory.side[1][c]] = total[i][j];
      }
    }
  }
};

}  // namespace coda
