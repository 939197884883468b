// coda/device/sm90_queue.cuh: what a worker of a Hopper GEMM does next, for each of its warps: from
// a list of its own or, drawn, the next of one list for all.
//
// Lists of one's own suit a kernel that has the GPU to itself. Where others, a collective's, hold
// processors, workers start late, and what is on their lists comes last. Drawn, it goes to whoever
// is free: warp 0 draws a ticket when it has asked for all operands of the piece before, and puts
// the piece into a ring in shared memory, where every other warp waits for it. Two barriers an
// entry:
//   there    warp 0                          -> all others
//   read     one lane of each other warp     -> warp 0
// NOTE: parts of tiles stand before all owners in the list. So an owner waits for parts that
// running workers have drawn, and never for one that has not started.
#pragma once

#include "sm90_work.cuh"

namespace coda {

template <class P>
struct Gemm;

// P is the page.
template <class P>
struct Queue {
  using Arguments = typename P::Arguments;
  using G = Gemm<P>;
  static constexpr int kEntries = 4, kBytes = P::kDrawn ? kEntries * 32 : 0;
  static constexpr int kThere = kEntries * 16, kRead = kThere + kEntries * 8;
  static constexpr int kReaders = 8 + 2 + (P::kLoads ? 1 : 0);  // consumers, storers, the loader

  u32 at;  // in shared memory
  int t;   // the next entry of the list; drawn: how many pieces came before
  static __device__ __forceinline__ void init(u32 at) {
    if constexpr (P::kDrawn) {
      for (int i = 0; i < kEntries; i++)
        barrier_init(at + kThere + i * 8, 1), barrier_init(at + kRead + i * 8, kReaders);
    }
  }
  __device__ __forceinline__ explicit Queue(u32 at) : at(at), t(P::kDrawn ? 0 : G::worker()) {}

  // Whether there may be another piece.
  // NOTE: asked apart from next(): a page whose registers are all in use spilled where that gave
  // "none" for it.
  __device__ __forceinline__ bool more(const Arguments& args) const {
    return P::kDrawn || t < args.works;
  }
  // The next piece; none, m < 0, after the last. Of a whole warp, in uniform registers; warp 0's,
  // which draws.
  __device__ __forceinline__ Work draw(const Arguments& args) {
    if constexpr (P::kDrawn) {
      u32 ticket = 0;
      if (threadIdx.x % 32 == 0)
        asm volatile("atom.global.add.u32 %0, [%1], %2;"
                     : "=r"(ticket)
                     : "l"(args.tickets), "r"(1u)
                     : "memory");
      ticket = shuffle(ticket, 0);
      WorkWords w = {~0u, 0, 0, 0};
      if (ticket < static_cast<u32>(args.works)) w = work_words(args, static_cast<int>(ticket));
      const u32 entry = t % kEntries;
      barrier_wait(at + kRead + entry * 8, (t / kEntries & 1) ^ 1);
      if (threadIdx.x % 32 == 0) {
        asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(at + entry * 16), "r"(w.tile),
                     "r"(w.k0), "r"(w.k1), "r"(w.fix)
                     : "memory");
        barrier_arrive(at + kThere + entry * 8);
      }
      __syncwarp();
      t++;
      return uniform_work(w);
    } else {
      return next<true>(args);
    }
  }
  // The same of every other warp.
  template <bool kUniform>
  __device__ __forceinline__ Work next(const Arguments& args) {
    WorkWords w;
    if constexpr (P::kDrawn) {
      const u32 entry = t % kEntries;
      barrier_wait(at + kThere + entry * 8, t / kEntries & 1);
      asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(w.tile), "=r"(w.k0), "=r"(w.k1), "=r"(w.fix)
                   : "r"(at + entry * 16)
                   : "memory");
      __syncwarp();
      if (elected()) barrier_arrive(at + kRead + entry * 8);
      t++;
    } else {
      w = work_words(args, t);
      t += G::workers();
    }
    return G::placed(kUniform ? uniform_work(w) : work_of(w));
  }
};

}  // namespace coda
