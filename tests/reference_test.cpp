// tests/reference_test.cpp: maps, products, random numbers and rounding against values computed by
// hand and published vectors.
#include "coda/reference/reference.h"

#include <array>
#include <chrono>
#include <cstdio>
#include <optional>

#include "coda/reference/ops.h"
#include "tests/reference_bench.h"

namespace coda {
namespace {

// ---- maps ----

struct MapCase {
  std::vector<Numbers> args;
  Numbers expected;
};

// By hand, for every map of the vocabulary. No default: a new op has no test until it has a row.
std::optional<MapCase> map_case(Op op) {
  switch (op) {
    case Op::neg:
      return MapCase{{{1.5, -2, kInf}}, {-1.5, 2, -kInf}};
    case Op::abs:
      return MapCase{{{1.5, -2, -kInf}}, {1.5, 2, kInf}};
    case Op::exp:
      return MapCase{{{0, 1, -kInf}}, {1, 2.718281828459045, 0}};
    case Op::log:
      return MapCase{{{1, 10, 0}}, {0, 2.302585092994046, -kInf}};
    case Op::sqrt:
      return MapCase{{{4, 2, -1}}, {2, 1.4142135623730951, kNaN}};
    case Op::rsqrt:
      return MapCase{{{4, 2, 0}}, {0.5, 0.7071067811865475, kInf}};
    case Op::tanh:
      return MapCase{{{0, 1, -kInf}}, {0, 0.7615941559557649, -1}};
    case Op::sigmoid:
      return MapCase{{{0, 1, -kInf}}, {0.5, 0.7310585786300049, 0}};
    case Op::erf:
      return MapCase{{{0, 1, -kInf}}, {0, 0.8427007929497149, -1}};
    case Op::detach:
    case Op::save:
    case Op::recompute:
      return MapCase{{{0, -2.5, kNaN}}, {0, -2.5, kNaN}};
    case Op::add:
      return MapCase{{{1, 2, kNaN}, {0.5, -3, 1}}, {1.5, -1, kNaN}};
    case Op::sub:
      return MapCase{{{1, 2, kInf}, {0.5, -3, kInf}}, {0.5, 5, kNaN}};
    case Op::mul:
      return MapCase{{{3, 2, 0}, {0.5, -3, kInf}}, {1.5, -6, kNaN}};
    case Op::div:
      return MapCase{{{3, 2, 1}, {0.5, -4, 0}}, {6, -0.5, kInf}};
    case Op::minimum:
      return MapCase{{{1, kNaN, 2}, {-1, 1, kNaN}}, {-1, kNaN, kNaN}};
    case Op::maximum:
      return MapCase{{{1, kNaN, 2}, {-1, 1, kNaN}}, {1, kNaN, kNaN}};
    case Op::eq:
      return MapCase{{{1, 2, kNaN}, {1, 3, kNaN}}, {1, 0, 0}};
    case Op::ne:
      return MapCase{{{1, 2, kNaN}, {1, 3, kNaN}}, {0, 1, 1}};
    case Op::lt:
      return MapCase{{{1, 2, 4}, {1, 3, 0}}, {0, 1, 0}};
    case Op::le:
      return MapCase{{{1, 2, 4}, {1, 3, 0}}, {1, 1, 0}};
    case Op::gt:
      return MapCase{{{1, 2, 4}, {1, 3, 0}}, {0, 0, 1}};
    case Op::ge:
      return MapCase{{{1, 2, 4}, {1, 3, 0}}, {1, 0, 1}};
    case Op::where:
      return MapCase{{{1, 0, -2}, {10, 11, 12}, {20, 21, 22}}, {10, 21, 12}};
    case Op::cast:
    case Op::pin:
      return MapCase{{{1.25, -2, kNaN}}, {1.25, -2, kNaN}};
    case Op::constant:
    case Op::size:
    case Op::index:
    case Op::uniform:
    case Op::product:
    case Op::split:
    case Op::join:
    case Op::as:
    case Op::spread:
    case Op::sum:
    case Op::reduce_max:
    case Op::logsumexp:
    case Op::block_sum:
    case Op::block_max:
    case Op::block_logsumexp:
    case Op::gather:
    case Op::scatter_sum:
    case Op::pick:
    case Op::attention:
    case Op::attention_grad:
      return std::nullopt;
  }
  return std::nullopt;
}

TEST(Reference, MapsGiveHandComputedValues) {
  for (const Op op : all_ops()) {
    const std::optional<MapCase> each = map_case(op);
    EXPECT_EQ(each.has_value(), is_map(op)) << name_of(op);
    if (!each) continue;
    SCOPED_TRACE(name_of(op));
    Bench bench{.sizes = {{"N", 3}}};
    std::vector<Expr> args;
    for (std::size_t i = 0; i < each->args.size(); ++i) {
      args.push_back(bench.param("a" + std::to_string(i), kVector, each->args[i]));
    }
    expect_near(bench.run(bench.op(op, args, {.dtype = DType::f64})), each->expected);
  }
}

TEST(Reference, MapsAlignByFactorNotByPosition) {
  Bench bench{.sizes = {{"M", 2}, {"N", 3}}};
  const Expr z = bench.param("z", {DType::f64, {D("M"), D("N")}}, {1, 2, 3, 4, 5, 6});
  const Expr r = bench.param("r", {DType::f64, {D("M")}}, {10, 20});
  const Expr g = bench.param("g", {DType::f64, {D("N")}}, {1, 2, 3});
  const Expr t = bench.param("t", {DType::f64, {D("N"), D("M")}}, {1, 2, 3, 4, 5, 6});
  const std::vector<Numbers> got = bench.run({z * r, z * g, z - t, r * g});
  expect_near(got[0], {10, 20, 30, 80, 100, 120});
  expect_near(got[1], {1, 4, 9, 4, 10, 18});
  expect_near(got[2], {0, -1, -2, 2, 1, 0});  // t[n, m]
  expect_near(got[3], {10, 20, 30, 20, 40, 60});
}

TEST(Reference, MapsAlignWithAFactorInsideADim) {
  Bench bench{.sizes = {{"B", 2}, {"S", 2}, {"H", 2}, {"E", 2}}};
  const Type type{DType::f64, {D("B") * D("S"), D("H") * D("E")}};
  Numbers q(16);
  for (std::size_t i = 0; i < 16; ++i) q[i] = static_cast<double>(i);
  const Expr x = bench.param("q", type, q);
  const Expr c = bench.param("c", {DType::f64, {D("S"), D("E")}}, {1, 10, 100, 1000});
  expect_near(bench.run(x * c),
              {0, 10, 2, 30, 400, 5000, 600, 7000, 8, 90, 10, 110, 1200, 13000, 1400, 15000});
}

// ---- leaves ----

TEST(Reference, LeavesGiveNumbersSizesAndPositions) {
  Bench bench{.sizes = {{"M", 2}, {"N", 3}}};
  const Expr x = bench.param("x", {DType::f64, {D("M"), D("N")}}, {0, 0, 0, 0, 0, 0});
  const Expr n = bench.op(Op::index, {}, {.axis = D("N")});
  const Expr mn = bench.op(Op::index, {}, {.axis = D("M") * D("N")});
  const std::vector<Numbers> got =
      bench.run({x + bench.op(Op::size, {}, {.axis = D("M") * D("N")}), x + 0.25, x + n, mn});
  expect_near(got[0], {6, 6, 6, 6, 6, 6});
  expect_near(got[1], {0.25, 0.25, 0.25, 0.25, 0.25, 0.25});
  expect_near(got[2], {0, 1, 2, 0, 1, 2});
  expect_near(got[3], {0, 1, 2, 3, 4, 5});
}

TEST(Reference, PhiloxMeetsThePublishedVectors) {
  using Words = std::array<std::uint32_t, 4>;
  EXPECT_EQ(reference::philox({0, 0, 0, 0}, {0, 0}),
            (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(reference::philox({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(
      reference::philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
      (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Reference, UniformIsPhiloxOfThePositionWithAllBitsOfTheSeed) {
  Bench bench{.sizes = {{"M", 2}, {"N", 3}}};
  const Expr seed = bench.param("seed", {DType::i64, {}}, {0});
  const std::int64_t value = 0x123456789abcdef1;  // not a double
  bench.owned[0].as<std::int64_t>()[0] = value;
  const Numbers got = bench.run(bench.op(Op::uniform, {seed}, {.dims = {D("M"), D("N")}}));
  ASSERT_EQ(got.size(), 6u);
  for (std::uint32_t i = 0; i < 6; ++i) {
    const auto words = reference::philox({i, 0, 0, 0}, {0x9abcdef1, 0x12345678});
    EXPECT_EQ(got[i], (words[0] >> 8) / 16777216.0);
  }
  EXPECT_NE(got[0], got[1]);
}

// ---- products ----

TEST(Reference, ProductContractsTheSharedNameWhereverItStands) {
  const Numbers x = {1, 2, 3, 4, 5, 6}, w = {1, 0, 2, 0, 1, 1};
  Bench bench{.sizes = {{"M", 2}, {"K", 3}, {"N", 2}}};
  const Expr a = bench.param("x", {DType::f64, {D("M"), D("K")}}, x);
  const Expr b = bench.param("w", {DType::f64, {D("N"), D("K")}}, w);
  const Expr dz = bench.param("dz", {DType::f64, {D("M"), D("N")}}, {1, -1, 2, 3});
  const std::vector<Numbers> got =
      bench.run({product(a, b, D("K")), product(dz, b, D("N")), product(dz, a, D("M"))});
  expect_near(got[0], {7, 5, 16, 11});           // x wᵀ
  expect_near(got[1], {1, -1, 1, 2, 3, 7});      // dz w
  expect_near(got[2], {9, 12, 15, 11, 13, 15});  // dzᵀ x
}

TEST(Reference, ProductContractsSeveralFactorsAtOnce) {
  Bench bench{.sizes = {{"B", 2}, {"S", 2}, {"N", 2}, {"K", 1}}};
  const Expr dz =
      bench.param("dz", {DType::f64, {D("B") * D("S"), D("N")}}, {1, 2, 3, 4, 5, 6, 7, 8});
  const Expr x = bench.param("x", {DType::f64, {D("S"), D("B"), D("K")}}, {1, 10, 100, 1000});
  // x[s, b]: row (b, s) of dz meets x[s, b].
  expect_near(bench.run(bench.op(Op::product, {dz, x}, {.axis = D("B") * D("S")})),
              {1 + 300 + 50 + 7000, 2 + 400 + 60 + 8000});
}

TEST(Reference, ProductOverNothingIsZeroAndMayBeEmpty) {
  Bench bench{.sizes = {{"M", 2}, {"K", 0}, {"N", 2}, {"Z", 0}}};
  const Expr a = bench.param("a", {DType::f64, {D("M"), D("K")}}, {});
  const Expr b = bench.param("b", {DType::f64, {D("N"), D("K")}}, {});
  const Expr c = bench.param("c", {DType::f64, {D("Z"), D("N")}}, {});
  const Expr p = product(a, b, D("K"));
  const std::vector<Numbers> got = bench.run({p + 1, product(p, c, D("N"))});
  expect_near(got[0], {1, 1, 1, 1});
  expect_near(got[1], {});
}

TEST(Reference, ProductKeepsNaNTimesZero) {
  Bench bench{.sizes = {{"M", 1}, {"K", 2}, {"N", 1}}};
  const Expr a = bench.param("a", {DType::f64, {D("M"), D("K")}}, {0, 1});
  const Expr b = bench.param("b", {DType::f64, {D("N"), D("K")}}, {kInf, 1});
  expect_near(bench.run(product(a, b, D("K"))), {kNaN});
}

TEST(Reference, ProductOf256CubedTakesWellUnderATenthOfASecond) {
  Bench bench{.sizes = {{"M", 256}, {"K", 256}, {"N", 256}}};
  const Expr a = bench.param("a", {DType::f32, {D("M"), D("K")}}, random_numbers(65536, 1));
  const Expr b = bench.param("b", {DType::f32, {D("N"), D("K")}}, random_numbers(65536, 2));
  const auto start = std::chrono::steady_clock::now();
  const Numbers got = bench.run(product(a, b, D("K")));
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  std::printf("256³ product: %.1f ms\n", 1e3 * taken.count());
  EXPECT_EQ(got.size(), 65536u);
}

// ---- rounding ----

TEST(Reference, ExactModeRoundsNothingAndIntegersTruncate) {
  Bench bench{.sizes = {{"N", 3}}};
  const Expr x = bench.param("x", kVector, {1.0 + 0x1p-30, -1.75, 2.5});
  const std::vector<Numbers> got =
      bench.run({cast(x, DType::bf16), cast(x, DType::i64), cast(x - 2.5, DType::boolean),
                 bench.op(Op::pin, {x}, {.dtype = DType::f8e4m3})});
  expect_near(got[0], {1.0 + 0x1p-30, -1.75, 2.5}, 0);
  expect_near(got[1], {1, -1, 2}, 0);
  expect_near(got[2], {1, 1, 0}, 0);
  expect_near(got[3], {1.0 + 0x1p-30, -1.75, 2.5}, 0);
}

// x @ w of bf16 tensors, then a map: what each dtype of the result keeps.
Numbers one_product(DType operands, DType result, Mode mode) {
  Bench bench{.sizes = {{"M", 1}, {"K", 2}, {"N", 1}}};
  const Expr x = bench.param("x", {operands, {D("M"), D("K")}}, {256, 1});
  const Expr w = bench.param("w", {operands, {D("N"), D("K")}}, {1, 1});
  bench.builder.result("y", {result, {D("M"), D("N")}}, product(x, w, D("K")).value);
  return bench.run(std::vector<Expr>{}, mode)[0];
}

TEST(Reference, RoundedModeRoundsWhereTheUnfusedSequenceStores) {
  // 257 needs nine bits: bf16 has eight.
  expect_near(one_product(DType::bf16, DType::bf16, Mode::exact), {257}, 0);
  expect_near(one_product(DType::bf16, DType::bf16, Mode::rounded), {256}, 0);
  expect_near(one_product(DType::bf16, DType::f32, Mode::rounded), {257}, 0);  // declared wider
  expect_near(one_product(DType::f32, DType::bf16, Mode::rounded), {256}, 0);
  expect_near(one_product(DType::f16, DType::f16, Mode::rounded), {257}, 0);
}

TEST(Reference, RoundedModeRoundsBetweenMapsButNotBeforeAReduction) {
  Bench bench{.sizes = {{"M", 2}}};
  const Expr x = bench.param("x", {DType::bf16, {D("M")}}, {256, 3});
  const Expr y = x + 1.0;  // 257 rounds to 256, 4
  const Expr square_sum = reduce(Op::sum, (x + 1.0) * 1.0, D("M"));
  const std::vector<Numbers> got =
      bench.run({y, y - x, reduce(Op::sum, x + 1.0, D("M")), square_sum}, Mode::rounded);
  expect_near(got[0], {257, 4}, 0);  // declared f32 by Bench
  expect_near(got[1], {1, 1}, 0);
  expect_near(got[2], {261}, 0);  // the map is read by the sum only
  expect_near(got[3], {260}, 0);  // x + 1 is read by a map: stored
}

TEST(Reference, RoundedModeAddsF32OneTermAfterTheOther) {
  Bench bench{.sizes = {{"N", 4}}};
  const Expr x = bench.param("x", {DType::f32, {D("N")}}, {0x1p24, 1, 1, 1});
  const Expr s = reduce(Op::sum, x, D("N"));
  expect_near(bench.run(s, Mode::rounded), {0x1p24}, 0);
}

TEST(Reference, AccumulatingResultsAddToWhatWasThere) {
  for (const Mode mode : {Mode::exact, Mode::rounded}) {
    Builder builder("accumulate", Program::Kind::program);
    const Value x = builder.param("x", {DType::bf16, {D("N")}});
    builder.result("y", {DType::bf16, {D("N")}}, x, Store::accumulate);
    builder.result("z", {DType::bf16, {D("N")}}, x);
    const Program program = std::move(builder).finish();
    std::vector<OwnedTensor> in, before;
    in.push_back(filled(DType::bf16, {2}, {1, 2}));
    before.push_back(filled(DType::bf16, {2}, {256, 5}));
    before.push_back(filled(DType::bf16, {2}, {kNaN, kNaN}));
    const auto got = reference::evaluate(program, {{"N", 2}}, views(in), mode, views(before));
    expect_near(got[0].data, {mode == Mode::exact ? 257.0 : 256.0, 7}, 0);
    expect_near(got[1].data, {1, 2}, 0);
    expect_near(reference::evaluate(program, {{"N", 2}}, views(in), mode)[0].data, {1, 2}, 0);
  }
}

TEST(Reference, ReadsStridedTensorsAndOneAxisForEachFactor) {
  Builder builder("strides", Program::Kind::block);
  const Value x = builder.param("x", {DType::f32, {D("M"), D("H") * D("E")}});
  builder.result("y", {DType::f32, {D("M"), D("H") * D("E")}}, x);
  const Program program = std::move(builder).finish();
  OwnedTensor memory(DType::f32, {40});
  for (int i = 0; i < 40; ++i) memory.as<float>()[i] = static_cast<float>(i);
  const Tensor flat{memory.as<float>() + 1, DType::f32, {2, 4}, {10, 2}};
  const Tensor factors{memory.as<float>(), DType::f32, {2, 2, 2}, {0, 3, 10}};
  const Sizes sizes = {{"M", 2}, {"H", 2}, {"E", 2}};
  expect_near(reference::evaluate(program, sizes, {{flat}}, Mode::exact)[0].data,
              {1, 3, 5, 7, 11, 13, 15, 17});
  expect_near(reference::evaluate(program, sizes, {{factors}}, Mode::exact)[0].data,
              {0, 10, 3, 13, 0, 10, 3, 13});
}

TEST(Reference, EvaluateAllGivesEveryValueThenTheResults) {
  Builder builder("all", Program::Kind::block);
  const Expr x{&builder, builder.param("x", kVector)};
  builder.result("y", kVector, ((x * x) + x).value);
  const Program program = std::move(builder).finish();
  std::vector<OwnedTensor> in;
  in.push_back(filled(DType::f64, {2}, {2, 3}));
  const auto all = reference::evaluate_all(program, {{"N", 2}}, views(in), Mode::exact);
  ASSERT_EQ(all.size(), 4u);
  expect_near(all[0].data, {2, 3});
  expect_near(all[1].data, {4, 9});
  expect_near(all[2].data, {6, 12});
  expect_near(all[3].data, {6, 12});
}

}  // namespace
}  // namespace coda
