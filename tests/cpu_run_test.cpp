// tests/cpu_run_test.cpp: the CPU backend's runs: shared memory, threads, limits of the maps,
// notes.
#include "tests/cpu_programs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <thread>

#include "coda/reference/verify.h"

namespace coda::testing {
namespace {

TEST(CpuRun, RunsInPlaceElementByElement) {
  const Program program = program_of(
      "program p(w: f32[M, N], g: f32[M, N], m: f32[M, N]) -> (v: f32[M, N], w2: f32[M, N]) {\n"
      "  v = 0.9 * m + g\n  w2 = w - 0.1 * v * w\n}");
  const Sizes sizes = {{"M", 70}, {"N", 40}};
  std::vector<OwnedTensor> inputs = random_inputs(program, sizes, 3);
  std::vector<Tensor> params;
  for (const OwnedTensor& input : inputs) params.push_back(input.tensor());
  const auto want = run_cpu(program, sizes, params);
  const Kernel kernel = cpu_with(2).compile(check(program), sizes);
  std::vector<std::byte> scratch(kernel.scratch_bytes() + 64);
  kernel.run(params, std::vector{params[0], params[2]}, scratch);
  EXPECT_EQ(std::memcmp(want[0].as<float>(), params[0].data, 70 * 40 * 4), 0);
  EXPECT_EQ(std::memcmp(want[1].as<float>(), params[2].data, 70 * 40 * 4), 0);
}

// Every tensor one byte off: read and written element by element.
TEST(CpuRun, TensorsAtOddAddresses) {
  for (const char* text :
       {"program p(x: f32[M, K], w: bf16[N, K], r: f32[N]) -> (y: bf16[M, N], z: f32[M, N]) {\n"
        "  z = x @ w + r\n  y = z\n}",
        "program p(x: f32[M, N], i: i64[M]) -> (y: +f32[K, N]) { y += scatter_sum(x, i, K) }",
        "program p(x: f32[M, N], i: i64[K]) -> (y: f32[K, N]) { y = x[i] * 2 }"}) {
    const Program program = program_of(text);
    const Sizes sizes = bind_sizes(program, {{"M", 9}, {"N", 70}, {"K", 5}});
    const std::vector<OwnedTensor> inputs = random_inputs(program, sizes, 2);
    std::vector<std::vector<std::byte>> memory;
    std::vector<Tensor> params, odd;
    const auto move = [&](const Tensor& tensor) {
      const auto bytes = static_cast<std::size_t>(tensor.elements()) * size_of(tensor.dtype);
      memory.emplace_back(bytes + 16);
      Tensor moved = tensor;
      const auto address = reinterpret_cast<std::uintptr_t>(memory.back().data());
      moved.data = memory.back().data() + (address % 2 == 0 ? 1 : 0);
      std::memcpy(moved.data, tensor.data, bytes);
      return moved;
    };
    for (const OwnedTensor& input : inputs) {
      params.push_back(input.tensor());
      odd.push_back(move(input.tensor()));
    }
    const auto want = run_cpu(program, sizes, params);
    std::vector<Tensor> results;
    for (const OwnedTensor& result : want) {
      results.push_back(move(OwnedTensor(result.tensor().dtype, result.tensor().shape).tensor()));
    }
    const Kernel kernel = cpu_with(2).compile(check(program), sizes);
    const OwnedTensor scratch(DType::u8, {static_cast<std::int64_t>(kernel.scratch_bytes())});
    kernel.run(odd, results, {scratch.as<std::byte>(), kernel.scratch_bytes()});
    for (std::size_t r = 0; r < want.size(); ++r) {
      EXPECT_EQ(std::memcmp(want[r].tensor().data, results[r].data, want[r].bytes()), 0) << text;
    }
  }
}

TEST(CpuRun, KernelsRunFromSeveralThreadsAtOnce) {
  const Program program = program_of(
      "program p(x: f32[M, K], w: f32[N, K]) -> (y: f32[M, N], s: f32[blocks(M), N]) {\n"
      "  y = tanh(x @ w)\n  s = block_sum(y, M)\n}");
  const Sizes sizes = {{"M", 300}, {"N", 130}, {"K", 70}};
  const Kernel kernel = cpu_with(2).compile(check(program), sizes);
  const std::vector<OwnedTensor> inputs = random_inputs(program, sizes, 5);
  const std::vector<Tensor> params = {inputs[0].tensor(), inputs[1].tensor()};
  const auto want = run_cpu(program, sizes, params);
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 5; ++i) {
        OwnedTensor y(DType::f32, {300, 130}), s(DType::f32, {5, 130});
        const OwnedTensor scratch(DType::u8, {static_cast<std::int64_t>(kernel.scratch_bytes())});
        kernel.run(params, std::vector{y.tensor(), s.tensor()},
                   {scratch.as<std::byte>(), kernel.scratch_bytes()});
        wrong[static_cast<std::size_t>(t)] +=
            std::memcmp(y.as<float>(), want[0].as<float>(), y.bytes()) != 0 ||
            std::memcmp(s.as<float>(), want[1].as<float>(), s.bytes()) != 0;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

TEST(CpuRun, NaNStaysNaN) {
  const Program program = program_of(
      "program p(x: f32[M, N], w: f32[N]) -> (a: bf16[M, N], b: f16[M, N], c: f32[M], d: f32[M], "
      "e: f32[M], f: f32[M, N]) {\n"
      "  a = exp(x) + log(x) + tanh(x) + sigmoid(x) + erf(x)\n  b = min(w, x) + max(x, w)\n"
      "  c = max(x, N)\n  d = logsumexp(x, N)\n  e = sum(x, N)\n  f = min(x, w)\n}");
  OwnedTensor x(DType::f32, {2, 70}), w(DType::f32, {70});
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (int i = 0; i < 140; ++i) x.as<float>()[i] = i < 70 ? 1.0f : nan;
  x.as<float>()[5] = nan;
  const auto got = run_cpu(program, {{"M", 2}, {"N", 70}}, std::vector{x.tensor(), w.tensor()});
  for (std::size_t r = 0; r < got.size(); ++r) {
    const std::int64_t n = got[r].tensor().elements();
    for (std::int64_t i = n == 2 ? 0 : 70; i < n; ++i) {
      ASSERT_TRUE(std::isnan(load(got[r].tensor().dtype, got[r].tensor().data, i)))
          << r << " " << i;
    }
  }
}

TEST(CpuRun, MapsKeepTheirLimits) {
  const Program program = program_of(
      "program p(x: f32[N]) -> (a: f32[N], b: f32[N], c: f32[N], d: f32[N], e: f32[N]) {\n"
      "  a = exp(x)\n  b = log(x)\n  c = tanh(x)\n  d = sigmoid(x)\n  e = erf(x)\n}");
  const float inf = std::numeric_limits<float>::infinity();
  const float xs[] = {inf, -inf, 0, 1e-40f, 88.7f, -100, 3e38f, -1e-20f, 0.7f, -12.5f};
  OwnedTensor x(DType::f32, {10});
  std::copy_n(xs, 10, x.as<float>());
  const auto got = run_cpu(program, {{"N", 10}}, std::vector{x.tensor()});
  for (int i = 0; i < 10; ++i) {
    const double v = xs[i];
    const double want[] = {std::exp(v), v < 0 ? NAN : std::log(v), std::tanh(v),
                           1 / (1 + std::exp(-v)), std::erf(v)};
    for (std::size_t r = 0; r < 5; ++r) {
      const float near = static_cast<float>(want[r]), is = got[r].as<float>()[i];
      if (std::isnan(near)) {
        EXPECT_TRUE(std::isnan(is)) << r << " of " << v;
      } else if (std::isinf(near)) {
        EXPECT_EQ(is, near) << r << " of " << v;
      } else {
        EXPECT_NEAR(is, near, 3e-7 * std::abs(near) + 3e-45) << r << " of " << v;
      }
    }
  }
}

TEST(CpuRun, SaysHowItRuns) {
  const Program program =
      program_of("program p(x: f32[K, M], w: f32[K, N]) -> (y: f32[M, N]) { y = x @ w }");
  const Kernel kernel = cpu_with(1).compile(check(program), {{"M", 512}, {"N", 1024}, {"K", 8}});
  EXPECT_NE(kernel.note().find("tiles of"), std::string::npos) << kernel.note();
  EXPECT_NE(kernel.note().find("packs x"), std::string::npos) << kernel.note();
  EXPECT_EQ(cpu_with(1).name(), "cpu");
  EXPECT_EQ(cpu_with(1).refusal(check(program), {{"M", 1}, {"N", 1}, {"K", 1}}), std::nullopt);
}

}  // namespace
}  // namespace coda::testing
