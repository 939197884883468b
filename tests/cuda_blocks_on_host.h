// tests/cuda_blocks_on_host.h: blocks of threads on the host, with barriers and shuffles.
//
// The threads of a block are contexts that run in turn, each until it waits; blocks run one after
// another, so shared memory is static. An access that a GPU would refuse as misaligned traps.
#pragma once

#include "tests/cuda_on_host.h"

#include <ucontext.h>

#include <cstddef>
#include <functional>
#include <vector>

#define __shared__ static
#define __launch_bounds__(...)

namespace coda {

static inline unsigned pack_bf16(float low, float high) {
  return bf16_bits(low) | static_cast<unsigned>(bf16_bits(high)) << 16;
}
static inline unsigned pack_f16(float low, float high) {
  return f16_bits(low) | static_cast<unsigned>(f16_bits(high)) << 16;
}

namespace host {

// Those that wait for each other: a block's threads, or a warp's.
struct Meeting {
  int members = 0, arrived = 0;
  unsigned long long times = 0;

  void leave() {
    --members;
    if (members > 0 && arrived == members) release();
  }
  void release() {
    arrived = 0;
    ++times;
  }
};

struct Thread {
  ucontext_t context;
  bool done = false;
};

struct Block {
  static constexpr std::size_t kStack = 128 * 1024;
  std::vector<char> stacks;
  std::vector<Thread> threads;
  ucontext_t scheduler;
  Meeting all;
  Meeting warps[32];
  unsigned long long shuffled[32][2][32];
  unsigned current = 0;
  const std::function<void()>* kernel = nullptr;
};

static Block* running = nullptr;

static void yield() {
  Block& block = *running;
  const unsigned self = block.current;
  swapcontext(&block.threads[self].context, &block.scheduler);
}
static void meet(Meeting& meeting) {
  const unsigned long long now = meeting.times;
  if (++meeting.arrived == meeting.members) return meeting.release();
  while (meeting.times == now) yield();
}
static void enter() {
  Block& block = *running;
  (*block.kernel)();
  block.threads[block.current].done = true;
  block.warps[block.current / 32].leave();
  block.all.leave();
  yield();
}

// Runs a kernel over a grid. False: threads wait for each other for ever.
static bool run(const long long* grid, int size, const std::function<void()>& kernel) {
  static Block block;
  running = &block;
  const auto threads = static_cast<std::size_t>(size);
  block.stacks.resize(threads * Block::kStack);
  block.threads.resize(threads);
  block.kernel = &kernel;
  gridDim = {unsigned(grid[0]), unsigned(grid[1]), unsigned(grid[2])};
  blockDim = {unsigned(size), 1, 1};
  for (unsigned b = 0; b < gridDim.x; ++b) {
    blockIdx = {b, 0, 0};
    block.all = {size, 0, 0};
    for (int w = 0; w < 32; ++w) {
      const int rest = size - 32 * w;
      block.warps[w] = {rest < 0 ? 0 : rest < 32 ? rest : 32, 0, 0};
    }
    for (std::size_t t = 0; t < threads; ++t) {
      Thread& thread = block.threads[t];
      thread.done = false;
      getcontext(&thread.context);
      thread.context.uc_stack.ss_sp = block.stacks.data() + t * Block::kStack;
      thread.context.uc_stack.ss_size = Block::kStack;
      thread.context.uc_link = nullptr;
      makecontext(&thread.context, enter, 0);
    }
    std::size_t left = threads;
    for (int rounds = 0; left > 0; ++rounds) {
      if (rounds > 10000000) return false;
      left = 0;
      for (unsigned t = 0; t < threads; ++t) {
        if (block.threads[t].done) continue;
        block.current = t;
        threadIdx = {t, 0, 0};
        swapcontext(&block.scheduler, &block.threads[t].context);
        if (!block.threads[t].done) ++left;
      }
    }
  }
  return true;
}

}  // namespace host
}  // namespace coda

static inline void __syncthreads() {
  coda::host::meet(coda::host::running->all);
  // NOTE: another thread ran in between.
  threadIdx.x = coda::host::running->current;
}

template <class T>
static inline T __shfl_xor_sync(unsigned, T x, int mask) {
  coda::host::Block& block = *coda::host::running;
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  coda::host::Meeting& meeting = block.warps[warp];
  auto& slots = block.shuffled[warp][meeting.times % 2];
  __builtin_memcpy(&slots[lane], &x, sizeof x);
  coda::host::meet(meeting);
  threadIdx.x = block.current;
  T other;
  __builtin_memcpy(&other, &slots[lane ^ static_cast<unsigned>(mask)], sizeof other);
  return other;
}

static inline unsigned __ballot_sync(unsigned, bool is) {
  unsigned bits = is ? 1u << threadIdx.x % 32 : 0;
  for (int mask = 1; mask < 32; mask *= 2) bits |= __shfl_xor_sync(~0u, bits, mask);
  return bits;
}
static inline int __syncthreads_or(bool is) {
  static int any;
  if (is) any = 1;
  __syncthreads();
  const int result = any;
  __syncthreads();
  any = 0;
  __syncthreads();
  return result;
}
static inline int __popc(unsigned bits) {
  return __builtin_popcount(bits);
}
static inline int __ffs(unsigned bits) {
  return __builtin_ffs(static_cast<int>(bits));
}
static inline int atomicAdd(int* to, int x) {
  const int before = *to;
  *to += x;
  return before;
}
