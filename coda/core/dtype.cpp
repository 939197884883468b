// coda/core/dtype.cpp: every narrow float is one Format, encoded from and decoded to double by
// integer arithmetic.
//
// Encoding starts from the double, never from an f32 on the way: two roundings are not one.
#include "coda/core/dtype.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "coda/core/error.h"

namespace coda {
namespace {

// sign, then exponent, then mantissa. NOTE: e4m3 has no infinities: its top exponent holds numbers,
// but for all ones (NaN).
struct Format {
  int exponent_bits;
  int mantissa_bits;
  bool has_infinity;

  constexpr int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  constexpr int sign_shift() const { return exponent_bits + mantissa_bits; }
  constexpr std::uint32_t exponent_mask() const { return (1u << exponent_bits) - 1; }
  constexpr std::uint32_t mantissa_mask() const { return (1u << mantissa_bits) - 1; }
  constexpr std::uint32_t infinity() const { return exponent_mask() << mantissa_bits; }
  constexpr std::uint32_t nan() const {
    return infinity() | (has_infinity ? 1u << (mantissa_bits - 1) : mantissa_mask());
  }
  // The first pattern past the finite numbers, and what such a value becomes.
  constexpr std::uint32_t overflow() const { return has_infinity ? infinity() : nan(); }
};

constexpr Format kBf16{8, 7, true};
constexpr Format kF16{5, 10, true};
constexpr Format kF8e4m3{4, 3, false};
constexpr Format kF8e5m2{5, 2, true};

constexpr int kDoubleBias = 1023;
constexpr int kDoubleMantissa = 52;
constexpr std::uint64_t kDoubleImplicit = std::uint64_t{1} << kDoubleMantissa;

constexpr std::uint32_t encode(Format format, double value) {
  const auto bits = std::bit_cast<std::uint64_t>(value);
  const auto sign = static_cast<std::uint32_t>(bits >> 63) << format.sign_shift();
  const int exponent = static_cast<int>(bits >> kDoubleMantissa) & 0x7ff;
  const std::uint64_t fraction = bits & (kDoubleImplicit - 1);
  if (exponent == 0x7ff) return sign | (fraction != 0 ? format.nan() : format.overflow());
  if (exponent == 0)
    return sign;  // zero, or a subnormal double, which is far below half of any format's least

  // rounded = significand >> shift, to nearest even. Below the normal range the shift grows and the
  // exponent field is 0.
  const int biased = exponent - kDoubleBias + format.bias();
  int shift = kDoubleMantissa - format.mantissa_bits;
  if (biased < 1) shift += 1 - biased;
  if (shift > kDoubleMantissa + 2) return sign;  // below half of the least subnormal
  const std::uint64_t significand = fraction | kDoubleImplicit;
  const std::uint64_t rest = significand & ((std::uint64_t{1} << shift) - 1);
  const std::uint64_t half = std::uint64_t{1} << (shift - 1);
  std::uint64_t rounded = significand >> shift;
  if (rest > half || (rest == half && (rounded & 1) != 0)) ++rounded;

  // The implicit bit of `rounded` adds one to the exponent field, and so does a carry out of the
  // mantissa.
  const std::uint64_t field = biased < 1 ? 0 : static_cast<std::uint64_t>(biased - 1);
  const std::uint64_t magnitude = (field << format.mantissa_bits) + rounded;
  if (magnitude >= format.overflow()) return sign | format.overflow();
  return sign | static_cast<std::uint32_t>(magnitude);
}

constexpr double decode(Format format, std::uint32_t bits) {
  const std::uint64_t sign = std::uint64_t{bits >> format.sign_shift()} << 63;
  const std::uint32_t magnitude = bits & ((1u << format.sign_shift()) - 1);
  const std::uint32_t exponent = magnitude >> format.mantissa_bits;
  const std::uint32_t mantissa = magnitude & format.mantissa_mask();
  const int widening = kDoubleMantissa - format.mantissa_bits;
  if (exponent == 0) {
    // mantissa × 2^(1 - bias - mantissa_bits), exact in double
    const int power = 1 - format.bias() - format.mantissa_bits + kDoubleBias;
    const double unit = std::bit_cast<double>(static_cast<std::uint64_t>(power) << kDoubleMantissa);
    const double value = unit * mantissa;
    return sign != 0 ? -value : value;
  }
  if (magnitude > format.overflow() || magnitude == format.nan()) {
    return std::bit_cast<double>(sign | 0x7ff8000000000000u);
  }
  if (format.has_infinity && magnitude == format.infinity()) {
    return std::bit_cast<double>(sign | 0x7ff0000000000000u);
  }
  const auto wide =
      static_cast<std::uint64_t>(static_cast<int>(exponent) - format.bias() + kDoubleBias);
  return std::bit_cast<double>(sign | wide << kDoubleMantissa |
                               std::uint64_t{mantissa} << widening);
}

// Towards zero; out of range: the nearest end.
template <class Integer>
Integer truncate(double value) {
  using Limits = std::numeric_limits<Integer>;
  // NOTE: the largest i64 is no double; its successor is, so compare with that.
  const double past = std::ldexp(1.0, Limits::digits);
  if (std::isnan(value)) return 0;
  if (value >= past) return Limits::max();
  if (value <= static_cast<double>(Limits::min())) return Limits::min();
  return static_cast<Integer>(value);
}

template <class T>
T element(const void* data, std::int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const std::byte*>(data) + index * std::int64_t{sizeof(T)},
              sizeof(T));
  return value;
}

template <class T>
void set_element(void* data, std::int64_t index, T value) {
  std::memcpy(static_cast<std::byte*>(data) + index * std::int64_t{sizeof(T)}, &value, sizeof(T));
}

struct Row {
  DType dtype;
  std::string_view name;
  std::size_t bytes;
};

constexpr Row kTable[] = {
    {DType::f32, "f32", 4},      {DType::f64, "f64", 8},       {DType::bf16, "bf16", 2},
    {DType::f16, "f16", 2},      {DType::f8e4m3, "f8e4m3", 1}, {DType::f8e5m2, "f8e5m2", 1},
    {DType::i32, "i32", 4},      {DType::i64, "i64", 8},       {DType::u8, "u8", 1},
    {DType::boolean, "bool", 1},
};

const Row& row(DType dtype) {
  for (const Row& each : kTable) {
    if (each.dtype == dtype) return each;
  }
  throw InternalError("no such dtype: " + std::to_string(static_cast<int>(dtype)));
}

}  // namespace

