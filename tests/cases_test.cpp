// tests/cases_test.cpp: the case table on the CPU backend, judged by the verifier.
//
// Programs run as one kernel; blocks, and the gradients of both, run as the schedule that rewrite
// makes.
#include "cases.h"

#include <gtest/gtest.h>

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
#include "coda/rewrite/partition.h"
#include "coda/rewrite/retype.h"

namespace coda::testing {
namespace {

class Cases : public ::testing::TestWithParam<Case> {};

const Backend& cpu_backend() {
  static const auto backend = cpu::backend();
  return *backend;
}

// Runs a block as its schedule; compiled once for each program and sizes in turn.
Executor schedule_executor() {
  struct State {
    Program program;
    Sizes sizes;
    std::unique_ptr<Executable> executable;
  };
  auto state = std::make_shared<State>();
  return [state](const Program& program, const Sizes& sizes, std::span<const Tensor> params,
                 std::span<const Tensor> results) {
    if (!state->executable || state->sizes != sizes || !(state->program == program)) {
      state->executable =
          std::make_unique<Executable>(rewrite(program).schedule, cpu_backend(), sizes);
      state->program = program;
      state->sizes = sizes;
    }
    const auto bytes = static_cast<std::int64_t>(state->executable->scratch_bytes());
    const OwnedTensor scratch(DType::u8, {bytes});
    state->executable->run(params, results,
                           {scratch.as<std::byte>(), static_cast<std::size_t>(bytes)});
  };
}

Executor executor_for(const Program& program) {
  return program.kind() == Program::Kind::block ? schedule_executor() : executor_of(cpu_backend());
}

void expect_verified(const Program& program, const Sizes& sizes, const VerifyOptions& options) {
  const std::vector<Verdict> verdicts =
      verify(program, bind_sizes(program, sizes), executor_for(program), options);
  for (const Verdict& verdict : verdicts) {
    EXPECT_TRUE(verdict.passed) << table(verdicts);
    if (!verdict.passed) return;
  }
}

TEST_P(Cases, ErrNoMoreThanTheUnfusedSequence) {
  const Program program = GetParam().load();
  for (std::size_t i = 0; i < GetParam().sizes.size(); ++i) {
    SCOPED_TRACE("sizes " + std::to_string(i));
    VerifyOptions options{.inputs = {Inputs::normal}, .seeds = 3, .seed = 1 + i};
    if (i == 0) options.inputs.push_back(Inputs::outliers);
    expect_verified(program, GetParam().sizes[i], options);
  }
}

TEST_P(Cases, RunInEveryDtypeAndLayout) {
  const Program program = GetParam().load();
  const Sizes& sizes = GetParam().sizes[GetParam().sizes.size() > 1 ? 1 : 0];
  for (const DType dtype : case_table().dtypes) {
    SCOPED_TRACE(name_of(dtype));
    expect_verified(retype(program, DType::bf16, dtype), sizes,
                    {.inputs = {Inputs::normal}, .layouts = case_table().layouts, .seeds = 2});
  }
}

TEST_P(Cases, HaveGradientsThatRun) {
  const Program gradient = grad(GetParam().load());
  expect_verified(gradient, GetParam().sizes[GetParam().sizes.size() > 1 ? 1 : 0],
                  {.inputs = {Inputs::normal}, .seeds = 3});
}

// In double nothing is rounded, so the schedule and the block differ by the order of sums only.
void expect_schedule_equals_block(const Program& block, const Sizes& given) {
  const Program exact = retype(block, DType::bf16, DType::f64);
  const Sizes sizes = bind_sizes(exact, given);
  const std::vector<OwnedTensor> inputs = random_inputs(exact, sizes, 7);
  std::vector<Tensor> params;
  for (const OwnedTensor& input : inputs) params.push_back(input.tensor());
  const auto want = reference::evaluate(exact, sizes, params, reference::Mode::exact);

  const auto backend = reference::backend();
  const Executable executable(rewrite(exact).schedule, *backend, sizes);
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
  expect_schedule_equals_block(grad(block), sizes);
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
