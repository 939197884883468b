// coda/device/sm90_slots.cuh: the slots of one unit of an epilogue, filled and stored;
// sm90_gemm.cuh says what they are.
#pragma once

#include "ptx_tma.cuh"
#include "sm90_work.cuh"

namespace coda {

template <class P>
struct Gemm;

// P is the page.
template <class P>
struct UnitSlots {
  using Arguments = typename P::Arguments;
  using G = Gemm<P>;

  template <class S, int kIndex>
  static __device__ __forceinline__ void load(const Arguments& args, const Unit& at, u32 base,
                                              unsigned position, int row) {
    if constexpr (kIndex < S::kSlotsUsed) {
      const unsigned slot = (position + kIndex) % G::kRing, use = (position + kIndex) / G::kRing;
      barrier_wait(base + G::kSlotEmpty + slot * 8, (use & 1) ^ 1);
      if (elected()) {
        const u32 loaded = base + G::kSlotLoaded + slot * 8;
        if constexpr (S::bytes(kIndex) > 0) {
          barrier_expect(loaded, S::bytes(kIndex));
          S::template load<kIndex>(args, at.s, base + G::kSlot + slot * P::kSlotBytes, loaded, row,
                                   at.unit);
        } else {
          barrier_arrive(loaded);
        }
      }
      __syncwarp();
      load<S, kIndex + 1>(args, at, base, position, row);
    }
  }

  template <class S, int kIndex>
  static __device__ __forceinline__ void store(const Arguments& args, const Unit& at, u32 base,
                                               unsigned position, int row, int warp, int lane) {
    if constexpr (kIndex < S::kSlotsUsed) {
      if (((position + kIndex) & 1) == (warp & 1)) {
        const unsigned slot = (position + kIndex) % G::kRing, use = (position + kIndex) / G::kRing;
        barrier_wait(base + G::kSlotWritten + slot * 8, use & 1);
        S::template store<kIndex>(args, at.s, base + G::kSlot + slot * P::kSlotBytes, row, at.unit,
                                  lane);
        // What all lanes have read.
        __syncwarp();
        if (elected()) barrier_arrive(base + G::kSlotEmpty + slot * 8);
      }
      store<S, kIndex + 1>(args, at, base, position, row, warp, lane);
    }
  }
};

}  // namespace coda