std::size_t size_of(DType dtype) {
  return row(dtype).bytes;
}

std::string_view name_of(DType dtype) {
  return row(dtype).name;
}

std::optional<DType> dtype_from(std::string_view name) {
  for (const Row& each : kTable) {
    if (each.name == name) return each.dtype;
  }
  return std::nullopt;
}

bool is_float(DType dtype) {
  switch (dtype) {
    case DType::f32:
    case DType::f64:
    case DType::bf16:
    case DType::f16:
    case DType::f8e4m3:
    case DType::f8e5m2:
      return true;
    case DType::i32:
    case DType::i64:
    case DType::u8:
    case DType::boolean:
      return false;
  }
  return false;
}

bool is_integer(DType dtype) {
  return dtype == DType::i32 || dtype == DType::i64 || dtype == DType::u8;
}

double round_to(DType dtype, double value) {
  switch (dtype) {
    case DType::f32:
      return static_cast<float>(value);
    case DType::f64:
      return value;
    case DType::bf16:
      return decode(kBf16, encode(kBf16, value));
    case DType::f16:
      return decode(kF16, encode(kF16, value));
    case DType::f8e4m3:
      return decode(kF8e4m3, encode(kF8e4m3, value));
    case DType::f8e5m2:
      return decode(kF8e5m2, encode(kF8e5m2, value));
    case DType::i32:
      return truncate<std::int32_t>(value);
    case DType::i64:
      return static_cast<double>(truncate<std::int64_t>(value));
    case DType::u8:
      return truncate<std::uint8_t>(value);
    case DType::boolean:
      return value != 0 ? 1 : 0;
  }
  throw InternalError("round_to: no such dtype");
}

double load(DType dtype, const void* data, std::int64_t index) {
  switch (dtype) {
    case DType::f32:
      return element<float>(data, index);
    case DType::f64:
      return element<double>(data, index);
    case DType::bf16:
      return f32_from_bf16(element<std::uint16_t>(data, index));
    case DType::f16:
      return decode(kF16, element<std::uint16_t>(data, index));
    case DType::f8e4m3:
      return decode(kF8e4m3, element<std::uint8_t>(data, index));
    case DType::f8e5m2:
      return decode(kF8e5m2, element<std::uint8_t>(data, index));
    case DType::i32:
    case DType::i64:
    case DType::u8:
    case DType::boolean:
      return static_cast<double>(load_integer(dtype, data, index));
  }
  throw InternalError("load: no such dtype");
}

std::int64_t load_integer(DType dtype, const void* data, std::int64_t index) {
  switch (dtype) {
    case DType::i32:
      return element<std::int32_t>(data, index);
    case DType::i64:
      return element<std::int64_t>(data, index);
    case DType::u8:
      return element<std::uint8_t>(data, index);
    case DType::boolean:
      return element<std::uint8_t>(data, index) != 0 ? 1 : 0;
    case DType::f32:
    case DType::f64:
    case DType::bf16:
    case DType::f16:
    case DType::f8e4m3:
    case DType::f8e5m2:
      return truncate<std::int64_t>(load(dtype, data, index));
  }
  throw InternalError("load_integer: no such dtype");
}

void store(DType dtype, void* data, std::int64_t index, double value) {
  switch (dtype) {
    case DType::f32:
      return set_element(data, index, static_cast<float>(value));
    case DType::f64:
      return set_element(data, index, value);
    case DType::bf16:
      return set_element(data, index, static_cast<std::uint16_t>(encode(kBf16, value)));
    case DType::f16:
      return set_element(data, index, static_cast<std::uint16_t>(encode(kF16, value)));
    case DType::f8e4m3:
      return set_element(data, index, static_cast<std::uint8_t>(encode(kF8e4m3, value)));
    case DType::f8e5m2:
      return set_element(data, index, static_cast<std::uint8_t>(encode(kF8e5m2, value)));
    case DType::i32:
      return set_element(data, index, truncate<std::int32_t>(value));
    case DType::i64:
      return set_element(data, index, truncate<std::int64_t>(value));
    case DType::u8:
      return set_element(data, index, truncate<std::uint8_t>(value));
    case DType::boolean:
      return set_element(data, index, static_cast<std::uint8_t>(value != 0 ? 1 : 0));
  }
  throw InternalError("store: no such dtype");
}

std::uint16_t bf16_from_f32(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value))
    return static_cast<std::uint16_t>(bits >> 16 | 0x0040);  // quiet, and never an infinity
  // Adds half of the last kept bit, less one where that bit is even; a carry into the exponent is
  // the right overflow.
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float f32_from_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(std::uint32_t{bits} << 16);
}

std::uint16_t f16_from_f32(float value) {
  return static_cast<std::uint16_t>(encode(kF16, value));
}

float f32_from_f16(std::uint16_t bits) {
  return static_cast<float>(decode(kF16, bits));
}

}  // namespace coda
