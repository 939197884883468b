// tests/reference_layout_test.cpp: layout, reductions and indexing against values computed by hand.
#include "tests/reference_bench.h"

namespace coda {
namespace {

// ---- layout ----

TEST(Reference, SplitAndJoinAreInverse) {
  Bench bench{.sizes = {{"M", 2}, {"E", 4}, {"R", 2}}};
  const Expr z = bench.param("z", {DType::f64, {D("M"), D("E")}}, {0, 1, 2, 3, 4, 5, 6, 7});
  const Dim rest = dim_of(Factor::sum({{1, D("E")}, {-1, D("R")}}));
  const std::vector<Expr> p = split(z, D("E"), {half("R"), half("R"), rest});
  const Expr back = join(p, D("E"), {half("R"), half("R"), rest});
  const std::vector<Numbers> got = bench.run({p[0], p[1], p[2], back});
  expect_near(got[0], {0, 4});
  expect_near(got[1], {1, 5});
  expect_near(got[2], {2, 3, 6, 7});
  expect_near(got[3], {0, 1, 2, 3, 4, 5, 6, 7});
}

TEST(Reference, SplitOfAFactorGoesThroughEveryHead) {
  Bench bench{.sizes = {{"M", 1}, {"H", 2}, {"E", 4}}};
  const Expr z =
      bench.param("z", {DType::f64, {D("M"), D("H") * D("E")}}, {0, 1, 2, 3, 4, 5, 6, 7});
  const std::vector<Expr> p = split(z, D("E"), {half("E"), half("E")});
  const std::vector<Numbers> got = bench.run({p[0], p[1]});
  expect_near(got[0], {0, 1, 4, 5});
  expect_near(got[1], {2, 3, 6, 7});
}

TEST(Reference, SplitOfARowDimAndOfPackedWeights) {
  Bench bench{.sizes = {{"N", 6}, {"Q", 2}, {"G", 1}, {"E", 2}, {"K", 1}}};
  const Expr w = bench.param("w", {DType::f64, {D("N"), D("K")}}, {0, 1, 2, 3, 4, 5});
  const std::vector<Expr> p = split(w, D("N"), {D("Q") * D("E"), D("G") * D("E")});
  const std::vector<Numbers> got = bench.run({p[0], p[1]});
  expect_near(got[0], {0, 1, 2, 3});
  expect_near(got[1], {4, 5});
}

TEST(Reference, AsKeepsTheStorageOrder) {
  Bench bench{.sizes = {{"M", 1}, {"E", 4}}};
  const Expr z = bench.param("z", {DType::f64, {D("M"), D("E")}}, {0, 1, 2, 3});
  const Expr pairs = as(z, {D("M"), half("E") * number(2)});
  expect_near(bench.run(reduce(Op::sum, pairs, half("E"))), {2, 4});
}

TEST(Reference, SpreadRepeatsValuesAndBlocks) {
  Bench bench{.sizes = {{"M", 2}, {"N", 5}, {"H", 2}, {"E", 2}}};
  const Expr d = bench.param("d", {DType::f64, {D("M")}}, {1, 2});
  const Expr s = bench.param("s", {DType::f64, {D("M"), blocks("N", 2)}}, {1, 2, 3, 4, 5, 6});
  const Expr t = bench.param("t", {DType::f64, {blocks("N", 2), D("M")}}, {1, 2, 3, 4, 5, 6});
  const std::vector<Numbers> got =
      bench.run({spread(d, D("N"), 0, {}), spread(s, D("N"), 2, {}), spread(t, D("N"), 2, {}),
                 spread(d, D("H") * D("E"), 0, {D("H") * D("E"), D("M")}),
                 spread(t, D("N"), 2, {D("M"), D("N")})});
  expect_near(got[0], {1, 1, 1, 1, 1, 2, 2, 2, 2, 2});
  expect_near(got[1], {1, 1, 2, 2, 3, 4, 4, 5, 5, 6});
  expect_near(got[2], {1, 2, 1, 2, 3, 4, 3, 4, 5, 6});
  expect_near(got[3], {1, 2, 1, 2, 1, 2, 1, 2});
  expect_near(got[4], {1, 1, 3, 3, 5, 2, 2, 4, 4, 6});
}

TEST(Reference, ResultsMayBeStoredTransposedAndRegrouped) {
  Bench bench{.sizes = {{"M", 2}, {"H", 1}, {"E", 3}}};
  const Expr z = bench.param("z", {DType::f64, {D("M"), D("H") * D("E")}}, {0, 1, 2, 3, 4, 5});
  bench.builder.result("y", {DType::f64, {D("E") * D("M"), D("H")}}, (z + 0.0).value);
  expect_near(bench.run(std::vector<Expr>{})[0], {0, 3, 1, 4, 2, 5});
}

// ---- reductions ----

TEST(Reference, ReductionsOverEitherDimensionAndAFactor) {
  Bench bench{.sizes = {{"M", 2}, {"H", 2}, {"E", 2}}};
  const Expr z =
      bench.param("z", {DType::f64, {D("M"), D("H") * D("E")}}, {1, 2, 3, 4, -5, 6, 7, 8});
  const std::vector<Numbers> got =
      bench.run({reduce(Op::sum, z, D("M")), reduce(Op::sum, z, D("H") * D("E")),
                 reduce(Op::sum, z, D("E")), reduce(Op::sum, z, D("H")),
                 reduce(Op::reduce_max, z, D("M")), reduce(Op::logsumexp, z, D("E"))});
  expect_near(got[0], {-4, 8, 10, 12});
  expect_near(got[1], {10, 16});
  expect_near(got[2], {3, 7, 1, 15});
  expect_near(got[3], {4, 6, 2, 14});
  expect_near(got[4], {1, 6, 7, 8});
  const double next = std::log1p(std::exp(-1.0));
  expect_near(got[5], {2 + next, 4 + next, 6 + std::log1p(std::exp(-11.0)), 8 + next});
}

TEST(Reference, BlockReductionsLeaveAShorterTail) {
  Bench bench{.sizes = {{"M", 5}, {"N", 3}}};
  const Expr z = bench.param("z", {DType::f64, {D("M"), D("N")}},
                             {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15});
  const std::vector<Numbers> got = bench.run(
      {block_reduce(Op::block_sum, z, D("N"), 2), block_reduce(Op::block_sum, z, D("M"), 2),
       block_reduce(Op::block_max, z, D("N"), 2), block_reduce(Op::block_logsumexp, z, D("N"), 2)});
  expect_near(got[0], {3, 3, 9, 6, 15, 9, 21, 12, 27, 15});
  expect_near(got[1], {5, 7, 9, 17, 19, 21, 13, 14, 15});
  expect_near(got[2], {2, 3, 5, 6, 8, 9, 11, 12, 14, 15});
  const double pair = std::log1p(std::exp(-1.0));
  expect_near(got[3], {2 + pair, 3, 5 + pair, 6, 8 + pair, 9, 11 + pair, 12, 14 + pair, 15});
}

TEST(Reference, ReductionsOverNothing) {
  Bench bench{.sizes = {{"M", 1}, {"N", 0}}};
  const Expr z = bench.param("z", {DType::f64, {D("M"), D("N")}}, {});
  const std::vector<Numbers> got =
      bench.run({reduce(Op::sum, z, D("N")), reduce(Op::reduce_max, z, D("N")),
                 reduce(Op::logsumexp, z, D("N")), block_reduce(Op::block_sum, z, D("N"), 64)});
  expect_near(got[0], {0});
  expect_near(got[1], {-kInf});
  expect_near(got[2], {-kInf});
  expect_near(got[3], {});
}

TEST(Reference, ReductionsKeepNaNAndInfinity) {
  Bench bench{.sizes = {{"M", 4}, {"N", 2}}};
  const Expr z =
      bench.param("z", {DType::f64, {D("M"), D("N")}}, {kNaN, 1, 1, kNaN, kInf, 1, -kInf, -kInf});
  const std::vector<Numbers> got =
      bench.run({reduce(Op::reduce_max, z, D("N")), reduce(Op::logsumexp, z, D("N")),
                 reduce(Op::sum, z, D("N"))});
  expect_near(got[0], {kNaN, kNaN, kInf, -kInf});
  expect_near(got[1], {kNaN, kNaN, kInf, -kInf});
  expect_near(got[2], {kNaN, kNaN, kInf, -kInf});
}

TEST(Reference, LogsumexpOfLargeValuesDoesNotOverflow) {
  Bench bench{.sizes = {{"N", 2}}};
  const Expr z = bench.param("z", kVector, {1e4, 1e4});
  expect_near(bench.run(reduce(Op::logsumexp, z, D("N"))), {1e4 + std::log(2.0)});
}

// ---- indexing ----

TEST(Reference, GatherReadsRowsAndZeroOutside) {
  Bench bench{.sizes = {{"V", 3}, {"N", 2}, {"M", 5}}};
  const Expr table = bench.param("table", {DType::f64, {D("V"), D("N")}}, {1, 2, 3, 4, 5, 6});
  const Expr ids = bench.param("ids", {DType::i64, {D("M")}}, {2, 0, -1, 3, 2});
  expect_near(bench.run(bench.op(Op::gather, {table, ids})), {5, 6, 1, 2, 0, 0, 0, 0, 5, 6});
}

TEST(Reference, ScatterSumAddsRowsAndDropsThoseOutside) {
  Bench bench{.sizes = {{"V", 3}, {"N", 2}, {"M", 5}}};
  const Expr v = bench.param("v", {DType::f64, {D("M"), D("N")}}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  const Expr ids = bench.param("ids", {DType::i32, {D("M")}}, {2, 0, -1, 3, 2});
  expect_near(bench.run(bench.op(Op::scatter_sum, {v, ids}, {.axis = D("V")})),
              {3, 4, 0, 0, 10, 12});
}

TEST(Reference, PickTakesOneElementARow) {
  Bench bench{.sizes = {{"M", 3}, {"N", 2}}};
  const Expr z = bench.param("z", {DType::f64, {D("M"), D("N")}}, {1, 2, 3, 4, 5, 6});
  const Expr rows = bench.param("rows", {DType::i64, {D("M")}}, {1, 0, -100});
  const Expr columns = bench.param("columns", {DType::i64, {D("N")}}, {2, 3});
  const std::vector<Numbers> got =
      bench.run({bench.op(Op::pick, {z, rows}), bench.op(Op::pick, {z, columns})});
  expect_near(got[0], {2, 3, 0});
  expect_near(got[1], {5, 0});
}

}  // namespace
}  // namespace coda
