// tests/check_test.cpp: which programs are one kernel, what a backend is told of them, and what the
// refused ones read.

#include "coda/check/check.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "coda/program/builder.h"
#include "coda/program/text.h"

namespace coda {
namespace {

Program program_of(const std::string& text) {
  return parse(text, "test.coda").find("");
}

Checked accepted(const std::string& text) {
  try {
    return check(program_of(text));
  } catch (const ProgramError& error) {
    ADD_FAILURE() << text << "\nwas refused: " << error.what();
    throw;
  }
}

std::string refused(const std::string& text) {
  try {
    check(program_of(text));
  } catch (const ProgramError& error) {
    std::string all;
    for (const Diagnostic& diagnostic : error.diagnostics()) all += to_string(diagnostic) + "\n";
    return all;
  }
  ADD_FAILURE() << text << "\nwas accepted";
  return "";
}

void expect_contains(const std::string& text, std::string_view part) {
  EXPECT_NE(text.find(part), std::string::npos) << "no `" << part << "` in:\n" << text;
}

std::string text_of(const std::vector<Dim>& dims) {
  std::string text;
  for (const Dim& dim : dims) text += (text.empty() ? "" : ", ") + dim.text();
  return text;
}

// "gemm M x N: 1+1 -> h p | …": each space's rows, columns, terms of its accumulators and results.
std::string summary(const Checked& checked) {
  std::string text = checked.kind() == KernelKind::gemm     ? "gemm"
                     : checked.kind() == KernelKind::stream ? "stream"
                                                            : "opaque";
  bool first = true;
  for (const Space& space : checked.spaces()) {
    text += (first ? " " : " | ") + text_of(space.rows) + " x " + text_of(space.columns) + ":";
    first = false;
    for (const Accumulator& accumulator : space.accumulators)
      text += " " + std::to_string(accumulator.terms.size());
    text += " ->";
    for (int r : space.results)
      text += " " + checked.program().results()[static_cast<std::size_t>(r)].name;
  }
  return text;
}

Value value_named(const Program& program, std::string_view name) {
  for (std::size_t v = 0; v < program.values().size(); ++v)
    if (program.values()[v].name == name) return {static_cast<std::int32_t>(v)};
  throw InternalError("no value " + std::string(name));
}

// "M:row N:column": the roles of a value in a space, rows with what stands inside them.
std::string roles(const Checked& checked, std::size_t space, std::string_view name) {
  const Value value = value_named(checked.program(), name);
  const std::vector<Factor> factors = factors_of(checked.program().type(value));
  std::string text;
  for (std::size_t f = 0; f < checked.roles(space, value).size(); ++f) {
    const Role role = checked.roles(space, value)[f];
    text += (text.empty() ? "" : " ") + factors[f].text() + ":";
    text += role == Role::row      ? "row/" + checked.row_inner(space, value)[f].text()
            : role == Role::column ? "column"
                                   : "local";
  }
  return text;
}

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

// ---- rule 3: what follows is tile-local ----

TEST(CheckTile, HeadsAreReducedSplitAndSpread) {
  const Checked checked = accepted(R"(
program f(x: bf16[M, D], w: bf16[H*E, D], g: bf16[E]) -> (y: bf16[M, H*E], s: f32[M, H]) {
  z = x @ w
  s = rsqrt(sum(z * z, E) / size(E))
  y = z * spread(s, [M, H*E]) * g
})");
  EXPECT_EQ(summary(checked), "gemm M x H*E: 1 -> y s");
  EXPECT_EQ(roles(checked, 0, "g"), "E:column");
  EXPECT_EQ(roles(checked, 0, "s"), "M:row/1 H:column");
}

TEST(CheckTile, AFactoredViewOfTheColumnsHasHeads) {
  EXPECT_EQ(summary(accepted(R"(
program f(x: bf16[M, D], w: bf16[N, D]) -> (y: bf16[M, H*(E/2)]) {
  a, b = split((x @ w) as [M, H*(E/2)*2], 2: 1, 1)
  y = a * b
})")),
            "gemm M x N: 1 -> y");
}

TEST(CheckTile, ARowStatisticOfHeadsMayUseRenamedRows) {
  const Checked checked = accepted(R"(
program f(x: bf16[M, D], w: bf16[H*E, D], cos: f32[S, E]) -> (y: bf16[B*S, H*E]) {
  y = (x @ w) as [B*S, H*E] * cos
})");
  EXPECT_EQ(roles(checked, 0, "cos"), "S:row/1 E:column");
  EXPECT_EQ(roles(checked, 0, "y"), "B:row/S S:row/1 H:column E:column");
}

TEST(CheckTile, PackedColumnsAreRangesAndMayBeJoinedAgain) {
  EXPECT_EQ(summary(accepted(R"(
program f(x: bf16[M, D], w: bf16[N, D], g: bf16[E])
    -> (q: bf16[M, H*E], k: bf16[M, G*E], z: bf16[M, N]) {
  a, b, c = split(x @ w, N: H*E, G*E, G*E)
  q = a * g
  k = b * g
  z = join(a * 2, b * 3, c, N: H*E, G*E, G*E)
})")),
            "gemm M x N: 1 -> q k z");
}

TEST(CheckTile, PiecesOfOneProductMayNotMeet) {
  const std::string errors = refused(R"(
program f(x: bf16[M, D], w: bf16[N, D]) -> (y: bf16[M, F]) {
  g, u = split(x @ w, N: F, F)
  y = g * u
})");
  expect_contains(errors, "`g` and `u` are different columns of one product");
  expect_contains(errors, "split the weight instead of the product");
}

TEST(CheckTile, PickGivesRowsAndMeetsRowsOnly) {
  EXPECT_EQ(summary(accepted(R"(
program f(x: bf16[M, D], w: bf16[V, D], ids: i32[M], r: f32[M])
    -> (t: f32[M], l: f32[M, blocks(V)]) {
  z = x @ w
  t = r * pick(z, ids)
  l = block_logsumexp(z, V)
})")),
            "gemm M x V: 1 -> t l");
  expect_contains(refused(R"(
program f(x: bf16[M, D], w: bf16[V, D], ids: i32[M]) -> (y: f32[M, V]) {
  z = x @ w
  y = z - pick(z, ids)
})"),
                  "a picked element meets the columns of a tile");
  expect_contains(refused(R"(
program f(x: bf16[M, D], w: bf16[V, D], ids: i32[M]) -> (y: f32[blocks(M)]) {
  y = block_sum(pick(x @ w, ids), M)
})"),
                  "reduces a picked element");
}

TEST(CheckTile, GathersReadInputs) {
  const Checked checked = accepted(R"(
program f(x: bf16[M, D], w: bf16[N, D], table: bf16[V, N], ids: i32[M]) -> (y: bf16[M, N]) {
  y = x @ w + table[ids]
})");
  EXPECT_EQ(roles(checked, 0, "table"), "V:local N:column");
  EXPECT_EQ(roles(checked, 0, "ids"), "M:row/1");
  expect_contains(refused(R"(
program f(x: bf16[M, D], w: bf16[N, D], table: bf16[V, N], ids: i32[M]) -> (y: bf16[M, N]) {
  y = x @ w + (table * 2)[ids]
})"),
                  "gathers from a computed table");
}

TEST(CheckTile, LayoutOfRowsIsOfInputsOnly) {
  EXPECT_EQ(summary(accepted(R"(
program f(x: bf16[M, D], w: bf16[N, D], t: f32[L, N]) -> (y: bf16[M, N]) {
  a, b = split(t, L: M, L - M)
  y = x @ w + a
})")),
            "gemm M x N: 1 -> y");
  expect_contains(refused(R"(
program f(x: bf16[M, D], w: bf16[N, D]) -> (a: bf16[M/2, N], b: bf16[M/2, N]) {
  a, b = split(x @ w, M: M/2, M/2)
})"),
                  "ranges of rows are ranges of inputs");
}

TEST(CheckTile, JoinsOfColumnsAreOfTheTile) {
  expect_contains(refused(R"(
program f(x: bf16[M, D], w: bf16[N, D], a: f32[A], c: f32[C]) -> (y: bf16[M, N]) {
  y = x @ w + join(a, c, N: A, C)
})"),
                  "joins columns of a tile with columns of an input");
  EXPECT_EQ(summary(accepted(R"(
program f(x: bf16[M, D], w: bf16[H*E, D], a: f32[M, E/2]) -> (y: bf16[M, H*E]) {
  y = (x @ w) * join(E: a, a)
})")),
            "gemm M x H*E: 1 -> y");
}

TEST(CheckTile, ScatterIsAProgramOfItsOwn) {
  expect_contains(refused(R"(
program f(x: bf16[M, D], w: bf16[N, D], ids: i32[M]) -> (y: f32[V, N]) {
  y = scatter_sum(x @ w, ids, V)
})"),
                  "make scatter_sum a program of its own");
}

TEST(CheckTile, ValuesHaveRowsAndColumnsOnly) {
  expect_contains(refused(R"(
program f(x: bf16[M, D], w: bf16[N, D], t: f32[T]) -> (y: bf16[M, N, T]) { y = (x @ w) * t })"),
                  "`T` of `y` is neither a row nor a column of the tile");
}

TEST(CheckTile, RowsRunInOneOrder) {
  expect_contains(refused(R"(
program f(x: bf16[B*S, D], w: bf16[N, D], y: bf16[S*B, L], v: bf16[N, L]) -> (z: f32[B*S, N]) {
  z = (x @ w) * (y @ v)
})"),
                  "two orders");
}

// ---- rule 4: reductions of tile values ----

TEST(CheckReductions, AWholeRowIsRefusedWithItsTwoSteps) {
  const std::string errors = refused(R"(
program f(x: bf16[M, K], w: bf16[N, K]) -> (h: bf16[M, N], ss: f32[M]) {
  h = x @ w
  ss = sum(h * h, N)
})");
  expect_contains(errors,
                  "`sum(h * h, N)` needs the whole row but a tile sees at most 256 columns");
  expect_contains(errors,
                  "store `block_sum(h * h, N)` here and finish it with `sum(ss, blocks(N))` in the "
                  "next program");
  expect_contains(errors, "test.coda:4:");
  expect_contains(errors, "ss = sum(h * h, N)");
}

TEST(CheckReductions, AWholeColumnIsRefused) {
  expect_contains(refused(R"(
program f(x: bf16[M, K], w: bf16[N, K]) -> (s: f32[N]) { s = max(x @ w, M) })"),
                  "store `block_max(x @ w, M)` here and finish it with `max(s, blocks(M))`");
}

TEST(CheckReductions, SumsOverHeadsAreRefused) {
  expect_contains(refused(R"(
program f(x: bf16[M, K], w: bf16[H*E, K]) -> (s: f32[M, E]) { s = sum(x @ w, H) })"),
                  "needs the whole row");
}

TEST(CheckReductions, BlocksFitATile) {
  expect_contains(refused(R"(
program f(x: bf16[M, K], w: bf16[N, K]) -> (s: f32[M, blocks(N, 512)]) {
  s = block_sum(x @ w, N, 512)
})"),
                  "blocks of 512, a tile holds at most 256");
  expect_contains(refused(R"(
program f(x: bf16[B*S, K], w: bf16[N, K]) -> (s: f32[B*blocks(S), N]) {
  s = block_sum(x @ w, S)
})"),
                  "are not blocks of a tile's rows");
  EXPECT_EQ(summary(accepted(R"(
program f(x: bf16[B*S, K], w: bf16[H*E, K])
    -> (s: f32[blocks(B*S), H*E], t: f32[B*S, H*blocks(E)], u: f32[B*S, blocks(H*E, 128)]) {
  z = x @ w
  s = block_sum(z, B*S)
  t = block_sum(z, E)
  u = block_sum(z, H*E, 128)
})")),
            "gemm B*S x H*E: 1 -> s t u");
}

TEST(CheckReductions, RowsAndBlocksOfRowsDoNotMeet) {
  expect_contains(refused(R"(
program f(x: bf16[M, K], w: bf16[N, K]) -> (y: f32[blocks(M), N, M]) {
  z = x @ w
  y = block_sum(z, M) * z
})"),
                  "along the rows");
}

// ---- rule 5: statistics of inputs ----

TEST(CheckStatistics, OfInputsAreFinished) {
  const Checked checked = accepted(R"(
program f(p: bf16[M, K], w: bf16[N, K], x: bf16[M, K]) -> (y: bf16[M, N], r: f32[M]) {
  r = rsqrt(sum(x * x, K) / size(K))
  y = r * (p @ w)
})");
  EXPECT_EQ(roles(checked, 0, "x"), "M:row/1 K:local");
  EXPECT_EQ(summary(checked), "gemm M x N: 1 -> y r");
}

TEST(CheckStatistics, ThatAreResultsLieAlongTheTile) {
  expect_contains(refused(R"(
program f(p: bf16[M, K], w: bf16[N, K], ss: f32[L, blocks(K)]) -> (y: bf16[M, N], r: f32[L]) {
  r = sum(ss, blocks(K))
  y = p @ w
})"),
                  "has L, which is neither a row nor a column of the kernel");
}

// ---- rule 6: streams ----

TEST(CheckStream, SumsWholeRows) {
  const Checked checked = accepted(R"(
program softmax(x: f32[M, N]) -> (y: f32[M, N]) {
  e = exp(x - max(x, N))
  y = e / sum(e, N)
})");
  EXPECT_EQ(summary(checked), "stream M x N: -> y");
}

TEST(CheckStream, SumsAlongRowsByBlocksOnly) {
  EXPECT_EQ(summary(accepted(R"(
program f(x: f32[M, N], d: f32[M, N]) -> (y: f32[M, N], g: f32[blocks(M), N]) {
  y = x * 2
  g = block_sum(x * d, M)
})")),
            "stream M x N: -> y g");
  const std::string errors =
      refused("program f(x: f32[M, N], d: f32[M, N]) -> (g: f32[N]) { g = sum(x * d, M) }");
  expect_contains(errors, "along rows only block sums");
  expect_contains(errors,
                  "store `block_sum(x * d, M)` here and finish it with `sum(g, blocks(M))`");
  expect_contains(refused(R"(
program f(x: f32[M, N]) -> (t: f32) {
  r = sum(x, N)
  t = sum(r, M)
})"),
                  "`sum(r, M)` reads M whole");
}

TEST(CheckStream, NormalisesOverRowsOnlyInTwoPrograms) {
  expect_contains(refused(R"(
program f(x: f32[M, N]) -> (y: f32[M, N]) { y = x / sum(x, M) })"),
                  "along rows only block sums");
}

TEST(CheckStream, ResultsOfOtherRowsAreOtherSpaces) {
  EXPECT_EQ(summary(accepted(R"(
program f(x: f32[M, N], g: f32[blocks(M), D], z: f32[D]) -> (y: f32[M, N], d: f32[D], e: f32[M]) {
  y = x * 2
  e = sum(x, N)
  d = z - sum(g, blocks(M))
})")),
            "stream M x N: -> y e |  x D: -> d");
}

TEST(CheckStream, RangesOfRowsAreOfInputs) {
  const Checked checked = accepted(R"(
program f(x: f32[M, N]) -> (a: f32[L, N], b: f32[M - L, N]) { a, b = split(x, M: L, M - L) })");
  EXPECT_EQ(summary(checked), "stream L x N: -> a | M - L x N: -> b");
  EXPECT_EQ(roles(checked, 1, "b"), "M - L:row/1 N:column");
  expect_contains(refused(R"(
program f(x: f32[M, N]) -> (a: f32[L, N], b: f32[M - L, N]) { a, b = split(x * 2, M: L, M - L) })"),
                  "reads M whole");
}

TEST(CheckStream, JoinsOfRowsAreResults) {
  EXPECT_EQ(summary(accepted(R"(
program f(a: f32[L, N], b: f32[K, N]) -> (x: f32[M, N]) { x = join(a, b, M: L, K) })")),
            "stream M x N: -> x");
  expect_contains(refused(R"(
program f(a: f32[L, N], b: f32[K, N]) -> (x: f32[M, N]) { x = join(a, b, M: L, K) * 2 })"),
                  "reads M whole");
}

TEST(CheckStream, ScatterStandsAlone) {
  EXPECT_EQ(summary(accepted(R"(
program f(v: f32[B*S, D], ids: i32[B*S]) -> (t: +f32[V, D]) { t += scatter_sum(v, ids, V) })")),
            "stream V x D: -> t");
  expect_contains(refused(R"(
program f(v: f32[M, D], ids: i32[M]) -> (t: f32[V, D]) { t = scatter_sum(v * 2, ids, V) })"),
                  "scatter_sum is a program of its own");
}

// Any block is cut into programs of one op, whatever the dims: each must be a kernel.
TEST(CheckStream, EveryOpAloneIsAKernel) {
  const auto alone = [](const std::string& head, const std::string& body) {
    return summary(accepted("program f" + head + " { y = " + body + " }"));
  };
  EXPECT_EQ(alone("(x: f32[A, B, C], g: f32[B]) -> (y: f32[A, B, C])", "x * g"),
            "stream A, B x C: -> y");
  EXPECT_EQ(alone("(a: f32[M], b: f32[N]) -> (y: f32[M, N])", "a * b"), "stream M x N: -> y");
  EXPECT_EQ(alone("(x: f32[N, M], z: f32[M, N]) -> (y: f32[M, N])", "x + z"), "stream N x M: -> y");
  EXPECT_EQ(alone("(x: f32[M, N]) -> (y: f32[N, M])", "bf16(x)"), "stream M x N: -> y");
  EXPECT_EQ(alone("(x: f32) -> (y: f32)", "exp(x)"), "stream  x : -> y");
  EXPECT_EQ(alone("(x: f32[M, N]) -> (y: bf16[N, M])", "x"), "stream M x N: -> y");
  EXPECT_EQ(alone("(x: f32[1, N]) -> (y: f32[1, N])", "exp(x)"), "stream 1 x N: -> y");
  EXPECT_EQ(alone("(x: f32[M, 1]) -> (y: f32[M, 1])", "exp(x)"), "stream M x 1: -> y");
  EXPECT_EQ(alone("(x: f32[N]) -> (y: f32)", "sum(x, N)"), "stream  x : -> y");
  EXPECT_EQ(alone("(x: f32[H*E]) -> (y: f32[H])", "sum(x, E)"), "stream H x E: -> y");
  EXPECT_EQ(alone("(x: f32[M, N]) -> (y: f32[M])", "logsumexp(x, N)"), "stream M x N: -> y");
  EXPECT_EQ(alone("(x: f32[M, N]) -> (y: f32[N])", "logsumexp(x, M)"), "stream  x N: -> y");
  EXPECT_EQ(alone("(x: f32[A, B, C]) -> (y: f32[B, C])", "max(x, A)"), "stream B x C: -> y");
  EXPECT_EQ(alone("(x: f32[A, B, C]) -> (y: f32[A, C])", "max(x, B)"), "stream A x B, C: -> y");
  EXPECT_EQ(alone("(x: f32[B*S, N]) -> (y: f32[S, N])", "sum(x, B)"), "stream S x N: -> y");
  EXPECT_EQ(alone("(x: f32[B*S, N]) -> (y: f32[B, N])", "sum(x, S)"), "stream B x S, N: -> y");
  EXPECT_EQ(alone("(x: f32[M, N]) -> (y: f32[blocks(M), N])", "block_sum(x, M)"),
            "stream M x N: -> y");
  EXPECT_EQ(alone("(x: f32[A, B, C]) -> (y: f32[A, blocks(B), C])", "block_max(x, B)"),
            "stream A, B x C: -> y");
  EXPECT_EQ(alone("(x: f32[B*S, N]) -> (y: f32[blocks(B)*S, N])", "block_sum(x, B)"),
            "stream blocks(B)*S x N: -> y");
  EXPECT_EQ(alone("(x: f32[M, N]) -> (y: f32[M, blocks(N, 1024)])", "block_sum(x, N, 1024)"),
            "stream M x N: -> y");
  EXPECT_EQ(alone("(x: f32[A, blocks(B), C]) -> (y: f32[A, B, C])", "spread(x, B)"),
            "stream A, B x C: -> y");
  EXPECT_EQ(alone("(x: f32[N]) -> (y: f32[M, N])", "spread(x, [M, N])"), "stream M x N: -> y");
  EXPECT_EQ(alone("(x: f32[M, K]) -> (y: f32[M, H*E])", "x as [M, H*E]"), "stream M x H*E: -> y");
  EXPECT_EQ(alone("(x: f32[B*S, K]) -> (y: f32[M, K])", "x as [M, K]"), "stream M x K: -> y");
  EXPECT_EQ(alone("(a: f32[M, A], b: f32[M, B]) -> (y: f32[M, N])", "join(a, b, N: A, B)"),
            "stream M x N: -> y");
  EXPECT_EQ(alone("(a: f32[B*S, N], b: f32[B*T, N]) -> (y: f32[B*U, N])", "join(a, b, U: S, T)"),
            "stream B*U x N: -> y");
  EXPECT_EQ(alone("(x: f32[M, V], i: i32[M]) -> (y: f32[M])", "pick(x, i)"), "stream M x V: -> y");
  EXPECT_EQ(alone("(x: f32[M, V], i: i32[V]) -> (y: f32[V])", "pick(x, i)"), "stream  x V: -> y");
  EXPECT_EQ(alone("(x: f32[V, A, C], i: i64[B, S]) -> (y: f32[B, S, A, C])", "x[i]"),
            "stream B, S, A x C: -> y");
  EXPECT_EQ(alone("(x: f32[V], i: i64[M]) -> (y: f32[M])", "x[i]"), "stream  x M: -> y");
  EXPECT_EQ(alone("(x: f32[M], i: i64[M]) -> (y: f32[V])", "scatter_sum(x, i, V)"),
            "stream V x : -> y");
  EXPECT_EQ(alone("(seed: i64) -> (y: f32[M, N])", "uniform(seed, [M, N])"), "stream M x N: -> y");
  EXPECT_EQ(alone("(x: f32[N]) -> (y: i64[N])", "index(N)"), "stream  x N: -> y");
}

TEST(CheckStream, RowFactorsKnowTheirPlace) {
  const Checked checked = accepted(R"(
program f(x: f32[A, M, N], t: f32[S, N], u: f32[A]) -> (y: f32[A, B*S, N]) {
  y = (x as [A, B*S, N]) * t * u
})");
  EXPECT_EQ(roles(checked, 0, "x"), "A:row/B*S M:row/1 N:column");
  EXPECT_EQ(roles(checked, 0, "t"), "S:row/1 N:column");
  EXPECT_EQ(roles(checked, 0, "u"), "A:row/B*S");
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
