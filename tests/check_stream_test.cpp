// tests/check_stream_test.cpp: rule 6: programs without products.

#include "tests/checked.h"

namespace coda {
namespace {

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

TEST(CheckStream, ValuesThatNothingLinksShareRowsOfTheSameNames) {
  EXPECT_EQ(summary(accepted("program f(a: bf16[B*S, H*E], c: bf16[B*S, H*E], d: bf16[B*S, G*E],"
                             " e: bf16[B*S, G*E]) -> (x: f32[B*S], y: f32[B*S]) {\n"
                             "  x = sum(a * c, H*E)\n  y = sum(d * e, G*E)\n}")),
            "stream B*S x H*E: -> x y");
  // Not where one of them reads such a factor whole.
  EXPECT_EQ(summary(accepted("program f(a: bf16[M, N], b: bf16[M, K]) -> (x: f32[M], y: f32[K]) {\n"
                             "  x = sum(a, N)\n  y = sum(b, M)\n}")),
            "stream M x N: -> x |  x K: -> y");
}

TEST(CheckStream, TheQuickAnswerIsThatOfTheFullOne) {
  for (const std::string text :
       {"program f(x: f32[M, N]) -> (s: f32[M]) { s = sum(x * x, N) }",
        "program f(x: f32[M, N]) -> (y: f32[M, N]) { y = x * sum(exp(x), M) }",
        "program f(x: f32[M, K], w: f32[N, K]) -> (y: f32[M, N]) { y = exp(x @ w) }",
        "program f(x: f32[M, K], w: f32[N, K]) -> (y: f32[M, N]) { y = exp(x) @ w }"}) {
    const Program program = program_of(text);
    bool accepted = true;
    try {
      check(program);
    } catch (const ProgramError&) {
      accepted = false;
    }
    EXPECT_EQ(try_check(program).has_value(), accepted) << text;
  }
}

}  // namespace
}  // namespace coda
