// coda/device/sm90_gemm.cuh: one persistent Hopper GEMM with a fused epilogue, read top to bottom.
//
// D[m, n] = sum over terms and k of A[m, k] B[n, k], 16-bit operands in either majorness, f32
// accumulators, then the page's epilogue on each tile while it is on chip. 384 threads:
//   warpgroup 0      warp 0 feeds operand stages; warp 1 loads epilogue slots; 2 and 3 store them
//   warpgroups 1, 2  consumers in pingpong: each owns whole 128 x kTileN tiles in turn
//
// A tile's epilogue is a list of units: 64 rows x kUnitColumns columns of results, row halves
// inner. A unit takes slots of a ring that both consumers share, in tile order. A slot may be
// loaded before the unit and stored after it. Three barriers a slot, none inside the epilogue:
//   empty    a store warp: the copy engine has read the slot             -> the loader
//   loaded   the copy engine's bytes, or the loader alone                -> consumers
//            (where a page loads nothing, `empty` is all that they wait for)
//   written  four consumer warps, or all of their lanes                  -> the store warp
// NOTE: parity waits are sound only if every waiter sees every use of a slot in order. So the
// loader visits slots that nothing fills, and consumers take turns for the epilogue too.
//
// What a page gives (all static):
//   Arguments   args.order, works, pace, policy_a, policy_b, …; areas, flags, token where workers
//               share tiles (kSplit); tickets, a 0 at the start, where workers draw them (kDrawn)
//   kTileN, kNarrow (the width of a last, narrower column tile; 0: none), kStages, kSlots,
//   kSlotBytes, kCluster (2: pairs of blocks share B; kAcross: they stand side by side, share A,
//   and a head may lie in both), kTerms, kPairs (products that share the left operand),
//   kUnitColumns, Operands, kMnMajorA, kMnMajorB, kConsumerRegisters, kProducerRegisters
//   kLoads      whether any unit reads what slots bring
//   kDrains     whether store warps read what consumers write: then every lane arrives at
//               `written`, as racecheck does not see that one speaks for its warp
//   kHeads      units of a head: 32 columns of its low half and 32 of its high half; 0: plain
//   operands(args, s)   the maps of space s: for each term the left one, then the right ones
//   k_tiles(args, term);  columns(args, s), row_count(args, s) of the results of space s
//   with_space(s, f)    f(Space())
//   kJoined     spaces stand side by side, unit after unit, and a tile may hold units of several:
//               then a tile names no space, unit_at(args, unit) is one and its unit, and
//               all_columns(args) are those of all spaces
//   put_rows(args, s, row, first, to)   what the epilogue needs of a row, into kRowBytes of shared
//               memory; `first`: in the first column tile, which stores results without columns
//   Rows, rows(from)    the same, of it and the row 8 below; from kKept on a row keeps what leaves
//               with the tile
//   side(args, thread, threads)   results without a tile, by the store warps at the start
//   Space: kSlotsUsed; bytes(slot) that load<slot>(…) brings, 0: none; store<slot>(…); State;
//   Columns, columns(…); unit(…), of one row half; finish(…), after a tile's last unit; if kAcross,
//   head_sum(…) of a unit before all units, leave_head(…) after them
#pragma once

#include "fragment_reduce.cuh"
#include "ptx_tma.cuh"
#include "ptx_wgmma.cuh"
#include "sm90_across.cuh"
#include "sm90_queue.cuh"
#include "sm90_right.cuh"
#include "sm90_slots.cuh"
#include "sm90_work.cuh"

namespace coda {

template <class P>
struct Gemm {
  using Arguments = typename P::Arguments;
  static constexpr int kTileM = 128, kTileK = 64;
  static constexpr int kRowHalves = kTileM / 64;
  static constexpr int kBytesA = kTileM * kTileK * 2, kBytesB = P::kTileN * kTileK * 2;
  static constexpr int kResultColumns = P::kTileN / P::kPairs;  // columns of a tile of results
  static constexpr int kUnits = kResultColumns / P::kUnitColumns;
  static constexpr int kStages = P::kStages, kRing = P::kSlots;
  static_assert(kRing % 2 == 0, "a slot always has the same store warp");
  // Named barriers: turns for the main loop, then for the epilogue, of each consumer.
  static constexpr int kMainTurn = 1, kEpilogueTurn = 3;

