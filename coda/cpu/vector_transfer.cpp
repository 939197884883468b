// coda/cpu/vector_transfer.cpp: elements of memory to lanes and back, and rounding inside lanes.
//
// The dense runs of bf16, f16, f32 and the integers are SIMD loops; strides other than 1, f8, and
// f64 programs take the plain loops of core/dtype.h.
#include <algorithm>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "coda/cpu/vector_transfer.cpp"
#include "coda/cpu/vector_targets.h"
// After the targets.
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

#include "coda/cpu/vector_ops.h"
#include "coda/cpu/vector_tail-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coda::cpu::HWY_NAMESPACE {
namespace {

using Int = std::int64_t;

using Df = hn::ScalableTag<float>;
using Di = hn::Rebind<std::int32_t, Df>;
using Du = hn::Rebind<std::uint32_t, Df>;
using Dh = hn::Rebind<std::uint16_t, Df>;

// bf16 bits in the low half of each lane, to nearest even; a NaN becomes the quiet NaN of its sign.
HWY_INLINE hn::Vec<Du> bf16_bits(hn::Vec<Df> x) {
  const Du du;
  const auto bits = hn::BitCast(du, x);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, odd), hn::Set(du, 0x7fff)));
  const auto quiet = hn::Or(hn::ShiftRight<16>(bits), hn::Set(du, 0x0040));
  return hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(x)), quiet, rounded);
}

// f16 bits likewise, by arithmetic: subnormal halves take their rounding from an addition to 0.5,
// the others from an addition to the bits.
HWY_INLINE hn::Vec<Du> f16_bits(hn::Vec<Df> x) {
  const Du du;
  const Df df;
  const auto bits = hn::BitCast(du, x);
  const auto sign = hn::And(bits, hn::Set(du, 0x80000000u));
  const auto a = hn::Xor(bits, sign);
  const auto odd = hn::And(hn::ShiftRight<13>(a), hn::Set(du, 1));
  const auto shifted = hn::Sub(a, hn::Set(du, 112u << 23));
  const auto normal = hn::ShiftRight<13>(hn::Add(hn::Add(shifted, odd), hn::Set(du, 0xfff)));
  const auto half = hn::Set(df, 0.5f);
  const auto small =
      hn::Sub(hn::BitCast(du, hn::Add(hn::BitCast(df, a), half)), hn::BitCast(du, half));
  const auto ai = hn::BitCast(Di(), a);
  const auto less = [&](std::uint32_t bound) HWY_ATTR {
    return hn::RebindMask(du, hn::Lt(ai, hn::Set(Di(), static_cast<std::int32_t>(bound))));
  };
  auto result = hn::IfThenElse(less(113u << 23), small, normal);
  result = hn::IfThenElse(less(0x477ff000u), result, hn::Set(du, 0x7c00));  // 65520 and up
  result = hn::IfThenElse(less(0x7f800001u), result, hn::Set(du, 0x7e00));  // NaN
  return hn::Or(result, hn::ShiftRight<16>(sign));
}

HWY_INLINE hn::Vec<Df> from_bf16(hn::Vec<Du> bits) {
  return hn::BitCast(Df(), hn::ShiftLeft<16>(bits));
}

// Exact: the half's exponent is rebased by a multiplication, which also normalises subnormals.
HWY_INLINE hn::Vec<Df> from_f16(hn::Vec<Du> bits) {
  const Du du;
  const Df df;
  const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(du, 0x8000)));
  const auto a = hn::ShiftLeft<13>(hn::And(bits, hn::Set(du, 0x7fff)));
  const auto value = hn::BitCast(du, hn::Mul(hn::BitCast(df, a), hn::Set(df, 0x1p112f)));
  // Infinity and NaN: all exponent bits.
  const auto special = hn::Or(a, hn::Set(du, 0x7f800000u));
  const auto is_special =
      hn::RebindMask(du, hn::Gt(hn::BitCast(Di(), a), hn::Set(Di(), (0x7c00 << 13) - 1)));
  return hn::BitCast(df, hn::Or(sign, hn::IfThenElse(is_special, special, value)));
}

struct Bf16 {
  static HWY_INLINE hn::Vec<Df> load(hn::Vec<Du> bits) { return from_bf16(bits); }
  static HWY_INLINE hn::Vec<Du> store(hn::Vec<Df> x) { return bf16_bits(x); }
};
struct F16 {
  static HWY_INLINE hn::Vec<Df> load(hn::Vec<Du> bits) { return from_f16(bits); }
  static HWY_INLINE hn::Vec<Du> store(hn::Vec<Df> x) { return f16_bits(x); }
};

template <class Half>
void load_half(const void* from, Int step, Int n, void* to) {
  const auto* in = static_cast<const std::uint16_t*>(from);
  auto* out = static_cast<float*>(to);
  const Df df;
  const Int lanes = static_cast<Int>(hn::Lanes(df));
  Int k = 0;
  if (step == 1) {
    for (; k + lanes <= n; k += lanes) {
      hn::StoreU(Half::load(hn::PromoteTo(Du(), hn::LoadU(Dh(), in + k))), df, out + k);
    }
  }
  HWY_ALIGN std::uint32_t bits[hn::MaxLanes(Df())];
  for (; k < n; k += lanes) {
    const Int count = std::min(lanes, n - k);
    for (Int l = 0; l < lanes; ++l) bits[l] = l < count ? in[(k + l) * step] : 0;
    store_first(df, Half::load(hn::Load(Du(), bits)), out + k, static_cast<std::size_t>(count));
  }
}

