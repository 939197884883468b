// tests/execute_test.cpp: schedules run step by step, in an arena that reuses what is dead.
#include "coda/backend/execute.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <thread>

#include "coda/check/bind.h"
#include "coda/program/builder.h"
#include "coda/program/library.h"
#include "coda/program/text.h"
#include "coda/reference/reference.h"
#include "coda/rewrite/rewrite.h"

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

// The reference backend, which asks for rows of a multiple of 32 bytes, and compares the strides of
// each run with those that it was asked to expect.
class Padded final : public Backend {
 public:
  std::string_view name() const override { return "padded"; }
  std::optional<std::string> refusal(const Checked& program, const Sizes& sizes) const override {
    return inner_->refusal(program, sizes);
  }
  Kernel compile(const Checked& program, const Sizes& sizes) const override {
    return inner_->compile(program, sizes);
  }
  std::vector<Kernel> compile_all(std::span<const Request> requests) const override {
    std::vector<Kernel> kernels;
    for (const Request& each : requests) {
      kernels.push_back(expecting(each, compile(each.program, each.sizes)));
    }
    return kernels;
  }
  std::int64_t row_pitch(std::int64_t bytes) const override { return (bytes + 31) / 32 * 32; }

  mutable int padded = 0;  // tensors with gaps, of all runs

 private:
  Kernel expecting(const Request& request, Kernel kernel) const {
    const Program& program = request.program.program();
    const Sizes sizes = bind_sizes(program, request.sizes);
    std::vector<Tensor> expected = request.params;
    expected.insert(expected.end(), request.results.begin(), request.results.end());
    std::vector<Type> types;
    for (const Param& param : program.params()) types.push_back(param.type);
    for (const Result& result : program.results()) types.push_back(result.type);
    if (expected.empty()) {
      for (const Type& type : types) {
        expected.push_back(dense(nullptr, type.dtype, shape_of(type, sizes)));
      }
    }
    const auto run = [this, kernel, expected, types, sizes](auto params, auto results,
                                                            auto scratch) {
      std::vector<Tensor> tensors(params.begin(), params.end());
      tensors.insert(tensors.end(), results.begin(), results.end());
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        EXPECT_EQ(factor_strides(types[i], tensors[i], sizes),
                  factor_strides(types[i], expected[i], sizes));
        padded += tensors[i].is_dense() ? 0 : 1;
      }
      kernel.run(params, results, scratch);
    };
    return Kernel(Kernel::HostRun(run), kernel.scratch_bytes(), kernel.note());
  }

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

// In chunks of N: t = 2 x of the chunk; y = 10 t; s += the sum of t over the chunk.
Schedule looped(std::int64_t size) {
  const auto add_up = [] {
    Builder b("add_up", Program::Kind::program);
    const Expr t{&b, b.param("t", matrix("N", "M"))};
    b.result("s", {DType::f32, {dim_of("M")}}, reduce(Op::sum, t, dim_of("N")).value,
             Store::accumulate);
    return std::move(b).finish();
  };
  const auto times = [](double factor) {
    Builder b("times", Program::Kind::program);
    const Expr x{&b, b.param("x", matrix("N", "M"))};
    b.result("y", matrix("N", "M"), (x * factor).value);
    return std::move(b).finish();
  };
  Schedule s;
  s.name = "looped";
  s.params = {{"x", matrix("N", "M")}};
  s.results = {{"y", matrix("N", "M"), {}}, {"s", {DType::f32, {dim_of("M")}}, {}}};
  s.loops = {{"N", size, ""}};
  s.steps = {
      {times(2), {"x"}, {"t"}, 0}, {times(10), {"t"}, {"y"}, 0}, {add_up(), {"t"}, {"s"}, 0}};
  return s;
}

// Columns of a matrix that has more: rows are not dense.
Tensor columns(const Matrix& m, std::int64_t first, std::int64_t count) {
  Tensor view = m.tensor();
  view.data = static_cast<float*>(view.data) + first;
  view.shape[1] = count;
  return view;
}

