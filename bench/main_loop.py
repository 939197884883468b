#!/usr/bin/env python3
"""Main loops of products at the limit of power: what tiles, clusters and majorness cost when
nothing but wgmma and copies from L2 is left. Every processor multiplies random tiles without an
end; operands come from a few streams that stay in L2, as those of concurrent tiles do. Prints
TFLOP/s and the clock of each; writes rows as JSON with --output."""

import argparse
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from alone import alone, write_rows

STEPS, K, PROCESSORS = 20000, 64, 132


@dataclass(frozen=True)
class Loop:
    """Consumers are warpgroups with `halves` x 64 rows by `columns` of accumulators each; of two
    in turns only one multiplies at a time, and its tile is the block's. share: the operand that a
    pair of blocks fetches once."""

    consumers: int
    halves: int
    columns: int
    turns: bool = False
    share: str = ""
    copies: bool = True
    mn_major: bool = False

    @property
    def rows(self):
        return (1 if self.turns else self.consumers) * self.halves * 64

    @property
    def stage(self):
        return (self.rows + self.columns) * K * 2

    @property
    def stages(self):
        return min(6, (220 << 10) // self.stage)

    @property
    def cluster(self):
        return 2 if self.share else 1

    @property
    def name(self):
        words = [f"{self.rows}x{self.columns}", "in turns" if self.turns else
                 f"{self.consumers} consumers"]
        words += [f"pairs share {self.share}"] * bool(self.share)
        words += ["no copies"] * (not self.copies) + ["MN-major"] * self.mn_major
        return ", ".join(words)


LOOPS = (Loop(2, 2, 192, turns=True), Loop(2, 1, 256), Loop(2, 2, 128), Loop(3, 1, 192),
         Loop(2, 2, 192, turns=True, share="b"), Loop(2, 2, 192, turns=True, share="a"),
         Loop(2, 1, 256, share="a"), Loop(2, 1, 256, share="b"), Loop(2, 2, 128, share="a"),
         Loop(3, 1, 192, share="b"), Loop(3, 1, 192, share="a"),
         Loop(2, 2, 192, turns=True, copies=False), Loop(2, 1, 256, copies=False),
         Loop(3, 1, 192, copies=False), Loop(2, 2, 192, turns=True, mn_major=True),
         Loop(3, 1, 192, mn_major=True))

SOURCE = """
typedef unsigned int u32;
typedef unsigned long long u64;
__device__ __forceinline__ u64 descriptor(u32 a) {
  return u64((a & 0x3ffff) >> 4) | LEADING << 16 | 64ull << 32 | 1ull << 62;
}
__device__ __forceinline__ void multiply(float (&d)[REGISTERS], u64 a, u64 b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64nCOLUMNSk16.f32.bf16.bf16 {NAMES}, %A, %B, "
               "1, 1, 1, MAJOR, MAJOR;"
               : OUTPUTS : "l"(a), "l"(b));
}
__device__ __forceinline__ void wait(u32 barrier, u32 parity) {
  asm volatile("{.reg .pred p;\\nW_%=: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\\n"
               "@p bra D_%=;\\nbra W_%=;\\nD_%=:\\n}" :: "r"(barrier), "r"(parity) : "memory");
}
__device__ __forceinline__ void arrive(u32 barrier, u32 rank) {
  asm volatile("{.reg .b32 r;\\nmapa.shared::cluster.u32 r, %0, %1;\\n"
               "mbarrier.arrive.shared::cluster.b64 _, [r];}"
               :: "r"(barrier), "r"(rank) : "memory");
}
// Of an operand's bytes, all; or its half of them, to both blocks of a pair.
template <bool kShared>
__device__ __forceinline__ void copy(u32 to, const char* from, u32 bytes, u32 barrier, u32 rank) {
  if (kShared) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1], %2, [%3], %4;"
                 :: "r"(to + rank * bytes / 2), "l"(from + rank * bytes / 2), "r"(bytes / 2),
                    "r"(barrier), "h"(short(3)) : "memory");
  } else {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1], %2, [%3];"
                 :: "r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
  }
}
extern "C" __global__ void __cluster_dims__(CLUSTER) __launch_bounds__(THREADS, 1)
    loop(const char* operands, float* out, int steps) {
  extern __shared__ __align__(1024) unsigned char shared[];
  u32 base, rank;
  asm("{.reg .u64 t; cvta.to.shared.u64 t, %1; cvt.u32.u64 %0, t;}" : "=r"(base) : "l"(shared));
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  const u32 full = base + STAGES * STAGE, empty = full + 64;
  for (int i = threadIdx.x; i < STAGES * STAGE / 16; i += THREADS)
    ((uint4*)shared)[i] = ((const uint4*)operands)[(blockIdx.x * 977 + i) % 1000000];
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; s++) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(full + s * 8));
      asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(empty + s * 8), "r"(RELEASES));
    }
  }
  asm volatile("fence.mbarrier_init.release.cluster;\\nfence.proxy.async.shared::cta;"
               ::: "memory");
  asm volatile("barrier.cluster.arrive.aligned;\\nbarrier.cluster.wait.aligned;" ::: "memory");
  const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);
  if (group == CONSUMERS) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (threadIdx.x == CONSUMERS * 128 && COPIES) {
      // Tile rows of a group, and the tile columns of a wave.
      const char* a = operands + (SHARE_A ? blockIdx.x / 2 % 12 : blockIdx.x % 24) * 2000000ll;
      const char* b = operands + 60000000 +
                      (SHARE_B ? blockIdx.x / 2 % 6 : blockIdx.x / 24) * 2000000ll;
      u32 parity = 1;
      for (int k = 0, s = 0; k < steps; k++) {
        wait(empty + s * 8, parity);
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                     :: "r"(full + s * 8), "r"(STAGE) : "memory");
        copy<SHARE_A>(base + s * STAGE, a + k % 30 * BYTES_A, BYTES_A, full + s * 8, rank);
        copy<SHARE_B>(base + s * STAGE + BYTES_A, b + k % 30 * BYTES_B, BYTES_B, full + s * 8,
                      rank);
        if (++s == STAGES) s = 0, parity ^= 1;
      }
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 MOST;");
    if (!TURNS || group == 0) {
      float d0[REGISTERS], d1[REGISTERS];
      for (int i = 0; i < REGISTERS; i++) d0[i] = d1[i] = 0;
      u32 parity = 0;
      for (int k = 0, s = 0, before = 0; k < steps; k++) {
        if (COPIES) wait(full + s * 8, parity);
        const u32 a = base + s * STAGE + group * HALVES * 8192, b = base + s * STAGE + BYTES_A;
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int kk = 0; kk < 4; kk++) {
          multiply(d0, descriptor(a + kk * NEXT), descriptor(b + kk * NEXT));
          if (HALVES == 2)
            multiply(d1, descriptor(a + 8192 + kk * NEXT), descriptor(b + kk * NEXT));
        }
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
        if (COPIES && k > 0 && threadIdx.x % 128 < CLUSTER)
          arrive(empty + before * 8, threadIdx.x % 128);
        before = s;
        if (++s == STAGES) s = 0, parity ^= 1;
      }
      asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
      float sum = 0;
      for (int i = 0; i < REGISTERS; i++) sum += d0[i] + d1[i];
      if (sum == 12345.f) out[threadIdx.x] = sum;  // never; but what is unused is not computed
    }
  }
  asm volatile("barrier.cluster.arrive;\\nbarrier.cluster.wait;" ::: "memory");
}
"""


def source(loop):
    registers = loop.columns // 2
    words = {
        "LEADING": "512ull" if loop.mn_major else "1ull", "NEXT": 2048 if loop.mn_major else 32,
        "MAJOR": int(loop.mn_major), "REGISTERS": registers, "COLUMNS": loop.columns,
        "NAMES": "{" + ", ".join(f"%{i}" for i in range(registers)) + "}",
        "OUTPUTS": ", ".join(f'"+f"(d[{i}])' for i in range(registers)),
        "CLUSTER": loop.cluster, "THREADS": loop.consumers * 128 + 128, "STAGES": loop.stages,
        "STAGE": loop.stage, "CONSUMERS": loop.consumers, "COPIES": int(loop.copies),
        "RELEASES": (1 if loop.turns else loop.consumers) * loop.cluster,
        "SHARE_A": int(loop.share == "a"), "SHARE_B": int(loop.share == "b"),
        "BYTES_A": loop.rows * K * 2, "BYTES_B": loop.columns * K * 2, "HALVES": loop.halves,
        "TURNS": int(loop.turns), "MOST": 240 if loop.consumers < 3 else 160}
    text = SOURCE.replace("{NAMES}", "NAMES").replace("%A", f"%{registers}")
    text = text.replace("%B", f"%{registers + 1}")
    for word in sorted(words, key=len, reverse=True):
        text = text.replace(word, str(words[word]))
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=0.4, help="of each")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    operands = torch.randn(64 << 20, device="cuda").bfloat16()
    out, rows = torch.zeros(1024, device="cuda"), []
    for loop in LOOPS * 2:
        kernel = torch.cuda._compile_kernel(source(loop), "loop", compute_capability="90a")
        shared = loop.stages * loop.stage + 128
        kernel.set_shared_memory_config(shared)

        def work():
            kernel((PROCESSORS, 1, 1), (loop.consumers * 128 + 128, 1, 1), [operands, out, STEPS],
                   shared)
        flops = 2 * loop.rows * loop.columns * K * STEPS * PROCESSORS
        ms, mhz = alone(work, flops / 700e9, options.seconds)
        rate = flops / ms / 1e9
        rows.append({"loop": loop.name, **asdict(loop), "ms": ms, "tflops": rate, "mhz": mhz})
        print(f"{loop.name:44s} {rate:4.0f} TFLOP/s, {rate / 9.89:3.0f} % of 989, {mhz} MHz",
              flush=True)
    if options.output:
        write_rows(options.output, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