  // Offsets in shared memory.
  static constexpr int kB = kStages * kBytesA, kSlot = kB + kStages * kBytesB;
  static constexpr int kFull = kSlot + kRing * P::kSlotBytes, kEmpty = kFull + kStages * 8;
  static constexpr int kSlotEmpty = kEmpty + kStages * 8, kSlotLoaded = kSlotEmpty + kRing * 8;
  static constexpr int kSlotWritten = kSlotLoaded + kRing * 8;
  static constexpr int kProgress = kSlotWritten + kRing * 8, kRows = kProgress + 16;
  static constexpr int kHeadSums = kRows + 2 * kTileM * P::kRowBytes;  // where kAcross
  static constexpr int kQueue = kHeadSums;                             // where kDrawn
  static_assert(!P::kDrawn || (P::kCluster == 1 && !P::kPaced));

  // A pair of blocks is one worker: its tiles are two, one above the other, that share B, or side
  // by side, that share A.
  static __device__ __forceinline__ int rank() { return P::kCluster > 1 ? blockIdx.x % 2 : 0; }
  static __device__ __forceinline__ int worker() { return blockIdx.x / P::kCluster; }
  static __device__ __forceinline__ int workers() { return gridDim.x / P::kCluster; }
  static __device__ __forceinline__ Work placed(Work w) {
    if (P::kAcross) {
      w.n = w.n * 2 + rank();
    } else if (P::kCluster > 1 && w.m >= 0) {
      w.m = w.m * 2 + rank(), w.area = w.area * 2 + rank();
    }
    return w;
  }
  static __device__ __forceinline__ void release(u32 base, u32 stage, int warp, int thread) {
    if constexpr (P::kCluster > 1) {
      if (thread % 32 == 0 && warp < 2) barrier_arrive_at(base + kEmpty + stage * 8, warp);
    } else {
      if (thread == 0) barrier_arrive(base + kEmpty + stage * 8);
    }
  }

  // Of the epilogue: a part of a tile has none.
  static __device__ __forceinline__ int units(const Arguments& args, const Work& w) {
    if (w.is_part()) return 0;
    const int count = (columns_left(args, w) + P::kUnitColumns - 1) / P::kUnitColumns;
    return count < kUnits ? count : kUnits;
  }
  // Columns from a tile's first one on.
  static __device__ __forceinline__ int columns_left(const Arguments& args, const Work& w) {
    if constexpr (P::kJoined)
      return P::all_columns(args) - w.n * kResultColumns;
    else
      return P::columns(args, w.s) - w.n * kResultColumns;
  }
  // The h-th unit of a tile.
  static __device__ __forceinline__ Unit unit_of(const Arguments& args, const Work& w, int h) {
    if constexpr (P::kJoined)
      return P::unit_at(args, w.n * kUnits + h);
    else
      return {w.s, w.n * kUnits + h};
  }