TEST(Executable, RunsLoopsChunkByChunk) {
  for (const std::int64_t n : {0, 1, 3, 4, 5, 7, 8, 9}) {
    SCOPED_TRACE(n);
    const Executable executable(looped(4), *reference::backend(), {{"M", 2}, {"N", n}});
    const Matrix x(n, 4, 1), y(n, 4, -1), s(2, 2, -1);
    Tensor sums = columns(s, 0, 1);
    sums.shape = {2};
    sums.strides = {2};
    run(executable, {columns(x, 1, 2)}, {columns(y, 1, 2), sums});
    for (std::int64_t m = 0; m < 2; ++m) {
      float sum = 0;
      for (std::int64_t i = 0; i < n; ++i) {
        EXPECT_EQ(y[4 * i + 1 + m], 20 * x[4 * i + 1 + m]);
        sum += 2 * x[4 * i + 1 + m];
      }
      EXPECT_EQ(s[2 * m], sum);                            // 0 where there is no chunk
      EXPECT_EQ(s[2 * m + 1], static_cast<float>(2 * m));  // no gap is touched
    }
    for (std::int64_t i = 0; i < n; ++i) EXPECT_EQ(y[4 * i], static_cast<float>(4 * i - 1));
  }
}

TEST(Executable, AddsOverALoopIntoWhatTheCallerGives) {
  Schedule adding = looped(4);
  adding.results[1].store = Store::accumulate;
  const Executable executable(adding, *reference::backend(), {{"M", 1}, {"N", 6}});
  const Matrix x(6, 1, 1), y(6, 1, 0), s(1, 1, 1000);
  Tensor sums = s.tensor();
  sums.shape = {1};
  sums.strides = {1};
  run(executable, {x.tensor()}, {y.tensor(), sums});
  EXPECT_EQ(s[0], 1000 + 2 * 21);
}

TEST(Executable, CompilesALoopForItsChunkAndForTheRest) {
  const auto compiled = [](std::int64_t size, std::int64_t n) {
    const Counting backend;
    const Executable executable(looped(size), backend, {{"M", 2}, {"N", n}});
    return backend.compiled;
  };
  EXPECT_EQ(compiled(4, 8), 3);
  EXPECT_EQ(compiled(4, 9), 6);
  EXPECT_EQ(compiled(4, 3), 3);
  EXPECT_EQ(compiled(4, 0), 0);
}

TEST(Executable, KeepsWhatALoopReadsUntilItIsOver) {
  // v is read by the loop's first step only; what later steps store must not lie on it.
  const Type vector{DType::f32, {dim_of("M")}};
  Builder add("add", Program::Kind::program);
  const Expr x{&add, add.param("x", matrix("N", "M"))};
  add.result("v", vector, reduce(Op::sum, x, dim_of("N")).value);
  Builder scale("scale", Program::Kind::program);
  const Expr rows{&scale, scale.param("x", matrix("N", "M"))};
  const Expr by{&scale, scale.param("v", vector)};
  scale.result("t", matrix("N", "M"), (rows * by).value);
  Schedule s = looped(1);
  const Program ten = s.steps[1].program;
  s.results.pop_back();
  s.steps = {{std::move(add).finish(), {"x"}, {"v"}},
             {std::move(scale).finish(), {"x", "v"}, {"t"}, 0},
             {ten, {"t"}, {"u"}, 0},
             {ten, {"u"}, {"y"}, 0}};
  const Executable executable(s, *reference::backend(), {{"M", 2}, {"N", 5}});
  const Matrix in(5, 2, 1), y(5, 2, 0);
  run(executable, {in.tensor()}, {y.tensor()});
  for (std::int64_t i = 0; i < 10; ++i) EXPECT_EQ(y[i], 100 * in[i] * (i % 2 == 0 ? 25 : 30));
}

TEST(Executable, HoldsOneChunkOfWhatALoopPassesOn) {
  const Executable large(looped(64), *reference::backend(), {{"M", 64}, {"N", 6400}});
  EXPECT_EQ(large.scratch_bytes(), 64 * 64 * sizeof(float));
}

TEST(Executable, ALoopThatDoesNotFitTogetherIsOurFault) {
  const auto compile = [](const Schedule& s) {
    return Executable(s, *reference::backend(), {{"M", 2}, {"N", 5}});
  };
  Schedule apart = looped(2);
  apart.steps[1].loop = -1;
  EXPECT_THROW(compile(apart), InternalError);
  Schedule columns = looped(2);
  columns.loops[0].dim = "M";
  EXPECT_THROW(compile(columns), InternalError);
  Schedule once = looped(2);
  once.steps[2].loop = -1;  // adds into a result that does not accumulate
  EXPECT_THROW(compile(once), InternalError);
}

// ---- rows with gaps ----

