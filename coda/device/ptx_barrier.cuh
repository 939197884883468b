// coda/device/ptx_barrier.cuh: shared-memory addresses, mbarriers, named barriers, proxy fences.
#pragma once

namespace coda {

using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

// A shared-memory pointer as the 32-bit address that PTX takes.
__device__ __forceinline__ u32 shared_address(const void* pointer) {
  u64 address;
  asm("cvta.to.shared.u64 %0, %1;" : "=l"(address) : "l"(pointer));
  return static_cast<u32>(address);
}

__device__ __forceinline__ void barrier_init(u32 barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Makes initialised barriers visible to the copy engine and to the cluster.
__device__ __forceinline__ void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// Arrives once and announces `bytes` that the copy engine will deliver.
__device__ __forceinline__ void barrier_expect(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void barrier_arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// At the same barrier of block `rank` of the cluster.
// NOTE: with .release.cluster this becomes a memory barrier of the whole device.
__device__ __forceinline__ void barrier_arrive_at(u32 barrier, int rank) {
  asm volatile(
      "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}" ::"r"(barrier),
      "r"(rank)
      : "memory");
}
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
}
// Waits until the phase of that parity has completed.
// NOTE: sound only for a waiter that sees every phase in order.
__device__ __forceinline__ void barrier_wait(u32 barrier, u32 parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "WAIT_%=: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra DONE_%=;\nbra WAIT_%=;\nDONE_%=:\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// A number into the shared memory of block `rank` of the cluster, whose barrier counts its 4 bytes.
__device__ __forceinline__ void send_shared(u32 to, u32 barrier, int rank, float x) {
  asm volatile(
      "{\n.reg .b32 there, done;\nmapa.shared::cluster.u32 there, %0, %2;\n"
      "mapa.shared::cluster.u32 done, %1, %2;\n"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [there], %3, [done];\n}" ::
          "r"(to),
      "r"(barrier), "r"(rank), "f"(x)
      : "memory");
}

// Barriers 1 … 15 among `threads` threads of the block.
__device__ __forceinline__ void named_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Orders this thread's shared-memory accesses before those of the copy engine.
// NOTE: compiles to a memory barrier: a global store before it is waited for.
__device__ __forceinline__ void proxy_fence() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// A 4- or 8-byte value in shared memory.
__device__ __forceinline__ void put_shared(u32 at, float x) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(x) : "memory");
}
__device__ __forceinline__ void put_shared(u32 at, long long x) {
  asm volatile("st.shared.s64 [%0], %1;" ::"r"(at), "l"(x) : "memory");
}
__device__ __forceinline__ void get_shared(u32 at, float& x) {
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(at) : "memory");
}
__device__ __forceinline__ void get_shared(u32 at, long long& x) {
  asm volatile("ld.shared.s64 %0, [%1];" : "=l"(x) : "r"(at) : "memory");
}

// True in one lane of a whole warp, always the same.
// NOTE: around copies, in place of `lane == 0`: ptxas knows that one lane is left, and does not
// wrap each copy into a loop over lanes.
__device__ __forceinline__ bool elected() {
  u32 mine;
  asm volatile("{\n.reg .pred one;\nelect.sync _|one, 0xffffffff;\nselp.u32 %0, 1, 0, one;\n}"
               : "=r"(mine));
  return mine != 0;
}

template <int Registers>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}
template <int Registers>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}

}  // namespace coda
