// tests/partition_layers_test.cpp: the kernels of whole layers are those of the derivation by hand,
// and cutting a deep stack takes no time.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <ctime>

#include "coda/check/check.h"
#include "coda/program/library.h"
#include "coda/program/text.h"
#include "coda/rewrite/partition.h"
#include "coda/rewrite/rewrite.h"
#include "coda/rewrite/simplify.h"
#include "coda/rewrite/stack.h"
#include "tests/random_block.h"
#include "tests/training_gradients.h"

namespace coda {
namespace {

// The kernels of a schedule by what they store, attention's aside.
std::string shape(const Schedule& schedule) {
  std::string text;
  for (const Step& step : schedule.steps) {
    const KernelKind kind = check(step.program).kind();
    if (kind == KernelKind::opaque) continue;
    text += text.empty() ? "" : " ";
    text += kind == KernelKind::gemm ? "gemm(" : "stream(";
    for (std::size_t i = 0; i < step.outputs.size(); ++i) {
      text += (i == 0 ? "" : ", ") + step.outputs[i];
    }
    text += ")";
  }
  return text;
}

std::size_t products(std::span<const Node> nodes) {
  return static_cast<std::size_t>(
      std::ranges::count_if(nodes, [](const Node& node) { return node.op == Op::product; }));
}

void expect_no_product_twice(const Partition& partition) {
  std::size_t count = 0;
  for (const Step& step : partition.schedule.steps) count += products(step.program.nodes());
  EXPECT_EQ(count, products(partition.block.nodes()));
}

// ---- between two attentions, the algebra done by hand ----

constexpr std::string_view kBetween = R"(
use "prelude.coda"
block forward(
    x: bf16[B*S, D], a: bf16[B*S, H*E], wo: bf16[D, H*E], gamma1: bf16[D], gate: bf16[F, D],
    up: bf16[F, D], down: bf16[D, F], gamma2: bf16[D], wq: bf16[H*E, D], wk: bf16[G*E, D],
    wv: bf16[G*E, D], cos: f32[S, E/2], sin: f32[S, E/2], eps: f32
) -> (
    o: bf16[B*S, D], q: bf16[B*S, H*E], k: bf16[B*S, G*E], v: bf16[B*S, G*E], h: bf16[B*S, D],
    p1: bf16[B*S, D], r1: f32[B*S], g: bf16[B*S, F], u: bf16[B*S, F], y: bf16[B*S, F],
    p2: bf16[B*S, D], r2: f32[B*S]
) {
  h = x + a @ wo
  p1 = h * gamma1
  r1 = rsqrt(sum(h * h, D) / size(D) + eps)
  g = r1 * (p1 @ gate)
  u = r1 * (p1 @ up)
  y = silu(g) * u
  o = h + y @ down
  p2 = o * gamma2
  r2 = rsqrt(sum(o * o, D) / size(D) + eps)
  q = rope(r2 * (p2 @ wq), cos, sin)
  k = rope(r2 * (p2 @ wk), cos, sin)
  v = r2 * (p2 @ wv)
}
block backward(
    do: bf16[B*S, D], dq: bf16[B*S, H*E], dk: bf16[B*S, G*E], dv: bf16[B*S, G*E],
    a: bf16[B*S, H*E], wo: bf16[D, H*E], gamma1: bf16[D], gate: bf16[F, D], up: bf16[F, D],
    down: bf16[D, F], gamma2: bf16[D], wq: bf16[H*E, D], wk: bf16[G*E, D], wv: bf16[G*E, D],
    cos: f32[S, E/2], sin: f32[S, E/2], eps: f32, o: bf16[B*S, D], q: bf16[B*S, H*E],
    k: bf16[B*S, G*E], v: bf16[B*S, G*E], h: bf16[B*S, D], p1: bf16[B*S, D], r1: f32[B*S],
    g: bf16[B*S, F], u: bf16[B*S, F], y: bf16[B*S, F], p2: bf16[B*S, D], r2: f32[B*S]
) -> (
    dx: bf16[B*S, D], da: bf16[B*S, H*E], dwo: +f32[D, H*E], dgamma1: bf16[D], dgate: +bf16[F, D],
    dup: +bf16[F, D], ddown: +f32[D, F], dgamma2: bf16[D], dwq: +f32[H*E, D], dwk: +f32[G*E, D],
    dwv: +f32[G*E, D]
) {
  t2 = sum(dq * q, H*E) + sum(dk * k, G*E) + sum(dv * v, G*E)
  zq = r2 * rope(dq, cos, -sin)
  zk = r2 * rope(dk, cos, -sin)
  zv = r2 * dv
  s2 = zq @ wq + zk @ wk + zv @ wv
  do2 = do + s2 * gamma2 - o * (r2 * r2 * t2 / size(D))
  dgamma2 = sum(s2 * o, B*S)
  dwq += zq @[B, S] p2
  dwk += zk @[B, S] p2
  dwv += zv @[B, S] p2
  s3 = do2 @ down
  dg = s3 * u * silu_grad(g)
  du = s3 * silu(g)
  t1 = sum(dg * g + du * u, F)
  dg1 = r1 * dg
  du1 = r1 * du
  ddown += do2 @[B, S] y
  s5 = dg1 @ gate + du1 @ up
  dx = do2 + s5 * gamma1 - h * (r1 * r1 * t1 / size(D))
  dgamma1 = sum(s5 * h, B*S)
  dgate += dg1 @[B, S] p1
  dup += du1 @[B, S] p1
  da = dx @ wo
  dwo += dx @[B, S] a
}
)";

TEST(PartitionLayers, BetweenTwoAttentionsAreFourKernelsForwardAndNineBackward) {
  const Module module = parse(kBetween, "between.coda");
  const Partition forward = partition(simplify(module.find("forward")));
  EXPECT_EQ(shape(forward.schedule),
            "gemm(h, p1, block_sum) gemm(r1, g, u, y) gemm(o, p2, block_sum_1) gemm(r2, q, k, v)");
  expect_no_product_twice(forward);
  // Gradients of weights accumulate in their products' kernels, which also finish those of gammas.
  const Partition backward = partition(simplify(module.find("backward")));
  EXPECT_EQ(shape(backward.schedule),
            "stream(zq, zk, zv, div) gemm(dwq, dwk, dwv) gemm(do2, dgamma2_block_sum) "
            "gemm(dgamma2, ddown) gemm(t1_block_sum, dg1, du1) gemm(dx, dgamma1_block_sum) "
            "gemm(dgamma1, dgate, dup) gemm(da) gemm(dwo)");
  expect_no_product_twice(backward);
}

// ---- from the text ----

struct Family {
  std::string_view file;
  std::array<int, 2> gemms, kernels;  // of three layers with embedding, head and loss, by phase
};

TEST(PartitionLayers, StacksOfEveryFamilyHaveTheKernelsOfTheTables) {
  const std::vector<Family> families = {
      {"llama.coda", {13, 26}, {16, 31}}, {"qwen2.coda", {13, 26}, {16, 31}},
      {"qwen3.coda", {13, 26}, {16, 32}}, {"gpt2.coda", {20, 26}, {23, 33}},
      {"gemma.coda", {13, 26}, {22, 37}}, {"parallel.coda", {7, 14}, {10, 19}},
  };
  for (const Family& family : families) {
    SCOPED_TRACE(family.file);
    const Program program =
        stack(parse(*embedded_program(family.file), std::string(family.file)), 3);
    GradOptions gradients = testing::training_gradients(program);
    gradients.of = {"loss"};
    const Rewritten made = rewrite(program, gradients);
    for (const std::size_t half : {0, 1}) {
      const Partition& partition = half == 0 ? made.forward : *made.backward;
      int gemms = 0, kernels = 0;
      for (const Step& step : partition.schedule.steps) {
        const KernelKind kind = check(step.program).kind();
        gemms += kind == KernelKind::gemm ? 1 : 0;
        kernels += kind == KernelKind::opaque ? 0 : 1;
      }
      EXPECT_LE(gemms, family.gemms[half]);
      EXPECT_LE(kernels, family.kernels[half]);
      expect_no_product_twice(partition);
    }
  }
}

TEST(PartitionLayers, GradientsOfTablesAndScalarsCostOneKernelInAll) {
  const auto kernels = [](int layers, bool tables) {
    const Program program = stack(parse(*embedded_program("llama.coda"), "llama.coda"), layers);
    GradOptions gradients{.of = {"loss"}};
    for (const Param& param : program.params()) {
      const bool table = param.type.is_scalar() || param.name == "cos" || param.name == "sin";
      if (is_float(param.type.dtype) && (tables || !table)) gradients.wrt.push_back(param.name);
    }
    return static_cast<int>(rewrite(program, gradients).backward->schedule.steps.size());
  };
  EXPECT_LE(kernels(1, true), kernels(1, false) + 1);
  EXPECT_LE(kernels(3, true), kernels(3, false) + 1);
}

// ---- the search ----

TEST(PartitionLayers, NoCutIsDearerThanTheGreedyOne) {
  int better = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    const Partition cut = partition(simplify(testing::RandomBlock(seed).make(20)));
    EXPECT_LE(cut.seconds, cut.greedy * (1 + 1e-12)) << seed;
    better += cut.seconds < cut.greedy ? 1 : 0;
  }
  EXPECT_GT(better, 20);
}

