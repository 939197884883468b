// coda/device/ptx_tma.cuh: the copy engine: boxes of tensor maps to shared memory and back.
//
// Coordinates are elements, innermost first. Loads complete on an mbarrier; stores in groups.
#pragma once

#include "ptx_barrier.cuh"

namespace coda {

// What cuTensorMapEncodeTiled fills.
struct alignas(64) TensorMap {
  u64 opaque[16];
};

__device__ __forceinline__ void tma_load(u32 to, const TensorMap* map, u32 barrier, int x, int y,
                                         u64 policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "l"(policy)
      : "memory");
}
// To the same place in both blocks of a pair, whose barriers at the same place it completes on.
__device__ __forceinline__ void tma_load_both(u32 to, const TensorMap* map, u32 barrier, int x,
                                              int y, u64 policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::"
      "cluster"
      ".L2::cache_hint [%0], [%1, {%3, %4}], [%2], %5, %6;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "h"(u16(3)), "l"(policy)
      : "memory");
}
// 64 rows of a weight as 32 rows of a head's low half and the matching 32 of its high half: the
// map's axes are (k, row in a sub-half, half, sub-half, head).
__device__ __forceinline__ void tma_load_head(u32 to, const TensorMap* map, u32 barrier, int k,
                                              int sub, int head, u64 policy) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %6, %6, %4, %5}], [%2], %7;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(k), "r"(sub), "r"(head), "r"(0), "l"(policy)
      : "memory");
}
// Half `half` of such 64 rows, to both blocks of a pair; the map's box holds one half.
__device__ __forceinline__ void tma_load_head_both(u32 to, const TensorMap* map, u32 barrier, int k,
                                                   int half, int sub, int head, u64 policy) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::"
      "cluster"
      ".L2::cache_hint [%0], [%1, {%3, %8, %4, %5, %6}], [%2], %7, %9;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(k), "r"(half), "r"(sub), "r"(head), "h"(u16(3)), "r"(0),
      "l"(policy)
      : "memory");
}
// The same of a tile's values: axes (column in a sub-half, row, half, sub-half, head).
__device__ __forceinline__ void tma_load_unit(u32 to, const TensorMap* map, u32 barrier, int row,
                                              int sub, int head, u64 policy) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%6, %3, %6, %4, %5}], [%2], %7;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(row), "r"(sub), "r"(head), "r"(0), "l"(policy)
      : "memory");
}
__device__ __forceinline__ void tma_store(const TensorMap* map, u32 from, int x, int y,
                                          u64 policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group.L2::cache_hint [%0, {%2, %3}], [%1], "
      "%4;" ::"l"(map),
      "r"(from), "r"(x), "r"(y), "l"(policy)
      : "memory");
}
__device__ __forceinline__ void tma_store_unit(const TensorMap* map, u32 from, int row, int sub,
                                               int head, u64 policy) {
  asm volatile(
      "cp.async.bulk.tensor.5d.global.shared::cta.bulk_group.L2::cache_hint [%0, {%5, %2, %5, %3, "
      "%4}], [%1], %6;" ::"l"(map),
      "r"(from), "r"(row), "r"(sub), "r"(head), "r"(0), "l"(policy)
      : "memory");
}
__device__ __forceinline__ void tma_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Waits until the copy engine has read the shared memory of every committed store.
__device__ __forceinline__ void tma_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

}  // namespace coda
