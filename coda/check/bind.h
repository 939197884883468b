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
// Nothing is read from the tensors' memory. Any thread may call all of this file.
Sizes bind(const Program& program, std::span<const Tensor> params,
           std::span<const Tensor> results = {}, const Sizes& given = {});

// The same from the sizes in `given` alone, for planning without data: those of every name, after
// what splits and joins say of each other. Throws ProgramError where a name has none, or where two
// sizes contradict each other.
Sizes bind_sizes(const Program& program, const Sizes& given);

// The dense shape of a type in elements, an axis for each dim, and how many elements that are.
// Throw ProgramError where a name has no size.
std::vector<std::int64_t> shape_of(const Type& type, const Sizes& sizes);
std::int64_t elements_of(const Type& type, const Sizes& sizes);

// Strides in elements of each factor of `type` (factors_of order) in `tensor`.
std::vector<std::int64_t> factor_strides(const Type& type, const Tensor& tensor,
                                         const Sizes& sizes);

}  // namespace coda
