// coda/check/bind.h: sizes of names from tensors, and the strides of named factors.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "coda/core/tensor.h"
#include "coda/program/program.h"

namespace coda {

// Sizes of every name of the program from the tensors bound to its parameters (and results, where
// given), starting from `given`. A tensor has one axis for each dim, or one for each factor of a
// dim. An inconsistency is a ProgramError that names both tensors and both sizes; a name that
// nothing determines is one that says how to give it. Also checks dtype and rank, and the pieces of
// splits and joins.
Sizes bind(const Program& program, std::span<const Tensor> params,
           std::span<const Tensor> results = {}, const Sizes& given = {});

// The same from the shapes alone, for planning without data: `shapes` as in bind.
Sizes bind_sizes(const Program& program, const Sizes& given);

// The dense shape of a type, an axis for each dim.
std::vector<std::int64_t> shape_of(const Type& type, const Sizes& sizes);
std::int64_t elements_of(const Type& type, const Sizes& sizes);

// Strides in elements of each factor of `type` (factors_of order) in `tensor`.
std::vector<std::int64_t> factor_strides(const Type& type, const Tensor& tensor,
                                         const Sizes& sizes);

}  // namespace coda
