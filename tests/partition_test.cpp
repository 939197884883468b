// tests/partition_test.cpp: simplify, partition, unfused, ledger and explain. A schedule computes
// what its block does, in double, and check() accepts each of its steps.
#include <gtest/gtest.h>

#include <set>

#include "coda/check/check.h"
#include "coda/program/builder.h"
#include "coda/program/library.h"
#include "coda/program/text.h"
#include "coda/rewrite/explain.h"
#include "coda/rewrite/ledger.h"
#include "coda/rewrite/partition.h"
#include "coda/rewrite/simplify.h"
#include "tests/numeric_gradient.h"
#include "tests/random_block.h"

namespace coda {
namespace {

using testing::Fill;
using testing::Tensors;

Program parse_one(const std::string& text) {
  return parse("use \"prelude.coda\"\n" + text, "test.coda").find("");
}

[[maybe_unused]] Program block(const std::string& signature, const std::string& body) {
  return parse_one("block f" + signature + " {\n" + body + "\n}\n");
}

const Sizes kSizes = {{"M", 3},  {"D", 70}, {"K", 5}, {"N", 24}, {"F", 66},
                      {"V", 67}, {"H", 2},  {"G", 1}, {"E", 4},  {"R", 2},
                      {"B", 2},  {"S", 3},  {"T", 3}, {"P", 5},  {"L", 130}};

// Statistics and second moments are positive.
Fill sensible(std::string_view file = {}) {
  Fill fill{.at = {{"eps", 0.1},
                   {"rate", 0.5},
                   {"smoothing", 0.2},
                   {"cap", 2},
                   {"ignore_index", 1},
                   {"ss", 0.5},
                   {"limit", 0.5}}};
  if (file == "adamw.coda") fill.low = 0.1;
  return fill;
}

// Runs the steps one after another in double. What crosses is held as f64, so nothing rounds.
std::map<std::string, std::vector<double>> run_steps(const Schedule& schedule, const Sizes& sizes,
                                                     const Tensors& params) {
  std::map<std::string, OwnedTensor> made;
  std::map<std::string, std::vector<double>> results;
  for (const Step& step : schedule.steps) {
    std::vector<Tensor> inputs;
    for (const std::string& name : step.inputs) {
      const auto found = params.find(name);
      inputs.push_back(found != params.end() ? found->second.tensor() : made.at(name).tensor());
    }
    std::vector<reference::Array> outputs =
        reference::evaluate(step.program, sizes, inputs, reference::Mode::exact);
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const Type& type = step.program.results()[i].type;
      OwnedTensor tensor(testing::held(type.dtype), shape_of(type, sizes));
      for (std::size_t e = 0; e < outputs[i].data.size(); ++e) {
        store(tensor.tensor().dtype, tensor.tensor().data, static_cast<std::int64_t>(e),
              outputs[i].data[e]);
      }
      results[step.outputs[i]] = std::move(outputs[i].data);
      EXPECT_TRUE(made.emplace(step.outputs[i], std::move(tensor)).second)
          << step.outputs[i] << " is stored twice";
    }
  }
  return results;
}

void expect_same(const Program& program, const Schedule& schedule, const Sizes& sizes,
                 const Tensors& tensors) {
  const auto expected = testing::evaluate(program, sizes, tensors);
  const auto got = run_steps(schedule, sizes, tensors);
  for (const auto& [name, values] : expected) {
    ASSERT_TRUE(got.contains(name)) << name;
    EXPECT_LT(testing::relative_error(got.at(name), values), 1e-10) << name;
  }
}

void expect_kernels(const Schedule& schedule) {
  std::set<std::string> names;
  for (const Step& step : schedule.steps) {
    EXPECT_NO_THROW(check(step.program)) << print(step.program);
    EXPECT_TRUE(names.insert(step.program.name()).second) << step.program.name();
  }
}

// The whole promise of rewrite, unfused and the ledger for one block. Draws what `tensors` lacks.
void expect_rewritable(const Program& program, const Sizes& sizes, const Fill& fill,
                       Tensors&& tensors = {}) {
  testing::draw(program, sizes, fill, tensors);
  SCOPED_TRACE(print(program));
  const Partition partition = rewrite(program);
  expect_kernels(partition.schedule);
  expect_same(program, partition.schedule, sizes, tensors);
  expect_same(program, unfused(program), sizes, tensors);
  ASSERT_EQ(partition.placements.size(), partition.block.nodes().size());
  for (const Placement& placement : partition.placements) {
    EXPECT_FALSE(placement.reason.empty());
    EXPECT_LT(placement.step, static_cast<int>(partition.schedule.steps.size()));
  }
}

// Fusion that moves more than the unfused sequence is none.
void expect_saving(const Program& program, const Sizes& sizes) {
  const Ledger fused = ledger(rewrite(program).schedule, sizes);
  const Ledger naive = ledger(unfused(program), sizes);
  EXPECT_LE(fused.total.bytes_read + fused.total.bytes_written,
            naive.total.bytes_read + naive.total.bytes_written);
}

std::vector<std::string> differentiable_params(const Program& program) {
  std::set<int> options;
  for (const Node& node : program.nodes()) {
    if (node.op != Op::attention) continue;
    for (std::size_t i = 3; i < node.args.size(); ++i) options.insert(node.args[i].id);
  }
  std::vector<std::string> names;
  for (std::size_t p = 0; p < program.params().size(); ++p) {
    const Param& param = program.params()[p];
    if (is_float(param.type.dtype) && !options.contains(static_cast<int>(p))) {
      names.push_back(param.name);
    }
  }
  return names;
}

TEST(Partition, EveryProgramOfTheLibraryAndItsGradientBecomeKernels) {
  for (const std::string_view file : embedded_programs()) {
    const Module module = parse(*embedded_program(file), file);
    for (std::size_t i = module.imported; i < module.programs.size(); ++i) {
      const Program& program = module.programs[i];
      SCOPED_TRACE(std::string(file) + " " + program.name());
      const Fill fill = sensible(file);
      const Sizes sizes = testing::complete(program, kSizes);
      expect_rewritable(program, sizes, fill);
      const GradOptions options{.wrt = differentiable_params(program)};
      expect_rewritable(grad(program, options), sizes, fill);
      expect_saving(program, sizes);
      expect_saving(grad(program, options), sizes);
      const Training training = grad_for_training(program, options);
      expect_rewritable(training.forward, sizes, fill);
      Tensors tensors;
      testing::draw(training.forward, sizes, fill, tensors);
      testing::add_results(training.forward, sizes, tensors);
      expect_rewritable(training.backward, sizes, fill, std::move(tensors));
    }
  }
}

TEST(Partition, AnyBlockAndItsGradientBecomeKernels) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    const Program program = testing::RandomBlock(seed).make(14);
    expect_rewritable(program, testing::kRandomSizes, {.seed = seed});
    expect_rewritable(grad(program), testing::kRandomSizes, {.seed = seed});
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace coda
