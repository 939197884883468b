// coda/device/stream_scatter.cuh: scatter_sum: a row of the result adds up the rows that name it.
//
// A block owns a range of the result's rows. It reads all ids, lists those of its range in shared
// memory and sorts the list by (row, position), so that every sum has the order of the positions.
// Then a team of threads takes a row at a time: reads what the list says, writes once. Where the
// list has no room (one id many times), each row walks the ids again.
#pragma once

#include "stream.cuh"

namespace coda {

template <class Value, class Out, class Id>
struct Scatter {
  Out* out;
  const Value* values;
  const Id* ids;
  long long count, rows, range;  // ids; rows of the result; rows of a block
  long long items;               // vectors of a row
  long long out_row, values_row, ids_stride;
};

template <int kWidth, int kThreads, int kTeam, bool kAdds, class Lane, class Value, class Out,
          class Id>
__device__ __forceinline__ void scatter_sum(const Scatter<Value, Out, Id>& s) {
  constexpr int kList = 1024, kAtOnce = 8;
  __shared__ unsigned long long found[kList], sorted[kList];
  __shared__ int hits;
  __shared__ unsigned mask[kThreads / 32];
  const unsigned thread = threadIdx.x;
  const long long begin = blockIdx.x * s.range;
  const long long end = begin + s.range < s.rows ? begin + s.range : s.rows;
  if (thread == 0) hits = 0;
  __syncthreads();
  for (long long first = thread; first < s.count; first += kThreads * kAtOnce) {
    long long ids[kAtOnce];
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      const long long m = first + u * kThreads;
      ids[u] = m < s.count ? value_at(s.ids + m * s.ids_stride) : -1;
    }
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      if (ids[u] < begin || ids[u] >= end) continue;
      const int at = atomicAdd(&hits, 1);
      const unsigned long long m = static_cast<unsigned long long>(first + u * kThreads);
      if (at < kList) found[at] = static_cast<unsigned long long>(ids[u] - begin) << 40 | m;
    }
  }
  __syncthreads();
  const int listed = hits;

  const auto store = [&](long long row, long long item, const Lane(&sum)[kWidth]) {
    Out* to = s.out + row * s.out_row + item * kWidth;
    Pack<Out, kWidth> pack;
    if constexpr (kAdds) {
      pack.load(to);
      Lane all[kWidth];
      EACH(kWidth) all[i] = Sum::of(lane<Lane>(pack.at(i)), sum[i]);
      pack.fill(all);
    } else {
      pack.fill(sum);
    }
    pack.store(to);
  };

  if (listed <= kList) {
    for (int e = thread; e < listed; e += kThreads) {
      int rank = 0;
      for (int k = 0; k < listed; ++k) rank += found[k] < found[e] ? 1 : 0;
      sorted[rank] = found[e];
    }
    __syncthreads();
    for (long long row = begin + thread / kTeam; row < end; row += kThreads / kTeam) {
      // The first entry that is not below the row's.
      int low = 0;
      for (int high = listed; low < high;) {
        const int middle = (low + high) / 2;
        if (static_cast<long long>(sorted[middle] >> 40) < row - begin) {
          low = middle + 1;
        } else {
          high = middle;
        }
      }
      int stop = low;
      while (stop < listed && static_cast<long long>(sorted[stop] >> 40) == row - begin) ++stop;
      for (long long item = thread % kTeam; item < s.items; item += kTeam) {
        Lane sum[kWidth];
        EACH(kWidth) sum[i] = Lane(0);
        for (int k = low; k < stop; k += kAtOnce) {
          Pack<Value, kWidth> packs[kAtOnce];
#pragma unroll
          for (int u = 0; u < kAtOnce; ++u) {
            packs[u].clear();
            if (k + u < stop) {
              const long long m = static_cast<long long>(sorted[k + u] & 0xffffffffffULL);
              packs[u].load(s.values + m * s.values_row + item * kWidth);
            }
          }
#pragma unroll
          for (int u = 0; u < kAtOnce; ++u)
            if (k + u < stop) EACH(kWidth) sum[i] = Sum::of(sum[i], lane<Lane>(packs[u].at(i)));
        }
        store(row, item, sum);
      }
    }
    return;
  }

  // NOTE: all threads walk together: the trip counts below are the same for all.
  for (long long row = begin; row < end; ++row) {
    for (long long first = 0; first < s.items; first += kThreads) {
      const long long item = first + thread;
      Lane sum[kWidth];
      EACH(kWidth) sum[i] = Lane(0);
      for (long long m = 0; m < s.count; m += kThreads) {
        const bool hit =
            m + thread < s.count && value_at(s.ids + (m + thread) * s.ids_stride) == row;
        const unsigned ballot = __ballot_sync(0xffffffffu, hit);
        if (thread % 32 == 0) mask[thread / 32] = ballot;
        if (__syncthreads_or(hit)) {
          for (int w = 0; w < kThreads / 32; ++w) {
            for (unsigned bits = mask[w]; bits != 0; bits &= bits - 1) {
              const long long at = m + 32 * w + __ffs(bits) - 1;
              if (item >= s.items) continue;
              Pack<Value, kWidth> pack;
              pack.load(s.values + at * s.values_row + item * kWidth);
              EACH(kWidth) sum[i] = Sum::of(sum[i], lane<Lane>(pack.at(i)));
            }
          }
        }
        __syncthreads();
      }
      if (item < s.items) store(row, item, sum);
    }
  }
}

}  // namespace coda
