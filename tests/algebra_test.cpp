// tests/algebra_test.cpp: each rule alone: where it applies, what it makes, where it does not, and
// that the result means the same.
#include <gtest/gtest.h>

#include <string>

#include "coda/algebra/rule.h"
#include "coda/program/text.h"
#include "coda/rewrite/rewrite.h"
#include "coda/rewrite/simplify.h"
#include "tests/numeric_gradient.h"

namespace coda {
namespace {

using testing::Tensors;

Program block(const std::string& signature, const std::string& body) {
  return parse("use \"prelude.coda\"\nblock f" + signature + " {\n" + body + "\n}\n", "test.coda")
      .find("");
}

// The statements of a program.
std::string body_of(const Program& program) {
  const std::string text = print(program);
  const std::size_t begin = text.find("{\n") + 2;
  return text.substr(begin, text.rfind('}') - begin);
}

void expect_same(const Program& a, const Program& b) {
  const Sizes sizes = testing::complete(
      a, {{"M", 3}, {"D", 70}, {"N", 5}, {"F", 6}, {"R", 2}, {"P", 12}, {"E", 4}, {"H", 2}});
  Tensors tensors;
  testing::draw(a, sizes, {.seed = 5, .at = {{"eps", 0.1}}}, tensors);
  const auto want = testing::evaluate(a, sizes, tensors);
  const auto got = testing::evaluate(b, sizes, tensors);
  ASSERT_EQ(want.size(), got.size());
  for (const auto& [name, values] : want) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      EXPECT_NEAR(got.at(name)[i], values[i], 1e-11 * (1 + std::abs(values[i]))) << name << i;
    }
  }
}

// The rule's result, which means the same and is final: applied again it changes nothing.
std::string apply(Program (*rule)(const Program&, Situation&), const Program& program,
                  Situation situation = {}) {
  const Program made = simplify(rule(simplify(program), situation));
  expect_same(program, made);
  EXPECT_EQ(body_of(simplify(rule(made, situation))), body_of(made));
  return body_of(made);
}

std::string unchanged(const Program& program) {
  return body_of(simplify(program));
}

const std::string kNorm = "(x: bf16[M, D], g: bf16[D], w: bf16[N, D], eps: f32) -> (y: bf16[M, N])";

TEST(RowScale, LeavesTheOperandOfAProduct) {
  EXPECT_EQ(apply(row_scale, block(kNorm, "y = rmsnorm(x, g, eps) @ w")),
            "  ss = sum(x * x, D)\n"
            "  r = rsqrt(ss / size(D) + eps)\n"
            "  p = x * g\n"
            "  s_w = p @ w\n"
            "  y = s_w * where(size(D) > 0, r, 0)\n");
}

TEST(RowScale, OfAWeightGivenByColumnsAndOfTheRightOperand) {
  EXPECT_EQ(apply(row_scale, block("(x: bf16[M, D], w: bf16[D, N], eps: f32) -> (y: bf16[N, M])",
                                   "n = x * rsqrt(sum(x * x, D) + eps)\ny = w @ n")),
            "  ss = sum(x * x, D)\n"
            "  r = rsqrt(ss + eps)\n"
            "  s_w = w @ x\n"
            "  y = s_w * where(size(D) > 0, r, 0)\n");
}

TEST(RowScale, AParameterNeedNotBeStoredScaled) {
  EXPECT_EQ(apply(row_scale, block("(x: bf16[M, D], r: f32[M], w: bf16[N, D]) -> (y: bf16[M, N])",
                                   "y = (r * x) @ w")),
            "  s_w = x @ w\n"
            "  y = s_w * where(size(D) > 0, r, 0)\n");
}

TEST(RowScale, KeepsTheColumnScaleWithTheProducer) {
  const std::string text =
      apply(row_scale, block("(x: bf16[M, D], g: bf16[D], a: bf16[N, D], b: bf16[F, D], eps: f32)"
                             " -> (y: bf16[M, N], z: bf16[M, F])",
                             "n = rmsnorm(x, 1 + g, eps)\ny = n @ a\nz = n @ b"));
  EXPECT_NE(text.find("p = x * (1 + g)"), std::string::npos) << text;
  EXPECT_NE(text.find("p @ a"), std::string::npos) << text;
  EXPECT_NE(text.find("p @ b"), std::string::npos) << text;
}

