// coda/reference/reference.h: what programs mean. Whole matrices, double precision, plain loops; slow on purpose.
//
// Shares no mathematics with any backend: it judges them. Runs programs and blocks alike, opaque calls included.
#pragma once

#include <span>
#include <vector>

#include "coda/core/tensor.h"
#include "coda/program/program.h"

namespace coda::reference {

enum class Mode : std::uint8_t {
  exact,    // no rounding anywhere: the truth
  rounded,  // every value rounded to storage_dtype, as the unfused sequence of library calls would store it
};

// A dense array of doubles in the storage order of a type.
struct Array {
  Type type;
  std::vector<std::int64_t> extents;  // of each factor, in factors_of order
  std::vector<double> data;
};

// The results, one Array each, in the declared storage order; in rounded mode rounded to the declared dtype. `before` holds the earlier contents of
// the results (only accumulating ones are read); empty: zeros.
std::vector<Array> evaluate(const Program& program, const Sizes& sizes,
                            std::span<const Tensor> params, Mode mode,
                            std::span<const Tensor> before = {});

// Every value of the program, results last as in evaluate: for debugging dumps and for tests of rewrites.
std::vector<Array> evaluate_all(const Program& program, const Sizes& sizes,
                                std::span<const Tensor> params, Mode mode);

}  // namespace coda::reference
