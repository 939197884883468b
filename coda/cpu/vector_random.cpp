// coda/cpu/vector_random.cpp: uniform numbers by counter, Philox4x32-10 (Salmon et al., SC'11).
//
// Sixteen counters at a time as plain loops that the compiler vectorises for each SIMD target.
#include <algorithm>
#include <cstdint>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "coda/cpu/vector_random.cpp"
#include "coda/cpu/vector_targets.h"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "coda/cpu/vector_ops.h"
#include "hwy/highway.h"

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC push_options
#pragma GCC optimize("O3")
#endif

HWY_BEFORE_NAMESPACE();
namespace coda::cpu::HWY_NAMESPACE {
namespace {

constexpr int kBlock = 16;

// First output words of counters (low, high, 0, 0), key (k0, k1).
void philox(std::uint32_t k0, std::uint32_t k1, std::uint64_t first, std::uint32_t* words) {
  alignas(64) std::uint32_t c0[kBlock], c1[kBlock], c2[kBlock], c3[kBlock];
  for (int l = 0; l < kBlock; ++l) {
    const std::uint64_t counter = first + static_cast<std::uint64_t>(l);
    c0[l] = static_cast<std::uint32_t>(counter);
    c1[l] = static_cast<std::uint32_t>(counter >> 32);
    c2[l] = 0;
    c3[l] = 0;
  }
  for (int round = 0; round < 10; ++round) {
    for (int l = 0; l < kBlock; ++l) {
      const std::uint64_t a = std::uint64_t{0xD2511F53u} * c0[l];
      const std::uint64_t b = std::uint64_t{0xCD9E8D57u} * c2[l];
      const std::uint32_t n0 = static_cast<std::uint32_t>(b >> 32) ^ c1[l] ^ k0;
      const std::uint32_t n2 = static_cast<std::uint32_t>(a >> 32) ^ c3[l] ^ k1;
      c0[l] = n0;
      c1[l] = static_cast<std::uint32_t>(b);
      c2[l] = n2;
      c3[l] = static_cast<std::uint32_t>(a);
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  std::copy(c0, c0 + kBlock, words);
}

template <class T>
void uniform(std::uint64_t seed, std::uint64_t first, std::int64_t n, T* to) {
  alignas(64) std::uint32_t words[kBlock];
  for (std::int64_t k = 0; k < n; k += kBlock) {
    philox(static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32),
           first + static_cast<std::uint64_t>(k), words);
    const std::int64_t count = std::min<std::int64_t>(kBlock, n - k);
    for (std::int64_t l = 0; l < count; ++l) {
      to[k + l] = static_cast<T>(static_cast<float>(words[l] >> 8) * 0x1p-24f);
    }
  }
}

void Uniform(std::uint64_t seed, std::uint64_t first, std::int64_t n, bool wide, void* to) {
  wide ? uniform(seed, first, n, static_cast<double*>(to))
       : uniform(seed, first, n, static_cast<float*>(to));
}

}  // namespace
}  // namespace coda::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC pop_options
#endif

#if HWY_ONCE
namespace coda::cpu {
namespace {
HWY_EXPORT(Uniform);
}

void uniform_run(std::uint64_t seed, std::uint64_t first, std::int64_t n, Lane lane, void* to) {
  HWY_DYNAMIC_DISPATCH(Uniform)(seed, first, n, lane == Lane::f64, to);
}

}  // namespace coda::cpu
#endif  // HWY_ONCE
