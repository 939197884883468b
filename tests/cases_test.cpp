// tests/cases_test.cpp: the case table on the CPU backend, judged by the verifier.
//
// Programs run as one kernel; blocks, and the gradients of both, run as the schedule that rewrite
// makes.
#include "tests/cases.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "coda/backend/execute.h"
#include "coda/check/bind.h"
#include "coda/check/check.h"
#include "coda/cpu/cpu.h"
#include "coda/program/library.h"
#include "coda/program/text.h"
#include "coda/reference/reference.h"
#include "coda/rewrite/grad.h"
#include "coda/rewrite/retype.h"
#include "coda/rewrite/rewrite.h"

namespace coda::testing {
namespace {

class Cases : public ::testing::TestWithParam<Case> {};

const Backend& cpu_backend() {
  static const auto backend = cpu::backend();
  return *backend;
}

const Backend& three_threads() {
  static const auto backend = cpu::backend({.threads = 3});
  return *backend;
}

// Runs a block as its schedule; compiled once for each program and sizes in turn.
Executor schedule_executor(const Backend& backend) {
  struct State {
    Program program;
    Sizes sizes;
    std::unique_ptr<Executable> executable;
  };
  auto state = std::make_shared<State>();
  return [state, &backend](const Program& program, const Sizes& sizes,
                           std::span<const Tensor> params, std::span<const Tensor> results) {
    if (!state->executable || state->sizes != sizes || !(state->program == program)) {
      state->executable =
          std::make_unique<Executable>(rewrite(program).forward.schedule, backend, sizes);
      state->program = program;
      state->sizes = sizes;
    }
    const auto bytes = static_cast<std::int64_t>(state->executable->scratch_bytes());
    const OwnedTensor scratch(DType::u8, {bytes});
    state->executable->run(params, results,
                           {scratch.as<std::byte>(), static_cast<std::size_t>(bytes)});
  };
}

Executor executor_for(const Program& program, const Backend& backend = cpu_backend()) {
  return program.kind() == Program::Kind::block ? schedule_executor(backend) : executor_of(backend);
}

// Three seeds are a quick look: of a result with few independent elements their median is noise.
// Only a program that fails it is judged by as many seeds as the contract asks for, and more.
void expect_verified(const Program& program, const Sizes& given, VerifyOptions options) {
  const Sizes sizes = bind_sizes(program, given);
  const Executor executor = executor_for(program);
  const auto passed = [](const std::vector<Verdict>& verdicts) {
    return std::ranges::all_of(verdicts, &Verdict::passed);
  };
  options.seeds = 3;
  if (passed(verify(program, sizes, executor, options))) return;
  options.seeds = 16;
  options.seed += 100;
  const std::vector<Verdict> verdicts = verify(program, sizes, executor, options);
  EXPECT_TRUE(passed(verdicts)) << table(verdicts);
}

TEST_P(Cases, ErrNoMoreThanTheUnfusedSequence) {
  const Program program = GetParam().load();
  for (std::size_t i = 0; i < GetParam().sizes.size(); ++i) {
    SCOPED_TRACE("sizes " + std::to_string(i));
    VerifyOptions options{.inputs = {Inputs::normal}, .seed = 1 + i};
    if (i == 0) options.inputs.push_back(Inputs::outliers);
    if (i == 1) options.same_bits = {executor_for(program, three_threads())};
    expect_verified(program, GetParam().sizes[i], options);
  }
}

TEST_P(Cases, RunInEveryDtypeAndLayout) {
  const Program program = GetParam().load();
  const Sizes& sizes = GetParam().sizes[GetParam().sizes.size() > 1 ? 1 : 0];
  for (const DType dtype : case_table().dtypes) {
    SCOPED_TRACE(name_of(dtype));
    expect_verified(retype(program, DType::bf16, dtype), sizes,
                    {.inputs = {Inputs::normal}, .layouts = case_table().layouts});
  }
}

// By what training asks for: tensors, no scalars and no tables.
Program gradient_of(const Program& program) {
  GradOptions options;
  for (const Param& param : program.params()) {
    const bool is_table = param.name == "cos" || param.name == "sin";
    if (is_float(param.type.dtype) && !param.type.is_scalar() && !is_table) {
      options.wrt.push_back(param.name);
    }
  }
  return grad(program, options);
}

TEST_P(Cases, HaveGradientsThatRun) {
  if (!GetParam().no_gradient_bound.empty()) GTEST_SKIP() << GetParam().no_gradient_bound;
  const Program gradient = gradient_of(GetParam().load());
  expect_verified(gradient, GetParam().sizes[GetParam().sizes.size() > 1 ? 1 : 0],
                  {.inputs = {Inputs::normal}});
}

// Runs a program by the exact reference.
class Exact final : public Backend {
 public:
  std::string_view name() const override { return "exact"; }
  std::optional<std::string> refusal(const Checked&, const Sizes&) const override { return {}; }
  Kernel compile(const Checked& checked, const Sizes& sizes) const override {
    const auto run = [checked, sizes](std::span<const Tensor> params,
                                      std::span<const Tensor> results, std::span<std::byte>) {
      const auto values =
          reference::evaluate(checked.program(), sizes, params, reference::Mode::exact, results);
      for (std::size_t r = 0; r < values.size(); ++r) {
        reference::store(values[r], results[r], sizes);
      }
    };
    return Kernel(run, 0, "");
  }
};

// In double nothing is rounded, so the schedule and the block differ by the order of sums only.
void expect_schedule_equals_block(const Program& block, const Sizes& given) {
  const Program exact = retype(block, DType::bf16, DType::f64);
  const Sizes sizes = bind_sizes(exact, given);
  const std::vector<OwnedTensor> inputs = random_inputs(exact, sizes, 7);
  std::vector<Tensor> params;
  for (const OwnedTensor& input : inputs) params.push_back(input.tensor());
  const auto want = reference::evaluate(exact, sizes, params, reference::Mode::exact);

  const Executable executable(rewrite(exact).forward.schedule, Exact(), sizes);
  std::vector<OwnedTensor> results;
  std::vector<Tensor> views;
  for (const Result& result : exact.results()) {
    results.emplace_back(result.type.dtype, shape_of(result.type, sizes));
    views.push_back(results.back().tensor());
  }
  std::vector<std::byte> scratch(executable.scratch_bytes() + 64);
  executable.run(params, views, scratch);
  for (std::size_t r = 0; r < want.size(); ++r) {
    double square = 0, error = 0;
    for (std::size_t i = 0; i < want[r].data.size(); ++i) {
      const double got = load(views[r].dtype, views[r].data, static_cast<std::int64_t>(i));
      square += want[r].data[i] * want[r].data[i];
      error += (got - want[r].data[i]) * (got - want[r].data[i]);
    }
    EXPECT_LE(std::sqrt(error), 1e-10 * std::sqrt(square) + 1e-13) << exact.results()[r].name;
  }
}

TEST_P(Cases, EqualTheirScheduleInDouble) {
  const Program block = GetParam().load();
  const Sizes& sizes = GetParam().sizes[GetParam().sizes.size() > 1 ? 1 : 0];
  expect_schedule_equals_block(block, sizes);
  SCOPED_TRACE("gradient");
  expect_schedule_equals_block(gradient_of(block), sizes);
}

INSTANTIATE_TEST_SUITE_P(Library, Cases, ::testing::ValuesIn(case_table().cases),
                         [](const auto& info) { return test_name(info.param); });

TEST(CaseTable, HasEveryProgramOfTheLibrary) {
  std::map<std::string, int> rows;
  for (const Case& entry : case_table().cases) ++rows[entry.file + ":" + entry.name];
  std::size_t programs = 0;
  for (const std::string_view file : embedded_programs()) {
    const Module module = parse_file(std::string(file));
    for (std::size_t i = module.imported; i < module.programs.size(); ++i, ++programs) {
      const std::string name = std::string(file) + ":" + module.programs[i].name();
      EXPECT_EQ(rows[name], 1) << name;
    }
  }
  EXPECT_EQ(rows.size(), programs);
}

}  // namespace
}  // namespace coda::testing
