// tests/check_tile_test.cpp: rules 3 to 5: what may follow products inside one kernel.

#include "tests/checked.h"

namespace coda {
namespace {

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

TEST(CheckTile, BlocksOfBlocksOfAllColumnsAreWiderThanATile) {
  EXPECT_NE(refused(R"(
program f(x: bf16[M, K], w: bf16[N, K]) -> (a: f32[M, blocks(blocks(N))]) {
  a = block_sum(block_sum(x @ w, N), blocks(N))
})")
                .find("a block of blocks is wider than a tile"),
            std::string::npos);
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

}  // namespace
}  // namespace coda
