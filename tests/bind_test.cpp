// tests/bind_test.cpp: sizes from tensors, and what a caller reads when tensors do not fit.

#include "coda/check/bind.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "coda/program/text.h"

namespace coda {
namespace {

using Shape = std::vector<std::int64_t>;

Program program_of(const std::string& text) {
  return parse(text, "test.coda").find("");
}

// NOTE: an unqualified bind(…, std::vector) would be std::bind.
Sizes sizes_of(const std::string& text, const std::vector<Tensor>& params, const Sizes& given = {},
               const std::vector<Tensor>& results = {}) {
  return coda::bind(program_of(text), params, results, given);
}

// Only shapes matter to bind.
Tensor tensor(Shape shape, DType dtype = DType::f32) {
  return dense(nullptr, dtype, std::move(shape));
}

std::string refused(const std::string& text, const std::vector<Tensor>& params,
                    const Sizes& given = {}, const std::vector<Tensor>& results = {}) {
  try {
    coda::bind(program_of(text), params, results, given);
  } catch (const ProgramError& error) {
    std::string all;
    for (const Diagnostic& diagnostic : error.diagnostics()) all += to_string(diagnostic) + "\n";
    return all;
  }
  ADD_FAILURE() << text << "\nwas bound";
  return "";
}

void expect_contains(const std::string& text, std::string_view part) {
  EXPECT_NE(text.find(part), std::string::npos) << "no `" << part << "` in:\n" << text;
}

const char* const kLinear =
    "program linear(x: f32[M, K], w: f32[N, K], eps: f32) -> (y: f32[M, N]) { y = x @ w + eps }";
const char* const kHeads =
    "program heads(q: f32[B*S, H*E], g: f32[E]) -> (y: f32[B*S, H*E]) { y = q * g }";

TEST(Bind, ReadsSizesFromAxes) {
  const Sizes sizes = sizes_of(kLinear, {tensor({3, 5}), tensor({7, 5}), tensor({})});
  EXPECT_EQ(sizes, (Sizes{{"M", 3}, {"K", 5}, {"N", 7}}));
}

TEST(Bind, TakesSizesFromZeroUp) {
  const Sizes sizes = sizes_of(kLinear, {tensor({0, 0}), tensor({1, 0}), tensor({})});
  EXPECT_EQ(sizes, (Sizes{{"M", 0}, {"K", 0}, {"N", 1}}));
}

TEST(Bind, SolvesTheLastNameOfAProduct) {
  const Sizes sizes = sizes_of(kHeads, {tensor({6, 40}), tensor({8})}, {{"B", 2}});
  EXPECT_EQ(sizes, (Sizes{{"B", 2}, {"S", 3}, {"H", 5}, {"E", 8}}));
}

TEST(Bind, TakesAnAxisForEachFactor) {
  const Sizes sizes = sizes_of(kHeads, {tensor({2, 3, 5, 8}), tensor({8})});
  EXPECT_EQ(sizes, (Sizes{{"B", 2}, {"S", 3}, {"H", 5}, {"E", 8}}));
}

TEST(Bind, TakesAThreeDimensionalTensorForTwoDims) {
  const Sizes sizes =
      sizes_of("program f(x: f32[B*S, D]) -> (y: f32[B*S, D]) { y = exp(x) }", {tensor({2, 3, 8})});
  EXPECT_EQ(sizes, (Sizes{{"B", 2}, {"S", 3}, {"D", 8}}));
}

TEST(Bind, LetsSizesDecideWhereThreeAxesFitInTwoWays) {
  const std::vector<Tensor> tensors = {tensor({2, 3, 40}), tensor({8})};
  const Sizes sizes = sizes_of(kHeads, tensors, {{"S", 3}, {"H", 5}});
  EXPECT_EQ(sizes, (Sizes{{"B", 2}, {"S", 3}, {"H", 5}, {"E", 8}}));
  const std::string errors = refused(kHeads, {tensor({2, 3, 8}), tensor({8})});
  expect_contains(errors, "the axes of q can be read in several ways");
  expect_contains(errors, "--size ");
}

TEST(Bind, SolvesQuotientsSumsAndRenames) {
  EXPECT_EQ(
      sizes_of("program f(c: f32[S, E/2]) -> (y: f32[S, E/2]) { y = exp(c) }", {tensor({3, 8})}),
      (Sizes{{"S", 3}, {"E", 16}}));
  EXPECT_EQ(sizes_of("program f(x: f32[M, E], r: f32[R]) -> (a: f32[M, R], b: f32[M, E - R])"
                     " { a, b = split(x, E: R, E - R) }",
                     {tensor({3, 8}), tensor({3})}),
            (Sizes{{"M", 3}, {"E", 8}, {"R", 3}}));
  EXPECT_EQ(sizes_of("program f(x: f32[M, N], g: f32[E]) -> (y: f32[M, H*E])"
                     " { y = x as [M, H*E] * g }",
                     {tensor({3, 40}), tensor({8})}),
            (Sizes{{"M", 3}, {"N", 40}, {"E", 8}, {"H", 5}}));
  EXPECT_EQ(sizes_of("program f(x: f32[M, N]) -> (q: f32[M, A], k: f32[M, C])"
                     " { q, k = split(x, N: A, C) }",
                     {tensor({3, 40})}, {{"A", 24}}),
            (Sizes{{"M", 3}, {"N", 40}, {"A", 24}, {"C", 16}}));
}

TEST(Bind, SolvesDifferences) {
  EXPECT_EQ(sizes_of("program f(x: f32[E - R], r: f32[R]) -> (y: f32[E - R]) { y = x * sum(r, R) }",
                     {tensor({5}), tensor({3})}),
            (Sizes{{"E", 8}, {"R", 3}}));
  EXPECT_EQ(sizes_of("program f(x: f32[E - R], e: f32[E]) -> (y: f32[E - R]) { y = x * sum(e, E) }",
                     {tensor({5}), tensor({9})}),
            (Sizes{{"E", 9}, {"R", 4}}));
}

TEST(Bind, ReadsResultsToo) {
  EXPECT_EQ(sizes_of("program f(x: f32[M, N]) -> (y: f32[H*E, M]) { y = x as [M, H*E] }",
                     {tensor({3, 40})}, {}, {tensor({5, 8, 3})}),
            (Sizes{{"M", 3}, {"N", 40}, {"H", 5}, {"E", 8}}));
}

TEST(Bind, NamesBothTensorsAndBothSizes) {
  const std::string errors = refused(kLinear, {tensor({3, 5}), tensor({7, 6}), tensor({})});
  expect_contains(errors, "axis 1 of w is 6, but K is 5: K = 5 by axis 1 of x");
  expect_contains(errors, "x: f32[M, K], bound to f32[3, 5]");
  expect_contains(errors, "w: f32[N, K], bound to f32[7, 6]");
}

TEST(Bind, NamesAResultThatDoesNotFit) {
  const std::string errors =
      refused(kLinear, {tensor({3, 5}), tensor({7, 5}), tensor({})}, {}, {tensor({3, 8})});
  expect_contains(errors, "axis 1 of y is 8, but N is 7: N = 7 by axis 0 of w");
}

TEST(Bind, NamesTheSizeThatWasGiven) {
  expect_contains(refused(kLinear, {tensor({3, 5}), tensor({7, 5}), tensor({})}, {{"K", 4}}),
                  "axis 1 of x is 5, but K is 4: K = 4 by --size");
  expect_contains(refused(kLinear, {tensor({3, 5}), tensor({7, 5}), tensor({})}, {{"Q", -4}}),
                  "the size of Q is -4");
}

TEST(Bind, SaysHowToGiveWhatNothingDetermines) {
  const std::string errors = refused(kHeads, {tensor({6, 40}), tensor({8})});
  expect_contains(errors, "nothing determines the size of B");
  expect_contains(errors, "--size B=8");
  expect_contains(errors, "q: f32[B*S, H*E], bound to f32[6, 40]");
}

TEST(Bind, RefusesAProductThatDoesNotDivide) {
  expect_contains(refused(kHeads, {tensor({6, 41}), tensor({8})}, {{"B", 2}}),
                  "axis 1 of q is 41: no size of H makes that H*E with E = 8 by axis 0 of g");
}

TEST(Bind, RefusesAnInexactQuotient) {
  const std::string errors = refused(
      "program f(x: f32[M, E]) -> (a: f32[M, E/2], b: f32[M, E/2]) { a, b = split(x, E: E/2, E/2) "
      "}",
      {tensor({3, 7})});
  expect_contains(errors, "E is 7, which 2 does not divide: E = 7 by axis 1 of x");
  expect_contains(errors, "test.coda:1:");
}

TEST(Bind, RefusesANegativeRest) {
  expect_contains(refused("program f(x: f32[M, E], r: f32[R]) -> (a: f32[M, R], b: f32[M, E - R])"
                          " { a, b = split(x, E: R, E - R) }",
                          {tensor({3, 8}), tensor({9})}),
                  "E - R is -1: E = 8 by axis 1 of x, R = 9 by axis 0 of r");
}

TEST(Bind, RefusesPiecesThatDoNotAddUp) {
  const std::string errors = refused(
      "program f(x: f32[M, N], a: f32[A], c: f32[C]) -> (q: f32[M, A], k: f32[M, C])"
      " { q, k = split(x, N: A, C) }",
      {tensor({3, 40}), tensor({24}), tensor({17})});
  expect_contains(errors, "the pieces of split: N is 40, but A + C is 41");
  expect_contains(errors, "q, k = split(x, N: A, C)");
}

TEST(Bind, RefusesARenameOfAnotherExtent) {
  expect_contains(refused("program f(x: f32[M, N], g: f32[H*E]) -> (y: f32[M, H*E])"
                          " { y = x as [M, H*E] * g }",
                          {tensor({3, 40}), tensor({5, 7})}),
                  "`as`: N is 40, but H*E is 35");
}

TEST(Bind, RefusesAnotherDtype) {
  const std::string errors =
      refused(kLinear, {tensor({3, 5}, DType::f64), tensor({7, 5}, DType::bf16), tensor({})});
  expect_contains(errors, "x is declared f32, the tensor holds f64");
  expect_contains(errors, "w is declared f32, the tensor holds bf16");
  expect_contains(errors, "declare w: bf16[N, K]");
}

TEST(Bind, RefusesAnotherRank) {
  expect_contains(refused(kLinear, {tensor({15}), tensor({7, 5}), tensor({})}),
                  "x: f32[M, K] takes 2 axes, the tensor has 1");
  expect_contains(refused(kLinear, {tensor({3, 5}), tensor({7, 5}), tensor({1})}),
                  "eps: f32 takes 0 axes, the tensor has 1");
  expect_contains(refused(kHeads, {tensor({6}), tensor({8})}), "takes 2 to 4 axes");
}

TEST(Bind, RefusesAnotherNumberOfTensors) {
  expect_contains(refused(kLinear, {tensor({3, 5})}), "linear has 3 parameters, but 1 tensors");
}

TEST(Bind, RefusesHeadsThatDoNotShareKeys) {
  const std::string text = R"(
block f(q: f32[B*S, H*E], k: f32[B*S, G*E], v: f32[B*S, G*E]) -> (o: f32[B*S, H*E]) {
  o, _l = attention(q, k, v)
})";
  EXPECT_NO_THROW(
      sizes_of(text, {tensor({1, 4, 6, 8}), tensor({1, 4, 3, 8}), tensor({1, 4, 3, 8})}));
  expect_contains(refused(text, {tensor({1, 4, 6, 8}), tensor({1, 4, 4, 8}), tensor({1, 4, 4, 8})}),
                  "q has 6 heads, k has 4");
}

TEST(Bind, CompletesSizesWithoutTensors) {
  const Program program = program_of(
      "program f(x: f32[M, N]) -> (q: f32[M, A], k: f32[M, C]) { q, k = split(x, N: A, C) }");
  EXPECT_EQ(bind_sizes(program, {{"M", 3}, {"A", 24}, {"N", 40}}),
            (Sizes{{"M", 3}, {"N", 40}, {"A", 24}, {"C", 16}}));
  EXPECT_THROW(bind_sizes(program, {{"M", 3}}), ProgramError);
}

TEST(Shape, HasAnAxisForEachDim) {
  const Type type = program_of(kHeads).params()[0].type;
  const Sizes sizes = {{"B", 2}, {"S", 3}, {"H", 5}, {"E", 8}};
  EXPECT_EQ(shape_of(type, sizes), (Shape{6, 40}));
  EXPECT_EQ(elements_of(type, sizes), 240);
  EXPECT_EQ(elements_of(Type{DType::f32, {}}, sizes), 1);
}

TEST(FactorStrides, DivideAnAxis) {
  const Type type = program_of(kHeads).params()[0].type;
  const Sizes sizes = {{"B", 2}, {"S", 3}, {"H", 5}, {"E", 8}};
  EXPECT_EQ(factor_strides(type, tensor({6, 40}), sizes), (Shape{120, 40, 8, 1}));
  EXPECT_EQ(factor_strides(type, {nullptr, DType::f32, {6, 40}, {100, 2}}, sizes),
            (Shape{300, 100, 16, 2}));
  EXPECT_EQ(factor_strides(type, {nullptr, DType::f32, {2, 3, 5, 8}, {7, 1000, 0, 50}}, sizes),
            (Shape{7, 1000, 0, 50}));
  EXPECT_EQ(factor_strides(type, {nullptr, DType::f32, {2, 3, 40}, {1, 2, 6}}, sizes),
            (Shape{1, 2, 48, 6}));
  EXPECT_THROW(factor_strides(type, tensor({6, 41}), sizes), ProgramError);
}

}  // namespace
}  // namespace coda
