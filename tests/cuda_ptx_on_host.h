// tests/cuda_ptx_on_host.h: the instructions in the `asm` statements of device/, as functions.
//
// `shfl.sync.idx.b32 %0, %1, …` is ptx::shfl_sync_idx_b32(%0, %1, …), in the order of its operands;
// {a, b} is a list.
#pragma once

#include <algorithm>
#include <array>
#include <type_traits>
#include <utility>

#include "tests/cuda_threads_on_host.h"

namespace coda {

using u64 = unsigned long long;

static inline unsigned pack_bf16(float low, float high) {
  return bf16_bits(low) | static_cast<unsigned>(bf16_bits(high)) << 16;
}
static inline unsigned pack_f16(float low, float high) {
  return f16_bits(low) | static_cast<unsigned>(f16_bits(high)) << 16;
}

}  // namespace coda

namespace coda::host {

struct None {};
static constexpr None none;

template <class... T>
static auto list(T&&... items) {
  return std::forward_as_tuple(std::forward<T>(items)...);
}
template <class... T>
static auto coordinates(const std::tuple<T...>& from) {
  return std::apply(
      [](const auto&... each) { return std::array<int, sizeof...(T)>{static_cast<int>(each)...}; },
      from);
}

// Wavefronts beyond the least of `lanes` accesses of `bytes` each, which one could serve.
static void count_conflicts(const unsigned (&addresses)[32], int first, int lanes, unsigned bytes) {
  int most = 1;
  for (unsigned bank = 0; bank < 128 / bytes; ++bank) {
    std::vector<unsigned> lines;
    for (int l = first; l < first + lanes; ++l) {
      if (addresses[l] / bytes % (128 / bytes) != bank) continue;
      bool known = false;
      for (const unsigned line : lines) known = known || line == addresses[l];
      if (!known) lines.push_back(addresses[l]);
    }
    most = std::max(most, static_cast<int>(lines.size()));
  }
  grid->conflicts += most - 1;
}

// Every lane's `mine`, when all have shown theirs.
template <class Use>
static void exchange(const std::uint64_t (&mine)[4], Use use) {
  Block& own = block();
  const unsigned warp = grid->now->index / 32, lane = grid->now->index % 32;
  for (int i = 0; i < 4; ++i) own.exchanged[warp][lane][i] = mine[i];
  meet_warp();
  use(own.exchanged[warp], lane);
  meet_warp();
}

namespace ptx {

// ---- special registers and moves

template <class T>
static void cvta_to_shared_u64(u64& address, const T&) {
  address = kBase;
}
static void mul_rn_f32(float& c, float a, float b) {
  c = a * b;
}
static void mov_f32(float& x, float value) {
  x = value;
}
static void setmaxnreg_inc_sync_aligned_u32(int) {}
static void setmaxnreg_dec_sync_aligned_u32(int) {}

// ---- barriers

static void mbarrier_init_shared__cta_b64(unsigned address, int arrivals) {
  barrier(grid->now->block, address) = {arrivals, arrivals, 0, 0};
}
static void mbarrier_arrive_expect_tx_shared__cta_b64(None, unsigned address, unsigned bytes) {
  arrive(grid->now->block, address, bytes);
}
static void mbarrier_arrive_shared__cta_b64(None, unsigned address) {
  arrive(grid->now->block, address, 0);
}
// mapa, then an arrival there.
static void mbarrier_arrive_remote(unsigned address, int rank) {
  arrive(block().first + static_cast<unsigned>(rank), address, 0);
}
// mapa twice, then a store there, which comes late.
static void st_async_remote(unsigned to, unsigned done, int rank, float x) {
  const unsigned owner = block().first + static_cast<unsigned>(rank);
  grid->copies.push_back([to, done, owner, x] {
    std::memcpy(shared_at(owner, to, 4, 4), &x, 4);
    Barrier& of = barrier(owner, done);
    of.bytes -= 4;
    settle(of);
  });
}
static void mbarrier_wait(unsigned address, unsigned parity) {
  Barrier& of = barrier(grid->now->block, address);
  if (of.expected == 0) fail("a barrier that was not initialised");
  wait_until("mbarrier", [&of, parity] { return (of.phase & 1) != parity; });
}
static void fence_mbarrier_init_release_cluster() {}
static void fence_proxy_async_shared__cta() {}
static void fence_acq_rel_gpu() {}
static void bar_arrive(int id, int threads) {
  block().named[id].arrive(threads);
}
static void bar_sync(int id, int threads) {
  meet(id < 3   ? "a main turn"
       : id < 5 ? "an epilogue turn"
                : "a named barrier",
       block().named[id], threads);
}
static void barrier_cluster_arrive_release_aligned() {}
static void barrier_cluster_wait_acquire_aligned() {
  meet("its cluster", grid->clusters[grid->now->block / static_cast<unsigned>(grid->cluster)],
       grid->cluster * static_cast<int>(blockDim.x));
}

// ---- the copy engine

template <class C, class P>
static void load(unsigned to, const void* map, const C& at, unsigned done, unsigned mask, P) {
  const auto place = coordinates(at);
  int from[std::tuple_size_v<C>];
  for (std::size_t i = 0; i < place.size(); ++i) from[i] = place[i];
  load_box(to, map, from, done, mask);
}
template <class C, class P>
static void store(const void* map, const C& at, unsigned from, P) {
  const auto place = coordinates(at);
  int to[std::tuple_size_v<C>];
  for (std::size_t i = 0; i < place.size(); ++i) to[i] = place[i];
  store_box(map, to, from);
}
#define CODA_COPIES(rank)                                                                  \
  template <class C, class P>                                                              \
  static void cp_async_bulk_tensor_##rank##_shared__cluster_global(                        \
      unsigned to, const void* map, const C& at, unsigned done, P policy) {                \
    load(to, map, at, done, 0, policy);                                                    \
  }                                                                                        \
  template <class C, class P>                                                              \
  static void cp_async_bulk_tensor_##rank##_shared__cluster_global_multicast__cluster(     \
      unsigned to, const void* map, const C& at, unsigned done, unsigned mask, P policy) { \
    load(to, map, at, done, mask, policy);                                                 \
  }                                                                                        \
  template <class C, class P>                                                              \
  static void cp_async_bulk_tensor_##rank##_global_shared__cta_bulk_group(                 \
      const void* map, const C& at, unsigned from, P policy) {                             \
    store(map, at, from, policy);                                                          \
  }
