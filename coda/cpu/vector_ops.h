// coda/cpu/vector_ops.h: the SIMD loops under the tile executor, chosen once for the machine.
//
// On chip a real is a float (a double in a program with f64 values), an integer an int64, a bool a
// real 0 or 1. Every function here runs over raw memory and knows nothing of programs or tiles.
#pragma once

#include <cstddef>
#include <cstdint>

#include "coda/core/dtype.h"
#include "coda/program/program.h"

namespace coda::cpu {

enum class Lane : std::uint8_t { f32, f64, i64 };
constexpr std::size_t lane_bytes(Lane lane) {
  return lane == Lane::f32 ? 4 : 8;
}

// Three nested loops, outermost first.
struct Loops {
  std::int64_t n[3] = {1, 1, 1};
};

// Element (i, j, k) is at data + i * step[0] + j * step[1] + k * step[2], steps in elements.
struct Arg {
  std::byte* data = nullptr;
  std::int64_t step[3] = {0, 0, 0};
};

// args[0] is the result, the operands follow. step[2] is 1 in the result, 0 or 1 in operands.
using Map = void (*)(const Loops& loops, const Arg* args);

// Null where the op is not defined on these lanes. `lane` is that of the operands (of where: of the
// chosen values, its condition is real); comparisons give `real` lanes.
Map map_loops(Op op, Lane lane, Lane real);
Map convert_loops(Lane from, Lane to);    // between real and i64; reals are truncated
Map truth_loops(Lane from, Lane real);    // 1 where not 0
Map round_loops(DType dtype, Lane lane);  // the value that `dtype` would hold, in the same lanes

// Copies lanes of `bytes` (4 or 8) with any steps.
void copy_loops(std::size_t bytes, const Loops& loops, const Arg& to, const Arg& from);

// Reduces the middle loop: out[i, k] of in[i, j, k], in a fixed order that does not depend on the
// SIMD width. `proceed` takes what `out` holds as the first term (sum and max only).
enum class Begin : std::uint8_t { fresh, proceed };
using Reduce = void (*)(const Loops& loops, const Arg& out, const Arg& in, Begin begin);
Reduce reduce_loops(Op op, Lane lane);  // sum, reduce_max, logsumexp

// n elements of `dtype`, `step` apart, to dense lanes.
using Load = void (*)(const void* from, std::int64_t step, std::int64_t n, void* to);
Load load_run(DType from, Lane to);

// n lanes, `from_step` apart, to elements of a dtype. `accumulate` adds to what is there, in the
// lane's precision, and rounds once.
using Put = void (*)(const void* from, std::int64_t from_step, std::int64_t n, void* to,
                     std::int64_t to_step);
Put store_run(DType to, Lane from, Store store);

// n values in [0, 1) of the counters first, first + 1, …: Philox4x32-10 with key `seed`.
void uniform_run(std::uint64_t seed, std::uint64_t first, std::int64_t n, Lane lane, void* to);

// The widest SIMD target in use, for notes.
const char* vector_target();

}  // namespace coda::cpu
