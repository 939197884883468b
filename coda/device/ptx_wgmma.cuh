// coda/device/ptx_wgmma.cuh: wgmma.m64nNk16, N = 64, 128, 192: bf16 or f16 in, f32 accumulated.
//
// Operands are descriptors of shared memory with the 128-byte swizzle. One warpgroup's 64 x N slice
// of the accumulator: d[4j + 2h + p] of lane l in warp w is row 16w + l/4 + 8h,
// column 8j + 2(l%4) + p.
#pragma once

#include "ptx_barrier.cuh"

namespace coda {

// The operands of a product, for overloads.
struct Bf16Operands {};
struct F16Operands {};

// The low half of a descriptor. K-major: rows of 128 bytes, groups of 8 rows 1024 bytes apart; the
// next 16 of k are 32 bytes further (+ 2). MN-major: boxes of 64 (mn) x 64 (k), 8192 bytes apart;
// the next 16 of k are 2048 bytes further (+ 128).
// NOTE: in a cluster, bits 24 and up of a shared address hold the block's rank.
template <bool kMnMajor>
__device__ __forceinline__ u32 descriptor_low(u32 address) {
  return ((address & 0x3ffff) >> 4) | (kMnMajor ? 512u << 16 : 1u << 16);
}
__device__ __forceinline__ u64 descriptor(u32 low) {
  return u64(64u | 1u << 30) << 32 | low;
}

__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// clang-format off
#define CODA_REGISTERS_32 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15" \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define CODA_REGISTERS_64 CODA_REGISTERS_32 \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define CODA_REGISTERS_96 CODA_REGISTERS_64 \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79" \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define CODA_D4(c, i) c(d[i]), c(d[i + 1]), c(d[i + 2]), c(d[i + 3])
#define CODA_D16(c, i) CODA_D4(c, i), CODA_D4(c, i + 4), CODA_D4(c, i + 8), CODA_D4(c, i + 12)
#define CODA_D32(c) CODA_D16(c, 0), CODA_D16(c, 16)
#define CODA_D64(c) CODA_D32(c), CODA_D16(c, 32), CODA_D16(c, 48)
#define CODA_D96(c) CODA_D64(c), CODA_D16(c, 64), CODA_D16(c, 80)

// d += a b.
#define CODA_ADDED(x) "+f"(x)
#define CODA_WGMMA(type, ptx, n, regs, da, db, ta, tb) \
  template <bool kA, bool kB> \
  __device__ __forceinline__ void wgmma(float (&d)[regs], u64 a, u64 b, type) { \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." ptx "." ptx " {" \
                 CODA_REGISTERS_##regs "}, " da ", " db ", 1, 1, 1, " ta ", " tb ";" \
                 : CODA_D##regs(CODA_ADDED) \
                 : "l"(a), "l"(b), "n"(kA), "n"(kB)); \
  }
#define CODA_WGMMA_WIDTH(n, regs, da, db, ta, tb) \
  CODA_WGMMA(Bf16Operands, "bf16", n, regs, da, db, ta, tb) \
  CODA_WGMMA(F16Operands, "f16", n, regs, da, db, ta, tb)
CODA_WGMMA_WIDTH(64, 32, "%32", "%33", "%34", "%35")
CODA_WGMMA_WIDTH(128, 64, "%64", "%65", "%66", "%67")
CODA_WGMMA_WIDTH(192, 96, "%96", "%97", "%98", "%99")
// clang-format on

}  // namespace coda