TEST(Executable, RowsAreAsFarApartAsSuitsTheBackend) {
  const Padded backend;
  const Executable executable(chain(3), backend, kSizes);
  EXPECT_EQ(executable.scratch_bytes(), 3 * 128u);  // three rows of 32 bytes, in lines of 64
  const Matrix x(3, 5, 1), y(3, 5, 0);
  run(executable, {x.tensor()}, {y.tensor()});
  for (std::int64_t i = 0; i < 15; ++i) EXPECT_EQ(y[i], (8 + 2) * x[i]);
  EXPECT_EQ(backend.padded, 7);  // all but x and y
}

TEST(Executable, ExpectsTheStridesThatWereSaid) {
  const Padded backend;
  const Executable executable(chain(1), backend, kSizes, {{"x", {9, 1}}, {"y", {1, 3}}});
  const Matrix x(3, 9, 1), y(5, 3, 0);
  Tensor transposed = y.tensor();
  transposed.shape = {3, 5};
  transposed.strides = {1, 3};
  run(executable, {columns(x, 0, 5)}, {transposed});
  for (std::int64_t i = 0; i < 15; ++i) EXPECT_EQ(y[i], 4 * x[9 * (i % 3) + i / 3]);
  EXPECT_THROW(Executable(chain(1), backend, kSizes, {{"x", {1}}}), InternalError);
}

TEST(Executable, RowsWithGapsInLoops) {
  for (const std::int64_t n : {0, 1, 4, 7, 9}) {
    SCOPED_TRACE(n);
    const Padded backend;
    const Executable executable(looped(4), backend, {{"M", 5}, {"N", n}});
    const Matrix x(n, 5, 1), y(n, 5, -1), s(5, 1, 7);
    Tensor sums = s.tensor();
    sums.shape = {5};
    sums.strides = {1};
    run(executable, {x.tensor()}, {y.tensor(), sums});
    for (std::int64_t i = 0; i < 5 * n; ++i) EXPECT_EQ(y[i], 20 * x[i]);
    for (std::int64_t m = 0; m < 5; ++m) {
      float sum = 0;
      for (std::int64_t i = 0; i < n; ++i) sum += 2 * x[5 * i + m];
      EXPECT_EQ(s[m], sum);
    }
    EXPECT_EQ(backend.padded > 0, n > 1);
  }
}

// A training step whose loop passes on [tokens, classes of the chunk], with a smaller last chunk.
TEST(Executable, RowsWithGapsGiveTheSame) {
  const Program block = parse(*embedded_program("head.coda"), "head.coda").find("head");
  const Sizes sizes = {{"M", 7}, {"D", 66}, {"V", 1001}};
  const Rewritten made =
      rewrite(block, {.wrt = {"h", "gamma", "w"}}, {.memory = 0, .sizes = sizes});
  const Schedule& schedule = made.backward->schedule;
  ASSERT_EQ(schedule.loops.size(), 1u);
  const auto results_on = [&](const Backend& backend) {
    const Executable executable(schedule, backend, sizes);
    std::vector<OwnedTensor> tensors;
    std::vector<Tensor> params, results;
    for (const Param& param : schedule.params) {
      const Tensor& tensor =
          tensors.emplace_back(param.type.dtype, shape_of(param.type, sizes)).tensor();
      for (std::int64_t i = 0; i < tensor.elements(); ++i) {
        const double number = is_float(tensor.dtype)
                                  ? static_cast<double>(i * 37 % 101) / 256 - 0.125
                                  : static_cast<double>(i * 137 % 1000 + 1);
        store(tensor.dtype, tensor.data, i, number);
      }
      params.push_back(tensor);
    }
    for (const Result& result : schedule.results) {
      results.push_back(
          tensors.emplace_back(result.type.dtype, shape_of(result.type, sizes)).tensor());
    }
    run(executable, params, results);
    std::vector<double> all;
    for (const Tensor& tensor : results) {
      for (std::int64_t i = 0; i < tensor.elements(); ++i) {
        all.push_back(load(tensor.dtype, tensor.data, i));
      }
    }
    return all;
  };
  const Padded backend;
  const std::vector<double> padded = results_on(backend), plain = results_on(*reference::backend());
  ASSERT_EQ(padded.size(), plain.size());
  for (std::size_t i = 0; i < plain.size(); ++i) {
    ASSERT_TRUE(std::isfinite(plain[i]));
    ASSERT_EQ(padded[i], plain[i]) << i;
  }
  EXPECT_GT(backend.padded, 0);
}

}  // namespace
}  // namespace coda
