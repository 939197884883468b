// coda/device/stream_scatter.cuh: scatter_sum: a row of the result adds up the rows that name it.
//
// A block owns a range of the result's rows, or some columns of it. It reads all ids, lists those
// of its range in shared memory and sorts the list by (row, position), so that every sum has the
// order of the positions. Then a team of threads takes a row at a time: reads what the list says,
// writes once. Where the list has no room, the range is cut into runs of rows that fit; a row that
// does not fit by itself is shared by all teams, whose sums are added in their order.
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
struct Scattering {
  static constexpr int kList = 1024, kAtOnce = 8, kTeams = kThreads / kTeam, kMostRows = 1024;
  using Lanes = Lane[kWidth];

  struct Shared {
    unsigned long long found[kList], sorted[kList];
    int counts[kMostRows];
    unsigned masks[kList / 32];
    Lane sums[kWidth][kThreads];
    int hits, run;
  };
  const Scatter<Value, Out, Id>& s;
  Shared& shared;
  unsigned thread, member, team;

  template <class Each>
  __device__ __forceinline__ void each_id(long long from, long long to, Each each) {
    for (long long first = thread; first < s.count; first += kThreads * kAtOnce) {
      long long ids[kAtOnce];
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        const long long m = first + u * kThreads;
        ids[u] = m < s.count ? value_at(s.ids + m * s.ids_stride) : -1;
      }
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u)
        if (ids[u] >= from && ids[u] < to) each(ids[u] - from, first + u * kThreads);
    }
  }

  // How many ids name rows from … to; the list, if they fit.
  __device__ __forceinline__ int list(long long from, long long to) {
    __syncthreads();
    if (thread == 0) shared.hits = 0;
    __syncthreads();
    each_id(from, to, [&](long long row, long long m) {
      const int at = atomicAdd(&shared.hits, 1);
      if (at < kList)
        shared.found[at] =
            static_cast<unsigned long long>(row) << 40 | static_cast<unsigned long long>(m);
    });
    __syncthreads();
    return shared.hits;
  }

  // Rows after `from` that the list holds together.
  __device__ __forceinline__ int run(long long from, long long to) {
    const int rows = static_cast<int>(to - from);
    for (int row = thread; row < rows; row += kThreads) shared.counts[row] = 0;
    __syncthreads();
    each_id(from, to, [&](long long row, long long) { atomicAdd(&shared.counts[row], 1); });
    __syncthreads();
    if (thread == 0) {
      int all = 0, run = 0;
      while (run < rows && all + shared.counts[run] <= kList) all += shared.counts[run++];
      shared.run = run;
    }
    __syncthreads();
    return shared.run;
  }

  __device__ __forceinline__ void store(long long row, long long item, const Lanes& sum) {
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
  }

  // Adds entries first, first + step, … before stop.
  __device__ __forceinline__ void add(Lanes& sum, const unsigned long long* entries, int first,
                                      int stop, int step, long long item) {
    for (int k = first; k < stop; k += kAtOnce * step) {
      Pack<Value, kWidth> packs[kAtOnce];
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        packs[u].clear();
        if (k + u * step >= stop) continue;
        const long long m = static_cast<long long>(entries[k + u * step] & 0xffffffffffULL);
        packs[u].load(s.values + m * s.values_row + item * kWidth);
      }
      together(packs);
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u)
        if (k + u * step < stop) EACH(kWidth) sum[i] = Sum::of(sum[i], lane<Lane>(packs[u].at(i)));
    }
  }

  __device__ __forceinline__ void rows(long long from, long long to, int listed) {
    for (int e = thread; e < listed; e += kThreads) {
      int rank = 0;
      for (int k = 0; k < listed; ++k) rank += shared.found[k] < shared.found[e] ? 1 : 0;
      shared.sorted[rank] = shared.found[e];
    }
    __syncthreads();
    for (long long row = from + team; row < to; row += kTeams) {
      const unsigned long long key = static_cast<unsigned long long>(row - from);
      // The first entry that is not below the row's, and the first one above.
      int low = 0;
      for (int high = listed; low < high;) {
        const int middle = (low + high) / 2;
        if (shared.sorted[middle] >> 40 < key) {
          low = middle + 1;
        } else {
          high = middle;
        }
      }
      int stop = low;
      while (stop < listed && shared.sorted[stop] >> 40 == key) ++stop;
      for (long long item = member; item < s.items; item += kTeam) {
        Lane sum[kWidth];
        EACH(kWidth) sum[i] = Lane(0);
        add(sum, shared.sorted, low, stop, 1, item);
        store(row, item, sum);
      }
    }
  }

  // One row that many ids name: kList ids at a time.
  // NOTE: all threads walk together: the trip counts are the same for all.
  __device__ __forceinline__ void long_row(long long row) {
    for (long long first_item = 0; first_item < s.items; first_item += kTeam) {
      const long long item = first_item + member;
      Lane sum[kWidth];
      EACH(kWidth) sum[i] = Lane(0);
      for (long long first = 0; first < s.count; first += kList) {
        bool hit[kList / kThreads];
#pragma unroll
        for (int u = 0; u < kList / kThreads; ++u) {
          const long long m = first + u * kThreads + thread;
          hit[u] = m < s.count && value_at(s.ids + m * s.ids_stride) == row;
        }
        __syncthreads();
#pragma unroll
        for (int u = 0; u < kList / kThreads; ++u) {
          const unsigned mask = __ballot_sync(0xffffffffu, hit[u]);
          if (thread % 32 == 0) shared.masks[(u * kThreads + thread) / 32] = mask;
        }
        __syncthreads();
        int listed = 0;
        for (int w = 0; w < kList / 32; ++w) {
          const unsigned mask = shared.masks[w];
#pragma unroll
          for (int u = 0; u < kList / kThreads; ++u) {
            if (!hit[u] || w != static_cast<int>(u * kThreads + thread) / 32) continue;
            shared.sorted[listed + __popc(mask & ((1u << thread % 32) - 1))] =
                static_cast<unsigned long long>(first + u * kThreads + thread);
          }
          listed += __popc(mask);
        }
        __syncthreads();
        if (item < s.items) add(sum, shared.sorted, team, listed, kTeams, item);
      }
      __syncthreads();
      EACH(kWidth) shared.sums[i][thread] = sum[i];
      __syncthreads();
      if (team != 0 || item >= s.items) continue;
      for (int other = 1; other < kTeams; ++other)
        EACH(kWidth) sum[i] = Sum::of(sum[i], shared.sums[i][other * kTeam + member]);
      store(row, item, sum);
    }
  }

  __device__ __forceinline__ void all(long long begin, long long end) {
    for (long long from = begin; from < end;) {
      long long to = end;
      int listed = list(from, to);
      if (listed > kList) {
        const int fit = run(from, to);
        if (fit == 0) {
          long_row(from++);
          continue;
        }
        to = from + fit;
        listed = list(from, to);
      }
      rows(from, to, listed);
      from = to;
    }
  }
};

template <int kWidth, int kThreads, int kTeam, bool kAdds, class Lane, class Value, class Out,
          class Id>
__device__ __forceinline__ void scatter_sum(const Scatter<Value, Out, Id>& s, long long block) {
  using Work = Scattering<kWidth, kThreads, kTeam, kAdds, Lane, Value, Out, Id>;
  __shared__ typename Work::Shared shared;
  const long long begin = block * s.range;
  const long long end = begin + s.range < s.rows ? begin + s.range : s.rows;
  Work{s, shared, threadIdx.x, threadIdx.x % kTeam, threadIdx.x / kTeam}.all(begin, end);
}

}  // namespace coda
