// coda/model/blocks.h: blocks of the standard library, compiled, with tensors that go by name.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "coda/backend/execute.h"
#include "coda/core/tensor.h"
#include "coda/program/program.h"

namespace coda {

using TensorMap = std::map<std::string, Tensor, std::less<>>;

// Seconds by "block: step", added up.
using Timings = std::map<std::string, double>;

// A program of programs/ with bf16, as its text has it, replaced by `dtype`.
Program standard_program(std::string_view file, std::string_view name, DType dtype);

class CompiledBlock {
 public:
  // A block is rewritten first, a program is one kernel.
  CompiledBlock(const Program& program, const Backend& backend, const Sizes& sizes);
  CompiledBlock(const Schedule& schedule, const Backend& backend, const Sizes& sizes);

  std::size_t scratch_bytes() const { return executable_.scratch_bytes(); }
  // Its parameters and results are looked up in `tensors`, which may hold others.
  void run(const TensorMap& tensors, std::span<std::byte> scratch,
           Timings* timings = nullptr) const;

 private:
  std::string name_;
  std::vector<std::string> params_, results_;
  Executable executable_;
};

// Owned tensors for results of a block, by name.
class Workspace {
 public:
  // Every result of `schedule` that `into` does not name yet.
  void add_results(const Schedule& schedule, const Sizes& sizes, TensorMap& into);

 private:
  std::vector<OwnedTensor> memory_;
};

// One number as a tensor without dimensions.
class Scalar {
 public:
  Scalar(DType dtype, double value) : memory_(dtype, {}) { set(value); }
  void set(double value) { store(memory_.tensor().dtype, memory_.tensor().data, 0, value); }
  double value() const { return load(memory_.tensor().dtype, memory_.tensor().data, 0); }
  const Tensor& tensor() const { return memory_.tensor(); }

 private:
  OwnedTensor memory_;
};

// Scratch that grows to what the largest user needs.
class Scratch {
 public:
  void reserve(std::size_t bytes);
  std::span<std::byte> span() const { return {memory_.as<std::byte>(), memory_.bytes()}; }

 private:
  OwnedTensor memory_;
};

}  // namespace coda
