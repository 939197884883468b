// coda/core/dtype.h: element types, and the conversions that define their rounding.
//
// Every conversion to a narrower float rounds to nearest even, keeps NaN a NaN, and overflows to
// infinity (f8e4m3, which has none, saturates to NaN as PyTorch's float8_e4m3fn does). All
// functions are pure: any thread may call them, and none throws.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace coda {

enum class DType : std::uint8_t { f32, f64, bf16, f16, f8e4m3, f8e5m2, i32, i64, u8, boolean };

std::size_t size_of(DType dtype);                        // bytes of one element
std::string_view name_of(DType dtype);                   // "bf16"; boolean is "bool"
std::optional<DType> dtype_from(std::string_view name);  // the inverse of name_of
bool is_float(DType dtype);
bool is_integer(DType dtype);  // i32 i64 u8; not bool

// The value that `dtype` would hold: rounded (floats), 0 or 1 (bool), truncated (integers; one past
// the range becomes its end, a NaN becomes 0).
double round_to(DType dtype, double value);

// Element `index` (in elements, from 0) of a dense array of `dtype`, as a double and back, rounded
// as round_to does. The array need not be aligned. i64 beyond 2^53 loses low bits: use
// load_integer.
double load(DType dtype, const void* data, std::int64_t index);
std::int64_t load_integer(DType dtype, const void* data, std::int64_t index);
void store(DType dtype, void* data, std::int64_t index, double value);

// 16-bit patterns, for code that converts in bulk.
std::uint16_t bf16_from_f32(float value);
float f32_from_bf16(std::uint16_t bits);
std::uint16_t f16_from_f32(float value);
float f32_from_f16(std::uint16_t bits);

}  // namespace coda