template <class Half, bool kAdd>
void store_half(const void* from, Int from_step, Int n, void* to, Int to_step) {
  const auto* in = static_cast<const float*>(from);
  auto* out = static_cast<std::uint16_t*>(to);
  const Df df;
  const Int lanes = static_cast<Int>(hn::Lanes(df));
  Int k = 0;
  if (from_step == 1 && to_step == 1) {
    for (; k + lanes <= n; k += lanes) {
      auto x = hn::LoadU(df, in + k);
      if constexpr (kAdd) {
        x = hn::Add(Half::load(hn::PromoteTo(Du(), hn::LoadU(Dh(), out + k))), x);
      }
      const auto bits = hn::BitCast(Di(), Half::store(x));
      hn::StoreU(hn::DemoteTo(Dh(), bits), Dh(), out + k);
    }
  }
  HWY_ALIGN float x[hn::MaxLanes(Df())];
  HWY_ALIGN std::uint32_t bits[hn::MaxLanes(Df())];
  for (; k < n; k += lanes) {
    const Int count = std::min(lanes, n - k);
    for (Int l = 0; l < lanes; ++l) {
      x[l] = l < count ? in[(k + l) * from_step] : 0;
      bits[l] = kAdd && l < count ? out[(k + l) * to_step] : 0;
    }
    auto value = hn::Load(df, x);
    if constexpr (kAdd) value = hn::Add(Half::load(hn::Load(Du(), bits)), value);
    hn::Store(Half::store(value), Du(), bits);
    for (Int l = 0; l < count; ++l) out[(k + l) * to_step] = static_cast<std::uint16_t>(bits[l]);
  }
}

template <bool kAdd>
void store_f32(const void* from, Int from_step, Int n, void* to, Int to_step) {
  const auto* in = static_cast<const float*>(from);
  auto* out = static_cast<float*>(to);
  const Df df;
  const Int lanes = static_cast<Int>(hn::Lanes(df));
  Int k = 0;
  if (from_step == 1 && to_step == 1) {
    for (; k + lanes <= n; k += lanes) {
      auto x = hn::LoadU(df, in + k);
      if constexpr (kAdd) x = hn::Add(hn::LoadU(df, out + k), x);
      hn::StoreU(x, df, out + k);
    }
  }
  for (; k < n; ++k) {
    const float value = in[k * from_step];
    out[k * to_step] = kAdd ? out[k * to_step] + value : value;
  }
}

template <class Half>
void round_half(const Loops& loops, const Arg* args) {
  const Df df;
  const Int lanes = static_cast<Int>(hn::Lanes(df));
  for (Int i = 0; i < loops.n[0]; ++i) {
    for (Int j = 0; j < loops.n[1]; ++j) {
      auto* out =
          reinterpret_cast<float*>(args[0].data) + i * args[0].step[0] + j * args[0].step[1];
      const auto* in =
          reinterpret_cast<const float*>(args[1].data) + i * args[1].step[0] + j * args[1].step[1];
      const bool whole = args[1].step[2] == 1;
      for (Int k = 0; k < loops.n[2]; k += lanes) {
        const auto count = static_cast<std::size_t>(std::min(lanes, loops.n[2] - k));
        const auto x = whole ? load_first(df, in + k, count) : hn::Set(df, *in);
        store_first(df, Half::load(Half::store(x)), out + k, count);
      }
    }
  }
}

Load FindLoad(DType dtype) {
  if (dtype == DType::bf16) return load_half<Bf16>;
  return dtype == DType::f16 ? load_half<F16> : nullptr;
}

Put FindStore(DType dtype, bool add) {
  if (dtype == DType::bf16) return add ? store_half<Bf16, true> : store_half<Bf16, false>;
  if (dtype == DType::f16) return add ? store_half<F16, true> : store_half<F16, false>;
  return add ? store_f32<true> : store_f32<false>;
}

Map FindRound(DType dtype) {
  if (dtype == DType::bf16) return round_half<Bf16>;
  return dtype == DType::f16 ? round_half<F16> : nullptr;
}

}  // namespace
}  // namespace coda::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "coda/cpu/plain_transfer.h"

namespace coda::cpu {
namespace {
HWY_EXPORT(FindLoad);
HWY_EXPORT(FindStore);
HWY_EXPORT(FindRound);

bool is_half(DType dtype) {
  return dtype == DType::bf16 || dtype == DType::f16;
}
}  // namespace

Load load_run(DType from, Lane to) {
  if (to == Lane::f32 && is_half(from)) return HWY_DYNAMIC_DISPATCH(FindLoad)(from);
  return plain_load(from, to);
}

Put store_run(DType to, Lane from, Store store) {
  const bool simd = from == Lane::f32 && (is_half(to) || to == DType::f32);
  if (simd) return HWY_DYNAMIC_DISPATCH(FindStore)(to, store == Store::accumulate);
  return plain_store(to, from, store);
}

Map round_loops(DType dtype, Lane lane) {
  if (lane == Lane::f32 && is_half(dtype)) return HWY_DYNAMIC_DISPATCH(FindRound)(dtype);
  return plain_round(dtype, lane);
}

}  // namespace coda::cpu
#endif  // HWY_ONCE
