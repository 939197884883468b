// tests/program_test.cpp: dims, type rules, the builder, equality.
#include <gtest/gtest.h>

#include "coda/program/builder.h"
#include "coda/program/typing.h"

namespace coda {
namespace {

const Dim kM = dim_of("M"), kN = dim_of("N"), kK = dim_of("K"), kH = dim_of("H"), kE = dim_of("E");

Dim half(const Dim& dim) {
  return Dim{{Factor::quotient(dim, 2)}};
}
Dim rest(const Dim& a, const Dim& b) {
  return Dim{{Factor::sum({{1, a}, {-1, b}})}};
}
Type f32(std::vector<Dim> dims) {
  return {DType::f32, std::move(dims)};
}
Type i32(std::vector<Dim> dims) {
  return {DType::i32, std::move(dims)};
}

std::string typed(Op op, std::vector<Type> args, Attr attr = {}) {
  std::string text;
  for (const Type& type : infer(op, args, attr)) text += (text.empty() ? "" : " ") + type.text();
  return text;
}

std::string refused(Op op, std::vector<Type> args, Attr attr = {}) {
  try {
    return "accepted: " + typed(op, std::move(args), std::move(attr));
  } catch (const TypeError& error) {
    EXPECT_FALSE(error.rule.empty());
    EXPECT_FALSE(error.fix.empty());
    return error.message;
  }
}

TEST(Dims, TextIsCanonical) {
  EXPECT_EQ((kH * half(kE) * dim_of(Factor::number(2))).text(), "H*(E/2)*2");
  EXPECT_EQ(half(kH * kE).text(), "(H*E)/2");
  EXPECT_EQ(rest(kE, kN).text(), "E - N");
  EXPECT_EQ((kH * rest(kE, kN)).text(), "H*(E - N)");
  EXPECT_EQ(Dim{{Factor::blocks(kN, 64)}}.text(), "blocks(N)");
  EXPECT_EQ(Dim{{Factor::blocks(kN * kM, 128)}}.text(), "blocks(N*M, 128)");
  EXPECT_EQ(dim_of(Factor::number(1)).text(), "1");
  EXPECT_EQ(rest(rest(kE, kN), rest(kM, kK)).text(), "E - N - M + K");
}

TEST(Dims, ExtentsFollowFromNames) {
  const Sizes sizes = {{"H", 3}, {"E", 8}, {"N", 130}};
  EXPECT_EQ(extent(kH * half(kE), sizes), 12);
  EXPECT_EQ(extent(Dim{{Factor::blocks(kN, 64)}}, sizes), 3);
  EXPECT_EQ(extent(rest(kN, kH * kE), sizes), 106);
  EXPECT_EQ(extent(kM, sizes), std::nullopt);
  EXPECT_THROW(extent(half(kH), sizes), ProgramError);
  EXPECT_THROW(extent(rest(kH, kE), sizes), ProgramError);
  EXPECT_THROW(require_extent(kM, sizes), ProgramError);
  EXPECT_THROW(extent(kH * kE * kN, {{"H", 1 << 30}, {"E", 1 << 30}, {"N", 16}}), ProgramError);
}

TEST(Dims, UnifyGivesTheFirstNameWhatIsLeft) {
  Substitution s;
  EXPECT_TRUE(unify(kH * kE, dim_of("B") * dim_of("G") * dim_of("R"), s));
  EXPECT_EQ(s.at("H").text(), "B*G");
  EXPECT_EQ(s.at("E").text(), "R");
  EXPECT_TRUE(unify(half(kE), half(dim_of("R")), s));
  EXPECT_FALSE(unify(half(kE), dim_of("R"), s));
  EXPECT_FALSE(unify(kE, dim_of("Q"), s));
  Substitution one;
  EXPECT_FALSE(unify(kH * kE, dim_of("R"), one));
}

TEST(Dims, SubstituteReachesInside) {
  const Substitution s = {{"E", kH * kE}, {"N", kM}};
  EXPECT_EQ(substitute(kK * half(kE), s).text(), "K*((H*E)/2)");
  EXPECT_EQ(substitute(Dim{{Factor::blocks(kN, 64)}}, s).text(), "blocks(M)");
  EXPECT_EQ(substitute(kK * kE, s).text(), "K*H*E");
}

TEST(Dims, ExtentsCompareAsPolynomials) {
  EXPECT_EQ(same_extent(half(kE) * dim_of(Factor::number(2)), kE), true);
  EXPECT_EQ(same_extent(rest(kE, kE), Dim{{Factor::number(3)}}), false);
  EXPECT_EQ(same_extent(kH * kE, kE * kH), true);
  EXPECT_EQ(same_extent(kH, kE), std::nullopt);
  EXPECT_EQ(same_extent(kE * dim_of(Factor::number(2)), kE), false);
  EXPECT_EQ(same_extent(rest(kE, kN) * kH, kH), std::nullopt);
}

TEST(Typing, ProductContractsTheSharedDim) {
  EXPECT_EQ(typed(Op::product, {f32({kM, kK}), f32({kN, kK})}), "f32[M, N]");
  EXPECT_EQ(typed(Op::product, {f32({kM, kN}), f32({kM, kK})}), "f32[N, K]");
  const Dim rows = dim_of("B") * dim_of("S");
  EXPECT_EQ(typed(Op::product, {f32({rows, kN}), f32({rows, kK})}), "f32[N, K]");
  EXPECT_EQ(
      typed(Op::product, {f32({dim_of("B"), dim_of("S"), kN}), f32({dim_of("B"), dim_of("S"), kK})},
            {.axis = rows}),
      "f32[N, K]");
  EXPECT_NE(refused(Op::product, {f32({kM, kK}), f32({kN})}).find("share no dimension"),
            std::string::npos);
  EXPECT_NE(refused(Op::product, {f32({kM, kK}), f32({kM, kK})}).find("more than one"),
            std::string::npos);
  EXPECT_NE(refused(Op::product, {f32({kM, kK}), f32({kM, kK})}, {.axis = kK}).find("twice"),
            std::string::npos);
  EXPECT_NE(refused(Op::product, {i32({kM, kK}), f32({kN, kK})}).find("not a floating-point"),
            std::string::npos);
}

TEST(Typing, ElementwiseOpsAlignByName) {
  EXPECT_EQ(typed(Op::mul, {f32({kM, kN}), f32({kN})}), "f32[M, N]");
  EXPECT_EQ(typed(Op::mul, {f32({kM}), f32({kM, kN})}), "f32[M, N]");
  EXPECT_EQ(typed(Op::mul, {f32({kM}), f32({kN})}), "f32[M, N]");
  EXPECT_EQ(typed(Op::mul, {f32({kM, kH * half(kE)}), f32({half(kE)})}), "f32[M, H*(E/2)]");
  EXPECT_NE(refused(Op::mul, {f32({kM * kH}), f32({kH * kE})}).find("do not align"),
            std::string::npos);
  EXPECT_EQ(typed(Op::eq, {i32({kM}), {DType::i64, {kN}}}), "bool[M, N]");
  EXPECT_EQ(typed(Op::add, {i32({kM}), {DType::i64, {}}}), "i64[M]");
  EXPECT_EQ(typed(Op::div, {i32({kM}), {DType::i64, {}}}), "f32[M]");
  EXPECT_EQ(typed(Op::add, {f32({kM}), {DType::f64, {}}}), "f64[M]");
}

TEST(Typing, SplitAndJoinAreInverse) {
  const Type z = f32({kM, kH * kE});
  EXPECT_EQ(typed(Op::split, {z}, {.axis = kE, .dims = {half(kE), half(kE)}}),
            "f32[M, H*(E/2)] f32[M, H*(E/2)]");
  const Type piece = f32({kM, kH * half(kE)});
  EXPECT_EQ(typed(Op::join, {piece, piece}, {.axis = kE}), "f32[M, H*E]");
  const Dim r = dim_of("R");
  EXPECT_EQ(typed(Op::join,
                  {f32({kM, kH * half(r)}), f32({kM, kH * half(r)}), f32({kM, kH * rest(kE, r)})},
                  {.axis = kE}),
            "f32[M, H*E]");
  EXPECT_EQ(
      typed(Op::join, {f32({kM, dim_of("A") * kE}), f32({kM, dim_of("G") * kE})}, {.axis = kN}),
      "f32[M, N]");
  EXPECT_NE(refused(Op::join, {f32({kM, kK}), f32({kM, kK})}, {.axis = kN}).find("not clear"),
            std::string::npos);
  EXPECT_EQ(typed(Op::join, {f32({kM, kK}), f32({kM, kK})}, {.axis = kN, .dims = {kK, kK}}),
            "f32[M, N]");
  EXPECT_NE(refused(Op::split, {z}, {.axis = kK, .dims = {kK}}).find("no dimension"),
            std::string::npos);
  const Dim two = dim_of(Factor::number(2)), three = dim_of(Factor::number(3));
  EXPECT_NE(refused(Op::split, {f32({three})}, {.axis = three, .dims = {two, two}}).find("add up"),
            std::string::npos);
}

TEST(Typing, AdjacentPairsKeepTheirPlace) {
  const Dim two = dim_of(Factor::number(2)), one = dim_of(Factor::number(1));
  const Type z = f32({kM, kH * half(kE) * two});
  EXPECT_EQ(typed(Op::split, {z}, {.axis = two, .dims = {one, one}}),
            "f32[M, H*(E/2)*1] f32[M, H*(E/2)*1]");
  const Type piece = f32({kM, kH * half(kE) * one});
  EXPECT_EQ(typed(Op::mul, {piece, f32({half(kE)})}), piece.text());
  EXPECT_EQ(typed(Op::join, {piece, piece}, {.axis = two}), z.text());
  EXPECT_NO_THROW(require_storable(f32({kM, kH * half(kE)}), piece));
}

TEST(Typing, SpreadIsTheGradientOfSums) {
  EXPECT_EQ(typed(Op::spread, {f32({kM})}, {.axis = kN}), "f32[M, N]");
  EXPECT_EQ(typed(Op::spread, {f32({kM, Dim{{Factor::blocks(kN, 64)}}})}, {.axis = kN}),
            "f32[M, N]");
  EXPECT_EQ(typed(Op::spread, {f32({kM, kH})}, {.dims = {kM, kH * kE}}), "f32[M, H*E]");
  EXPECT_NE(refused(Op::spread, {f32({kM, kH})}, {.dims = {kM, kE}}).find("lacks"),
            std::string::npos);
}

TEST(Typing, ReductionsNameNeighbouringFactors) {
  EXPECT_EQ(typed(Op::sum, {f32({kM, kH * kE})}, {.axis = kE}), "f32[M, H]");
  EXPECT_EQ(typed(Op::sum, {f32({kM, kH * kE})}, {.axis = kH * kE}), "f32[M]");
  EXPECT_EQ(typed(Op::block_sum, {f32({kM, kN})}, {.axis = kM}), "f32[blocks(M), N]");
  EXPECT_EQ(typed(Op::sum, {{DType::boolean, {kM}}}, {.axis = kM}), "i64");
  EXPECT_NE(refused(Op::sum, {f32({kM, kE * kH})}, {.axis = kH * kE}).find("no dimension"),
            std::string::npos);
}

TEST(Typing, IndexedOpsReplaceDims) {
  EXPECT_EQ(typed(Op::gather, {f32({dim_of("V"), kE}), i32({kM})}), "f32[M, E]");
  EXPECT_EQ(typed(Op::scatter_sum, {f32({kM, kE}), i32({kM})}, {.axis = dim_of("V")}), "f32[V, E]");
  EXPECT_EQ(typed(Op::pick, {f32({kM, kN}), i32({kM})}), "f32[M]");
  EXPECT_NE(refused(Op::pick, {f32({kM, kN}), f32({kM})}).find("not an integer"),
            std::string::npos);
  EXPECT_NE(refused(Op::pick, {f32({kM, kN, kK}), i32({kM})}).find("pick of"), std::string::npos);
}

TEST(Typing, AttentionReadsHeadsFromItsTypes) {
  const Dim rows = dim_of("B") * dim_of("S"), keys = dim_of("B") * dim_of("T");
  const Type q = {DType::bf16, {rows, kH * kE}}, k = {DType::bf16, {keys, dim_of("G") * kE}};
  EXPECT_EQ(typed(Op::attention, {q, k, k}), "bf16[B*S, H*E] f32[B*S, H]");
  EXPECT_NE(refused(Op::attention, {q, k, k, {DType::boolean, {}}}, {.keywords = {"casual"}})
                .find("no option `casual`"),
            std::string::npos);
  EXPECT_NE(refused(Op::attention, {q, k}).find("has 2 tensors"), std::string::npos);
}

// h = residual + x @ w, ss = block_sum(h * h, N), built in one of two orders.
Program sample(std::string name, bool named) {
  Builder b(std::move(name), Program::Kind::program);
  const Expr x{&b, b.param("x", {DType::bf16, {kM, kK}})};
  const Expr w{&b, b.param("w", {DType::bf16, {kN, kK}})};
  const Expr residual{&b, b.param("residual", {DType::bf16, {kM, kN}})};
  const Expr unused = x * x;
  EXPECT_EQ(unused.type().text(), "f32[M, K]");
  const Expr h = residual + product(x, w, {});
  if (named) b.name(h.value, "h");
  const Expr ss = block_reduce(Op::block_sum, h * h, kN, 0);
  b.result("h", {DType::bf16, {kM, kN}}, h.value);
  b.result("ss", ss.type(), ss.value);
  return std::move(b).finish();
}

TEST(Builder, DropsWhatNoResultNeeds) {
  const Program p = sample("p", true);
  ASSERT_EQ(p.nodes().size(), 4u);
  EXPECT_EQ(p.nodes()[0].op, Op::product);
  EXPECT_EQ(p.results()[1].type.text(), "f32[M, blocks(N)]");
  EXPECT_EQ(p.node(p.results()[0].value).op, Op::add);
}

TEST(Builder, ErrorsCarryTypesRuleAndFix) {
  Builder b("p", Program::Kind::program);
  const Value x = b.param("x", f32({kM})), y = b.param("y", f32({kN}));
  b.place({"p.coda", 3, 7});
  try {
    b.op(Op::product, {x, y});
    FAIL();
  } catch (const ProgramError& error) {
    const Diagnostic& d = error.diagnostics().at(0);
    EXPECT_EQ(d.where.line, 3);
    EXPECT_EQ(d.types, (std::vector<std::string>{"x: f32[M]", "y: f32[N]"}));
    EXPECT_NE(std::string(error.what()).find("p.coda:3:7: error:"), std::string::npos);
  }
  EXPECT_THROW(b.param("x", f32({kM})), ProgramError);
  EXPECT_THROW(b.param("z", f32({kM, kM})), ProgramError);
  EXPECT_THROW(b.result("r", i32({kM}), x), ProgramError);
  EXPECT_THROW(std::move(b).finish(), ProgramError);
}

TEST(Program, EqualityIgnoresNamesOfIntermediates) {
  EXPECT_TRUE(sample("p", true) == sample("p", false));
  EXPECT_EQ(sample("p", true).hash(), sample("p", false).hash());
  EXPECT_FALSE(sample("p", true) == sample("q", true));
}

TEST(Program, StorageIsWhatAnUnfusedSequenceWouldStore) {
  const Program p = sample("p", true);
  EXPECT_EQ(storage_dtype(p, p.results()[0].value), DType::bf16);
  EXPECT_EQ(storage_dtype(p, p.results()[1].value), DType::f32);
  Builder b("norm", Program::Kind::block);
  const Expr x{&b, b.param("x", {DType::bf16, {kM, kN}})};
  const Expr gamma{&b, b.param("gamma", f32({kN}))};
  const Expr n = x * map(Op::rsqrt, reduce(Op::sum, x * x, kN)) * gamma;
  const Expr two = n * n;  // read by a sum alone
  const Expr ss = reduce(Op::sum, two, kN);
  b.result("n", {DType::bf16, n.type().dims}, n.value);
  b.result("ss", ss.type(), ss.value);
  EXPECT_EQ(storage_dtype(b.so_far(), n.value), DType::bf16);
  EXPECT_EQ(storage_dtype(b.so_far(), two.value), DType::f32);
}

}  // namespace
}  // namespace coda
