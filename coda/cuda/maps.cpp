// coda/cuda/maps.cpp: tables of names, and the rules for lanes.
#include "coda/cuda/maps.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "coda/core/error.h"

namespace coda::cuda {

std::string_view type_of(Lane lane) {
  switch (lane) {
    case Lane::f32:
      return "float";
    case Lane::f64:
      return "double";
    case Lane::i64:
      return "long long";
    case Lane::truth:
      return "bool";
  }
  throw InternalError("no such lane");
}

std::string_view element_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "float";
    case DType::f64:
      return "double";
    case DType::bf16:
      return "bf16_t";
    case DType::f16:
      return "f16_t";
    case DType::f8e4m3:
      return "e4m3_t";
    case DType::f8e5m2:
      return "e5m2_t";
    case DType::i32:
      return "int";
    case DType::i64:
      return "long long";
    case DType::u8:
      return "unsigned char";
    case DType::boolean:
      return "bool_t";
  }
  throw InternalError("no such dtype");
}

std::string map_name(Op op, Precision precision) {
  return (precision == Precision::fast ? "fast::" : "exact::") + std::string(name_of(op));
}

std::string literal(double number, Lane lane) {
  char text[64];
  switch (lane) {
    case Lane::truth:
      return number != 0 ? "true" : "false";
    case Lane::i64:
      // NOTE: the least i64 has no literal of its own.
      if (number <= -0x1p63) return "(-9223372036854775807LL - 1)";
      if (number >= 0x1p63) return "9223372036854775807LL";
      return std::to_string(static_cast<std::int64_t>(number)) + "LL";
    case Lane::f32:
    case Lane::f64:
      break;
  }
  const bool single = lane == Lane::f32;
  const double value = single ? static_cast<float>(number) : number;
  if (std::isnan(value)) return single ? "not_a_number()" : "double(not_a_number())";
  if (std::isinf(value)) {
    return std::string(value < 0 ? "-" : "") + (single ? "infinity()" : "double(infinity())");
  }
  std::snprintf(text, sizeof text, single ? "%.9g" : "%.17g", value);
  std::string digits = text;
  if (digits.find_first_of(".e") == std::string::npos) digits += ".0";
  return single ? digits + "f" : digits;
}

Lane real_lane(const Program& program) {
  const auto is_f64 = [](DType dtype) {
    return dtype == DType::f64;
  };
  const bool f64 = std::ranges::any_of(program.values(), is_f64,
                                       [](const ValueInfo& value) { return value.type.dtype; }) ||
                   std::ranges::any_of(program.results(), is_f64,
                                       [](const Result& result) { return result.type.dtype; });
  return f64 ? Lane::f64 : Lane::f32;
}

Precision precision_of(const Program& program) {
  const bool narrow = std::ranges::all_of(program.results(), [](const Result& result) {
    return is_float(result.type.dtype) && size_of(result.type.dtype) <= 2;
  });
  return narrow && real_lane(program) == Lane::f32 ? Precision::fast : Precision::exact;
}

Lane lane_of(DType dtype, Lane real) {
  if (dtype == DType::boolean) return Lane::truth;
  return is_float(dtype) ? real : Lane::i64;
}

Lane lane_of(const Program& program, Value value, Lane real) {
  return lane_of(program.type(value).dtype, real);
}

Lane operand_lane(const Program& program, const Node& node, std::size_t arg, Lane real,
                  Lane wanted) {
  if (class_of(node.op) == OpClass::compare) {
    bool integers = true, any = false;
    for (const Value each : node.args) {
      const DType dtype = program.type(each).dtype;
      any = any || is_integer(dtype);
      integers = integers && !is_float(dtype);
    }
    return integers && any ? Lane::i64 : real;
  }
  if (node.op == Op::where && arg == 0) return Lane::truth;
  return result_lane(program, node, real, wanted);
}

Lane result_lane(const Program& program, const Node& node, Lane real, Lane wanted) {
  if (class_of(node.op) == OpClass::compare) return Lane::truth;
  if (node.op == Op::where && wanted == real) return real;
  return lane_of(program, node.results[0], real);
}

std::string convert(const std::string& text, Lane from, Lane to) {
  if (from == to) return text;
  return "lane<" + std::string(type_of(to)) + ">(" + text + ")";
}

Cast cast(const std::string& text, Lane from, DType to, Lane real) {
  const Lane lane = lane_of(to, real);
  const std::string value = convert(text, from, lane);
  const bool native = to == DType::boolean || to == DType::i64 || to == DType::f64 ||
                      (to == DType::f32 && real == Lane::f32);
  if (native) return {value, lane};
  return {"round_to<" + std::string(element_of(to)) + ">(" + value + ")", lane};
}

}  // namespace coda::cuda
