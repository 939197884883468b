// tests/rewrite_bounds_test.cpp: the error that rewriting leaves in bf16, on the CPU: no more than
// the unfused sequence's (docs/numerics.md), forward and for every gradient.
//
// Truth is the exact reference of the block and of its gradient, naive the rounded one of the same;
// what is judged are the schedules that rewrite makes of both together.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <optional>

#include "coda/backend/execute.h"
#include "coda/check/bind.h"
#include "coda/cpu/cpu.h"
#include "coda/program/builder.h"
#include "coda/program/text.h"
#include "coda/reference/tolerance.h"
#include "coda/reference/verify.h"
#include "coda/rewrite/grad.h"
#include "coda/rewrite/rewrite.h"

namespace coda::testing {
namespace {

const Backend& cpu_backend() {
  static const auto backend = cpu::backend();
  return *backend;
}

// By what training asks for: tensors, no scalars and no tables.
GradOptions training_gradients(const Program& block) {
  GradOptions options;
  for (const Param& param : block.params()) {
    const bool is_table = param.name == "cos" || param.name == "sin";
    if (is_float(param.type.dtype) && !param.type.is_scalar() && !is_table) {
      options.wrt.push_back(param.name);
    }
  }
  return options;
}

// A block and its gradient as one program, which shares parameters and nothing else.
Program with_gradient(const Program& block, const Program& gradient) {
  Builder builder(block.name(), Program::Kind::block);
  std::map<std::string, Value> params;
  for (const Program* each : {&block, &gradient}) {
    for (const Param& param : each->params()) {
      if (!params.contains(param.name)) {
        params[param.name] = builder.param(param.name, param.type);
      }
    }
  }
  for (const Program* each : {&block, &gradient}) {
    Copier copy(*each, builder);
    for (std::size_t i = 0; i < each->params().size(); ++i) {
      copy.map(Value{static_cast<int>(i)}, params.at(each->params()[i].name));
    }
    for (const Result& result : each->results()) {
      builder.result(result.name, result.type, copy(result.value), result.store);
    }
  }
  return std::move(builder).finish();
}

// One forward and its backward on the CPU, tensors by name.
class TrainingStep {
 public:
  using Tensors = std::map<std::string, OwnedTensor>;

