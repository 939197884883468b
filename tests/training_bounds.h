// tests/training_bounds.h: one training step in bf16 on the CPU, as rewriting makes it, against the
// error of the unfused sequence (docs/numerics.md): forward and every gradient.
//
// Truth is the exact reference of the block with its gradient, naive the rounded one of the same.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "coda/backend/execute.h"
#include "coda/check/bind.h"
#include "coda/cpu/cpu.h"
#include "coda/reference/tolerance.h"
#include "coda/reference/verify.h"
#include "coda/rewrite/grad.h"
#include "coda/rewrite/rewrite.h"
#include "tests/training_gradients.h"

namespace coda::testing {

inline const Backend& cpu_backend() {
  static const auto backend = cpu::backend();
  return *backend;
}

// One forward and its backward on the CPU, tensors by name. What accumulates adds to the tensor
// that is there.
class TrainingStep {
 public:
  using Tensors = std::map<std::string, OwnedTensor>;

  TrainingStep(const Program& block, const GradOptions& gradients, const Sizes& sizes,
               const RewriteOptions& options = {})
      : rewritten_(rewrite(block, gradients, options)),
        sizes_(sizes),
        forward_(rewritten_.forward.schedule, cpu_backend(), sizes),
        backward_(rewritten_.backward->schedule, cpu_backend(), sizes) {}

  const Rewritten& rewritten() const { return rewritten_; }
  // Adds to `tensors` what both make.
  void run(Tensors& tensors) const {
    run(rewritten_.forward.schedule, forward_, tensors);
    run(rewritten_.backward->schedule, backward_, tensors);
  }

 private:
  void run(const Schedule& schedule, const Executable& executable, Tensors& tensors) const {
    std::vector<Tensor> params, results;
    for (const Param& param : schedule.params) params.push_back(tensors.at(param.name).tensor());
    for (const Result& result : schedule.results) {
      if (result.store == Store::accumulate && tensors.contains(result.name)) {
        results.push_back(tensors.at(result.name).tensor());
        continue;
      }
      OwnedTensor made(result.type.dtype, shape_of(result.type, sizes_));
      results.push_back(
          tensors.insert_or_assign(result.name, std::move(made)).first->second.tensor());
    }
    const auto bytes = static_cast<std::int64_t>(executable.scratch_bytes());
    const OwnedTensor scratch(DType::u8, {bytes});
    executable.run(params, results, {scratch.as<std::byte>(), static_cast<std::size_t>(bytes)});
  }

  Rewritten rewritten_;
  Sizes sizes_;
  Executable forward_, backward_;
};

// Changes what was drawn for a seed, before anything runs.
using Change =
    std::function<void(const std::string& name, const Tensor& tensor, std::uint64_t seed)>;

struct Trial {
  std::string name;  // "llama.coda:layer"
  Program block;
  GradOptions gradients;
  Sizes sizes;
  Inputs inputs = Inputs::normal;
  Change change = {};
  RewriteOptions options = {};
};

// A verdict for each result and each gradient.
inline std::vector<Verdict> judge(const Trial& trial, std::uint64_t first, int seeds) {
  const Program whole = joint(trial.block, trial.gradients);
  const Sizes sizes = bind_sizes(whole, trial.sizes);
  const TrainingStep step(trial.block, trial.gradients, sizes, trial.options);
  std::vector<Errors> errors;
  for (const Result& result : whole.results()) errors.emplace_back(whole, sizes, result);
  for (std::uint64_t seed = first; seed < first + static_cast<std::uint64_t>(seeds); ++seed) {
    std::vector<OwnedTensor> drawn = random_inputs(whole, sizes, seed, trial.inputs);
    std::vector<Tensor> params;
    TrainingStep::Tensors tensors;
    for (std::size_t p = 0; p < drawn.size(); ++p) {
      const std::string& name = whole.params()[p].name;
      const Tensor& tensor = drawn[p].tensor();
      if (trial.change) trial.change(name, tensor, seed);
      params.push_back(tensor);
      tensors.emplace(name, dense_copy(tensor));
    }
    const auto exact = reference::evaluate(whole, sizes, params, reference::Mode::exact);
    const auto naive = reference::evaluate(whole, sizes, params, reference::Mode::rounded);
    step.run(tensors);
    for (std::size_t r = 0; r < errors.size(); ++r) {
      const OwnedTensor& got = tensors.at(whole.results()[r].name);
      errors[r].add(exact[r], naive[r], {got.as<std::byte>(), got.bytes()});
    }
  }
  std::vector<Verdict> verdicts;
  for (const Errors& each : errors) {
    verdicts.push_back(each.verdict());
    verdicts.back().inputs = trial.inputs;
  }
  return verdicts;
}

// In units of the naive sequence's.
inline double relative_error(const Verdict& verdict) {
  return verdict.naive_error > 0 ? verdict.error / verdict.naive_error : 0;
}

}  // namespace coda::testing
