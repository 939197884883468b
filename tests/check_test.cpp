// tests/check_test.cpp: the kernels of a Llama layer, and rules 1 and 2: operands and how products
// combine.

#include "tests/checked.h"

namespace coda {
namespace {

// ---- the Llama layer between two attentions: all of its kernels ----

TEST(Check, AcceptsResidualNormWithItsPartialStatistic) {
  const Checked f1 = accepted(R"(
program f1(a: bf16[M, A], wo: bf16[D, A], x: bf16[M, D], gamma: bf16[D])
    -> (h: bf16[M, D], p: bf16[M, D], ss: f32[M, blocks(D)]) {
  h = x + a @ wo
  p = h * gamma
  ss = block_sum(h * h, D)
})");
  EXPECT_EQ(summary(f1), "gemm M x D: 1 -> h p ss");
  EXPECT_EQ(roles(f1, 0, "x"), "M:row/1 D:column");
  EXPECT_EQ(roles(f1, 0, "gamma"), "D:column");
  EXPECT_EQ(roles(f1, 0, "ss"), "M:row/1 blocks(D):column");
  EXPECT_EQ(roles(f1, 0, "a"), "") << "an operand alone is no value of the tile";
}

TEST(Check, AcceptsPairedProductsWithAFinishedStatistic) {
  const Checked f2 = accepted(R"(
program f2(p: bf16[M, K], ss: f32[M, blocks(K)], gate: bf16[F, K], up: bf16[F, K], eps: f32)
    -> (g: bf16[M, F], u: bf16[M, F], y: bf16[M, F], r: f32[M]) {
  r = rsqrt(sum(ss, blocks(K)) / size(K) + eps)
  g = r * (p @ gate)
  u = r * (p @ up)
  y = g * sigmoid(g) * u
})");
  EXPECT_EQ(summary(f2), "gemm M x F: 1 1 -> g u y r");
  EXPECT_EQ(roles(f2, 0, "ss"), "M:row/1 blocks(K):local");
  EXPECT_EQ(roles(f2, 0, "r"), "M:row/1");
}

TEST(Check, AcceptsQkvSideBySideWithRope) {
  const Checked f4 = accepted(R"(
program f4(p: bf16[B*S, D], ss: f32[B*S, blocks(D)], wq: bf16[H*E, D], wk: bf16[G*E, D],
           wv: bf16[G*E, D], cos: f32[S, E/2], sin: f32[S, E/2], eps: f32)
    -> (q: bf16[B*S, H*E], k: bf16[B*S, G*E], v: bf16[B*S, G*E], r: f32[B*S]) {
  r = rsqrt(sum(ss, blocks(D)) / size(D) + eps)
  a, b = split(r * (p @ wq), E: E/2, E/2)
  q = join(E: a * cos - b * sin, b * cos + a * sin)
  c, d = split(r * (p @ wk), E: E/2, E/2)
  k = join(E: c * cos - d * sin, d * cos + c * sin)
  v = r * (p @ wv)
})");
  EXPECT_EQ(summary(f4), "gemm B*S x H*E: 1 -> q r | B*S x G*E: 1 -> k | B*S x G*E: 1 -> v");
  EXPECT_EQ(roles(f4, 0, "cos"), "S:row/1 E/2:column");
  EXPECT_EQ(roles(f4, 1, "a"), "");
  EXPECT_EQ(roles(f4, 1, "c"), "B:row/S S:row/1 G:column E/2:column");
  EXPECT_EQ(roles(f4, 2, "cos"), "");
}

TEST(Check, AcceptsTheBackwardStreamingStep) {
  const Checked b0 = accepted(R"(
program b0(dq: bf16[B*S, H*E], dk: bf16[B*S, G*E], dv: bf16[B*S, G*E], q: bf16[B*S, H*E],
           k: bf16[B*S, G*E], v: bf16[B*S, G*E], cos: f32[S, E/2], sin: f32[S, E/2], r: f32[B*S])
    -> (zq: bf16[B*S, H*E], zk: bf16[B*S, G*E], zv: bf16[B*S, G*E], c: f32[B*S]) {
  t = sum(dq * q, H*E) + sum(dk * k, G*E) + sum(dv * v, G*E)
  a, b = split(dq, E: E/2, E/2)
  zq = r * join(E: a * cos + b * sin, b * cos - a * sin)
  d, e = split(dk, E: E/2, E/2)
  zk = r * join(E: d * cos + e * sin, e * cos - d * sin)
  zv = r * dv
  c = r * r * t / (size(H) * size(E))
})");
  EXPECT_EQ(summary(b0), "stream B*S x H*E: -> zq zk zv c");
  EXPECT_EQ(roles(b0, 0, "cos"), "S:row/1 E/2:column");
  EXPECT_EQ(roles(b0, 0, "dk"), "B:row/S S:row/1 G:column E:column");
}

TEST(Check, AcceptsSummedProductsAndBlockSumsAlongRows) {
  const Checked b1 = accepted(R"(
program b1(zq: bf16[M, A], zk: bf16[M, C], zv: bf16[M, C], wq: bf16[A, D], wk: bf16[C, D],
           wv: bf16[C, D], do: bf16[M, D], gamma: bf16[D], o: bf16[M, D], c: f32[M])
    -> (do2: bf16[M, D], dgamma: f32[blocks(M), D]) {
  s = zq @ wq + zk @ wk + zv @ wv
  do2 = do + s * gamma - o * c
  dgamma = block_sum(s * o, M)
})");
  EXPECT_EQ(summary(b1), "gemm M x D: 3 -> do2 dgamma");
  EXPECT_EQ(roles(b1, 0, "dgamma"), "blocks(M):row/1 D:column");
}

TEST(Check, AcceptsStackedWeightGradients) {
  EXPECT_EQ(summary(accepted(R"(
program b2(zq: bf16[M, A], zk: bf16[M, C], zv: bf16[M, C], p: bf16[M, D])
    -> (dwq: +f32[A, D], dwk: +f32[C, D], dwv: +f32[C, D]) {
  dwq += zq @ p
  dwk += zk @ p
  dwv += zv @ p
})")),
            "gemm A x D: 1 -> dwq | C x D: 1 -> dwk | C x D: 1 -> dwv");
}

TEST(Check, AcceptsTheSwigluBackwardWithItsRowDot) {
  EXPECT_EQ(summary(accepted(R"(
program b3(do2: bf16[M, D], down: bf16[D, F], g: bf16[M, F], u: bf16[M, F], r: f32[M])
    -> (dg: bf16[M, F], du: bf16[M, F], t: f32[M, blocks(F)]) {
  s = do2 @ down
  e = sigmoid(g)
  a = s * u * e * (1 + g * (1 - e))
  b = s * g * e
  dg = r * a
  du = r * b
  t = block_sum(a * g + b * u, F)
})")),
            "gemm M x F: 1 -> dg du t");
}

TEST(Check, AcceptsTheNormBackwardAfterTwoSummedProducts) {
  EXPECT_EQ(summary(accepted(R"(
program b5(dg: bf16[M, F], du: bf16[M, F], gate: bf16[F, D], up: bf16[F, D], do2: bf16[M, D],
           gamma: bf16[D], h: bf16[M, D], r: f32[M], t: f32[M, blocks(F)])
    -> (dh: bf16[M, D], dgamma: f32[blocks(M), D]) {
  s = dg @ gate + du @ up
  dh = do2 + s * gamma - h * (r * r * sum(t, blocks(F)) / size(D))
  dgamma = block_sum(s * h, M)
})")),
            "gemm M x D: 2 -> dh dgamma");
}

TEST(Check, AcceptsAWeightGradientThatFinishesStatisticsOfItsRows) {
  const Checked b8 = accepted(R"(
program b8(dh: bf16[M, D], a: bf16[M, A], g1: f32[blocks(M), D], g2: f32[blocks(M), D])
    -> (dwo: +f32[D, A], dgamma1: f32[D], dgamma2: f32[D]) {
  dwo += dh @ a
  dgamma1 = sum(g1, blocks(M))
  dgamma2 = sum(g2, blocks(M))
})");
  EXPECT_EQ(summary(b8), "gemm D x A: 1 -> dwo dgamma1 dgamma2");
  EXPECT_EQ(roles(b8, 0, "g1"), "blocks(M):local D:row/1");
}

// ---- rule 1: operands ----

TEST(CheckOperands, SeeInputsThroughCastsRangesAndRenames) {
  const Checked checked = accepted(R"(
program f(x: f32[M, K], w: bf16[C, 2*F]) -> (y: f32[M, F]) {
  a, b = split(w, 2: 1, 1)
  y = bf16(x) @ (a as [K, F])
})");
  EXPECT_EQ(summary(checked), "gemm M x F: 1 -> y");
  const Accumulator::Term& term = checked.spaces()[0].accumulators[0].terms[0];
  EXPECT_EQ(checked.program().params()[static_cast<std::size_t>(term.left.input.id)].name, "x");
  EXPECT_EQ(term.left.chain.size(), 1u);
  EXPECT_EQ(checked.program().params()[static_cast<std::size_t>(term.right.input.id)].name, "w");
  ASSERT_EQ(term.right.chain.size(), 2u);
  EXPECT_EQ(checked.program().nodes()[static_cast<std::size_t>(term.right.chain[0])].op, Op::split);
  EXPECT_EQ(checked.program().nodes()[static_cast<std::size_t>(term.right.chain[1])].op, Op::as);
  EXPECT_TRUE(checked.spaces()[0].nodes.empty());
}

TEST(CheckOperands, ARowScaleIsRefusedWithTheCommutedForm) {
  const std::string errors = refused(
      "program f(r: f32[M], p: bf16[M, K], w: bf16[N, K]) -> (y: f32[M, N]) { y = (r * p) @ w }");
  expect_contains(errors, "`r * p`, is computed in this program");
  expect_contains(errors, "write `r * (p @ w)`: a row scale commutes with the product");
  expect_contains(errors, "store it in an earlier program");
  expect_contains(errors, "test.coda:1:");
  expect_contains(errors, "w: bf16[N, K]");
  expect_contains(refused("program f(r: f32[M], p: bf16[M, K], w: bf16[N, K]) -> (y: f32[M, N]) {"
                          " y = (p / r) @ w }"),
                  "write `(p @ w) / r`");
}

TEST(CheckOperands, AColumnScaleHasNoCommutedForm) {
  const std::string errors = refused(
      "program f(g: f32[K], p: bf16[M, K], w: bf16[N, K]) -> (y: f32[M, N]) { y = (g * p) @ w }");
  EXPECT_EQ(errors.find("commutes"), std::string::npos) << errors;
}

TEST(CheckOperands, AProductOfAProductIsRefusedOnce) {
  const std::string errors = refused(R"(
block mlp(x: f32[M, D], gate: f32[F, D], up: f32[F, D], down: f32[D, F]) -> (y: f32[M, D]) {
  y = ((x @ gate) * (x @ up)) @ down
})");
  expect_contains(errors, "the left operand of the product");
  EXPECT_EQ(errors.find("error:", errors.find("error:") + 1), std::string::npos) << errors;
}

// ---- rule 2: how products combine ----

TEST(CheckProducts, AProductThatSomethingElseReadsIsNotSummed) {
  EXPECT_EQ(summary(accepted(R"(
program f(x: f32[M, K], y: f32[M, K], w: f32[N, K]) -> (a: f32[M, N], b: f32[M, N]) {
  a = x @ w
  b = a + y @ w
})")),
            "gemm M x N: 1 1 -> a b");
}

TEST(CheckProducts, ATurnedProductIsSummedIntoTheSameTile) {
  const Checked checked = accepted(R"(
program f(x: f32[M, K], w: f32[N, K], a: f32[M, L], b: f32[N, L]) -> (y: f32[M, N]) {
  y = x @ w + b @ a
})");
  EXPECT_EQ(summary(checked), "gemm M x N: 2 -> y");
  const Accumulator::Term& second = checked.spaces()[0].accumulators[0].terms[1];
  EXPECT_EQ(checked.program().params()[static_cast<std::size_t>(second.left.input.id)].name, "a");
}

TEST(CheckProducts, ATurnedProductPairs) {
  EXPECT_EQ(summary(accepted(R"(
program f(x: f32[M, K], w: f32[N, K], v: f32[N, K]) -> (y: f32[M, N]) {
  y = (x @ w) * (v @ x)
})")),
            "gemm M x N: 1 1 -> y");
}

TEST(CheckProducts, RenamedColumnsPair) {
  const Checked checked = accepted(R"(
program f(x: bf16[M, D], w: bf16[E, D], v: bf16[F, D]) -> (y: f32[M, D]) {
  y = x + (x @ w) as [M, D] * (x @ v) as [M, D]
})");
  EXPECT_EQ(summary(checked), "gemm M x E: 1 1 -> y");
  EXPECT_EQ(roles(checked, 0, "x"), "M:row/1 D:column");
}

TEST(CheckProducts, UnrelatedOnesAreRefused) {
  const std::string errors = refused(R"(
program f(x: f32[M, K], w: f32[N, K], y: f32[M, L], v: f32[N, L])
    -> (a: f32[M, N], b: f32[M, N]) {
  a = x @ w
  b = y @ v
})");
  expect_contains(errors, "`b` has no operand in common with `a`");
  expect_contains(errors, "write two programs");
  expect_contains(errors, "b: f32[M, N]");
}

TEST(CheckProducts, AnOperandContractedOverOtherDimensionsIsUnrelated) {
  expect_contains(refused(R"(
program f(dz: f32[M, N], x: f32[M, K], w: f32[N, K]) -> (dx: f32[M, K], dw: f32[N, K]) {
  dx = dz @ w
  dw = dz @ x
})"),
                  "no operand in common");
}

TEST(CheckProducts, TwoRangesOfOneInputAreTwoOperands) {
  expect_contains(refused(R"(
program f(x: f32[M, K], y: f32[M, K], w: f32[N, K]) -> (p: f32[M, F], q: f32[M, F]) {
  a, b = split(w, N: F, F)
  p = x @ a
  q = y @ b
})"),
                  "no operand in common");
}

TEST(CheckProducts, DifferentTilesMayNotMeet) {
  expect_contains(refused(R"(
program f(x: f32[M, K], w: f32[N, K], v: f32[K]) -> (y: f32[M, N]) {
  y = (x @ w) * (x @ v)
})"),
                  "meet in one value, but their tiles differ");
}

TEST(CheckProducts, AtMostFourArePaired) {
  expect_contains(refused(R"(
program f(x: f32[M, K], a: f32[N, K], b: f32[N, K], c: f32[N, K], d: f32[N, K], e: f32[N, K])
    -> (y: f32[M, N]) {
  y = (x @ a) * (x @ b) * (x @ c) * (x @ d) * (x @ e)
})"),
                  "5 products meet in one value, at most 4");
}

TEST(CheckProducts, ADimensionIsNotARowAndAColumn) {
  expect_contains(refused(R"(
program f(x: f32[N, K], w: f32[P, K]) -> (y: f32[N, P]) {
  h = x @ w
  y = h * (h as [P, N])
})"),
                  "row in one place and a column in another");
}

TEST(CheckProducts, AnyFactorsMayBeContracted) {
  EXPECT_EQ(summary(accepted("program f(x: f32[B*S, H*E], w: f32[N, E]) -> (y: f32[B*S, H, N]) {"
                             " y = x @ w }")),
            "gemm B*S, H x N: 1 -> y");
  EXPECT_EQ(summary(accepted("program f(x: f32[A, B, C], w: f32[C, B, N]) -> (y: f32[A, N]) {"
                             " y = x @[B, C] w }")),
            "gemm A x N: 1 -> y");
  EXPECT_EQ(summary(accepted("program f(x: f32[K], w: f32[N, K]) -> (y: f32[N]) { y = x @ w }")),
            "gemm  x N: 1 -> y");
  EXPECT_EQ(summary(accepted("program f(x: f32[K], w: f32[K]) -> (y: f32) { y = x @ w }")),
            "gemm  x : 1 -> y");
}

// ---- opaque calls ----

TEST(CheckOpaque, StandsAlone) {
  EXPECT_EQ(summary(accepted(R"(
block f(q: bf16[B*S, H*E], k: bf16[B*S, G*E], v: bf16[B*S, G*E])
    -> (o: bf16[B*S, H*E], lse: f32[B*S, H]) {
  o, lse = attention(q, k, v, causal: true)
})")),
            "opaque");
  const std::string errors = refused(R"(
block f(q: bf16[B*S, H*E], k: bf16[B*S, G*E], v: bf16[B*S, G*E]) -> (o: bf16[B*S, H*E]) {
  a, lse = attention(q, k, v, causal: true)
  o = a * 2
})");
  expect_contains(errors, "stands beside other work");
  expect_contains(errors, "coda rewrite");
}

// ---- every broken rule in one run ----

TEST(Check, SaysEveryBrokenRule) {
  const std::string errors = refused(R"(
program f(x: bf16[M, K], w: bf16[N, K]) -> (s: f32[M], t: f32[N], u: f32[M/2, N]) {
  h = x @ w
  s = sum(h, N)
  t = sum(h, M)
  u, v = split(h, M: M/2, M/2)
})");
  expect_contains(errors, "`sum(h, N)` needs the whole row");
  expect_contains(errors, "`sum(h, M)` runs along the rows");
  expect_contains(errors, "`split(h, M: M/2, M/2)` divides M");
}

}  // namespace
}  // namespace coda
