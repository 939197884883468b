// coda/device/maps.cuh: one scalar function for each map of the language, and the element types.
//
// Every kernel's arithmetic is made of these. Lanes are float, double, long long and bool;
// functions are named as in ops.def. Two sets: `exact` (about 2 units in the last place) and
// `fast`, for kernels that store nothing wider than 16 bits (relative error below 1e-6 · (1 +
// |x|)). Elements round as coda/core/dtype.cpp does: to nearest even, once, NaN stays NaN, overflow
// becomes infinite (e4m3: NaN). No header is included.
//
// NOTE: `#ifndef CODA_HOST` guards what only a GPU can run: tests compile the rest on the host.
#pragma once

namespace coda {

struct bf16_t {
  unsigned short bits;
};
struct f16_t {
  unsigned short bits;
};
struct e4m3_t {
  unsigned char bits;
};
struct e5m2_t {
  unsigned char bits;
};

// ---- leaves: single instructions ----

#ifndef CODA_HOST

__device__ __forceinline__ unsigned bits_of(float x) {
  return __float_as_uint(x);
}
__device__ __forceinline__ float float_of(unsigned bits) {
  return __uint_as_float(bits);
}
__device__ __forceinline__ float minimum_nan(float a, float b) {
  float result;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}
__device__ __forceinline__ float maximum_nan(float a, float b) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}
__device__ __forceinline__ unsigned short bf16_bits(float x) {
  unsigned short result;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result) : "f"(x));
  return result;
}
__device__ __forceinline__ unsigned short f16_bits(float x) {
  unsigned short result;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result) : "f"(x));
  return result;
}
__device__ __forceinline__ float f16_value(unsigned short bits) {
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(bits));
  return result;
}
// Of finite numbers that round to finite ones, and NaN.
__device__ __forceinline__ unsigned char e4m3_bits(float x) {
  unsigned short pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(x));
  return static_cast<unsigned char>(pair & 0xff);
}
__device__ __forceinline__ unsigned char e5m2_bits(float x) {
  unsigned short pair;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(x));
  return static_cast<unsigned char>(pair & 0xff);
}
__device__ __forceinline__ float e4m3_value(unsigned char bits) {
  unsigned pair;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(static_cast<unsigned short>(bits)));
  return f16_value(static_cast<unsigned short>(pair & 0xffff));
}
__device__ __forceinline__ float e5m2_value(unsigned char bits) {
  return f16_value(static_cast<unsigned short>(bits << 8));  // its upper half
}
// Two elements in a word, the first one in the low half.
__device__ __forceinline__ unsigned pack_bf16(float low, float high) {
  unsigned result;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
  return result;
}
__device__ __forceinline__ unsigned pack_f16(float low, float high) {
  unsigned result;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
  return result;
}
// 2^x, 1/x, √x, a/b with subnormals as zero.
__device__ __forceinline__ float exp2_approx(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
__device__ __forceinline__ float reciprocal_approx(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
__device__ __forceinline__ float sqrt_approx(float x) {
  float result;
  asm("sqrt.approx.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
__device__ __forceinline__ float rsqrt_approx(float x) {
  float result;
  asm("rsqrt.approx.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

#endif  // CODA_HOST

// ---- lanes ----

__device__ __forceinline__ float infinity() {
  return float_of(0x7f800000u);
}
__device__ __forceinline__ float not_a_number() {
  return float_of(0x7fc00000u);
}

// Towards zero; past the range: its end; NaN: 0. What a cast to i64 is.
template <class Real>
__device__ __forceinline__ long long truncated(Real x) {
  if (x != x) return 0;
  if (x >= static_cast<Real>(9223372036854775808.0)) return 9223372036854775807LL;
  if (x <= static_cast<Real>(-9223372036854775808.0)) return -9223372036854775807LL - 1;
  return static_cast<long long>(x);
}
__device__ __forceinline__ long long clamped(long long x, long long low, long long high) {
  return x < low ? low : x > high ? high : x;
}

// A value in another lane. bool: whether it is not 0.
template <class To, class From>
struct LaneConversion {
  static __device__ __forceinline__ To of(From x) { return static_cast<To>(x); }
};
template <class From>
struct LaneConversion<bool, From> {
  static __device__ __forceinline__ bool of(From x) { return x != From(0); }
};
template <>
struct LaneConversion<long long, float> {
  static __device__ __forceinline__ long long of(float x) { return truncated(x); }
};
template <>
struct LaneConversion<long long, double> {
  static __device__ __forceinline__ long long of(double x) { return truncated(x); }
};
template <class To, class From>
__device__ __forceinline__ To lane(From x) {
  return LaneConversion<To, From>::of(x);
}

// ---- elements ----

// Rounds to odd: a rounding to 16 bits or less after it is the only one.
__device__ __forceinline__ float odd_float(double x) {
  const float near = static_cast<float>(x);
  const double back = static_cast<double>(near);
  if (back == x || x != x) return near;
  unsigned bits = bits_of(near);
  const bool away = x < 0 ? back < x : back > x;
  if (away) --bits;
  return float_of(bits | 1u);
}

// What memory holds and what lanes hold: Element<T>::value(T) and Element<T>::rounded(lane).
template <class T>
struct Element;

template <>
struct Element<float> {
  static __device__ __forceinline__ float value(float x) { return x; }
  static __device__ __forceinline__ float rounded(float x) { return x; }
  static __device__ __forceinline__ float rounded(double x) { return static_cast<float>(x); }
  static __device__ __forceinline__ float rounded(long long x) { return static_cast<float>(x); }
};
template <>
struct Element<double> {
  static __device__ __forceinline__ double value(double x) { return x; }
  static __device__ __forceinline__ double rounded(double x) { return x; }
};
template <>
struct Element<bf16_t> {
  static __device__ __forceinline__ float value(bf16_t x) {
    return float_of(static_cast<unsigned>(x.bits) << 16);
  }
  static __device__ __forceinline__ bf16_t rounded(float x) { return bf16_t{bf16_bits(x)}; }
  static __device__ __forceinline__ bf16_t rounded(double x) { return rounded(odd_float(x)); }
};
template <>
struct Element<f16_t> {
  static __device__ __forceinline__ float value(f16_t x) { return f16_value(x.bits); }
  static __device__ __forceinline__ f16_t rounded(float x) { return f16_t{f16_bits(x)}; }
  static __device__ __forceinline__ f16_t rounded(double x) { return rounded(odd_float(x)); }
};
template <>
struct Element<e4m3_t> {
  static __device__ __forceinline__ float value(e4m3_t x) { return e4m3_value(x.bits); }
  static __device__ __forceinline__ e4m3_t rounded(float x) {
    // 464 lies between the largest number, 448, which is even, and the next, which is NaN.
    const bool past = x > 464.0f || x < -464.0f;
    return e4m3_t{past ? static_cast<unsigned char>(0x7f) : e4m3_bits(x)};
  }
  static __device__ __forceinline__ e4m3_t rounded(double x) { return rounded(odd_float(x)); }
};
template <>
struct Element<e5m2_t> {
  static __device__ __forceinline__ float value(e5m2_t x) { return e5m2_value(x.bits); }
  static __device__ __forceinline__ e5m2_t rounded(float x) {
    // 61440 lies between the largest number, 57344, which is odd, and infinity.
    if (x >= 61440.0f) return e5m2_t{0x7c};
    if (x <= -61440.0f) return e5m2_t{0xfc};
    return e5m2_t{e5m2_bits(x)};
  }
  static __device__ __forceinline__ e5m2_t rounded(double x) { return rounded(odd_float(x)); }
};
template <>
struct Element<long long> {
  static __device__ __forceinline__ long long value(long long x) { return x; }
  template <class Lane>
  static __device__ __forceinline__ long long rounded(Lane x) {
    return lane<long long>(x);
  }
};
template <>
struct Element<int> {
  static __device__ __forceinline__ long long value(int x) { return x; }
  template <class Lane>
  static __device__ __forceinline__ int rounded(Lane x) {
    return static_cast<int>(clamped(lane<long long>(x), -2147483647LL - 1, 2147483647LL));
  }
};
template <>
struct Element<unsigned char> {
  static __device__ __forceinline__ long long value(unsigned char x) { return x; }
  template <class Lane>
  static __device__ __forceinline__ unsigned char rounded(Lane x) {
    return static_cast<unsigned char>(clamped(lane<long long>(x), 0, 255));
  }
};
// NOTE: a bool in memory may be any byte; it is true if that is not 0.
struct bool_t {
  unsigned char bits;
};
template <>
struct Element<bool_t> {
  static __device__ __forceinline__ bool value(bool_t x) { return x.bits != 0; }
  template <class Lane>
  static __device__ __forceinline__ bool_t rounded(Lane x) {
    return bool_t{static_cast<unsigned char>(lane<bool>(x) ? 1 : 0)};
  }
};

// A value as an element of type T would hold it, in its own lane.
template <class T, class Lane>
__device__ __forceinline__ Lane round_to(Lane x) {
  return lane<Lane>(Element<T>::value(Element<T>::rounded(x)));
}

// ---- maps ----

#define CODA_MAP(name, T, formula)         \
  __device__ __forceinline__ T name(T x) { \
    return formula;                        \
  }
#define CODA_MAP2(name, T, R, formula)          \
  __device__ __forceinline__ R name(T a, T b) { \
    return formula;                             \
  }
#define CODA_COMPARES(T)                                 \
  CODA_MAP2(eq, T, bool, a == b)                         \
  CODA_MAP2(ne, T, bool, a != b)                         \
  CODA_MAP2(lt, T, bool, a < b)                          \
  CODA_MAP2(le, T, bool, a <= b)                         \
  CODA_MAP2(gt, T, bool, a > b)                          \
  CODA_MAP2(ge, T, bool, a >= b)                         \
  __device__ __forceinline__ T where(bool c, T a, T b) { \
    return c ? a : b;                                    \
  }

namespace exact {

CODA_COMPARES(float)
CODA_COMPARES(double)
CODA_COMPARES(long long)
__device__ __forceinline__ bool where(bool c, bool a, bool b) {
  return c ? a : b;
}

CODA_MAP(neg, float, -x)
CODA_MAP(abs, float, ::fabsf(x))
CODA_MAP(exp, float, ::expf(x))
CODA_MAP(log, float, ::logf(x))
CODA_MAP(sqrt, float, ::sqrtf(x))
CODA_MAP(rsqrt, float, ::rsqrtf(x))
CODA_MAP(tanh, float, ::tanhf(x))
CODA_MAP(sigmoid, float, 1.0f / (1.0f + ::expf(-x)))
CODA_MAP(erf, float, ::erff(x))
CODA_MAP2(add, float, float, a + b)
CODA_MAP2(sub, float, float, a - b)
CODA_MAP2(mul, float, float, a* b)
CODA_MAP2(div, float, float, a / b)
CODA_MAP2(minimum, float, float, minimum_nan(a, b))
CODA_MAP2(maximum, float, float, maximum_nan(a, b))

CODA_MAP(neg, double, -x)
CODA_MAP(abs, double, ::fabs(x))
CODA_MAP(exp, double, ::exp(x))
CODA_MAP(log, double, ::log(x))
CODA_MAP(sqrt, double, ::sqrt(x))
CODA_MAP(rsqrt, double, 1.0 / ::sqrt(x))
CODA_MAP(tanh, double, ::tanh(x))
CODA_MAP(sigmoid, double, 1.0 / (1.0 + ::exp(-x)))
CODA_MAP(erf, double, ::erf(x))
CODA_MAP2(add, double, double, a + b)
CODA_MAP2(sub, double, double, a - b)
CODA_MAP2(mul, double, double, a* b)
CODA_MAP2(div, double, double, a / b)
CODA_MAP2(minimum, double, double, a != a || a < b ? a : b)
CODA_MAP2(maximum, double, double, a != a || a > b ? a : b)

// Integers wrap around.
__device__ __forceinline__ long long wrapped(unsigned long long x) {
  return static_cast<long long>(x);
}
__device__ __forceinline__ unsigned long long word(long long x) {
  return static_cast<unsigned long long>(x);
}
CODA_MAP(neg, long long, wrapped(0ULL - word(x)))
CODA_MAP(abs, long long, x < 0 ? neg(x) : x)
CODA_MAP2(add, long long, long long, wrapped(word(a) + word(b)))
CODA_MAP2(sub, long long, long long, wrapped(word(a) - word(b)))
CODA_MAP2(mul, long long, long long, wrapped(word(a) * word(b)))
CODA_MAP2(minimum, long long, long long, a < b ? a : b)
CODA_MAP2(maximum, long long, long long, a > b ? a : b)

}  // namespace exact

// The same names; what is not here has nothing to gain.
namespace fast {

using exact::abs;
using exact::add;
using exact::eq;
using exact::ge;
using exact::gt;
using exact::le;
using exact::lt;
using exact::maximum;
using exact::minimum;
using exact::mul;
using exact::ne;
using exact::neg;
using exact::sub;
using exact::where;
// Near 1 the approximate logarithm has no digits.
using exact::log;

CODA_MAP(exp, float, exp2_approx(x * 1.4426950408889634f))
CODA_MAP(sqrt, float, sqrt_approx(x))
CODA_MAP(rsqrt, float, rsqrt_approx(x))
CODA_MAP(sigmoid, float, reciprocal_approx(1.0f + exp2_approx(x * -1.4426950408889634f)))
// x + x·p(x²) where 1 - 2 / (e^2x + 1) would cancel.
__device__ __forceinline__ float tanh(float x) {
  const float size = ::fabsf(x);
  const float s = x * x;
  float p = -5.8680002e-3f;
  p = p * s + 2.0775337e-2f;
  p = p * s - 5.3778578e-2f;
  p = p * s + 1.3331874e-1f;
  p = p * s - 3.3333297e-1f;
  const float small = x + x * (p * s);
  const float both = exp2_approx(size * 2.8853900817779268f) + 1.0f;
  const float rest = 1.0f - 2.0f * reciprocal_approx(both);
  const float large = x < 0.0f ? -rest : rest;
  return size < 0.6f ? small : large;
}
// 1 - 2^(-|x| p(|x|)), x ≥ 0; and two terms of the series where that would cancel. Fitted by
// weighted least squares on [0, 4.2]; off by at most 1.1e-7, and by 1.3e-6 of the value.
__device__ __forceinline__ float erf(float x) {
  const float size = ::fabsf(x);
  float p = 4.53582920e-5f;
  p = p * size - 4.45505153e-4f;
  p = p * size + 1.48943368e-3f;
  p = p * size + 7.74642359e-4f;
  p = p * size - 2.82536918e-2f;
  p = p * size + 1.48481620e-1f;
  p = p * size + 9.18416392e-1f;
  p = p * size + 1.62790859f;
  const float large = 1.0f - exp2_approx(-(p * size));
  const float small = size * (1.12837917f - 0.376126389f * (size * size));
  return ::copysignf(size < 0.06f ? small : large, x);
}
// NOTE: of a denominator above 2^126 the reciprocal is 0.
CODA_MAP2(div, float, float, a* reciprocal_approx(b))

}  // namespace fast

#undef CODA_MAP
#undef CODA_MAP2
#undef CODA_COMPARES

}  // namespace coda
