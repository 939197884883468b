// coda/device/sm90_right.cuh: the right operand's tile of a k step, in one of four ways.
#pragma once

#include "ptx_tma.cuh"
#include "sm90_work.cuh"

namespace coda {

template <class P>
struct Gemm;

// P is the page.
template <class P>
struct RightTile {
  using Arguments = typename P::Arguments;
  static constexpr int kTileK = 64;
  static constexpr int kResultColumns = P::kTileN / P::kPairs;
  static constexpr int kUnits = kResultColumns / P::kUnitColumns;
  static constexpr bool kBoth = P::kCluster > 1 && !P::kAcross;  // each block brings both a half

  // What a joined tile's units are, found once a tile.
  struct Units {
    Unit at[P::kJoined ? kUnits : 1];
  };
  static __device__ __forceinline__ Units units(const Arguments& args, const Work& w) {
    Units found = {};
    if constexpr (P::kJoined) {
#pragma unroll
      for (int i = 0; i < kUnits; i++) found.at[i] = Gemm<P>::unit_of(args, w, i);
    }
    return found;
  }

  // The right operand's tile: of a pair, each block brings half of it to both.
  static __device__ __forceinline__ void load(const Arguments& args, const Units& units,
                                              const TensorMap* map, u32 to, u32 full, const Work& w,
                                              int term, int k) {
    const int column = w.n * kResultColumns, half = Gemm<P>::rank();
    if constexpr (P::kJoined) {
#pragma unroll
      for (int i = 0; i < kUnits; i++)
        load_unit_of_right(P::operands(args, units.at[i].s) + term * 2 + 1, to + i * 8192, full,
                           units.at[i].unit, k, args.policy_b);
    } else if constexpr (P::kMnMajorB) {
#pragma unroll
      for (int i = 0; i < kResultColumns / 64; i++) {
        if constexpr (kBoth)
          tma_load_both(to + i * 8192 + half * 4096, map, full, column + i * 64,
                        k * kTileK + half * 32, args.policy_b);
        else
          tma_load(to + i * 8192, map, full, column + i * 64, k * kTileK, args.policy_b);
      }
    } else if constexpr (P::kHeads > 0) {
#pragma unroll
      for (int i = 0; i < kResultColumns / 64; i++) {
        const unsigned unit = w.n * kUnits + i, sub = unit % P::kHeads, head = unit / P::kHeads;
        if constexpr (kBoth)
          tma_load_head_both(to + i * 8192 + half * 4096, map, full, k * kTileK, half, sub, head,
                             args.policy_b);
        else
          tma_load_head(to + i * 8192, map, full, k * kTileK, sub, head, args.policy_b);
      }
    } else if constexpr (kBoth) {
      constexpr int kHalf = kResultColumns / 2;
      tma_load_both(to + half * kHalf * 128, map, full, k * kTileK, column + half * kHalf,
                    args.policy_b);
    } else {
      tma_load(to, map, full, k * kTileK, column, args.policy_b);
    }
  }

  // The same of 64 columns.
  static __device__ __forceinline__ void load_unit_of_right(const TensorMap* map, u32 to, u32 full,
                                                            unsigned unit, int k, u64 policy) {
    const int half = Gemm<P>::rank();
    if constexpr (kBoth) to += half * 4096;
    if constexpr (P::kMnMajorB) {
      if constexpr (kBoth)
        tma_load_both(to, map, full, unit * 64, k * kTileK + half * 32, policy);
      else
        tma_load(to, map, full, unit * 64, k * kTileK, policy);
    } else if constexpr (P::kHeads > 0) {
      const unsigned sub = unit % P::kHeads, head = unit / P::kHeads;
      if constexpr (kBoth)
        tma_load_head_both(to, map, full, k * kTileK, half, sub, head, policy);
      else
        tma_load_head(to, map, full, k * kTileK, sub, head, policy);
    } else {
      if constexpr (kBoth)
        tma_load_both(to, map, full, k * kTileK, unit * 64 + half * 32, policy);
      else
        tma_load(to, map, full, k * kTileK, unit * 64, policy);
    }
  }
};

}  // namespace coda