CODA_COPIES(2d)
CODA_COPIES(5d)
#undef CODA_COPIES
static void cp_async_bulk_commit_group() {}
static void cp_async_bulk_wait_group_read(int) {
  Thread* self = grid->now;
  wait_until("its stores", [self] { return self->stores == 0; });
}

// ---- products

template <class T>
static void wgmma(float* d, int width, u64 a, u64 b, bool mn_a, bool mn_b, T) {
  grid->now->products.push_back({d, width, a, b, mn_a, mn_b, T::kBf16});
}
static void wgmma_fence_sync_aligned() {}
static void wgmma_commit_group_sync_aligned() {
  grid->now->groups.push_back(std::move(grid->now->products));
  grid->now->products.clear();
}
static void wgmma_wait_group_sync_aligned(int pending) {
  Thread& self = *grid->now;
  while (static_cast<int>(self.groups.size()) > pending) {
    for (const Product& product : self.groups.front()) multiply(product);
    self.groups.pop_front();
  }
}

// ---- lanes

template <class T>
static void shfl_sync_bfly_b32(T& y, T x, int lanes, unsigned, unsigned) {
  static_assert(sizeof(T) == 4);
  std::uint64_t mine[4] = {};
  std::memcpy(mine, &x, 4);
  exchange(mine, [&](const auto& all, unsigned lane) {
    std::memcpy(&y, all[lane ^ static_cast<unsigned>(lanes)], 4);
  });
}
template <class T>
static void shfl_sync_idx_b32(T& y, T x, int lane, unsigned, unsigned) {
  static_assert(sizeof(T) == 4);
  std::uint64_t mine[4] = {};
  std::memcpy(mine, &x, 4);
  exchange(mine, [&](const auto& all, unsigned) { std::memcpy(&y, all[lane], 4); });
}

// Some lane of the whole warp: no program may count on which.
static void elect_sync(unsigned& elected) {
  constexpr unsigned kLane = 13;
  exchange({}, [&](const auto&, unsigned lane) { elected = lane == kLane; });
}

// Lane l gives the address of row l % 8 of matrix l / 8, and holds the words l % 4 of its rows l
// / 4.
template <class V>
static void ldmatrix_sync_aligned_m8n8_x4_shared_b16(const V& v, unsigned address) {
  const std::uint64_t mine[4] = {address};
  exchange(mine, [&](const auto& all, unsigned lane) {
    unsigned addresses[32], words[4];
    for (int l = 0; l < 32; ++l) addresses[l] = static_cast<unsigned>(all[l][0]);
    for (unsigned i = 0; i < 4; ++i) {
      const unsigned row = addresses[i * 8 + lane / 4];
      std::memcpy(&words[i], at(row, 16, 16) + lane % 4 * 4, 4);
      if (lane == 0) count_conflicts(addresses, static_cast<int>(i) * 8, 8, 16);
    }
    std::get<0>(v) = words[0], std::get<1>(v) = words[1];
    std::get<2>(v) = words[2], std::get<3>(v) = words[3];
  });
}
template <class V>
static void stmatrix_sync_aligned_m8n8_x4_shared_b16(unsigned address, const V& v) {
  const std::uint64_t mine[4] = {address};
  exchange(mine, [&](const auto& all, unsigned lane) {
    unsigned addresses[32];
    for (int l = 0; l < 32; ++l) addresses[l] = static_cast<unsigned>(all[l][0]);
    const unsigned words[4] = {std::get<0>(v), std::get<1>(v), std::get<2>(v), std::get<3>(v)};
    for (unsigned i = 0; i < 4; ++i) {
      const unsigned row = addresses[i * 8 + lane / 4];
      std::memcpy(at(row, 16, 16) + lane % 4 * 4, &words[i], 4);
      if (lane == 0) count_conflicts(addresses, static_cast<int>(i) * 8, 8, 16);
    }
  });
}

