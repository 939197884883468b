// coda/device/pack.cuh: copies a matrix between memory as it came and rows that the copy engine
// (TMA) can read.
//
// A block moves tiles of 64 x 64: the lanes of a warp step along whichever axis is contiguous on
// the strided side, 16 bytes at a time along rows on the packed side, and shared memory turns one
// into the other. Every load of a thread is under way before the first one is used.
#pragma once

#include "maps.cuh"
#include "steps.cuh"

namespace coda {

// The argument of a kernel: strided[row.at(r) + column.at(c)] is packed[r * pitch + c].
template <class Strided, class Packed, int R, int C>
struct Packing {
  Strided* strided;
  Packed* packed;  // rows are whole multiples of 16 bytes
  long long rows, columns, pitch;
  Steps<R> row;
  Steps<C> column;
};

inline constexpr int kPackSide = 64, kPackThreads = 256;

template <class T>
struct alignas(16) PackedVector {
  T elements[16 / sizeof(T)];
};

// A tile in shared memory: rows an odd number of words apart.
template <class T>
struct PackTile {
  static constexpr int kPitch = kPackSide + 4 / static_cast<int>(sizeof(T));
  T elements[kPackSide * kPitch];
};

// The positions in a tile of the i-th element that this thread moves on the strided side.
struct PackPlace {
  int row, column;
};
template <bool kAcross>
__device__ __forceinline__ PackPlace pack_place(int i) {
  const int lane_id = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int along = lane_id + i % 2 * 32, other = warp + i / 2 * (kPackThreads / 32);
  return kAcross ? PackPlace{along, other} : PackPlace{other, along};
}
inline constexpr int kPackEach = kPackSide * kPackSide / kPackThreads;

// How one element becomes the other.
template <class To, class From>
struct Packed {
  static __device__ __forceinline__ To of(From x) {
    return Element<To>::rounded(Element<From>::value(x));
  }
};
template <class T>
struct Packed<T, T> {
  static __device__ __forceinline__ T of(T x) { return x; }
};

// Runs `move(first row, first column)` for each tile of this block.
template <class Matrix, class Move>
__device__ __forceinline__ void each_pack_tile(const Matrix& a, const Move& move) {
  const long long across = (a.columns + kPackSide - 1) / kPackSide;
  const long long tiles = (a.rows + kPackSide - 1) / kPackSide * across;
  for (long long tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    move(tile / across * kPackSide, tile % across * kPackSide);
  }
}

// kAcross: rows, not columns, are contiguous on the strided side.
template <bool kAcross, class Strided, class Into, int R, int C>
__device__ __forceinline__ void pack(const Packing<const Strided, Into, R, C>& a) {
  constexpr int kVector = 16 / static_cast<int>(sizeof(Into)), kVectors = kPackSide / kVector;
  __shared__ PackTile<Into> tile;
  each_pack_tile(a, [&](long long row0, long long column0) {
    Strided loaded[kPackEach];
#pragma unroll
    for (int i = 0; i < kPackEach; ++i) {
      const PackPlace place = pack_place<kAcross>(i);
      const long long row = row0 + place.row, column = column0 + place.column;
      loaded[i] = Strided();
      if (row < a.rows && column < a.columns) {
        loaded[i] = a.strided[a.row.at(row) + a.column.at(column)];
      }
    }
#pragma unroll
    for (int i = 0; i < kPackEach; ++i) {
      const PackPlace place = pack_place<kAcross>(i);
      tile.elements[place.row * PackTile<Into>::kPitch + place.column] =
          Packed<Into, Strided>::of(loaded[i]);
    }
    __syncthreads();
    // NOTE: the last vector of a row may reach past its columns, never past the pitch.
    for (int v = threadIdx.x; v < kPackSide * kVectors; v += kPackThreads) {
      const int row = v / kVectors, column = v % kVectors * kVector;
      if (row0 + row >= a.rows || column0 + column >= a.columns) continue;
      PackedVector<Into> vector;
#pragma unroll
      for (int e = 0; e < kVector; ++e) {
        vector.elements[e] = tile.elements[row * PackTile<Into>::kPitch + column + e];
      }
      *reinterpret_cast<PackedVector<Into>*>(a.packed + (row0 + row) * a.pitch + column0 + column) =
          vector;
    }
    __syncthreads();
  });
}

// The way back.
template <bool kAcross, class T, int R, int C>
__device__ __forceinline__ void unpack(const Packing<T, const T, R, C>& a) {
  constexpr int kVector = 16 / static_cast<int>(sizeof(T)), kVectors = kPackSide / kVector;
  constexpr int kEach = kPackSide * kVectors / kPackThreads;
  __shared__ PackTile<T> tile;
  each_pack_tile(a, [&](long long row0, long long column0) {
    PackedVector<T> loaded[kEach] = {};
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int v = threadIdx.x + i * kPackThreads;
      const int row = v / kVectors, column = v % kVectors * kVector;
      if (row0 + row >= a.rows || column0 + column >= a.columns) continue;
      const T* from = a.packed + (row0 + row) * a.pitch + column0 + column;
      if (column0 + column + kVector <= a.columns) {
        loaded[i] = *reinterpret_cast<const PackedVector<T>*>(from);
        continue;
      }
      // NOTE: nobody has stored what lies behind the row.
      for (int e = 0; e < a.columns - column0 - column; ++e) loaded[i].elements[e] = from[e];
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int v = threadIdx.x + i * kPackThreads;
      const int row = v / kVectors, column = v % kVectors * kVector;
#pragma unroll
      for (int e = 0; e < kVector; ++e) {
        tile.elements[row * PackTile<T>::kPitch + column + e] = loaded[i].elements[e];
      }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kPackEach; ++i) {
      const PackPlace place = pack_place<kAcross>(i);
      const long long row = row0 + place.row, column = column0 + place.column;
      if (row >= a.rows || column >= a.columns) continue;
      a.strided[a.row.at(row) + a.column.at(column)] =
          tile.elements[place.row * PackTile<T>::kPitch + place.column];
    }
    __syncthreads();
  });
}

}  // namespace coda