TEST(RowScale, StaysWhereTheScaledValueMustExistAnyway) {
  for (const std::string body : {"n = rmsnorm(x, g, eps)\ny = n @ w\nv = n + 1",
                                 "n = rmsnorm(x, g, eps)\ny = n @ w\nv = n"}) {
    const Program program = block(
        "(x: bf16[M, D], g: bf16[D], w: bf16[N, D], eps: f32) -> (y: bf16[M, N], v: f32[M, D])",
        body);
    Situation situation;
    EXPECT_EQ(body_of(row_scale(simplify(program), situation)), unchanged(program));
    ASSERT_EQ(situation.notes.size(), 1u);
    EXPECT_NE(situation.notes[0].find("something beside products reads it"), std::string::npos);
  }
}

TEST(RowScale, StaysBeforeAPin) {
  const Program program = block(kNorm, "y = pin bf16(rmsnorm(x, g, eps)) @ w");
  EXPECT_EQ(apply(row_scale, program), unchanged(program));
}

TEST(RowScale, StaysInF16UnlessAsked) {
  const Program program = block("(x: f16[M, D], w: f16[N, D], eps: f32) -> (y: f16[M, N])",
                                "y = (x * rsqrt(sum(x * x, D) + eps)) @ w");
  Situation situation;
  EXPECT_EQ(body_of(row_scale(program, situation)), unchanged(program));
  ASSERT_EQ(situation.notes.size(), 1u);
  EXPECT_NE(situation.notes[0].find("f16 could overflow"), std::string::npos);
  EXPECT_NE(apply(row_scale, program, {.delay_f16 = true}), unchanged(program));
}

TEST(RowScale, StaysAlongTheContraction) {
  const Program program = block("(x: bf16[M, D], z: bf16[M, N], eps: f32) -> (y: bf16[N, D])",
                                "n = x * rsqrt(sum(x * x, D) + eps)\ny = z @ n");
  EXPECT_EQ(apply(row_scale, program), unchanged(program));
}

