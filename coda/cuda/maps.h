// coda/cuda/maps.h: the names that device/maps.cuh gives to maps, dtypes and lanes, and which lane
// a value lives in.
//
// Lanes are the C types of values on chip: floating-point values live in the program's real lane,
// integers in i64, comparisons in bool.
#pragma once

#include <string>
#include <string_view>

#include "coda/program/program.h"

namespace coda::cuda {

enum class Lane : std::uint8_t { f32, f64, i64, truth };

// Of the functions: exact to about 2 units in the last place, or good enough for 16-bit results.
enum class Precision : std::uint8_t { exact, fast };

std::string_view type_of(Lane lane);               // "float", "double", "long long", "bool"
std::string_view element_of(DType dtype);          // in memory: "bf16_t", "float", "bool_t"
std::string map_name(Op op, Precision precision);  // "exact::add"; not of casts, detach, save …
std::string literal(double number, Lane lane);     // "0.5f", "infinity()", "3LL"

// f64 as soon as anything of the program is.
Lane real_lane(const Program& program);
// fast where every result has 16 bits or fewer and is a floating-point number.
Precision precision_of(const Program& program);

// What a value of this dtype lives in.
Lane lane_of(DType dtype, Lane real);
Lane lane_of(const Program& program, Value value, Lane real);
// What the map `node` reads its operand `arg` in. `wanted` is the lane that its value is read in:
// integers that are chosen and only read as reals are chosen as reals.
Lane operand_lane(const Program& program, const Node& node, std::size_t arg, Lane real,
                  Lane wanted);
// What it then gives.
Lane result_lane(const Program& program, const Node& node, Lane real, Lane wanted);

// `text`, which is in lane `from`, as an expression in lane `to`.
std::string convert(const std::string& text, Lane from, Lane to);
// A cast of a value that is in `from`: the expression, and the lane that it is in.
struct Cast {
  std::string text;
  Lane lane = Lane::f32;
};
Cast cast(const std::string& text, Lane from, DType to, Lane real);

}  // namespace coda::cuda