// ---- memory

// What a thread sees at a global address, or would be refused there.
template <class T>
static auto* global(T* address, unsigned bytes) {
  if (reinterpret_cast<std::uintptr_t>(address) % bytes != 0) fail("a misaligned access");
  if constexpr (std::is_const_v<T>) {
    return reinterpret_cast<const unsigned char*>(address);
  } else {
    return reinterpret_cast<unsigned char*>(address);
  }
}
template <class T>
static void take(T& x, const unsigned char* from, unsigned bytes) {
  x = T();
  std::memcpy(&x, from, bytes);
}
template <class T>
static void put(unsigned char* to, const T& x, unsigned bytes) {
  std::memcpy(to, &x, bytes);
}
template <class V>
static void take_all(const V& v, const unsigned char* from, unsigned bytes) {
  std::apply([&](auto&... x) { ((take(x, from, bytes), from += bytes), ...); }, v);
}
template <class V>
static void put_all(unsigned char* to, const V& v, unsigned bytes) {
  std::apply([&](const auto&... x) { ((put(to, x, bytes), to += bytes), ...); }, v);
}

#define CODA_SHARED(space, type, bytes)                           \
  template <class T>                                              \
  static void ld_##space##_##type(T& x, unsigned from) {          \
    take(x, at(from, bytes, bytes), bytes);                       \
  }                                                               \
  template <class T>                                              \
  static void st_##space##_##type(unsigned to, T x) {             \
    put(at(to, bytes, bytes), x, bytes);                          \
  }                                                               \
  template <class V>                                              \
  static void ld_##space##_v2_##type(const V& v, unsigned from) { \
    take_all(v, at(from, 2 * bytes, 2 * bytes), bytes);           \
  }                                                               \
  template <class V>                                              \
  static void st_##space##_v2_##type(unsigned to, const V& v) {   \
    put_all(at(to, 2 * bytes, 2 * bytes), v, bytes);              \
  }                                                               \
  template <class V>                                              \
  static void ld_##space##_v4_##type(const V& v, unsigned from) { \
    take_all(v, at(from, 4 * bytes, 4 * bytes), bytes);           \
  }                                                               \
  template <class V>                                              \
  static void st_##space##_v4_##type(unsigned to, const V& v) {   \
    put_all(at(to, 4 * bytes, 4 * bytes), v, bytes);              \
  }
#define CODA_GLOBAL(space, type, bytes)                           \
  template <class T, class P>                                     \
  static void ld_##space##_##type(T& x, const P* from) {          \
    take(x, global(from, bytes), bytes);                          \
  }                                                               \
  template <class T, class P>                                     \
  static void st_##space##_##type(P* to, T x) {                   \
    put(global(to, bytes), x, bytes);                             \
  }                                                               \
  template <class V, class P>                                     \
  static void ld_##space##_v2_##type(const V& v, const P* from) { \
    take_all(v, global(from, 2 * bytes), bytes);                  \
  }                                                               \
  template <class V, class P>                                     \
  static void st_##space##_v2_##type(P* to, const V& v) {         \
    put_all(global(to, 2 * bytes), v, bytes);                     \
  }                                                               \
  template <class V, class P>                                     \
  static void ld_##space##_v4_##type(const V& v, const P* from) { \
    take_all(v, global(from, 4 * bytes), bytes);                  \
  }                                                               \
  template <class V, class P>                                     \
  static void st_##space##_v4_##type(P* to, const V& v) {         \
    put_all(global(to, 4 * bytes), v, bytes);                     \
  }
#define CODA_MEMORY(type, bytes)            \
  CODA_SHARED(shared, type, bytes)          \
  CODA_SHARED(volatile_shared, type, bytes) \
  CODA_GLOBAL(global, type, bytes)          \
  CODA_GLOBAL(global_nc, type, bytes)       \
  CODA_GLOBAL(global_cg, type, bytes)
CODA_MEMORY(u16, 2)
CODA_MEMORY(b16, 2)
CODA_MEMORY(u32, 4)
CODA_MEMORY(b32, 4)
CODA_MEMORY(f32, 4)
CODA_MEMORY(u64, 8)
CODA_MEMORY(s64, 8)
CODA_MEMORY(b64, 8)
#undef CODA_MEMORY
#undef CODA_GLOBAL
#undef CODA_SHARED

// Threads take turns, so nothing comes between. Whoever draws lets others draw first.
static void atom_global_add_u32(unsigned& before, unsigned* to, unsigned more) {
  wait_until("a ticket", nullptr, true);
  before = *to;
  *to += more;
}

// Whoever looks at a flag lets others run.
static void ld_acquire_gpu_u64(u64& x, const void* from) {
  wait_until("a flag", nullptr, true);
  std::memcpy(&x, from, 8);
}
static void st_release_gpu_u64(void* to, u64 x) {
  std::memcpy(to, &x, 8);
}
static void st_relaxed_gpu_u64(void* to, u64 x) {
  std::memcpy(to, &x, 8);
}

}  // namespace ptx
}  // namespace coda::host