  // ---- warp 0: operand stages. All lanes walk, so that what the copies need is uniform.
  static __device__ __forceinline__ void load_operands(const Arguments& args, u32 base) {
    int stage = 0;
    u32 phase = 1;
    Queue<P> queue(base + kQueue);
    while (queue.more(args)) {
      const Work w = queue.draw(args);
      if (w.m < 0) break;
      const TensorMap* map = P::operands(args, w.s);
      const auto columns = RightTile<P>::units(args, w);
      int first = 0;  // k step of the sum at which the term begins
#pragma unroll 1
      for (int term = 0; term < P::kTerms; term++, map += 1 + P::kPairs) {
        const int steps = P::k_tiles(args, term);
        const int begin = w.k0 > first ? w.k0 - first : 0;
        const int end = w.k1 - first < steps ? w.k1 - first : steps;
        first += steps;
#pragma unroll 1
        for (int k = begin; k < end; k++) {
          barrier_wait(base + kEmpty + stage * 8, phase);
          if (elected()) {
            const u32 full = base + kFull + stage * 8;
            const u32 a = base + stage * kBytesA, b = base + kB + stage * kBytesB;
            barrier_expect(full, kBytesA + kBytesB);
            if constexpr (P::kAcross) {
              // Half of it, to both.
              const int row = w.m * kTileM + rank() * 64;
              tma_load_both(a + rank() * 8192, map, full, P::kMnMajorA ? row : k * kTileK,
                            P::kMnMajorA ? k * kTileK : row, args.policy_a);
            } else if constexpr (P::kMnMajorA) {
              tma_load(a, map, full, w.m * kTileM, k * kTileK, args.policy_a);
              tma_load(a + 8192, map, full, w.m * kTileM + 64, k * kTileK, args.policy_a);
            } else {
              tma_load(a, map, full, k * kTileK, w.m * kTileM, args.policy_a);
            }
#pragma unroll
            for (int p = 0; p < P::kPairs; p++)
              RightTile<P>::load(args, columns, map + 1 + p, b + p * kResultColumns * 128, full, w,
                                 term, k);
          }
          __syncwarp();
          if (++stage == kStages) stage = 0, phase ^= 1;
        }
      }
    }
  }

  // f(space, unit, position in the ring, first row) for every unit of this worker's tiles, in
  // order.
  template <class F>
  static __device__ __forceinline__ void each_unit(const Arguments& args, u32 base, F f) {
    unsigned position = 0;
    Queue<P> queue(base + kQueue);
    while (queue.more(args)) {
      const Work w = queue.template next<true>(args);
      if (w.m < 0) break;
      const int count = units(args, w);
#pragma unroll 1
      for (int h = 0; h < count; h++) {
        const Unit at = unit_of(args, w, h);
        P::with_space(at.s, [&](auto space) {
#pragma unroll 1
          for (int i = 0; i < kRowHalves; i++, position += decltype(space)::kSlotsUsed)
            f(space, at, position, w.m * kTileM + i * 64);
        });
      }
    }
  }

  // ---- warp 1: epilogue slots
  static __device__ __forceinline__ void load_slots(const Arguments& args, u32 base) {
    each_unit(args, base, [&](auto space, const Unit& at, unsigned position, int row) {
      UnitSlots<P>::template load<decltype(space), 0>(args, at, base, position, row);
    });
  }

  // ---- warps 2 and 3: finished slots, alternately
  static __device__ __forceinline__ void store_slots(const Arguments& args, u32 base, int warp,
                                                     int lane) {
    each_unit(args, base, [&](auto space, const Unit& at, unsigned position, int row) {
      UnitSlots<P>::template store<decltype(space), 0>(args, at, base, position, row, warp, lane);
    });
  }