TEST(RowScale, TurnsALayerNormIntoRankOneTermsAboutTheMeanOfItsResidual) {
  const Program program = block(
      "(x: bf16[M, D], a: bf16[M, F], v: bf16[D, F], g: bf16[D], b: bf16[D], w: bf16[N, D],"
      " c: bf16[N], eps: f32) -> (m: f32[M], y: bf16[M, N])",
      "m = sum(x, D) / size(D)\nh = x + a @ v\ny = layernorm(h, g, b, eps) @ w + c");
  const std::string text = apply(row_scale, program);
  for (const char* part : {"detach(m)", "p = (h - t3) * g", "p @ w", "f32(b) @ w", "f32(g) @ w"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in\n" << text;
  }
}

TEST(SharedScale, SumsBeforeItScales) {
  EXPECT_EQ(apply(shared_scale, block("(x: bf16[M, D], a: bf16[N, D], z: bf16[M, F], b: bf16[N, F],"
                                      " r: f32[M]) -> (y: bf16[M, N])",
                                      "y = r * (x @ a) + r * (z @ b)")),
            "  y = (x @ a + z @ b) * r\n");
}

TEST(SharedScale, MovesTheRestIntoASmallOperandMadeForThis) {
  EXPECT_EQ(apply(shared_scale, block("(x: bf16[M, D], w: bf16[N, D], a: bf16[R, D], b: bf16[N, R],"
                                      " r: f32[M], s: f32) -> (y: bf16[M, N])",
                                      "y = r * (x @ w) + s * (r * (x @ a @ b))")),
            "  y = (x @ w + ((x @ a) * s) @ b) * r\n");
  const Program of_params = block(
      "(x: bf16[M, D], w: bf16[N, D], z: bf16[M, R], b: bf16[N, R],"
      " s: f32) -> (y: bf16[M, N])",
      "y = x @ w + s * (z @ b)");
  EXPECT_EQ(apply(shared_scale, of_params), unchanged(of_params));
}

TEST(PackedProduct, IsSplitOnTheWeightWherePiecesMeet) {
  const std::string signature = "(x: bf16[M, D], w: bf16[P, D], r: f32[M]) -> (y: bf16[M, F])";
  EXPECT_EQ(apply(packed_product, block(signature,
                                        "g, u = split((x @ w) * r, P: F, F)\n"
                                        "y = silu(g) * u")),
            "  t1, t2 = split(w, P: F, F)\n"
            "  g = (x @ t1) * r\n"
            "  u = (x @ t2) * r\n"
            "  y = g * sigmoid(g) * u\n");
  const Program apart = block("(x: bf16[M, D], w: bf16[P, D]) -> (g: bf16[M, F], u: bf16[M, F])",
                              "g, u = split(x @ w, P: F, F)");
  EXPECT_EQ(apply(packed_product, apart), unchanged(apart));
}

TEST(JoinedProducts, AreOneProductOfTheJoin) {
  EXPECT_EQ(
      apply(joined_products, block("(a: bf16[M, F], b: bf16[M, F], x: bf16[M, D], w: bf16[P, D])"
                                   " -> (dw: bf16[P, D], dx: bf16[M, D])",
                                   "p, q = split(w, P: F, F)\n"
                                   "dw = join(a @ x, b @ x, P: F, F)\n"
                                   "dx = a @ p + b @ q")),
      "  t1 = join(a, b, P: F, F)\n"
      "  dw = t1 @ x\n"
      "  dx = t1 @ w\n");
}

TEST(CentredSum, OfAnythingMinusItsMeanIsZero) {
  EXPECT_EQ(apply(centred_sum, block("(x: bf16[M, D], r: f32[M], z: f32[M]) -> (y: f32[M])",
                                     "c = x - sum(x, D) / size(D)\ny = z + sum(2 * (r * c), D)")),
            "  y = z\n");
  const Program other = block("(x: bf16[M, D], g: f32[D]) -> (y: f32[M])",
                              "c = x - sum(x, D) / size(D)\ny = sum(g * c, D)");
  EXPECT_EQ(apply(centred_sum, other), unchanged(other));
}

TEST(OtherOperand, TakesTheScaleWhereItIsScaledAnyway) {
  const std::string signature =
      "(z: bf16[M, N], p: bf16[M, D], w: bf16[N, D], r: f32[M])"
      " -> (dx: bf16[M, D], dw: bf16[N, D])";
  EXPECT_EQ(apply(other_operand, block(signature, "dx = (z * r) @ w\ndw = z @ (p * r)")),
            "  t1 = z * r\n"
            "  dx = t1 @ w\n"
            "  dw = t1 @ p\n");
  const Program alone = block(signature, "dx = z @ w\ndw = z @ (p * r)");
  EXPECT_EQ(apply(other_operand, alone), unchanged(alone));
}

TEST(RowSum, OfAnOperandIsThatOfTheProduct) {
  EXPECT_EQ(apply(row_sum, block("(z: bf16[M, N], w: bf16[N, D], r: f32[M])"
                                 " -> (dx: bf16[M, D], dbeta: bf16[D])",
                                 "dx = (r * z) @ w\ndbeta = sum(z, M) @ w")),
            "  dx = (r * z) @ w\n"
            "  dbeta = sum(dx / r, M)\n");
  const Program alone =
      block("(z: bf16[M, N], w: bf16[N, D]) -> (dbeta: bf16[D])", "dbeta = sum(z, M) @ w");
  EXPECT_EQ(apply(row_sum, alone), unchanged(alone));
}

TEST(MergedSums, AddBeforeTheySum) {
  EXPECT_EQ(apply(merged_sums, block("(a: f32[M, N], b: f32[M, N], c: f32[M, N]) -> (y: f32[M])",
                                     "y = sum(a, N) + sum(b, N) - sum(c, N)")),
            "  y = sum(a + b - c, N)\n");
  const Program apart =
      block("(a: f32[M, N], b: f32[M, F]) -> (y: f32[M])", "y = sum(a, N) + sum(b, F)");
  EXPECT_EQ(apply(merged_sums, apart), unchanged(apart));
}

TEST(ConstantScale, MeetsTheNextOne) {
  EXPECT_EQ(apply(constant_scale, block("(t: f32[M], r: f32[M], x: f32[M, D]) -> (y: f32[M, D])",
                                        "y = 2 * (-0.5 * t * (r * r) / size(D)) * x")),
            "  y = -t * (r * r) / size(D) * x\n");
  const Program shared = block("(t: f32[M]) -> (y: f32[M], z: f32[M])", "z = 3 * t\ny = 2 * z");
  EXPECT_EQ(apply(constant_scale, shared), unchanged(shared));
}

TEST(Vanishing, ATermForItsGradientAlone) {
  EXPECT_EQ(apply(vanishing, block("(m: f32[M], c: f32[N], z: f32[M, N]) -> (y: f32[M, N])",
                                   "y = z - (m - detach(m)) * c")),
            "  y = z\n");
}

TEST(CentredSquares, SeeOnlyBlocksOfWhatAProductMakes) {
  const std::string signature = "(x: bf16[M, F], w: bf16[D, F]) -> (v: f32[M])";
  const std::string text = apply(
      centred_squares,
      block(signature, "h = x @ w\nc = h - sum(h, D) / size(D)\nv = sum(c * c, D) / size(D)"));
  EXPECT_EQ(text.find("sum(c * c, D)"), std::string::npos) << text;
  EXPECT_NE(text.find("block_sum(h, D)"), std::string::npos) << text;
  const Program at_hand = block("(h: bf16[M, D]) -> (v: f32[M])",
                                "c = h - sum(h, D) / size(D)\nv = sum(c * c, D) / size(D)");
  EXPECT_EQ(apply(centred_squares, at_hand), unchanged(at_hand));
}

TEST(CentredSquares, KeepTheirNumbersFarFromZero) {
  // Rows of 300 ± 1: squares less the squared mean would lose 5 digits of f32.
  const Program program = block("(x: f32[M, D], w: f32[D, F]) -> (v: f32[M])",
                                "h = x + spread(f32(0), [M, F]) @ w\n"
                                "c = h - sum(h, D) / size(D)\nv = sum(c * c, D) / size(D)");
  Situation situation;
  const Program made = centred_squares(simplify(program), situation);
  const Sizes sizes = {{"M", 2}, {"D", 1000}, {"F", 1}};
  Tensors tensors;
  testing::draw(program, sizes, {.seed = 3, .low = 299, .high = 301}, tensors);
  const auto want = testing::evaluate(program, sizes, tensors).at("v");
  const auto got = testing::evaluate(made, sizes, tensors).at("v");
  for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i] / want[i], 1, 1e-12);
}