  TrainingStep(const Program& block, const GradOptions& gradients, const Sizes& sizes)
      : rewritten_(rewrite(block, gradients)),
        sizes_(sizes),
        forward_(rewritten_.forward.schedule, cpu_backend(), sizes),
        backward_(rewritten_.backward->schedule, cpu_backend(), sizes) {}

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

// Changes what was drawn, before anything runs.
using Change = std::function<void(const std::string& name, const Tensor& tensor)>;

struct Trial {
  std::string block;  // "llama.coda:layer"
  Sizes sizes;
  Inputs inputs = Inputs::normal;
  Change change = {};
};

Program load_block(const std::string& name) {
  const std::size_t colon = name.find(':');
  return parse_file(CODA_SOURCE_DIR "/programs/" + name.substr(0, colon))
      .find(name.substr(colon + 1));
}

std::vector<Verdict> judge(const Trial& trial, std::uint64_t first, int seeds) {
  const Program block = load_block(trial.block);
  const GradOptions gradients = training_gradients(block);
  const Program whole = with_gradient(block, grad(block, gradients));
  const Sizes sizes = bind_sizes(whole, trial.sizes);
  const TrainingStep step(block, gradients, sizes);
  std::vector<Errors> errors;
  for (const Result& result : whole.results()) errors.emplace_back(whole, sizes, result);
  for (std::uint64_t seed = first; seed < first + static_cast<std::uint64_t>(seeds); ++seed) {
    std::vector<OwnedTensor> drawn = random_inputs(whole, sizes, seed, trial.inputs);
    std::vector<Tensor> params;
    TrainingStep::Tensors tensors;
    for (std::size_t p = 0; p < drawn.size(); ++p) {
      const std::string& name = whole.params()[p].name;
      const Tensor& tensor = drawn[p].tensor();
      // NOTE: a window of a key or two has gradients of q and k that are 0 but for rounding.
      if (name == "window") store(tensor.dtype, tensor.data, 0, 0);
      if (trial.change) trial.change(name, tensor);
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

double ratio(const Verdict& verdict) {
  return verdict.naive_error > 0 ? verdict.error / verdict.naive_error : 0;
}

// Where outliers saturate a softmax, gradients behind it are rounding alone: then no numbers are
// left to compare. Elsewhere few elements carry the norm: one alone says little.
constexpr double kNoNumbers = 0.3, kWorstOfOutliers = 4;

bool is_bounded(const Verdict& verdict) {
  if (verdict.passed) return true;
  if (verdict.inputs != Inputs::outliers) return false;
  if (verdict.naive_error > kNoNumbers) return std::isfinite(verdict.error);
  return ratio(verdict) <= 1.05 && verdict.worst_ratio <= kWorstOfOutliers;
}

// Prints the figure: the largest error in units of the naive sequence's.
// Three seeds are a quick look; who fails it is judged by as many as the contract asks for, and
// more.
void expect_bounded(const Trial& trial, const std::string& what) {
  std::vector<Verdict> verdicts = judge(trial, 1, 3);
  if (!std::ranges::all_of(verdicts, is_bounded)) verdicts = judge(trial, 101, 16);
  const auto figure = [](const Verdict& verdict) {
    return verdict.naive_error > kNoNumbers ? 0 : ratio(verdict);
  };
  const Verdict& worst = *std::ranges::max_element(verdicts, {}, figure);
  std::printf("  %-28s %-24s %.3f of the naive error (%s: %.2e, naive %.2e)\n", trial.block.c_str(),
              what.c_str(), ratio(worst), worst.result.c_str(), worst.error, worst.naive_error);
  EXPECT_TRUE(std::ranges::all_of(verdicts, is_bounded)) << trial.block << ", " << what << "\n"
                                                         << table(verdicts);
}

// D has two outlier channels.
const Sizes kLayer = {{"B", 1}, {"S", 16}, {"D", 576}, {"H", 2}, {"G", 1}, {"E", 16}, {"F", 64}};

Sizes of(std::initializer_list<const char*> names, Sizes more = {}) {
  for (const char* name : names) more.emplace(name, kLayer.at(name));
  return more;
}

const std::vector<Trial> kTrials = {
    {"llama.coda:between", of({"B", "S", "D", "H", "G", "E", "F"})},
    {"llama.coda:layer", of({"B", "S", "D", "H", "G", "E", "F"})},
    {"qwen2.coda:layer", of({"B", "S", "D", "H", "G", "E", "F"})},
    {"qwen3.coda:layer", of({"B", "S", "D", "H", "G", "E", "F"})},
    {"gpt2.coda:layer", of({"B", "S", "D", "H", "E", "F"})},
    {"gemma.coda:layer", of({"B", "S", "D", "H", "G", "E", "F"})},
    {"parallel.coda:layer", of({"B", "S", "D", "H", "G", "E", "F"})},
    {"norm.coda:layernorm_linear", {{"M", 32}, {"D", 1088}, {"N", 48}}},
};

TEST(RewriteBounds, RandomDataErrNoMoreThanTheUnfusedSequence) {
  for (const Trial& trial : kTrials) expect_bounded(trial, "random data");
}

TEST(RewriteBounds, OutlierChannelsErrNoMoreThanTheUnfusedSequence) {
  for (Trial trial : kTrials) {
    trial.inputs = Inputs::outliers;
    expect_bounded(trial, "outlier channels");
  }
}

// A mean of 30 and of 300 deviations: E[x²] - µ² would have no digits left, and µ·c as large as
// that a rank-1 term that is not.
TEST(RewriteBounds, ShiftedMeansErrNoMoreThanTheUnfusedSequence) {
  for (const double mean : {30.0, 300.0}) {
    for (const char* block : {"norm.coda:layernorm_linear", "gpt2.coda:layer"}) {
      Trial trial = *std::ranges::find(kTrials, std::string(block), &Trial::block);
      trial.change = [mean](const std::string& name, const Tensor& tensor) {
        if (name != "x") return;
        for (std::int64_t i = 0; i < tensor.elements(); ++i) {
          store(tensor.dtype, tensor.data, i, mean + load(tensor.dtype, tensor.data, i));
        }
      };
      expect_bounded(trial, "a mean of " + std::to_string(static_cast<int>(mean)) + " sigma");
    }
  }
}

}  // namespace
}  // namespace coda::testing