  // ---- warpgroups 1 and 2
  static __device__ __forceinline__ void consume(const Arguments& args, u32 base, int me) {
    const int thread = threadIdx.x % 128, warp = shuffle(thread / 32, 0), lane = thread % 32;
    // Asked for again after the epilogue: a register less that lives through it.
    const auto mine = [] {
      return shuffle(threadIdx.x / 128, 0) - 1;
    };
    unsigned position = 0, stages = 0;  // of the rings, used by the tiles before this one
    int index = 0;
    [[maybe_unused]] u32 head_phase = 0;
    if (me == 1) named_arrive(kMainTurn, 256), named_arrive(kEpilogueTurn, 256);
    Queue<P> queue(base + kQueue);
    for (; queue.more(args); index++) {
      const Work w = queue.template next<false>(args);
      if (w.m < 0) break;
      const int me = mine(), count = units(args, w), k_count = w.k1 - w.k0;
      int slots_used = 0;
      if constexpr (P::kJoined) {
#pragma unroll 1
        for (int h = 0; h < count; h++)
          P::with_space(unit_of(args, w, h).s, [&](auto space) {
            slots_used += kRowHalves * decltype(space)::kSlotsUsed;
          });
      } else {
        P::with_space(w.s, [&](auto space) {
          slots_used = count * kRowHalves * decltype(space)::kSlotsUsed;
        });
      }
      if ((index & 1) != me) {
        stages += k_count, position += slots_used;
        continue;
      }
      // What the rows need is read while the other consumer has the tensor cores, and waits in
      // shared memory: every register counts while the accumulators live. A warp has 32 rows, a
      // lane one of them: all that it reads is under way at once.
      const u32 my_rows = base + kRows + me * kTileM * P::kRowBytes;
      const u32 rows_at = my_rows + (warp * 16 + lane / 4) * P::kRowBytes;
      if (P::kRowBytes > 0 && count > 0) {
        const int row = lane / 16 * 64 + warp * 16 + lane % 16;
        __syncwarp();
        P::put_rows(args, w.s, w.m * kTileM + row, w.n == 0, my_rows + row * P::kRowBytes);
        __syncwarp();
      }

      // NOTE: declared and zeroed here: no accumulator lives from one tile to the next. Else ptxas
      // keeps them all through the epilogue, and spills; it does too where it sees that they are
      // zeros. They cost nothing while this waits its turn.
      float acc[kRowHalves][P::kTileN / 2];
#pragma unroll
      for (int i = 0; i < kRowHalves; i++)
#pragma unroll
        for (int x = 0; x < P::kTileN / 2; x++)
          asm volatile("mov.f32 %0, 0f00000000;" : "=f"(acc[i][x]));
      named_sync(kMainTurn + me, 256);
      const int left = columns_left(args, w);
      u32 stage = stages % kStages, phase = (stages / kStages) & 1, previous = 0;
      if (P::kNarrow > 0 && left <= P::kNarrow)
        main_loop<(P::kNarrow > 0 ? P::kNarrow : P::kTileN)>(base, acc, k_count, stages, stage,
                                                             phase, previous, warp, thread);
      else
        main_loop<P::kTileN>(base, acc, k_count, stages, stage, phase, previous, warp, thread);
      named_arrive(kMainTurn + (me ^ 1), 256);
      wgmma_wait<0>();
      release(base, previous, warp, thread);

      // NOTE: parts leave before their turn, and stand before owners in every worker's list: so no
      // one waits for someone who waits.
      if constexpr (P::kSplit)
        if (w.is_part()) SharedTile<P>::leave_part(args, acc, w, me, thread);
      [[maybe_unused]] HeadSums<P> heads;
      if constexpr (P::kAcross)
        if (count > 0)
          heads.take(args, w, count, acc, base + kHeadSums, rows_at, mine(), head_phase, warp,
                     lane);
      named_sync(kEpilogueTurn + me, 256);
      if constexpr (P::kSplit)
        if (w.parts > 0) SharedTile<P>::add_parts(args, acc, w, mine(), thread);
      // Slower than it can, so that it does not take the memory from the next tile's main loop.
      bool paced = false;
      if (P::kPaced && queue.t < args.works) {
        // NOTE: a part of a tile has too few steps to wait for.
        const WorkWords after = work_words(args, queue.t);
        const int steps = P::kSplit ? static_cast<int>(after.k1 - after.k0) : k_count;
        paced =
            after.tile != ~0u && steps * 16 >= static_cast<int>(args.pace) * kUnits * kRowHalves;
      }
      if constexpr (P::kJoined) {
        unsigned at = position;
#pragma unroll
        for (int h = 0; h < kUnits; h++) {
          if (h < count) {
            const Unit here = unit_of(args, w, h);
            P::with_space(here.s, [&](auto space) {
              using S = decltype(space);
              typename S::State state;
              finish_unit<S>(args, base, here, state, heads, acc, h, w.m * kTileM, at,
                             paced ? stages + k_count : 0, rows_at, warp, lane);
              at += kRowHalves * S::kSlotsUsed;
            });
          }
        }
        named_arrive(kEpilogueTurn + (mine() ^ 1), 256);
        if constexpr (P::kAcross) heads.leave(args, w, count, rows_at, warp, lane);
      } else {
        P::with_space(w.s, [&](auto space) {
          using S = decltype(space);
          typename S::State state;
#pragma unroll
          for (int h = 0; h < kUnits; h++)
            if (h < count)
              finish_unit<S>(args, base, unit_of(args, w, h), state, heads, acc, h, w.m * kTileM,
                             position + h * kRowHalves * S::kSlotsUsed,
                             paced ? stages + k_count : 0, rows_at, warp, lane);
          named_arrive(kEpilogueTurn + (mine() ^ 1), 256);
          // A part of a tile has nothing to leave.
          if (!P::kSplit || count > 0)
            S::finish(args, w.s, rows_at, state, w.m * kTileM + warp * 16 + lane / 4,
                      w.n * kResultColumns, lane);
        });
      }
      stages += k_count, position += slots_used;
    }
    // Leave no turn half taken.
    const int turns0 = (index + 1) / 2, turns1 = index / 2;
    if (mine() == 0 && 1 + turns1 > turns0)
      named_sync(kMainTurn, 256), named_sync(kEpilogueTurn, 256);
    if (mine() == 1 && turns0 > turns1)
      named_sync(kMainTurn + 1, 256), named_sync(kEpilogueTurn + 1, 256);
  }

