// coda/cpu/vector_math-inl.h: exp, log, tanh, sigmoid and erf of f32 vectors, to about 1 ulp.
//
// Included once for each SIMD target. Coefficients are minimax fits of the stated remainders
// (Lawson's iteration, 40 digits). NaN stays NaN, infinities go to the limits, results below 2^-126
// are rounded subnormals. f64 vectors go through the C library, lane by lane.

#if defined(CODA_CPU_VECTOR_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef CODA_CPU_VECTOR_MATH_INL_H_
#undef CODA_CPU_VECTOR_MATH_INL_H_
#else
#define CODA_CPU_VECTOR_MATH_INL_H_
#endif

#include <cmath>

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace coda::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// A polynomial's value at x; coefficients from the constant up.
template <class D, class V, class... Rest>
HWY_INLINE V horner(D d, V x, float first, Rest... rest) {
  if constexpr (sizeof...(rest) == 0) {
    return hn::Set(d, first);
  } else {
    return hn::MulAdd(horner(d, x, rest...), x, hn::Set(d, first));
  }
}

// x * 2^n for |n| < 254, in two exact steps so that subnormal results are rounded once.
template <class D, class V, class I>
HWY_INLINE V scale_by_power(D d, V x, I n) {
  const hn::Rebind<int32_t, D> di;
  const auto half = hn::ShiftRight<1>(n);
  const auto bias = hn::Set(di, 127);
  const V low = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(half, bias)));
  const V high = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(hn::Sub(n, half), bias)));
  return hn::Mul(hn::Mul(x, low), high);
}

// e^x: x = n ln2 + r with |r| ≤ ln2 / 2, e^r = 1 + r + r² p(r).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp_f32(D d, V x) {
  const hn::Rebind<int32_t, D> di;
  const V low = hn::Set(d, -104.0f), high = hn::Set(d, 89.0f);
  const V clamped = hn::Min(hn::Max(x, low), high);
  const V rounded = hn::Round(hn::Mul(clamped, hn::Set(d, 1.44269504f)));
  // ln2 in two parts, the first with zeros in its low bits.
  V r = hn::NegMulAdd(rounded, hn::Set(d, 0.693145752f), clamped);
  r = hn::NegMulAdd(rounded, hn::Set(d, 1.42860677e-06f), r);
  const V p = horner(d, r, 0.5f, 0.166665211f, 0.041668389f, 0.00836874545f, 0.00138145383f);
  const V e = hn::Add(hn::MulAdd(hn::Mul(r, r), p, r), hn::Set(d, 1.0f));
  const V result = scale_by_power(d, e, hn::ConvertTo(di, rounded));
  return hn::IfThenElse(hn::IsNaN(x), x, result);
}

// log x: x = 2^e m with m in [√½, √2), log m = f - f²/2 + f³ p(f), f = m - 1.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V log_f32(D d, V x) {
  const hn::Rebind<int32_t, D> di;
  const auto tiny = hn::Lt(x, hn::Set(d, 1.17549435e-38f));
  const V scaled = hn::IfThenElse(tiny, hn::Mul(x, hn::Set(d, 8388608.0f)), x);
  const auto bits = hn::BitCast(di, scaled);
  // √½ = 0x3f3504f3: the exponent of m relative to it.
  const auto offset = hn::Sub(bits, hn::Set(di, 0x3f3504f3));
  const auto exponent = hn::ShiftRight<23>(offset);
  const V m = hn::BitCast(d, hn::Sub(bits, hn::ShiftLeft<23>(exponent)));
  const V e = hn::Sub(hn::ConvertTo(d, exponent), hn::IfThenElseZero(tiny, hn::Set(d, 23.0f)));
  const V f = hn::Sub(m, hn::Set(d, 1.0f));
  const V p = horner(d, f, 0.333333135f, -0.250000089f, 0.200021267f, -0.166680008f, 0.142193869f,
                     -0.12405365f, 0.11889255f, -0.116776414f, 0.0674657971f);
  const V square = hn::Mul(f, f);
  // From the smallest term up.
  V sum = hn::Mul(hn::Mul(square, f), p);
  sum = hn::MulAdd(e, hn::Set(d, 1.42860677e-06f), sum);
  sum = hn::NegMulAdd(hn::Set(d, 0.5f), square, sum);
  sum = hn::Add(f, sum);
  sum = hn::MulAdd(e, hn::Set(d, 0.693145752f), sum);
  const V zero = hn::Zero(d), infinity = hn::Inf(d);
  sum = hn::IfThenElse(hn::Eq(x, zero), hn::Neg(infinity), sum);
  sum = hn::IfThenElse(hn::Eq(x, infinity), infinity, sum);
  sum = hn::IfThenElse(hn::Lt(x, zero), hn::NaN(d), sum);
  return hn::IfThenElse(hn::IsNaN(x), x, sum);
}

// tanh x: x + x³ p(x²) below 0.625, else 1 - 2 / (e^2x + 1).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V tanh_f32(D d, V x) {
  const V a = hn::Abs(x);
  const V one = hn::Set(d, 1.0f);
  const V e = exp_f32(d, hn::Add(a, a));
  const V far = hn::Sub(one, hn::Div(hn::Set(d, 2.0f), hn::Add(e, one)));
  const V s = hn::Mul(x, x);
  const V p = horner(d, s, -0.333333313f, 0.133332059f, -0.0539467633f, 0.0217007007f,
                     -0.00817739498f, 0.00214295881f);
  const V near = hn::MulAdd(hn::Mul(s, x), p, x);
  return hn::IfThenElse(hn::Lt(a, hn::Set(d, 0.625f)), near, hn::CopySign(far, x));
}

// 1 / (1 + e^-x), written so that e^-x never overflows.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V sigmoid_f32(D d, V x) {
  const V one = hn::Set(d, 1.0f);
  const V e = exp_f32(d, hn::Neg(hn::Abs(x)));
  const V numerator = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), e, one);
  return hn::Div(numerator, hn::Add(one, e));
}

// erf x: x + x p(x²) below 0.921875, else 1 - e^(-t - t q(t)), t = |x|.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V erf_f32(D d, V x) {
  const V t = hn::Min(hn::Abs(x), hn::Set(d, 4.0f));
  const V q = horner(d, t, 0.128649563f, 0.635146976f, 0.10624411f, -0.0237682946f, 0.00364540704f,
                     -0.000323529297f, 1.13038213e-05f);
  const V e = exp_f32(d, hn::Neg(hn::MulAdd(t, q, t)));
  const V far = hn::CopySign(hn::Sub(hn::Set(d, 1.0f), e), x);
  const V s = hn::Mul(x, x);
  const V p = horner(d, s, 0.128379166f, -0.376126349f, 0.112836957f, -0.0268593989f,
                     0.00520103239f, -0.000814270345f, 8.3700972e-05f);
  const V near = hn::MulAdd(x, p, x);
  const V result = hn::IfThenElse(hn::Lt(t, hn::Set(d, 0.921875f)), near, far);
  return hn::IfThenElse(hn::IsNaN(x), x, result);
}

// The C library's function on each lane.
template <class D, class V, class Function>
HWY_INLINE V each_lane(D d, V x, const Function& function) {
  HWY_ALIGN hn::TFromD<D> lanes[hn::MaxLanes(D())];
  hn::Store(x, d, lanes);
  for (std::size_t i = 0; i < hn::Lanes(d); ++i) lanes[i] = function(lanes[i]);
  return hn::Load(d, lanes);
}

}  // namespace coda::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // CODA_CPU_VECTOR_MATH_INL_H_