TEST(PartitionLayers, CuttingIsDeterministic) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    const Program program = simplify(testing::RandomBlock(seed).make(20));
    const Schedule a = partition(program).schedule, b = partition(program).schedule;
    ASSERT_EQ(a.steps.size(), b.steps.size());
    for (std::size_t s = 0; s < a.steps.size(); ++s) {
      EXPECT_EQ(print(a.steps[s].program), print(b.steps[s].program));
    }
  }
}

#ifndef __SANITIZE_ADDRESS__
double cpu_seconds(const Program& block, Partition& made) {
  const std::clock_t start = std::clock();
  made = partition(block);
  return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

TEST(PartitionLayers, ADeepStackIsCutInLittleMoreThanLinearTime) {
  const auto halves = [](int layers) {
    const Program program = stack(parse(*embedded_program("llama.coda"), "llama.coda"), layers);
    const Rewritten made = rewrite(program, {.of = {"loss"}});
    return std::pair(made.forward.block, made.backward->block);
  };
  const auto [forward, backward] = halves(32);
  EXPECT_GT(forward.nodes().size() + backward.nodes().size(), 4000u);
  Partition made;
  const double seconds = cpu_seconds(forward, made) + cpu_seconds(backward, made);
  EXPECT_LT(seconds, 0.8) << "it is about 0.2 on one core";
  RecordProperty("milliseconds", static_cast<int>(1e3 * seconds));
}
#endif

}  // namespace
}  // namespace coda
