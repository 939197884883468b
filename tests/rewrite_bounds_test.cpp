// tests/rewrite_bounds_test.cpp: the error that rewriting leaves in bf16, on the CPU: no more than
// the unfused sequence's (docs/numerics.md), forward and for every gradient.
//
// Truth is the exact reference of the block and of its gradient, naive the rounded one of the same;
// what is judged are the schedules that rewrite makes of both together.
#include <gtest/gtest.h>

#include "coda/program/text.h"
#include "tests/training_bounds.h"

namespace coda::testing {
namespace {

Program load_block(const std::string& name) {
  const std::size_t colon = name.find(':');
  return parse_file(CODA_SOURCE_DIR "/programs/" + name.substr(0, colon))
      .find(name.substr(colon + 1));
}

// Where outliers saturate a softmax, gradients behind it are rounding alone: then no numbers are
// left to compare. Elsewhere few elements carry the norm: one alone says little.
constexpr double kNoNumbers = 0.3, kWorstOfOutliers = 4;

bool is_bounded(const Verdict& verdict) {
  if (verdict.passed) return true;
  if (verdict.inputs != Inputs::outliers) return false;
  if (verdict.naive_error > kNoNumbers) return std::isfinite(verdict.error);
  return relative_error(verdict) <= 1.05 && verdict.worst_ratio <= kWorstOfOutliers;
}

// Prints the figure: the largest error in units of the naive sequence's.
// Three seeds are a quick look; who fails it is judged by as many as the contract asks for, and
// more.
void expect_bounded(const Trial& trial, const std::string& what) {
  std::vector<Verdict> verdicts = judge(trial, 1, 3);
  if (!std::ranges::all_of(verdicts, is_bounded)) verdicts = judge(trial, 101, 16);
  const auto figure = [](const Verdict& verdict) {
    return verdict.naive_error > kNoNumbers ? 0 : relative_error(verdict);
  };
  const Verdict& worst = *std::ranges::max_element(verdicts, {}, figure);
  std::printf("  %-28s %-24s %.3f of the naive error (%s: %.2e, naive %.2e)\n", trial.name.c_str(),
              what.c_str(), relative_error(worst), worst.result.c_str(), worst.error,
              worst.naive_error);
  EXPECT_TRUE(std::ranges::all_of(verdicts, is_bounded)) << trial.name << ", " << what << "\n"
                                                         << table(verdicts);
}

// D has two outlier channels.
const Sizes kLayer = {{"B", 1}, {"S", 16}, {"D", 576}, {"H", 2}, {"G", 1}, {"E", 16}, {"F", 64}};

Sizes of(std::initializer_list<const char*> names, Sizes more = {}) {
  for (const char* name : names) more.emplace(name, kLayer.at(name));
  return more;
}

struct Case {
  const char* block;
  Sizes sizes;
};

const std::vector<Case> kCases = {
    {"llama.coda:between", of({"B", "S", "D", "H", "G", "E", "F"})},
    {"llama.coda:layer", of({"B", "S", "D", "H", "G", "E", "F"})},
    {"qwen2.coda:layer", of({"B", "S", "D", "H", "G", "E", "F"})},
    {"qwen3.coda:layer", of({"B", "S", "D", "H", "G", "E", "F"})},
    {"gpt2.coda:layer", of({"B", "S", "D", "H", "E", "F"})},
    {"gemma.coda:layer", of({"B", "S", "D", "H", "G", "E", "F"})},
    {"parallel.coda:layer", of({"B", "S", "D", "H", "G", "E", "F"})},
    {"norm.coda:layernorm_linear", {{"M", 32}, {"D", 1088}, {"N", 48}}},
};

// NOTE: a window of a key or two has gradients of q and k that are 0 but for rounding.
void open_window(const std::string& name, const Tensor& tensor, std::uint64_t) {
  if (name == "window") store(tensor.dtype, tensor.data, 0, 0);
}

Trial trial_of(const Case& each, Inputs inputs, const Change& change = open_window) {
  const Program block = load_block(each.block);
  return {each.block, block, training_gradients(block), each.sizes, inputs, change};
}

TEST(RewriteBounds, RandomDataErrNoMoreThanTheUnfusedSequence) {
  for (const Case& each : kCases) expect_bounded(trial_of(each, Inputs::normal), "random data");
}

TEST(RewriteBounds, OutlierChannelsErrNoMoreThanTheUnfusedSequence) {
  for (const Case& each : kCases) {
    expect_bounded(trial_of(each, Inputs::outliers), "outlier channels");
  }
}

// A mean of 30 and of 300 deviations: E[x²] - µ² would have no digits left, and µ·c as large as
// that a rank-1 term that is not.
TEST(RewriteBounds, ShiftedMeansErrNoMoreThanTheUnfusedSequence) {
  for (const double mean : {30.0, 300.0}) {
    for (const Case& each : kCases) {
      const std::string block = each.block;
      if (block != "norm.coda:layernorm_linear" && block != "gpt2.coda:layer") continue;
      const auto shift = [mean](const std::string& name, const Tensor& tensor, std::uint64_t) {
        if (name != "x") return;
        for (std::int64_t i = 0; i < tensor.elements(); ++i) {
          store(tensor.dtype, tensor.data, i, mean + load(tensor.dtype, tensor.data, i));
        }
      };
      expect_bounded(trial_of(each, Inputs::normal, shift),
                     "a mean of " + std::to_string(static_cast<int>(mean)) + " sigma");
    }
  }
}

}  // namespace
}  // namespace coda::testing
