// tests/cuda_on_host.h: what a page of the predicated path needs to run on the host.
//
// Such a page has no shared memory, no barriers and no shuffles, so a thread is a call. The leaves
// of device/maps.cuh that are single instructions are written out here, by integer arithmetic.
#pragma once

#define CODA_HOST
#define __device__
#define __global__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)

#include <math.h>

struct ThreadPlace {
  unsigned x = 0, y = 0, z = 0;
};
static ThreadPlace blockIdx, threadIdx, blockDim, gridDim;

static inline float rsqrtf(float x) {
  return static_cast<float>(1 / sqrt(static_cast<double>(x)));
}

namespace coda {

static inline unsigned bits_of(float x) {
  unsigned bits;
  __builtin_memcpy(&bits, &x, 4);
  return bits;
}
static inline float float_of(unsigned bits) {
  float x;
  __builtin_memcpy(&x, &bits, 4);
  return x;
}
// What the GPU approximates, with subnormals as zero.
static inline float flushed(float x) {
  return fabsf(x) < 1.17549435e-38f ? copysignf(0.0f, x) : x;
}
static inline float exp2_approx(float x) {
  return flushed(exp2f(x));
}
static inline float reciprocal_approx(float x) {
  return flushed(1 / flushed(x));
}
static inline float sqrt_approx(float x) {
  return sqrtf(x);
}
static inline float rsqrt_approx(float x) {
  return rsqrtf(x);
}
static inline float minimum_nan(float a, float b) {
  return a != a || a < b ? a : b;
}
static inline float maximum_nan(float a, float b) {
  return a != a || a > b ? a : b;
}
static inline unsigned short bf16_bits(float x) {
  const unsigned bits = bits_of(x);
  if (x != x) return 0x7fff;
  return static_cast<unsigned short>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
// The pattern, without a sign, of a finite number ≥ 0 that is below 2^(2^(exponent bits - 1)).
static inline unsigned narrow_bits(float size, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  int exponent = 0;
  frexpf(size, &exponent);  // size = f · 2^exponent, f in [1/2, 1)
  const int least = 1 - bias;
  const int power = exponent - 1 < least ? least : exponent - 1;
  // In units of the last place; a carry moves into the exponent by itself.
  const auto units = static_cast<unsigned>(nearbyintf(ldexpf(size, mantissa_bits - power)));
  const unsigned implicit = 1u << mantissa_bits;
  if (units < implicit) return units;
  return (static_cast<unsigned>(power + bias) << mantissa_bits) + units - implicit;
}
static inline float narrow_value(unsigned size, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int field = static_cast<int>(size >> mantissa_bits);
  const unsigned mantissa = size & ((1u << mantissa_bits) - 1);
  const unsigned units = field == 0 ? mantissa : mantissa + (1u << mantissa_bits);
  return ldexpf(static_cast<float>(units), (field == 0 ? 1 : field) - bias - mantissa_bits);
}
static inline unsigned short f16_bits(float x) {
  const unsigned sign = bits_of(x) >> 31 << 15;
  if (x != x) return 0x7fff;
  const float size = fabsf(x);
  return static_cast<unsigned short>(sign |
                                     (size >= 65520.0f ? 0x7c00u : narrow_bits(size, 5, 10)));
}
static inline float f16_value(unsigned short bits) {
  const unsigned size = bits & 0x7fffu;
  const float value = size > 0x7c00    ? float_of(0x7fc00000u)
                      : size == 0x7c00 ? float_of(0x7f800000u)
                                       : narrow_value(size, 5, 10);
  return bits >> 15 != 0 ? -value : value;
}
static inline unsigned char e4m3_bits(float x) {
  if (x != x) return 0x7f;
  return static_cast<unsigned char>(bits_of(x) >> 31 << 7 | narrow_bits(fabsf(x), 4, 3));
}
static inline unsigned char e5m2_bits(float x) {
  if (x != x) return 0x7f;
  return static_cast<unsigned char>(bits_of(x) >> 31 << 7 | narrow_bits(fabsf(x), 5, 2));
}
static inline float e4m3_value(unsigned char bits) {
  const unsigned size = bits & 0x7fu;
  const float value = size == 0x7f ? float_of(0x7fc00000u) : narrow_value(size, 4, 3);
  return bits >> 7 != 0 ? -value : value;
}
static inline float e5m2_value(unsigned char bits) {
  return f16_value(static_cast<unsigned short>(bits << 8));
}

}  // namespace coda
