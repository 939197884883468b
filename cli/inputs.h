// cli/inputs.h: tensors for a program from what a command line names.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "coda/core/tensor.h"
#include "coda/program/program.h"

namespace coda {

struct BoundInputs {
  std::vector<OwnedTensor> owned;
  std::vector<Tensor> views;   // one for each parameter
  std::vector<Tensor> before;  // one for each result; data is null where nothing was given
  Sizes sizes;
};

// Each entry is name=FILE.npy, name=FILE.safetensors[:TENSOR], name=NUMBER, name=random, or
// `random` for all the rest. Throws ProgramError that names the tensor and both values for a wrong
// name, dtype, rank, size or file.
BoundInputs bind_inputs(const Program& program, const std::vector<std::string>& entries,
                        const Sizes& given, std::uint64_t seed);

// "h=h.npy" → {"h", "h.npy"}.
std::pair<std::string, std::string> assignment_from(const std::string& text);
DType dtype_from_flag(const std::string& text);
// Element by element; shapes are equal.
void copy_into(const Tensor& from, const Tensor& to);

}  // namespace coda