  // The h-th unit of a tile, in slots from position `at` on. progress: of the next tile's main
  // loop, which it waits for in part; 0: it does not.
  template <class S>
  static __device__ __forceinline__ void finish_unit(const Arguments& args, u32 base,
                                                     const Unit& here, typename S::State& state,
                                                     const HeadSums<P>& heads,
                                                     const float (&acc)[kRowHalves][P::kTileN / 2],
                                                     int h, int row, unsigned at, unsigned progress,
                                                     u32 rows_at, int warp, int lane) {
    const auto columns = S::columns(args, here.s, here.unit, lane);
#pragma unroll
    for (int i = 0; i < kRowHalves; i++, at += S::kSlotsUsed) {
      if (P::kPaced && progress != 0 && (h | i) != 0)
        wait_for_progress(base, progress + (h * kRowHalves + i) * static_cast<int>(args.pace) / 16);
      u32 slot[S::kSlotsUsed + 1];
#pragma unroll
      for (int u = 0; u < S::kSlotsUsed; u++) {
        slot[u] = base + kSlot + (at + u) % kRing * P::kSlotBytes;
        barrier_wait(base + (P::kLoads ? kSlotLoaded : kSlotEmpty) + (at + u) % kRing * 8,
                     ((at + u) / kRing & 1) ^ (P::kLoads ? 0 : 1));
      }
      const u32 its_rows = rows_at + i * 64 * P::kRowBytes;
      if constexpr (P::kAcross)
        S::unit(args, here.s, its_rows, heads.of_unit(h, i, lane), columns, state, acc[i], h, i,
                slot, row + i * 64, here.unit, warp, lane);
      else
        S::unit(args, here.s, its_rows, columns, state, acc[i], h, i, slot, row + i * 64, here.unit,
                warp, lane);
      if (S::kSlotsUsed > 0) {
        proxy_fence();
        __syncwarp();
        if (P::kDrains || lane == 0) {
#pragma unroll
          for (int u = 0; u < S::kSlotsUsed; u++)
            barrier_arrive(base + kSlotWritten + (at + u) % kRing * 8);
        }
      }
    }
  }

