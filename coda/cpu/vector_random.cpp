// coda/cpu/vector_random.cpp: uniform numbers by counter, Philox4x32-10 (Salmon et al., SC'11), a
// vector of counters at a time.
#include <algorithm>
#include <cstdint>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "coda/cpu/vector_random.cpp"
#include "coda/cpu/vector_targets.h"
// After the targets.
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

#include "coda/cpu/vector_ops.h"

HWY_BEFORE_NAMESPACE();
namespace coda::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<std::uint32_t, 16>;
using V = hn::Vec<D>;
constexpr std::int64_t kLanes = static_cast<std::int64_t>(hn::MaxLanes(D()));

// The upper halves of 64-bit products.
HWY_INLINE V multiply_high(V a, V b) {
#if HWY_TARGET == HWY_SCALAR
  const auto wide = std::uint64_t{hn::GetLane(a)} * hn::GetLane(b);
  return hn::Set(D(), static_cast<std::uint32_t>(wide >> 32));
#else
  const auto even = hn::BitCast(D(), hn::MulEven(a, b));
  const auto odd = hn::BitCast(D(), hn::MulEven(hn::Shuffle2301(a), hn::Shuffle2301(b)));
  return hn::OddEven(odd, hn::Shuffle2301(even));
#endif
}

// First output words of counters (low, high, 0, 0), key (k0, k1).
HWY_INLINE V philox(std::uint32_t k0, std::uint32_t k1, V low, V high) {
  const D d;
  const V m0 = hn::Set(d, 0xD2511F53u), m1 = hn::Set(d, 0xCD9E8D57u);
  V c0 = low, c1 = high, c2 = hn::Zero(d), c3 = hn::Zero(d);
  for (int round = 0; round < 10; ++round) {
    const V high0 = multiply_high(m0, c0), high2 = multiply_high(m1, c2);
    const V low0 = hn::Mul(m0, c0), low2 = hn::Mul(m1, c2);
    c0 = hn::Xor(hn::Xor(high2, c1), hn::Set(d, k0));
    c2 = hn::Xor(hn::Xor(high0, c3), hn::Set(d, k1));
    c1 = low2;
    c3 = low0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c0;
}

template <class T>
void uniform(std::uint64_t seed, std::uint64_t first, std::int64_t n, T* to) {
  const D d;
  HWY_ALIGN std::uint32_t low[hn::MaxLanes(D())], high[hn::MaxLanes(D())];
  for (std::int64_t k = 0; k < n; k += kLanes) {
    for (std::int64_t l = 0; l < kLanes; ++l) {
      const std::uint64_t counter = first + static_cast<std::uint64_t>(k + l);
      low[l] = static_cast<std::uint32_t>(counter);
      high[l] = static_cast<std::uint32_t>(counter >> 32);
    }
    const V words = philox(static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32),
                           hn::Load(d, low), hn::Load(d, high));
    hn::Store(hn::ShiftRight<8>(words), d, low);
    const std::int64_t count = std::min(kLanes, n - k);
    for (std::int64_t l = 0; l < count; ++l) {
      to[k + l] = static_cast<T>(static_cast<float>(static_cast<std::int32_t>(low[l])) * 0x1p-24f);
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
