// coda/device/sm90_across.cuh: sums over heads of 128 columns in tiles of 192.
//
// Two blocks side by side hold three heads, the middle one in both: units 0, 1, 2 of 64 columns in
// the left block, 3, 4, 5 in the right one. Each sends the other what it has of the middle head's
// sums, before the first unit of a tile is finished.
#pragma once

#include "fragment_reduce.cuh"
#include "ptx_barrier.cuh"
#include "sm90_work.cuh"

namespace coda {

template <class P>
struct Gemm;

// P is the page.
template <class P>
struct HeadSums {
  using Arguments = typename P::Arguments;
  static constexpr int kTileM = 128, kRowHalves = 2, kUnits = 3;
  // Shared memory: a barrier for each consumer warp, then for each consumer the other block's sums.
  static constexpr int kBarriers = 8, kBytes = kBarriers * 8 + 2 * kTileM * 4;

  // Of rows r and r + 8 of each row half: lanes 0, 1 of four neighbours have those of the head that
  // is here whole, lanes 2, 3 of the one that is in both blocks.
  float held[kRowHalves];

  static __device__ __forceinline__ void init(u32 at) {
    for (int b = 0; b < kBarriers; b++) barrier_init(at + b * 8, 1);
  }

  // NOTE: the other block's next sums come one main loop later at the soonest. It cannot run ahead
  // of this one by more than the stages that both share, so they never meet those of this tile.
  __device__ __forceinline__ void take(const Arguments& args, const Work& w, int count,
                                       const float (&acc)[kRowHalves][P::kTileN / 2], u32 at,
                                       u32 rows_at, int me, u32& phase, int warp, int lane) {
    const bool right = Gemm<P>::rank() == 1;
#pragma unroll
    for (int i = 0; i < kRowHalves; i++) {
      Row sums[kUnits] = {};
#pragma unroll
      for (int h = 0; h < kUnits; h++) {
        if (h >= count) continue;
        const Unit here = Gemm<P>::unit_of(args, w, h);
        P::with_space(here.s, [&](auto space) {
          decltype(space)::head_sum(args, here.s, rows_at + i * 64 * P::kRowBytes, acc[i], h,
                                    here.unit, lane, sums[h]);
        });
      }
      float own[2];
#pragma unroll
      for (int x = 0; x < 2; x++) {
        const float first = sums[0].x[x][0], middle = sums[1].x[x][0], last = sums[2].x[x][0];
        const float whole = right ? middle + last : first + middle, part = right ? first : last;
        own[x] = lane & 2 ? part : whole;
      }
      held[i] = lane & 1 ? own[1] : own[0];
    }
    // Whether there is a middle head: the left block is full, and the right one holds something.
    const int columns = P::all_columns(args) - (w.n - (right ? 1 : 0)) * P::kTileN;
    if (columns <= P::kTileN) return;
    const u32 barrier = at + (me * 4 + warp) * 8;
    const u32 sums_at =
        at + kBarriers * 8 + (me * kTileM + warp * 16 + lane / 4 + (lane & 1) * 8) * 4;
    if (lane == 0) barrier_expect(barrier, 16 * kRowHalves * 4);
    __syncwarp();
    if (lane & 2) {
#pragma unroll
      for (int i = 0; i < kRowHalves; i++)
        send_shared(sums_at + i * 64 * 4, barrier, right ? 0 : 1, held[i]);
    }
    barrier_wait(barrier, phase);
    phase ^= 1;
    if (lane & 2) {
#pragma unroll
      for (int i = 0; i < kRowHalves; i++) {
        float other;
        get_shared(sums_at + i * 64 * 4, other);
        held[i] += other;
      }
    }
    __syncwarp();
  }

  // Of the head that the h-th unit of this block belongs to, in row half i.
  __device__ __forceinline__ Row of_unit(int h, int i, int lane) const {
    const bool in_both = h == (Gemm<P>::rank() == 1 ? 0 : 2);
    const int from = (lane & ~3) + (in_both ? 2 : 0);
    return {{{shuffle_float(held[i], from)}, {shuffle_float(held[i], from + 1)}}};
  }

  // What heads leave, each at its first unit.
  __device__ __forceinline__ void leave(const Arguments& args, const Work& w, int count,
                                        u32 rows_at, int warp, int lane) const {
#pragma unroll
    for (int h = 0; h < kUnits; h++) {
      const Unit here = Gemm<P>::unit_of(args, w, h);
      if (h >= count || here.unit % 2 != 0) continue;
      P::with_space(here.s, [&](auto space) {
#pragma unroll
        for (int i = 0; i < kRowHalves; i++)
          decltype(space)::leave_head(
              args, here.s, rows_at + i * 64 * P::kRowBytes, of_unit(h, i, lane),
              w.m * kTileM + i * 64 + warp * 16 + lane / 4, here.unit, lane);
      });
    }
  }
};

}  // namespace coda
