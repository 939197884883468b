// coda/reference/reference.h: what programs mean. Whole matrices, double precision, plain loops;
// slow on purpose.
//
// Shares no mathematics with any backend: it judges them. Runs programs and blocks alike, opaque
// calls included. Any thread may call all of it; its arrays of doubles come from operator new.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "coda/backend/backend.h"
#include "coda/core/tensor.h"
#include "coda/program/program.h"

namespace coda::reference {

enum class Mode : std::uint8_t {
  // The truth: nothing is rounded, not even where the text casts to a narrower float. (A cast to an
  // integer truncates: that is its meaning.)
  exact,
  // The unfused sequence of library calls in the program's dtypes. A value that it stores in 16
  // bits is computed in double and rounded once; one that it stores in f32 is computed in f32, sums
  // one term after the other. A value is stored in its storage_dtype, but wider where a result of
  // the program declares more, and in f32 where it is a map that only reductions read.
  rounded,
};

// A dense array of doubles in the storage order of a type.
struct Array {
  Type type;
  std::vector<std::int64_t> extents;  // of each factor, in factors_of order
  std::vector<double> data;
};

// The results, one Array each, in the declared storage order; in rounded mode rounded to the
// declared dtype. `before` holds the earlier contents of the results (only accumulating ones are
// read); empty: zeros.
//
// Integers are exact up to 2^53; a seed that is a parameter is read with all its 64 bits.
std::vector<Array> evaluate(const Program& program, const Sizes& sizes,
                            std::span<const Tensor> params, Mode mode,
                            std::span<const Tensor> before = {});

// Every value of the program, results last as in evaluate: for debugging dumps and for tests of
// rewrites.
std::vector<Array> evaluate_all(const Program& program, const Sizes& sizes,
                                std::span<const Tensor> params, Mode mode);

// Elements of a bound tensor, and back: rounded to the tensor's dtype.
Array load(const Type& type, const Tensor& tensor, const Sizes& sizes);
void store(const Array& array, const Tensor& tensor, const Sizes& sizes);

// The rounded mode as a Backend.
std::unique_ptr<Backend> backend();

}  // namespace coda::reference
