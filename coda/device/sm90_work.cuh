// coda/device/sm90_work.cuh: what a worker of a Hopper GEMM does next, and the tiles that workers
// share.
//
// The host orders the work (coda/cuda/order.h). Where what is left does not fill a wave, several
// workers take ranges of k of one tile: the owner, which has the first, adds what the others leave
// in global memory, in order of k.
#pragma once

#include "fragment.cuh"

namespace coda {

// One piece of work: k steps [k0, k1) of tile row m, tile column n of space s. None: m < 0. A tile
// that several workers share belongs to the one that has its first steps: it adds what the `parts`
// others leave in the fix-up areas from `area` on, in order. The others have parts < 0, and an area
// of their own.
struct Work {
  int s, m, n, k0, k1, parts, area;
  __device__ __forceinline__ bool is_part() const { return parts < 0; }
};
struct WorkWords {
  u32 tile, k0, k1, fix;
};
template <class Arguments>
__device__ __forceinline__ WorkWords work_words(const Arguments& args, int t) {
  WorkWords w;
  asm("ld.global.nc.v4.b32 {%0, %1, %2, %3}, [%4];"
      : "=r"(w.tile), "=r"(w.k0), "=r"(w.k1), "=r"(w.fix)
      : "l"(args.order + t * 4ll));
  return w;
}
__device__ __forceinline__ Work work_of(const WorkWords& w) {
  Work work;
  work.s = w.tile >> 28, work.m = w.tile >> 14 & 0x3fff, work.n = w.tile & 0x3fff;
  if (w.tile == ~0u) work.m = -1;
  work.k0 = w.k0, work.k1 = w.k1;
  work.parts = static_cast<int>(w.fix) >> 16, work.area = w.fix & 0xffff;
  return work;
}
// The same for a whole warp, in uniform registers.
__device__ __forceinline__ Work uniform_work(WorkWords w) {
  w.tile = shuffle(w.tile, 0), w.k0 = shuffle(w.k0, 0), w.k1 = shuffle(w.k1, 0);
  w.fix = shuffle(w.fix, 0);
  return work_of(w);
}

// A unit of a space.
struct Unit {
  int s, unit;
};

// The accumulators of a part of a tile, in an area of global memory with a flag. P is the page.
template <class P>
struct SharedTile {
  using Arguments = typename P::Arguments;
  static constexpr int kTileM = 128, kRowHalves = 2;
  static constexpr int kPartSync = 5;  // named barriers 5 and 6: of a consumer

  static __device__ __forceinline__ float* area_of(const Arguments& args, int area, int thread) {
    return args.areas + static_cast<long long>(area) * kTileM * P::kTileN + thread * 4;
  }
  static __device__ __forceinline__ void leave_part(const Arguments& args,
                                                    const float (&acc)[kRowHalves][P::kTileN / 2],
                                                    const Work& w, int me, int thread) {
    float* to = area_of(args, w.area, thread);
#pragma unroll
    for (int i = 0; i < kRowHalves; i++)
#pragma unroll
      for (int x = 0; x < P::kTileN / 2; x += 4)
        asm volatile(
            "st.global.cg.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to + (i * P::kTileN / 2 + x) * 128),
            "f"(acc[i][x]), "f"(acc[i][x + 1]), "f"(acc[i][x + 2]), "f"(acc[i][x + 3])
            : "memory");
    named_sync(kPartSync + me, 128);
    if (thread == 0)
      asm volatile("fence.acq_rel.gpu;\nst.release.gpu.u64 [%0], %1;" ::"l"(args.flags + w.area),
                   "l"(args.token)
                   : "memory");
  }
  // The flags are 0 again afterwards, as scratch memory may be anything else than the token before.
  static __device__ __forceinline__ void add_parts(const Arguments& args,
                                                   float (&acc)[kRowHalves][P::kTileN / 2],
                                                   const Work& w, int me, int thread) {
#pragma unroll 1
    for (int part = 0; part < w.parts; part++) {
      if (thread == 0) {
        u64 flag;
        do
          asm volatile("ld.acquire.gpu.u64 %0, [%1];"
                       : "=l"(flag)
                       : "l"(args.flags + w.area + part * P::kCluster)
                       : "memory");
        while (flag != static_cast<u64>(args.token));
        asm volatile("st.relaxed.gpu.u64 [%0], 0;" ::"l"(args.flags + w.area + part * P::kCluster)
                     : "memory");
      }
      named_sync(kPartSync + me, 128);
      const float* from = area_of(args, w.area + part * P::kCluster, thread);
#pragma unroll
      for (int i = 0; i < kRowHalves; i++)
#pragma unroll
        for (int x = 0; x < P::kTileN / 2; x += 4) {
          float more[4];
          asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
                       : "=f"(more[0]), "=f"(more[1]), "=f"(more[2]), "=f"(more[3])
                       : "l"(from + (i * P::kTileN / 2 + x) * 128)
                       : "memory");
#pragma unroll
          for (int y = 0; y < 4; y++) acc[i][x + y] += more[y];
        }
    }
  }
};

}  // namespace coda