  // acc[i][…] += the sums over all k of 64 rows i and kWidth columns of the operands' tile.
  template <int kWidth>
  static __device__ __forceinline__ void main_loop(u32 base,
                                                   float (&acc)[kRowHalves][P::kTileN / 2],
                                                   int k_count, unsigned stages, u32& stage,
                                                   u32& phase, u32& previous, int warp,
                                                   int thread) {
#pragma unroll 1
    for (int k = 0; k < k_count; k++) {
      barrier_wait(base + kFull + stage * 8, phase);
      wgmma_fence();
      const u32 a = descriptor_low<P::kMnMajorA>(base) + stage * (kBytesA / 16);
      const u32 b = descriptor_low<P::kMnMajorB>(base + kB) + stage * (kBytesB / 16);
#pragma unroll
      for (int kk = 0; kk < kTileK / 16; kk++) {
        const u64 right = descriptor(b + kk * (P::kMnMajorB ? 128 : 2));
#pragma unroll
        for (int i = 0; i < kRowHalves; i++) {
          float(&d)[kWidth / 2] = reinterpret_cast<float(&)[kWidth / 2]>(acc[i]);
          const u64 left = descriptor(a + i * 512 + kk * (P::kMnMajorA ? 128 : 2));
          wgmma<P::kMnMajorA, P::kMnMajorB>(d, left, right, typename P::Operands());
        }
      }
      wgmma_commit();
      // This group has started, so the one before has read its stage.
      wgmma_wait<1>();
      if (k > 0) release(base, previous, warp, thread);
      if (P::kPaced && thread == 0)
        asm volatile("st.volatile.shared.u32 [%0], %1;" ::"r"(base + kProgress), "r"(stages + k + 1)
                     : "memory");
      previous = stage;
      if (++stage == kStages) stage = 0, phase ^= 1;
    }
  }

  static __device__ __forceinline__ void wait_for_progress(u32 base, unsigned target) {
    unsigned now;
    do
      asm volatile("ld.volatile.shared.u32 %0, [%1];"
                   : "=r"(now)
                   : "r"(base + kProgress)
                   : "memory");
    while (now < target && (__nanosleep(64), true));
    __syncwarp();
  }

  static __device__ __forceinline__ void run(const Arguments& args) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const u32 base = shared_address(shared);
    if (threadIdx.x == 0) {
      for (int s = 0; s < kStages; s++)
        barrier_init(base + kFull + s * 8, 1), barrier_init(base + kEmpty + s * 8, P::kCluster);
      for (int s = 0; s < kRing; s++) {
        barrier_init(base + kSlotEmpty + s * 8, 1), barrier_init(base + kSlotLoaded + s * 8, 1);
        barrier_init(base + kSlotWritten + s * 8, P::kDrains ? 128 : 4);
      }
      asm volatile("st.shared.u32 [%0], 0;" ::"r"(base + kProgress) : "memory");
      if (P::kAcross) HeadSums<P>::init(base + kHeadSums);
      Queue<P>::init(base + kQueue);
      barrier_init_fence();
      proxy_fence();
    }
    if constexpr (P::kCluster > 1)
      cluster_sync();
    else
      __syncthreads();
    // Uniform, so that the state of the rings lives in uniform registers.
    const int warpgroup = shuffle(threadIdx.x / 128, 0);
    if (warpgroup == 0) {
      give_registers<P::kProducerRegisters>();
      const int warp = shuffle(threadIdx.x / 32, 0), lane = threadIdx.x % 32;
      if (warp == 0) {
        load_operands(args, base);
      } else if (warp == 1) {
        if (P::kLoads) load_slots(args, base);
      } else {
        P::side(args, blockIdx.x * 64 + threadIdx.x - 64, gridDim.x * 64);
        store_slots(args, base, warp, lane);
      }
      __syncwarp();
    } else {
      take_registers<P::kConsumerRegisters>();
      consume(args, base, warpgroup - 1);
    }
    // Neither block leaves while the other may still signal it.
    if constexpr (P::kCluster > 1) cluster_sync();
  }
};

}  // namespace coda
