// tests/cuda_threads_on_host.h: all blocks of a grid at once on the host, for pages of
// device/sm90_gemm.cuh.
//
// A thread is a context that runs until it waits. What is asynchronous on a GPU is late here: the
// copy engine moves a box, and a product reads its operands, at some later time drawn by chance, so
// that a wait that is missing is seen. Shared memory starts as NaNs.
#pragma once

#include "tests/cuda_on_host.h"

#include <ucontext.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "tests/cuda_host_map.h"

#define __shared__
#define __align__(n) __attribute__((aligned(n)))

namespace coda::host {

constexpr unsigned kBase = 1024;  // where a block's dynamic shared memory starts

// A rule of the GPU is broken.
struct Fault {
  std::string what;
};

struct Barrier {
  int expected = 0, pending = 0;
  long long bytes = 0;
  unsigned phase = 0;  // completed
};
struct Meeting {
  int arrived = 0;
  unsigned times = 0;
  bool arrive(int members) {
    if (++arrived < members) return false;
    arrived = 0;
    ++times;
    return true;
  }
};

struct Block {
  std::vector<unsigned char> shared;
  std::map<unsigned, Barrier> barriers;
  Meeting named[16], all;
  Meeting warps[32];
  std::uint64_t exchanged[32][32][4];  // of a warp's lanes: what they show each other
  unsigned rank = 0, first = 0;        // in the cluster; the cluster's first block
};

// d += a b, of one thread, still to be done.
struct Product {
  float* d = nullptr;
  int width = 0;
  std::uint64_t a = 0, b = 0;
  bool mn_a = false, mn_b = false, bf16 = true;
};
struct Operands {
  std::vector<float> a, b;  // [64][16], [width][16]
  int readers = 0;
};

struct Thread {
  ucontext_t context;
  unsigned block = 0, index = 0;
  std::function<bool()> ready;  // empty: it is
  bool done = false, polls = false;
  const char* waits = "";                   // for what
  std::deque<std::vector<Product>> groups;  // committed
  std::vector<Product> products;            // not yet
  std::uint64_t count = 0;                  // products done
  int stores = 0;                           // committed and not yet read
};

struct Grid {
  static constexpr std::size_t kStack = 64 * 1024;
  std::vector<char> stacks;
  std::deque<Thread> threads;
  std::vector<Block> blocks;
  std::vector<Meeting> clusters;
  int cluster = 1;
  ucontext_t scheduler;
  Thread* now = nullptr;
  std::vector<std::function<void()>> copies;  // of the copy engine, under way
  std::map<std::tuple<unsigned, unsigned, std::uint64_t>, Operands> operands;
  std::uint64_t random = 1;
  long long conflicts = 0;  // wavefronts of shared memory beyond the least
  std::string fault;
  const std::function<void()>* kernel = nullptr;
};

static Grid* grid = nullptr;

static inline unsigned draw(unsigned below) {
  grid->random = grid->random * 6364136223846793005ull + 1442695040888963407ull;
  return static_cast<unsigned>((grid->random >> 33) % below);
}
static inline Block& block() {
  return grid->blocks[grid->now->block];
}
// Never returns to a thread: the grid stops.
static void fail(const std::string& what) {
  if (grid->fault.empty()) {
    grid->fault = what + " (block " + std::to_string(grid->now->block) + ", thread " +
                  std::to_string(grid->now->index) + ")";
  }
  for (;;) {
    grid->now->ready = [] {
      return false;
    };
    swapcontext(&grid->now->context, &grid->scheduler);
  }
}
static void wait_until(const char* what, std::function<bool()> ready, bool polls = false) {
  Thread& self = *grid->now;
  self.waits = what;
  self.ready = std::move(ready);
  self.polls = polls;
  swapcontext(&self.context, &grid->scheduler);
}
static unsigned char* shared_at(unsigned owner, unsigned address, unsigned bytes, unsigned align) {
  Block& of = grid->blocks[owner];
  if (address < kBase || address + bytes > kBase + of.shared.size()) {
    throw Fault{"address " + std::to_string(address) + " is outside of shared memory"};
  }
  if (address % align != 0) {
    throw Fault{"address " + std::to_string(address) + " is no multiple of " +
                std::to_string(align)};
  }
  return of.shared.data() + (address - kBase);
}
static unsigned char* at(unsigned address, unsigned bytes, unsigned align) {
  try {
    return shared_at(grid->now->block, address, bytes, align);
  } catch (const Fault& fault) {
    fail(fault.what);
    return nullptr;
  }
}

// ---- barriers ----

static Barrier& barrier(unsigned owner, unsigned address) {
  return grid->blocks[owner].barriers[address];
}
static void settle(Barrier& of) {
  if (of.pending > 0 || of.bytes != 0) return;
  of.pending = of.expected;
  ++of.phase;
}
static void arrive(unsigned owner, unsigned address, long long bytes) {
  Barrier& of = barrier(owner, address);
  if (of.expected == 0) fail("a barrier that was not initialised");
  if (of.pending == 0) fail("more arrivals than a barrier expects");
  of.bytes += bytes;
  --of.pending;
  settle(of);
}
static void meet(const char* what, Meeting& meeting, int members) {
  const unsigned times = meeting.times;
  if (meeting.arrive(members)) return;
  wait_until(what, [&meeting, times] { return meeting.times != times; });
}
static void meet_warp() {
  meet("its warp", block().warps[grid->now->index / 32], 32);
}

// ---- the copy engine ----

// The place in shared memory of byte `offset` of a box at `to`.
static unsigned swizzled(unsigned to, unsigned offset, int swizzle) {
  const unsigned linear = to + offset;
  if (swizzle == 128) return linear ^ ((linear >> 7 & 7) << 4);
  if (swizzle == 64) return linear ^ ((linear >> 7 & 3) << 4);
  return linear;
}
// f(byte in shared memory, element of the tensor or nullptr where it is outside, its index).
template <class F>
static void each_element(const HostMap& map, unsigned to, const int (&at)[5], F f) {
  int i[5] = {};
  for (unsigned offset = 0;; offset += static_cast<unsigned>(map.bytes)) {
    bool inside = true;
    long long byte = 0, index = 0;
    for (int a = map.rank - 1; a >= 0; --a) {
      const long long place = at[a] + static_cast<long long>(i[a]);
      inside = inside && place >= 0 && place < map.extents[a];
      byte += place * map.strides[a];
      index = index * map.extents[a] + place;
    }
    f(swizzled(to, offset, map.swizzle), inside ? map.base + byte : nullptr, index);
    int a = 0;
    while (a < map.rank && ++i[a] == map.box[a]) i[a++] = 0;
    if (a == map.rank) return;
  }
}
static const HostMap& host_map(const void* map) {
  const HostMap* found = nullptr;
  std::memcpy(&found, map, sizeof found);
  return *found;
}
static void check_box(const HostMap& map, unsigned address, const int (&at)[5]) {
  if (map.box[0] * map.bytes != map.swizzle) fail("a box narrower or wider than its swizzle");
  if (address % static_cast<unsigned>(map.swizzle * 8) != 0) {
    fail("a box at " + std::to_string(address) + ", where its swizzle does not begin");
  }
  for (int a = 0; a < map.rank; ++a) {
    if (at[a] < 0) fail("a box that starts before its tensor");
  }
}
template <std::size_t N>
static void places(const int (&from)[N], int (&to)[5]) {
  for (int a = 0; a < 5; ++a) to[a] = a < static_cast<int>(N) ? from[a] : 0;
}
// `mask`: the blocks of the cluster that get it; 0: this one.
template <std::size_t N>
static void load_box(unsigned to, const void* handle, const int (&from)[N], unsigned done,
                     unsigned mask) {
  const HostMap& map = host_map(handle);
  int at[5];
  places(from, at);
  if (map.rank != static_cast<int>(N)) fail("a box with coordinates of another rank");
  // NOTE: halves of a tile start inside the pattern of the whole.
  if (map.box[0] * map.bytes != map.swizzle) fail("a box narrower or wider than its swizzle");
  if (to % 128 != 0) fail("a box at an address that is no multiple of 128");
  for (int a = 0; a < map.rank; ++a) {
    if (at[a] < 0) fail("a box that starts before its tensor");
  }
  const unsigned self = grid->now->block;
  const Block& here = grid->blocks[self];
  std::vector<unsigned> owners;
  for (unsigned r = 0; mask >> r != 0; ++r) {
    if (mask >> r & 1) owners.push_back(here.first + r);
  }
  if (mask == 0) owners.push_back(self);
  for (const unsigned owner : owners) {
    grid->copies.push_back([to, &map, at = std::vector<int>(at, at + 5), done, owner] {
      int place[5];
      for (int a = 0; a < 5; ++a) place[a] = at[static_cast<std::size_t>(a)];
      each_element(map, to, place, [&](unsigned byte, unsigned char* element, long long) {
        unsigned char* target = shared_at(owner, byte, static_cast<unsigned>(map.bytes), 1);
        if (element != nullptr) {
          std::memcpy(target, element, static_cast<std::size_t>(map.bytes));
        } else {
          std::memset(target, 0, static_cast<std::size_t>(map.bytes));
        }
      });
      Barrier& of = barrier(owner, done);
      of.bytes -= map.box_bytes();
      settle(of);
    });
  }
}
template <std::size_t N>
static void store_box(const void* handle, const int (&from)[N], unsigned address) {
  const HostMap& map = host_map(handle);
  int at[5];
  places(from, at);
  if (map.rank != static_cast<int>(N)) fail("a box with coordinates of another rank");
  check_box(map, address, at);
  Thread* self = grid->now;
  ++self->stores;
  const unsigned owner = self->block;
  grid->copies.push_back([address, &map, at = std::vector<int>(at, at + 5), owner, self] {
    int place[5];
    for (int a = 0; a < 5; ++a) place[a] = at[static_cast<std::size_t>(a)];
    each_element(map, address, place, [&](unsigned byte, unsigned char* element, long long index) {
      if (element == nullptr) return;
      std::memcpy(element, shared_at(owner, byte, static_cast<unsigned>(map.bytes), 1),
                  static_cast<std::size_t>(map.bytes));
      if (map.written != nullptr && map.written[index]++ != 0) {
        throw Fault{"element " + std::to_string(index) + " of a result is stored twice"};
      }
    });
    --self->stores;
  });
}

// ---- products ----

// Element (row, k) of an operand whose descriptor is `low`: docs of device/ptx_wgmma.cuh.
static float operand(unsigned owner, std::uint64_t descriptor, bool mn_major, bool bf16, int row,
                     int k) {
  const unsigned start = (static_cast<unsigned>(descriptor) & 0x3fff) << 4;
  const unsigned leading = (static_cast<unsigned>(descriptor >> 16) & 0x3fff) << 4;
  const unsigned stride = (static_cast<unsigned>(descriptor >> 32) & 0x3fff) << 4;
  const auto r = static_cast<unsigned>(row), c = static_cast<unsigned>(k);
  const unsigned linear = mn_major
                              ? start + r / 64 * leading + c / 8 * stride + c % 8 * 128 + r % 64 * 2
                              : start + r / 8 * stride + r % 8 * 128 + c * 2;
  unsigned short bits;
  std::memcpy(&bits, shared_at(owner, swizzled(linear, 0, 128), 2, 2), 2);
  return bf16 ? float_of(static_cast<unsigned>(bits) << 16) : f16_value(bits);
}
static void multiply(const Product& product) {
  Thread& self = *grid->now;
  const auto key = std::tuple(self.block, self.index / 128, self.count++);
  Operands& both = grid->operands[key];
  if (both.readers == 0) {
    const bool swizzle_is_128 = product.a >> 62 == 1 && product.b >> 62 == 1;
    if (!swizzle_is_128) fail("a descriptor without the 128-byte swizzle");
    for (int k = 0; k < 16; ++k) {
      for (int r = 0; r < 64; ++r)
        both.a.push_back(operand(self.block, product.a, product.mn_a, product.bf16, r, k));
    }
    for (int n = 0; n < product.width; ++n) {
      for (int k = 0; k < 16; ++k)
        both.b.push_back(operand(self.block, product.b, product.mn_b, product.bf16, n, k));
    }
  }
  const unsigned warp = self.index % 128 / 32, lane = self.index % 32;
  for (int x = 0; x < product.width / 2; ++x) {
    const unsigned row = 16 * warp + lane / 4 + 8 * (x >> 1 & 1);
    const unsigned column = 8 * static_cast<unsigned>(x / 4) + 2 * (lane % 4) + (x & 1);
    float sum = product.d[x];
    const float* b = both.b.data() + column * 16;
    for (unsigned k = 0; k < 16; ++k) sum += both.a[k * 64 + row] * b[k];
    product.d[x] = sum;
  }
  if (++both.readers == 128) grid->operands.erase(key);
}

// ---- threads ----

static void enter() {
  (*grid->kernel)();
  grid->now->done = true;
  swapcontext(&grid->now->context, &grid->scheduler);
}

static void deliver(std::size_t i) {
  const std::function<void()> copy = std::move(grid->copies[i]);
  grid->copies.erase(grid->copies.begin() + static_cast<std::ptrdiff_t>(i));
  copy();
}

// The threads that are left, warp by warp, and what the first of each waits for.
static std::string who_waits(std::size_t left) {
  std::string text = std::to_string(left) + " threads wait for ever:";
  for (const Thread& thread : grid->threads) {
    if (thread.done || thread.index % 32 != 0) continue;
    text += " " + std::to_string(thread.block) + "." + std::to_string(thread.index / 32) + " " +
            thread.waits;
  }
  return text;
}

struct Launch {
  int blocks = 1, threads = 384, cluster = 1;
  unsigned shared = 0;
  std::uint64_t seed = 1;
};

// "": it ran; else what went wrong. Bank conflicts are added to `conflicts`.
static std::string run(const Launch& launch, const std::function<void()>& kernel,
                       long long& conflicts) {
  static Grid all;
  all.threads.clear(), all.blocks.clear(), all.copies.clear(), all.operands.clear();
  all.fault.clear();
  grid = &all;
  all.random = launch.seed * 2 + 1;
  all.kernel = &kernel;
  all.cluster = launch.cluster;
  all.conflicts = 0;
  all.clusters.assign(static_cast<std::size_t>(launch.blocks / launch.cluster), {});
  const auto count = static_cast<std::size_t>(launch.blocks * launch.threads);
  all.stacks.resize(count * Grid::kStack);
  gridDim = {unsigned(launch.blocks), 1, 1};
  blockDim = {unsigned(launch.threads), 1, 1};
  for (int b = 0; b < launch.blocks; ++b) {
    Block& block = all.blocks.emplace_back();
    block.shared.assign(launch.shared, 0xff);
    block.rank = static_cast<unsigned>(b % launch.cluster);
    block.first = static_cast<unsigned>(b) - block.rank;
  }
  for (std::size_t t = 0; t < count; ++t) {
    Thread& thread = all.threads.emplace_back();
    thread.block = static_cast<unsigned>(t) / unsigned(launch.threads);
    thread.index = static_cast<unsigned>(t) % unsigned(launch.threads);
    getcontext(&thread.context);
    thread.context.uc_stack.ss_sp = all.stacks.data() + t * Grid::kStack;
    thread.context.uc_stack.ss_size = Grid::kStack;
    thread.context.uc_link = nullptr;
    makecontext(&thread.context, enter, 0);
  }
  std::size_t left = count;
  try {
    for (int idle = 0; left > 0 || !all.copies.empty();) {
      bool moved = false;
      const std::size_t start = draw(unsigned(count));
      for (std::size_t i = 0; i < count && all.fault.empty(); ++i) {
        Thread& thread = all.threads[(start + i) % count];
        if (thread.done) continue;
        if (thread.ready && !thread.ready()) continue;
        moved = moved || !thread.polls;
        thread.ready = nullptr, thread.polls = false;
        all.now = &thread;
        threadIdx = {thread.index, 0, 0};
        blockIdx = {thread.block, 0, 0};
        swapcontext(&all.scheduler, &thread.context);
        if (thread.done) --left, moved = true;
      }
      if (!all.fault.empty()) break;
      // Soon after they were asked for, or when nobody can go on without.
      const bool lazy = launch.seed % 2 == 0;
      if (!all.copies.empty() && (!moved || (!lazy && draw(3) == 0))) {
        deliver(draw(unsigned(all.copies.size())));
        moved = true;
      }
      idle = moved ? 0 : idle + 1;
      if (idle > 1000) {
        all.fault = who_waits(left);
        break;
      }
    }
  } catch (const Fault& fault) {
    all.fault = fault.what;
  }
  conflicts += all.conflicts;
  return all.fault;
}

}  // namespace coda::host

static inline void __syncwarp() {
  coda::host::meet_warp();
}
static inline void __syncthreads() {
  coda::host::meet("its block", coda::host::block().all, static_cast<int>(blockDim.x));
}
static inline void __nanosleep(unsigned) {
  coda::host::wait_until("memory", nullptr, true);
}
