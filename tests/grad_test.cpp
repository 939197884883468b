// tests/grad_test.cpp: gradients of every op, of factors and of whole blocks against central
// differences; what grad refuses.
#include <gtest/gtest.h>

#include <set>

#include "coda/program/builder.h"
#include "coda/program/library.h"
#include "coda/program/text.h"
#include "coda/rewrite/halves.h"
#include "tests/numeric_gradient.h"

namespace coda {
namespace {

using testing::Fill;
using testing::Numeric;
using testing::Tensors;

Program parse_one(const std::string& text) {
  return parse("use \"prelude.coda\"\n" + text, "test.coda").find("");
}

// A block `f` with that signature and those statements.
Program block(const std::string& signature, const std::string& body) {
  return parse_one("block f" + signature + " {\n" + body + "\n}\n");
}

const Sizes kSizes = {{"M", 3}, {"N", 5}, {"K", 4}, {"H", 2}, {"E", 6},  {"B", 2}, {"S", 3},
                      {"V", 7}, {"T", 4}, {"G", 1}, {"R", 4}, {"L", 70}, {"P", 12}};

struct Case {
  const char* signature;
  const char* body;
  double low = -1, high = 1;
};

const Case kCases[] = {
    // Maps, on positive numbers where the op asks for them.
    {"(x: f32[M]) -> (y: f32[M])", "y = -x"},
    {"(x: f32[M, N]) -> (y: f32[M, N])", "y = abs(x)"},
    {"(x: f32[M]) -> (y: f32[M])", "y = exp(x)"},
    {"(x: f32[M]) -> (y: f32[M])", "y = log(x)", 0.5, 2},
    {"(x: f32[M]) -> (y: f32[M])", "y = sqrt(x)", 0.5, 2},
    {"(x: f32[M]) -> (y: f32[M])", "y = rsqrt(x)", 0.5, 2},
    {"(x: f32[M]) -> (y: f32[M])", "y = tanh(x)"},
    {"(x: f32[M]) -> (y: f32[M])", "y = sigmoid(x)"},
    {"(x: f32[M]) -> (y: f32[M])", "y = erf(x)"},
    {"(x: f32[M]) -> (y: f32[M])", "y = x * detach(0.5) + save(x) * recompute(x)"},
    {"(x: f32[M, N], b: f32[N]) -> (y: f32[M, N])", "y = x + b"},
    {"(x: f32[M, N], b: f32[M]) -> (y: f32[M, N])", "y = b - x"},
    {"(x: f32[M], b: f32[N], s: f32) -> (y: f32[M, N])", "y = s * x * b"},
    {"(x: f32[M, N], b: f32[N]) -> (y: f32[M, N])", "y = x / b + b / x", 0.5, 2},
    {"(x: f32[M, N], b: f32[N]) -> (y: f32[M, N])", "y = min(x, b) * 2 + max(x, b)"},
    {"(x: f32[M, N], b: f32[N], c: f32[M]) -> (y: f32[M, N])", "y = where(x > 0.1, b, c * x)"},
    {"(x: f32[M, N]) -> (y: f32[M, N])", "y = where(x == x, x, 0) * where(x != x, 1, 2)"},
    {"(x: f32[M, N]) -> (y: f32[M, N])",
     "y = where(x < 0, x, 2) * where(x <= 0, x, where(x >= 0.5, x, 1))"},
    {"(x: bf16[M, N]) -> (y: bf16[M, N])", "y = bf16(x * x) + pin bf16(x)"},
    {"(x: f64[M, N], b: f32[N]) -> (y: f64[M, N])", "y = f64(b) * x * x"},
    {"(x: f32[M], s: f32) -> (y: f32[M])", "y = x * x * x + x * s + s"},
    // Products: every operand order, summed, factors, vectors, several contracted names.
    {"(x: f32[M, K], w: f32[N, K]) -> (y: f32[M, N])", "y = x @ w"},
    {"(x: f32[M, K], w: f32[K, N]) -> (y: f32[M, N])", "y = x @ w"},
    {"(x: f32[K, M], w: f32[K, N]) -> (y: f32[M, N])", "y = x @ w"},
    {"(x: f32[K, M], w: f32[N, K]) -> (y: f32[N, M])", "y = x @ w"},
    {"(x: f32[B*S, H*E], w: f32[N, H*E]) -> (y: f32[B*S, N])", "y = x @ w"},
    {"(x: f32[B*S, H*E], w: f32[E, N]) -> (y: f32[B*S, H, N])", "y = x @ w"},
    {"(z: f32[B*S, N], x: f32[B*S, K]) -> (y: f32[N, K])", "y = z @ x"},
    {"(z: f32[B, S, N], x: f32[B, S, K]) -> (y: f32[N, K])", "y = z @[B, S] x"},
    {"(x: f32[K], w: f32[N, K]) -> (y: f32[N])", "y = x @ w"},
    {"(x: f32[K], w: f32[K]) -> (y: f32)", "y = x @ w"},
    {"(x: f32[M, K], w: f32[N, K]) -> (y: f32[M, N])", "y = (x * x) @ w + x @ (w * w)"},
    // Layout.
    {"(x: f32[M, H*E]) -> (y: f32[M, H*(E/2)])", "a, b = split(x, E: E/2, E/2)\ny = a * a * b"},
    {"(x: f32[M, H*E]) -> (y: f32[M, H*(E/2)])", "a, _b = split(x, E: E/2, E/2)\ny = a * a"},
    {"(x: f32[M, H*E]) -> (y: f32[M, H*(R/2)], z: f32[M, H*(E - R)])",
     "a, b, rest = split(x, E: R/2, R/2, E - R)\ny = a * b\nz = rest * rest"},
    {"(a: f32[M, H*(E/2)], b: f32[M, H*(E/2)]) -> (y: f32[M, H*E])",
     "v = join(E: a * b, b)\ny = v * v"},
    {"(x: f32[M, E], c: f32[M, E/2]) -> (y: f32[M, E])",
     "a, b = split(x, E: E/2, E/2)\ny = join(E: a * c - b, b * c + a)"},
    {"(x: f32[M, H*E]) -> (y: f32[M, P])", "z = x as [M, P]\ny = z * z"},
    {"(x: f32[M, H*E], r: f32[H]) -> (y: f32[M, H*(E/2)*2])",
     "z = x as [M, H*(E/2)*2]\ny = z * z * r"},
    {"(x: f32[M]) -> (y: f32[M, N])", "s = spread(x, N)\ny = s * s"},
    {"(x: f32[M, N]) -> (y: f32[N, M])", "y = spread(x, [N, M]) * 2"},
    {"(x: f32[M, L]) -> (y: f32[M, L])", "y = spread(block_sum(x * x, L), L) * x"},
    {"(x: f32[M]) -> (y: f32[B, M*N])", "s = spread(x, [B, M*N])\ny = s * s"},
    // Reductions over a dimension, a factor, neighbouring factors, and blocks with a tail.
    {"(x: f32[M, N]) -> (y: f32[M])", "y = sum(x * x, N)"},
    {"(x: f32[M, N]) -> (y: f32[N])", "y = sum(x * x, M)"},
    {"(x: f32[B*S, H*E]) -> (y: f32[B*S, E])", "y = sum(x * x, H)"},
    {"(x: f32[B*S, H*E]) -> (y: f32[S, H*E])", "y = sum(x * x, B)"},
    {"(x: f32[B*S, H*E]) -> (y: f32[B*S])", "y = sum(x * x, H*E)"},
    {"(x: f32[M, N]) -> (y: f32)", "y = sum(sum(x * x, N), M)"},
    {"(x: f32[M, N]) -> (y: f32[M])", "m = max(x, N)\ny = m * m"},
    {"(x: f32[M, N]) -> (y: f32[N])", "y = max(x, M)"},
    {"(x: f32[M, N]) -> (y: f32[M])", "m = logsumexp(x, N)\ny = m * m"},
    {"(x: f32[M, L]) -> (y: f32[M, blocks(L)])", "s = block_sum(x * x, L)\ny = s * s"},
    {"(x: f32[L, M]) -> (y: f32[blocks(L, 32), M])", "y = block_sum(x * x, L, 32)"},
    {"(x: f32[M, L]) -> (y: f32[M, blocks(L)])", "m = block_max(x, L)\ny = m * m"},
    {"(x: f32[M, L]) -> (y: f32[M, blocks(L)])", "m = block_logsumexp(x, L)\ny = m * m"},
    {"(x: f32[M, L]) -> (y: f32[M])", "y = logsumexp(block_logsumexp(x, L), blocks(L))"},
    {"(x: f32[M, N], s: f32) -> (y: f32[M, N])", "y = x * index(N) * s / size(N)"},
    // Operands that a reduced sum repeats: what its gradient lacks counts as often.
    {"(x: f32[M], b: f32[M, N]) -> (y: f32[M])", "y = sum(x + b, N)"},
    {"(x: f32, b: f32[M, N], c: f32[N]) -> (y: f32)", "y = sum(sum(x - c + b * b, N), M)"},
    {"(x: f32[B*S], b: f32[B*S, H*E]) -> (y: f32)", "y = sum(sum(where(b > 0, x, b), H*E), B*S)"},
    {"(x: f32[M], c: f32[S]) -> (y: f32[M])", "y = sum(spread(x, S) + spread(x, S) * c, S)"},
    {"(x: f32[M, L]) -> (y: f32[M])", "y = sum(block_sum(x * x, L), blocks(L))"},
    {"(x: f32[M, L]) -> (y: f32)", "y = sum(sum(block_max(x, L), blocks(L)), M)"},
    {"(x: f32[B*S, N], w: f32[N, K]) -> (y: f32[B])", "y = sum(sum(x @ w, K), S)"},
    {"(x: f32[B*S, N], y: f32[S*K]) -> (z: f32)",
     "a = sum(sum(x * x, N), B)\nz = sum(sum(a, S) * y * y, S*K)"},
    // Factors that broadcast into a product of them.
    {"(x: f32[B*S, H*E], c: f32[S, E], g: f32[E], h: f32[H], b: f32[B]) -> (y: f32[B*S, H*E])",
     "y = x * c * g * h * b"},
    {"(x: f32[M, N], g: f32[N]) -> (y: f32[M, N])", "y = rmsnorm(x, g, 0.01)"},
    {"(x: f32[M, H*E], g: f32[E], b: f32[E]) -> (y: f32[M, H*E])", "y = layernorm(x, g, b, 0.01)"},
    // Indexed and random.
    {"(t: f32[V, K], ids: i32[M]) -> (y: f32[M, K])", "y = t[ids] * t[ids]"},
    {"(t: f32[V, H*E], ids: i64[B*S]) -> (y: f32[B*S, H*E])", "y = t[ids] * 2"},
    {"(x: f32[M, K], ids: i32[M]) -> (y: f32[V, K])", "y = scatter_sum(x * x, ids, V)"},
    {"(x: f32[M, V], ids: i32[M]) -> (y: f32[M])", "y = pick(x * x, ids)"},
    {"(x: f32[V, M], ids: i32[M]) -> (y: f32[M])", "y = pick(x * x, ids)"},
    {"(x: f32[M, H*V], ids: i32[M, H]) -> (y: f32[M, H])", "y = pick(x * x, ids)"},
    {"(x: f32[M, N], seed: i64) -> (y: f32[M, N])",
     "y = dropout(x, 0.5, seed) * uniform(seed, [M, N])"},
    {"(z: f32[M, V], t: i32[M]) -> (y: f32[M])", "y = cross_entropy(z, t)"},
    // Attention: grouped heads, its options, sequences of two lengths.
    {"(q: f32[B*S, H*E], k: f32[B*T, G*E], v: f32[B*T, G*E]) -> (y: f32[B*S, H*E])",
     "o, _lse = attention(q, k, v, causal: true)\ny = o * o"},
    {"(q: f32[B*S, H*E], k: f32[B*S, H*E], v: f32[B*S, H*E]) -> (y: f32[B*S, H*E])",
     "o, _lse = attention(q * q, k, v, causal: true, window: 2, softcap: 3, scale: 0.7)\ny = o"},
    // Results: the same value twice, another order, accumulation.
    {"(x: f32[M, N]) -> (y: f32[M, N], z: f32[N, M])", "y = x * x\nz = y * y"},
    {"(x: f32[M, K], w: f32[N, K]) -> (y: +f32[M, N])", "y += x @ w"},
    {"(x: f32[B*S, H*E]) -> (y: f32[B, H*S, E])", "y = x * x"},
};

TEST(Grad, EveryOpMatchesCentralDifferences) {
  for (const Case& each : kCases) {
    SCOPED_TRACE(std::string(each.signature) + " { " + each.body + " }");
    Numeric numeric;
    numeric.fill.low = each.low;
    numeric.fill.high = each.high;
    testing::expect_gradient(block(each.signature, each.body), kSizes, numeric);
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(Grad, TheCasesHoldEveryOp) {
  std::set<Op> seen;
  for (const Case& each : kCases) {
    const Program program = block(each.signature, each.body);
    for (const Node& node : program.nodes()) seen.insert(node.op);
    const Program gradient = grad(program);
    for (const Node& node : gradient.nodes()) seen.insert(node.op);
  }
  for (const Op op : all_ops()) EXPECT_TRUE(seen.contains(op)) << name_of(op);
}

// The gradient of the results with all upstream gradients 1.
std::map<std::string, std::vector<double>> gradient_of_ones(const Program& program,
                                                            Tensors& tensors) {
  const Program gradient = grad(program);
  Fill ones;
  for (const Param& param : gradient.params()) ones.at[param.name] = 1;
  testing::draw(gradient, kSizes, ones, tensors);
  return testing::evaluate(gradient, kSizes, tensors);
}

Tensors tensor(const std::string& name, std::vector<std::int64_t> shape,
               const std::vector<double>& values) {
  Tensors tensors;
  OwnedTensor owned(DType::f64, std::move(shape));
  std::copy(values.begin(), values.end(), owned.as<double>());
  tensors.emplace(name, std::move(owned));
  return tensors;
}

TEST(Grad, TiesOfAMaximumShareEvenly) {
  Tensors x = tensor("x", {3, 5}, {1, 2, 2, 0, 2, 7, 7, 7, 7, 7, 1, 2, 3, 4, 5});
  const auto d = gradient_of_ones(block("(x: f32[M, N]) -> (y: f32[M])", "y = max(x, N)"), x);
  const double third = 1.0 / 3;
  EXPECT_EQ(d.at("d_x"), (std::vector<double>{0, third, third, 0, third, 0.2, 0.2, 0.2, 0.2, 0.2, 0,
                                              0, 0, 0, 1}));
}

TEST(Grad, TiesOfTwoOperandsGiveHalfEach) {
  Tensors x = tensor("x", {3}, {0, 1, -1});
  x.merge(tensor("b", {3}, {0, 0, 0}));
  const Program program =
      block("(x: f32[M], b: f32[M]) -> (y: f32[M], z: f32[M])", "y = max(x, b)\nz = 3 * min(x, b)");
  const auto d = gradient_of_ones(program, x);
  EXPECT_EQ(d.at("d_x"), (std::vector<double>{2, 1, 3}));
  EXPECT_EQ(d.at("d_b"), (std::vector<double>{2, 3, 1}));
}

TEST(Grad, TheSignOfZeroIsZero) {
  Tensors x = tensor("x", {3}, {0, 2, -2});
  const auto d = gradient_of_ones(block("(x: f32[M]) -> (y: f32[M])", "y = abs(x)"), x);
  EXPECT_EQ(d.at("d_x"), (std::vector<double>{0, 1, -1}));
}

TEST(Grad, LogsumexpOfAMaskedRowHasGradientZero) {
  Tensors x = tensor("x", {3, 5}, std::vector<double>(15, -INFINITY));
  x.at("x").as<double>()[7] = 3;
  const auto d = gradient_of_ones(block("(x: f32[M, N]) -> (y: f32[M])", "y = logsumexp(x, N)"), x);
  std::vector<double> expected(15);
  expected[7] = 1;
  EXPECT_EQ(d.at("d_x"), expected);
}

TEST(Grad, SumGivesSpread) {
  const Program expected = parse_one(
      "# The gradient of f.\n"
      "block f_grad(d_y: f32[M]) -> (d_x: f32[M, N]) { d_x = spread(d_y, [M, N]) }");
  EXPECT_EQ(grad(block("(x: f32[M, N]) -> (y: f32[M])", "y = sum(x, N)")), expected)
      << print(grad(block("(x: f32[M, N]) -> (y: f32[M])", "y = sum(x, N)")));
}

TEST(Grad, AProductHasTheTextbookGradients) {
  const Program expected = parse_one(
      "block f_grad(x: bf16[M, K], w: bf16[N, K], d_y: bf16[M, N])\n"
      "    -> (d_x: bf16[M, K], d_w: bf16[N, K]) {\n  d_x = d_y @ w\n  d_w = d_y @ x\n}");
  EXPECT_EQ(grad(block("(x: bf16[M, K], w: bf16[N, K]) -> (y: bf16[M, N])", "y = x @ w")),
            expected);
}

TEST(Grad, FrozenInputsCostNothing) {
  const Program program = block("(x: bf16[M, K], w: bf16[N, K]) -> (y: bf16[M, N])", "y = x @ w");
  const Program expected = parse_one(
      "block f_grad(w: bf16[N, K], d_y: bf16[M, N]) -> (d_x: bf16[M, K]) { d_x = d_y @ w }");
  EXPECT_EQ(grad(program, {.wrt = {"x"}}), expected);
}

TEST(Grad, OneResultNeedsOnlyItsOwnPart) {
  const Program program =
      block("(x: f32[M], s: f32) -> (y: f32[M], z: f32[M])", "y = exp(x)\nz = log(x) * s");
  const Program gradient = grad(program, {.of = {"z"}, .wrt = {"x"}});
  EXPECT_EQ(gradient.find_param("d_y"), -1);
  EXPECT_EQ(gradient.find_result("d_s"), -1);
  for (const Node& node : gradient.nodes()) EXPECT_NE(node.op, Op::exp);
}

TEST(Grad, AnUnusedParameterHasZeros) {
  Tensors tensors;
  const Program program = block(
      "(x: f32[M], a: bf16[M, N], s: f32, t: i32[M]) -> (y: f32[M], n: i32[M])", "y = x\nn = t");
  const auto d = gradient_of_ones(program, tensors);
  EXPECT_EQ(d.at("d_a"), std::vector<double>(15));
  EXPECT_EQ(d.at("d_s"), std::vector<double>(1));
  EXPECT_FALSE(d.contains("d_t"));
}

std::string refused(const Program& program, const GradOptions& options) {
  try {
    grad(program, options);
    return "accepted";
  } catch (const ProgramError& error) {
    EXPECT_FALSE(error.diagnostics()[0].rule.empty());
    EXPECT_FALSE(error.diagnostics()[0].fix.empty());
    return error.what();
  }
}

TEST(Grad, ErrorsNameTheNearestAndTheDtype) {
  const Program program =
      block("(hidden: f32[M, V], ids: i32[M]) -> (loss: f32[M])", "loss = pick(hidden, ids)");
  EXPECT_NE(refused(program, {.wrt = {"hiden"}}).find("did you mean `hidden`?"), std::string::npos);
  EXPECT_NE(refused(program, {.of = {"los"}}).find("did you mean `loss`?"), std::string::npos);
  EXPECT_NE(refused(program, {.wrt = {"ids"}}).find("i32[M]"), std::string::npos);
}

TEST(Grad, RefusesWhatAttentionCannotGive) {
  const std::string qkv = "q: f32[B*S, H*E], k: f32[B*S, H*E], v: f32[B*S, H*E]";
  const Program lse =
      block("(" + qkv + ") -> (o: f32[B*S, H*E], lse: f32[B*S, H])", "o, lse = attention(q, k, v)");
  EXPECT_NE(refused(lse, {}).find("lse"), std::string::npos);
  EXPECT_EQ(refused(lse, {.of = {"o"}}), "accepted");
  const Program scaled = block("(" + qkv + ", s: f32) -> (o: f32[B*S, H*E])",
                               "o, _lse = attention(q, k, v, scale: s)");
  EXPECT_NE(refused(scaled, {.wrt = {"s"}}).find("scale"), std::string::npos);
  EXPECT_EQ(refused(scaled, {.wrt = {"q", "k", "v"}}), "accepted");
  EXPECT_NE(refused(grad(scaled, {.wrt = {"q", "k", "v"}}), {.wrt = {"q"}}).find("attention_grad"),
            std::string::npos);
}

TEST(Grad, EveryProgramOfTheLibraryMatchesCentralDifferences) {
  const Sizes sizes = {{"M", 3}, {"D", 6}, {"K", 5}, {"N", 24}, {"F", 5}, {"V", 7}, {"H", 2},
                       {"G", 1}, {"E", 4}, {"R", 2}, {"B", 2},  {"S", 3}, {"T", 3}, {"P", 5}};
  Numeric numeric;
  numeric.elements = 4;
  numeric.fill.low = 0.1;  // second moments, norms and weights are positive
  numeric.fill.at = {{"eps", 0.1}, {"rate", 0.5}, {"smoothing", 0.2}, {"cap", 2}};
  int differentiated = 0;
  for (const std::string_view file : embedded_programs()) {
    const Module module = parse(*embedded_program(file), file);
    for (std::size_t i = module.imported; i < module.programs.size(); ++i) {
      SCOPED_TRACE(std::string(file));
      testing::expect_gradient(module.programs[i], testing::complete(module.programs[i], sizes),
                               numeric);
      ++differentiated;
    }
  }
  EXPECT_GT(differentiated, 40);
}

TEST(GradForTraining, BackwardReadsWhatForwardSaved) {
  const Program program = block(
      "(x: bf16[M, K], w: bf16[N, K], g: bf16[K], u: bf16[N]) -> (y: bf16[M, N], h: bf16[M, N])",
      "z = rmsnorm(x, g) @ w\nh = silu(z) * u\ny = h + z");
  const Training training = grad_for_training(program);
  EXPECT_EQ(training.forward.results().size(), 2 + training.saved.size());
  EXPECT_FALSE(training.saved.empty());
  Tensors tensors;
  testing::draw(program, kSizes, {}, tensors);
  testing::add_results(training.forward, kSizes, tensors);
  testing::draw(grad(program), kSizes, {.seed = 9}, tensors);
  const auto whole = testing::evaluate(grad(program), kSizes, tensors);
  const auto backward = testing::evaluate(training.backward, kSizes, tensors);
  for (const auto& [name, values] : whole) {
    EXPECT_LT(testing::relative_error(backward.at(name), values), 1e-12) << name;
  }
  for (const Node& node : training.backward.nodes()) {
    if (node.op == Op::product) {
      EXPECT_TRUE(has_factor(training.backward.type(node.results[0]), Factor::name("K")))
          << "the product of the forward runs again";
    }
  }
}

TEST(Grad, WithoutNamesLeavesOutWhatAttentionTakesAsOptions) {
  const Program program = block(
      "(q: f32[B*S, H*E], k: f32[B*T, G*E], v: f32[B*T, G*E], cap: f32) -> (y: f32[B*S, H*E])",
      "o, _lse = attention(q, k, v, softcap: cap * 2)\ny = o");
  const Program gradient = grad(program);
  EXPECT_GE(gradient.find_result("d_q"), 0);
  EXPECT_EQ(gradient.find_result("d_cap"), -1);
  EXPECT_THROW(grad(program, {.wrt = {"cap"}}), ProgramError);
}

TEST(GradForTraining, StatisticsAreSavedInF32AndProductsInTheirOwnDtype) {
  const Program program = block("(x: bf16[M, K], w: bf16[N, K]) -> (y: bf16[M, N])",
                                "z = x @ w\ns = sum(z * z, N)\ny = tanh(z) * exp(s)");
  const Training training = grad_for_training(program);
  const auto dtype = [&](const std::string& name) {
    return training.forward.results()[static_cast<std::size_t>(training.forward.find_result(name))]
        .type.dtype;
  };
  EXPECT_EQ(training.saved, (std::vector<std::string>{"z", "exp"}));
  EXPECT_EQ(dtype("z"), DType::bf16);
  EXPECT_EQ(dtype("exp"), DType::f32);
}

}  // namespace
}  // namespace coda
