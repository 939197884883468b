// tests/execute_test.cpp: schedules run step by step, in an arena that reuses what is dead.
#include "coda/backend/execute.h"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "coda/program/builder.h"
#include "coda/reference/reference.h"

namespace coda {
namespace {

// The reference backend, counting what it compiles.
class Counting final : public Backend {
 public:
  std::string_view name() const override { return "counting"; }
  std::optional<std::string> refusal(const Checked& program, const Sizes& sizes) const override {
    return inner_->refusal(program, sizes);
  }
  Kernel compile(const Checked& program, const Sizes& sizes) const override {
    ++compiled;
    return inner_->compile(program, sizes);
  }

  mutable int compiled = 0;

 private:
  std::unique_ptr<Backend> inner_ = reference::backend();
};

Type matrix(const char* rows, const char* columns) {
  return {DType::f32, {dim_of(rows), dim_of(columns)}};
}

// y = x * factor, elementwise.
Program scaled(double factor) {
  Builder b("scaled", Program::Kind::program);
  const Expr x{&b, b.param("x", matrix("M", "N"))};
  b.result("y", matrix("M", "N"), (x * factor).value);
  return std::move(b).finish();
}

// y = a + b.
Program added() {
  Builder builder("added", Program::Kind::program);
  const Expr a{&builder, builder.param("a", matrix("M", "N"))};
  const Expr b{&builder, builder.param("b", matrix("M", "N"))};
  builder.result("y", matrix("M", "N"), (a + b).value);
  return std::move(builder).finish();
}

Schedule schedule(std::vector<Step> steps, std::vector<std::string> results) {
  Schedule s;
  s.name = "test";
  s.params = {{"x", matrix("M", "N")}};
  for (std::string& name : results) s.results.push_back({std::move(name), matrix("M", "N"), {}});
  s.steps = std::move(steps);
  return s;
}

struct Matrix {
  OwnedTensor owned;
  Matrix(std::int64_t m, std::int64_t n, float start) : owned(DType::f32, {m, n}) {
    for (std::int64_t i = 0; i < m * n; ++i) (*this)[i] = start + static_cast<float>(i);
  }
  float& operator[](std::int64_t i) const { return owned.as<float>()[i]; }
  const Tensor& tensor() const { return owned.tensor(); }
};

void run(const Executable& executable, std::vector<Tensor> params, std::vector<Tensor> results) {
  const OwnedTensor scratch(DType::u8, {static_cast<std::int64_t>(executable.scratch_bytes())});
  executable.run(params, results, {scratch.as<std::byte>(), scratch.bytes()});
}

const Sizes kSizes{{"M", 3}, {"N", 5}};

TEST(Executable, RunsStepsInOrder) {
  const Schedule s = schedule({{scaled(2), {"x"}, {"t"}}, {added(), {"t", "x"}, {"y"}}}, {"y"});
  const Executable executable(s, *reference::backend(), kSizes);
  const Matrix x(3, 5, 1), y(3, 5, 0);
  run(executable, {x.tensor()}, {y.tensor()});
  for (std::int64_t i = 0; i < 15; ++i) EXPECT_EQ(y[i], 3 * x[i]);
}

TEST(Executable, AResultMayFeedLaterSteps) {
  const Schedule s = schedule({{scaled(2), {"x"}, {"y"}}, {scaled(10), {"y"}, {"z"}}}, {"z", "y"});
  const Executable executable(s, *reference::backend(), kSizes);
  const Matrix x(3, 5, 1), y(3, 5, 0), z(3, 5, 0);
  run(executable, {x.tensor()}, {z.tensor(), y.tensor()});
  for (std::int64_t i = 0; i < 15; ++i) {
    EXPECT_EQ(y[i], 2 * x[i]);
    EXPECT_EQ(z[i], 20 * x[i]);
  }
}

// t0 = 2x, t1 = 2 t0, …; y = t_last + t0: t0 lives to the end, the others for one step.
Schedule chain(int length) {
  std::vector<Step> steps = {{scaled(2), {"x"}, {"t0"}}};
  for (int i = 1; i < length; ++i) {
    steps.push_back({scaled(2), {"t" + std::to_string(i - 1)}, {"t" + std::to_string(i)}});
  }
  steps.push_back({added(), {"t" + std::to_string(length - 1), "t0"}, {"y"}});
  return schedule(std::move(steps), {"y"});
}

TEST(Executable, ReusesTheMemoryOfDeadValuesOnly) {
  const Executable executable(chain(8), *reference::backend(), kSizes);
  const Matrix x(3, 5, 1), y(3, 5, 0);
  run(executable, {x.tensor()}, {y.tensor()});
  for (std::int64_t i = 0; i < 15; ++i) EXPECT_EQ(y[i], (256 + 2) * x[i]);

  const Sizes large{{"M", 1024}, {"N", 256}};
  const std::size_t one = 1024 * 256 * sizeof(float);
  EXPECT_EQ(Executable(chain(20), *reference::backend(), large).scratch_bytes(), 3 * one);
  EXPECT_EQ(Executable(chain(2), *reference::backend(), large).scratch_bytes(), 2 * one);
}

TEST(Executable, CompilesEqualStepsOnce) {
  const Counting backend;
  const Executable executable(chain(8), backend, kSizes);
  EXPECT_EQ(backend.compiled, 2);
}

TEST(Executable, IsSafeFromSeveralThreads) {
  const Executable executable(chain(5), *reference::backend(), {{"M", 40}, {"N", 40}});
  std::vector<std::thread> threads;
  std::vector<Matrix> x, y;
  for (int t = 0; t < 4; ++t) x.emplace_back(40, 40, t * 7.0f), y.emplace_back(40, 40, 0.0f);
  for (std::size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 20; ++i) run(executable, {x[t].tensor()}, {y[t].tensor()});
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::size_t t = 0; t < 4; ++t) {
    for (std::int64_t i = 0; i < 1600; ++i) ASSERT_EQ(y[t][i], (32 + 2) * x[t][i]);
  }
}

TEST(Executable, RefusesATensorOfAnotherSizeByName) {
  const Executable executable(chain(2), *reference::backend(), kSizes);
  const Matrix wrong(3, 4, 0), y(3, 5, 0);
  try {
    run(executable, {wrong.tensor()}, {y.tensor()});
    FAIL() << "ran on a tensor of another size";
  } catch (const ProgramError& error) {
    const std::string what = error.what();
    EXPECT_NE(what.find("`x`"), std::string::npos) << what;
    EXPECT_NE(what.find("f32[3, 4]"), std::string::npos) << what;
    EXPECT_NE(what.find("f32[3, 5]"), std::string::npos) << what;
  }
  EXPECT_THROW(run(executable, {}, {y.tensor()}), ProgramError);
}

TEST(Executable, AScheduleThatDoesNotFitTogetherIsOurFault) {
  const auto compile = [](const Schedule& s) {
    return Executable(s, *reference::backend(), kSizes);
  };
  EXPECT_THROW(compile(schedule({{scaled(2), {"x"}, {"t"}}}, {"y"})), InternalError);
  EXPECT_THROW(compile(schedule({{scaled(2), {"t"}, {"y"}}}, {"y"})), InternalError);
  EXPECT_THROW(compile(schedule({{scaled(2), {"x"}, {"y"}}, {scaled(3), {"x"}, {"y"}}}, {"y"})),
               InternalError);
}

TEST(Executable, TimesEachStepAndAddsUp) {
  const Executable executable(chain(3), *reference::backend(), kSizes);
  const Matrix x(3, 5, 1), y(3, 5, 0);
  const OwnedTensor scratch(DType::u8, {static_cast<std::int64_t>(executable.scratch_bytes())});
  std::vector<Executable::Timing> timings;
  double first = 0;
  for (int i = 0; i < 2; ++i) {
    const std::vector<Tensor> params{x.tensor()}, results{y.tensor()};
    executable.run_timed(params, results, {scratch.as<std::byte>(), scratch.bytes()}, timings);
    ASSERT_EQ(timings.size(), 4u);
    EXPECT_GT(timings[0].seconds, first);
    first = timings[0].seconds;
  }
  EXPECT_EQ(timings[0].step, "scaled");
  EXPECT_EQ(timings[3].step, "added");
}

}  // namespace
}  // namespace coda
