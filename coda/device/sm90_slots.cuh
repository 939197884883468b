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

  // The slot at a position of one of the rings.
  static __device__ __forceinline__ unsigned slot_of(int ring, unsigned position) {
    return ring * G::kOwnRing + position % G::kOwnRing;
  }

  template <class S, int kIndex>
  static __device__ __forceinline__ void load(const Arguments& args, const Unit& at, u32 base,
                                              int ring, unsigned position, int row) {
    if constexpr (kIndex < S::kSlotsUsed) {
      const unsigned slot = slot_of(ring, position + kIndex);
      const unsigned use = (position + kIndex) / G::kOwnRing;
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
      load<S, kIndex + 1>(args, at, base, ring, position, row);
    }
  }

  template <class S, int kIndex>
  static __device__ __forceinline__ void store(const Arguments& args, const Unit& at, u32 base,
                                               int ring, unsigned position, int row, int warp,
                                               int lane) {
    if constexpr (kIndex < S::kSlotsUsed) {
      if (((position + kIndex) & 1) == (warp & 1)) {
        const unsigned slot = slot_of(ring, position + kIndex);
        const unsigned use = (position + kIndex) / G::kOwnRing;
        barrier_wait(base + G::kSlotWritten + slot * 8, use & 1);
        S::template store<kIndex>(args, at.s, base + G::kSlot + slot * P::kSlotBytes, row, at.unit,
                                  lane);
        // What all lanes have read.
        __syncwarp();
        if (elected()) barrier_arrive(base + G::kSlotEmpty + slot * 8);
      }
      store<S, kIndex + 1>(args, at, base, ring, position, row, warp, lane);
    }
  }

  // Whether a unit waits for its u-th slot itself. Those that nothing fills the loader finds empty
  // in order: the last of them tells of all.
  template <class S>
  static __device__ constexpr bool waits_for(int u) {
    if (!P::kLoads || S::bytes(u) > 0) return true;
    for (int later = u + 1; later < S::kSlotsUsed; later++)
      if (S::bytes(later) == 0) return false;
    return true;
  }
};

}  // namespace coda