TEST(Rules, SayWhatTheyDo) {
  std::set<std::string_view> names;
  for (const auto rules : {block_rules(), joint_rules(), kernel_rules()}) {
    for (const Rule& rule : rules) {
      EXPECT_TRUE(names.insert(rule.name).second) << rule.name;
      EXPECT_FALSE(rule.identity.empty() || rule.precondition.empty() || rule.buys.empty());
      EXPECT_NE(rule.apply, nullptr);
    }
  }
}

// ---- what differentiation makes of it ----

std::string backward_of(const Program& program, std::vector<std::string> wrt) {
  const Rewritten made = rewrite(program, GradOptions{.wrt = std::move(wrt)});
  for (const Pass& pass : made.passes) {
    if (pass.name == "backward") return body_of(pass.program);
  }
  return "";
}

TEST(Detach, StopsTheGradient) {
  const Program gradient = grad(block("(x: f32[M]) -> (y: f32[M])", "y = x * detach(x)"));
  EXPECT_EQ(body_of(gradient), "  d_x = d_y * detach(x)\n");
}

TEST(RowDot, IsReadBehindARotationWithoutTheProduct) {
  const std::string text = backward_of(
      block("(x: bf16[S, D], w: bf16[H*E, D], cos: f32[S, E/2], sin: f32[S, E/2], eps: f32)"
            " -> (q: bf16[S, H*E])",
            "q = rope((x * rsqrt(sum(x * x, D) / size(D) + eps)) @ w, cos, sin)"),
      {"x", "w"});
  EXPECT_NE(text.find("sum(d_q * q, H*E)"), std::string::npos) << text;
  EXPECT_EQ(text.find("x @ w"), std::string::npos) << text;
}

TEST(RowDot, TakesABiasOff) {
  const std::string text =
      backward_of(block("(x: bf16[M, D], w: bf16[N, D], b: bf16[N], eps: f32) -> (y: bf16[M, N])",
                        "y = (x * rsqrt(sum(x * x, D) / size(D) + eps)) @ w + b"),
                  {"x", "w"});
  EXPECT_NE(text.find("sum(d_y * y - d_y * b, N)"), std::string::npos) << text;
}

TEST(RowDot, StopsAtWhatIsNotLinear) {
  const std::string text = backward_of(
      block("(x: bf16[M, D], w: bf16[N, D], v: bf16[F, N], eps: f32) -> (y: bf16[M, F])",
            "g = (x * rsqrt(sum(x * x, D) / size(D) + eps)) @ w\ny = tanh(g) @ v"),
      {"x", "w"});
  EXPECT_NE(text.find(", N)"), std::string::npos) << text;
  EXPECT_EQ(text.find("x @ w"), std::string::npos) << text;
}

TEST(RowDot, HasTheRightPowerOfTheScale) {
  // With t from unscaled gradients: r squared. Anything else is off by a few percent, no more.
  const Program program =
      block("(x: f32[M, D], g: f32[D], w: f32[N, D], eps: f32) -> (y: f32[M, N])",
            "y = rmsnorm(x, g, eps) @ w");
  const std::string text = backward_of(program, {"x"});
  EXPECT_NE(text.find("r * r"), std::string::npos) << text;
  EXPECT_EQ(text.find("r * r * r"), std::string::npos) << text;
}

}  // namespace
}  // namespace coda
