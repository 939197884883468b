// tests/partition_test.cpp: simplify, partition, unfused, ledger and explain. A schedule computes
// what its block does, in double, and check() accepts each of its steps.
#include <gtest/gtest.h>

#include <set>

#include "coda/check/check.h"
#include "coda/program/builder.h"
#include "coda/program/library.h"
#include "coda/program/text.h"
#include "coda/rewrite/explain.h"
#include "coda/rewrite/halves.h"
#include "coda/rewrite/ledger.h"
#include "coda/rewrite/rewrite.h"
#include "coda/rewrite/simplify.h"
#include "tests/numeric_gradient.h"
#include "tests/random_block.h"

namespace coda {
namespace {

using testing::Fill;
using testing::Tensors;

Program parse_one(const std::string& text) {
  return parse("use \"prelude.coda\"\n" + text, "test.coda").find("");
}

[[maybe_unused]] Program block(const std::string& signature, const std::string& body) {
  return parse_one("block f" + signature + " {\n" + body + "\n}\n");
}

#ifdef __SANITIZE_ADDRESS__  // ten times slower: a sample will do
constexpr bool kSample = true;
#else
constexpr bool kSample = false;
#endif

const Sizes kSizes = {{"M", 3},  {"D", 70}, {"K", 5}, {"N", 24}, {"F", 66},
                      {"V", 67}, {"H", 2},  {"G", 1}, {"E", 4},  {"R", 2},
                      {"B", 2},  {"S", 3},  {"T", 3}, {"P", 5},  {"L", 130}};

// Statistics and second moments are positive.
Fill sensible(std::string_view file = {}) {
  Fill fill{.at = {{"eps", 0.1},
                   {"rate", 0.5},
                   {"smoothing", 0.2},
                   {"cap", 2},
                   {"ignore_index", 1},
                   {"ss", 0.5},
                   {"limit", 0.5}}};
  if (file == "adamw.coda") fill.low = 0.1;
  return fill;
}

// Runs the steps one after another in double. What crosses is held as f64, so nothing rounds.
std::map<std::string, std::vector<double>> run_steps(const Schedule& schedule, const Sizes& sizes,
                                                     const Tensors& params) {
  std::map<std::string, OwnedTensor> made;
  std::map<std::string, std::vector<double>> results;
  for (const Step& step : schedule.steps) {
    std::vector<Tensor> inputs;
    for (const std::string& name : step.inputs) {
      const auto found = params.find(name);
      inputs.push_back(found != params.end() ? found->second.tensor() : made.at(name).tensor());
    }
    std::vector<reference::Array> outputs =
        reference::evaluate(step.program, sizes, inputs, reference::Mode::exact);
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const Type& type = step.program.results()[i].type;
      OwnedTensor tensor(testing::held(type.dtype), shape_of(type, sizes));
      for (std::size_t e = 0; e < outputs[i].data.size(); ++e) {
        store(tensor.tensor().dtype, tensor.tensor().data, static_cast<std::int64_t>(e),
              outputs[i].data[e]);
      }
      results[step.outputs[i]] = std::move(outputs[i].data);
      EXPECT_TRUE(made.emplace(step.outputs[i], std::move(tensor)).second)
          << step.outputs[i] << " is stored twice";
    }
  }
  return results;
}

void expect_same(const Program& program, const Schedule& schedule, const Sizes& sizes,
                 const Tensors& tensors) {
  const auto expected = testing::evaluate(program, sizes, tensors);
  const auto got = run_steps(schedule, sizes, tensors);
  for (const auto& [name, values] : expected) {
    ASSERT_TRUE(got.contains(name)) << name;
    EXPECT_LT(testing::relative_error(got.at(name), values), 1e-10) << name;
  }
}

void expect_kernels(const Schedule& schedule) {
  std::set<std::string> names;
  for (const Step& step : schedule.steps) {
    EXPECT_NO_THROW(check(step.program)) << print(step.program);
    EXPECT_TRUE(names.insert(step.program.name()).second) << step.program.name();
  }
}

struct Rewritten {
  Schedule fused, naive;
};

// The whole promise of rewrite and unfused for one block. Draws what `tensors` lacks.
Rewritten expect_rewritable(const Program& program, const Sizes& sizes, const Fill& fill,
                            Tensors&& tensors = {}) {
  bind_sizes(program, sizes);
  testing::draw(program, sizes, fill, tensors);
  SCOPED_TRACE(print(program));
  Partition partition = coda::partition(simplify(program));
  expect_kernels(partition.schedule);
  expect_same(program, partition.schedule, sizes, tensors);
  EXPECT_EQ(partition.placements.size(), partition.block.nodes().size());
  for (const Placement& placement : partition.placements) {
    EXPECT_FALSE(placement.reason.empty());
    EXPECT_LT(placement.step, static_cast<int>(partition.schedule.steps.size()));
  }
  Schedule naive = unfused(program);
  expect_same(program, naive, sizes, tensors);
  return {std::move(partition.schedule), std::move(naive)};
}

// Fusion that moves more than the unfused sequence is none.
void expect_saving(const Rewritten& rewritten, const Sizes& sizes) {
  const Ledger fused = ledger(rewritten.fused, sizes), naive = ledger(rewritten.naive, sizes);
  EXPECT_LE(fused.total.bytes_read + fused.total.bytes_written,
            naive.total.bytes_read + naive.total.bytes_written);
}

TEST(Partition, EveryProgramOfTheLibraryAndItsGradientBecomeKernels) {
  for (const std::string_view file : embedded_programs()) {
    const Module module = parse(*embedded_program(file), file);
    for (std::size_t i = module.imported; i < module.programs.size(); ++i) {
      const Program& program = module.programs[i];
      SCOPED_TRACE(std::string(file) + " " + program.name());
      const Fill fill = sensible(file);
      const Sizes sizes = testing::complete(program, kSizes);
      expect_saving(expect_rewritable(program, sizes, fill), sizes);
      expect_saving(expect_rewritable(grad(program), sizes, fill), sizes);
      if (kSample) continue;
      const Training training = grad_for_training(program);
      expect_rewritable(training.forward, sizes, fill);
      Tensors tensors;
      testing::draw(training.forward, sizes, fill, tensors);
      testing::add_results(training.forward, sizes, tensors);
      expect_rewritable(training.backward, sizes, fill, std::move(tensors));
    }
  }
}

TEST(Partition, AnyBlockAndItsGradientBecomeKernels) {
  for (std::uint64_t seed = 1; seed <= (kSample ? 10 : 60); ++seed) {
    const Program program = testing::RandomBlock(seed).make(14);
    expect_rewritable(program, testing::kRandomSizes, {.seed = seed});
    expect_rewritable(grad(program), testing::kRandomSizes, {.seed = seed});
    if (::testing::Test::HasFailure()) return;
  }
}

// ---- simplify ----

std::string simplified(const std::string& signature, const std::string& body) {
  return print(simplify(block(signature, body)));
}

TEST(Simplify, DropsNeutralArithmeticAndDoubleNegation) {
  const std::string signature = "(x: bf16[M, N], b: f32[N]) -> (y: f32[M, N])";
  const std::string expected = simplified(signature, "y = x * b - x");
  EXPECT_EQ(simplified(signature, "y = (x * 1 + 0) * b - 1 * x"), expected);
  EXPECT_EQ(simplified(signature, "y = -(-(x - 0)) * b / 1 - x"), expected);
  EXPECT_EQ(simplified(signature, "y = x * b + -x"), expected);
  EXPECT_EQ(simplified(signature, "y = where(b > 0, x, x) * b - x"), expected);
  EXPECT_EQ(simplified(signature, "y = x * b - x * (3 - 2 * 2 + 2)"), expected);
}

TEST(Simplify, KeepsWhatANanOrAnInfinityWouldChange) {
  const Program program = block("(x: f32[M], y: f32[M]) -> (a: f32[M], b: f32[M], c: f32[M])",
                                "a = x * 0\nb = x - x\nc = x / x");
  EXPECT_EQ(simplify(program), program);
}

TEST(Simplify, ComputesNothingTwice) {
  const Program program = simplify(block("(x: f32[M, N]) -> (y: f32[M, N], z: f32[M])",
                                         "y = exp(x) * sum(exp(x), N)\nz = sum(exp(x), N)"));
  EXPECT_EQ(program.nodes().size(), 3u);
  const Program swapped =
      simplify(block("(x: f32[M], b: f32[M]) -> (y: f32[M])", "y = exp(x * b) + exp(b * x)"));
  EXPECT_EQ(swapped.nodes().size(), 3u);
}

TEST(Simplify, InverseLayoutsCancel) {
  const std::string signature = "(x: f32[M, H*E]) -> (y: f32[M, H*E])";
  const std::string expected = simplified(signature, "y = x * 2");
  EXPECT_EQ(simplified(signature, "a, b = split(x, E: E/2, E/2)\ny = join(E: a, b) * 2"), expected);
  EXPECT_EQ(simplified(signature, "y = ((x as [M, N]) as [M, H*E]) * 2"), expected);
  EXPECT_EQ(simplified("(a: f32[M, E], b: f32[M, K]) -> (y: f32[M, E])",
                       "c, _d = split(join(N: a, b), N: E, K)\ny = c * 2"),
            simplified("(a: f32[M, E], b: f32[M, K]) -> (y: f32[M, E])", "y = a * 2"));
}

TEST(Simplify, DropsPlainCastsThatStoringWouldDoAndKeepsOthers) {
  const std::string signature = "(x: bf16[M, K], w: bf16[N, K], s: f32[M, K]) -> (y: bf16[M, N])";
  const std::string expected = simplified(signature, "y = tanh(x @ w)");
  EXPECT_EQ(simplified(signature, "y = tanh(bf16(x @ w))"), expected);
  EXPECT_NE(simplified(signature, "y = tanh(pin bf16(x @ w))"), expected);
  EXPECT_NE(simplified(signature, "y = tanh(f16(x @ w))"), expected);
  EXPECT_NE(simplified(signature, "y = bf16(s * s) @ w"), simplified(signature, "y = (s * s) @ w"));
}

TEST(Simplify, IsIdempotentAndKeepsValues) {
  for (std::uint64_t seed = 1; seed <= (kSample ? 10 : 40); ++seed) {
    SCOPED_TRACE(seed);
    const Program program = grad(testing::RandomBlock(seed).make(12));
    const Program simple = simplify(program);
    EXPECT_EQ(simplify(simple), simple);
    EXPECT_LE(simple.nodes().size(), program.nodes().size());
    Tensors tensors;
    testing::draw(program, testing::kRandomSizes, {.seed = seed}, tensors);
    const auto got = testing::evaluate(simple, testing::kRandomSizes, tensors);
    for (const auto& [name, values] : testing::evaluate(program, testing::kRandomSizes, tensors)) {
      EXPECT_LT(testing::relative_error(got.at(name), values), 1e-12) << name;
    }
  }
}

// ---- the shape of a partition ----

// "gemm(h, ss) stream(n)": the kind of each step and what it stores.
std::string shape(const Schedule& schedule) {
  std::string text;
  for (const Step& step : schedule.steps) {
    const KernelKind kind = check(step.program).kind();
    text += text.empty() ? "" : " ";
    text += kind == KernelKind::gemm ? "gemm(" : kind == KernelKind::stream ? "stream(" : "call(";
    for (std::size_t i = 0; i < step.outputs.size(); ++i) {
      text += (i == 0 ? "" : ", ") + step.outputs[i];
    }
    text += ")";
  }
  return text;
}

std::string shape(const std::string& signature, const std::string& body) {
  return shape(rewrite(block(signature, body)).forward.schedule);
}

TEST(Partition, AnEpilogueJoinsItsProduct) {
  EXPECT_EQ(shape("(x: bf16[M, K], w: bf16[N, K], b: bf16[N], r: bf16[M, N]) -> (y: bf16[M, N])",
                  "y = r + tanh(x @ w + b)"),
            "gemm(y)");
}

TEST(Partition, ProductsSumPairAndStandSideBySide) {
  EXPECT_EQ(shape("(x: bf16[M, K], w: bf16[N, K], z: bf16[M, L], u: bf16[N, L]) -> (y: bf16[M, N])",
                  "y = x @ w + z @ u"),
            "gemm(y)");
  EXPECT_EQ(shape("(x: bf16[M, K], g: bf16[N, K], u: bf16[N, K]) -> (y: bf16[M, N])",
                  "y = silu(x @ g) * (x @ u)"),
            "gemm(y)");
  EXPECT_EQ(shape("(x: bf16[M, K], g: bf16[N, K], u: bf16[L, K]) -> (y: bf16[M, N], z: bf16[M, L])",
                  "y = silu(x @ g)\nz = x @ u"),
            "gemm(y, z)");
}

TEST(Partition, AWholeSumOfATileBecomesBlockSumsAndTheirFinish) {
  const Schedule schedule =
      partition(
          block("(x: bf16[M, K], w: bf16[N, K], g: bf16[N], v: bf16[L, N]) -> (y: bf16[M, L])",
                "h = x @ w\ny = rmsnorm(h, g) @ v"))
          .schedule;
  EXPECT_EQ(shape(schedule), "gemm(h, block_sum) stream(mul_2) gemm(y)");
  EXPECT_EQ(schedule.steps[0].program.results()[1].type.text(), "f32[M, blocks(N)]");
  EXPECT_EQ(schedule.steps[0].program.results()[0].type.text(), "bf16[M, N]");
}

TEST(Partition, AStatisticThatIsStillOpenNeedsAKernelOfItsOwn) {
  EXPECT_EQ(shape("(x: bf16[M, K], w: bf16[N, K]) -> (y: bf16[M, N])",
                  "h = x @ w\ny = exp(h - logsumexp(h, N))"),
            "gemm(h, block_logsumexp) stream(y)");
}

TEST(Partition, CastsRangesAndRenamesStayWithTheProductThatReadsThem) {
  EXPECT_EQ(shape("(x: f32[M, N + K], w: bf16[L, K]) -> (y: bf16[M, L])",
                  "_a, b = split(x, N + K: N, K)\ny = bf16(b) @ w"),
            "gemm(y)");
}

TEST(Partition, ACallStoresWhatItGivesAndNothingElse) {
  EXPECT_EQ(shape("(q: bf16[B*S, H*E], k: bf16[B*S, H*E], s: f32) -> (o: +f32[B*S, H*E])",
                  "u, _lse = attention(q * 2, k, k, scale: s * 2)\no += u"),
            "stream(mul, mul_1) call(u) stream(o)");
}

TEST(Partition, ParametersAndConstantsCanBeResults) {
  EXPECT_EQ(
      shape("(x: f32[M, N]) -> (y: bf16[N, M], c: f32, i: i64[M])", "y = x\nc = 3\ni = index(M)"),
      "stream(y, c, i)");
}

TEST(Partition, ReasonsSayWhyAStatementIsNotInTheKernelBefore) {
  const Partition partition = coda::partition(block(
      "(x: bf16[M, K], w: bf16[N, K]) -> (y: bf16[M, N])", "h = x @ w\ny = h * sum(h * h, N)"));
  std::string reasons;
  for (const Placement& placement : partition.placements) reasons += placement.reason + "\n";
  EXPECT_NE(reasons.find("needs the whole row"), std::string::npos) << reasons;
}

// ---- ledger and explain ----

TEST(Ledger, CountsEachTensorOnceAndTwoFlopsATerm) {
  const Schedule schedule = as_schedule(parse_one(
      "program f(x: bf16[M, K], w: bf16[N, K], r: f32[M, N]) -> (y: bf16[M, N], a: +f32[M, N]) {\n"
      "  z = x @ w\n  y = z * r + r\n  a += z\n}"));
  const Ledger costs = ledger(schedule, {{"M", 8}, {"N", 4}, {"K", 16}});
  EXPECT_EQ(costs.steps[0].kind, "gemm");
  EXPECT_EQ(costs.total.bytes_read, 2 * 8 * 16 + 2 * 4 * 16 + 4 * 8 * 4 + 4 * 8 * 4);
  EXPECT_EQ(costs.total.bytes_written, 2 * 8 * 4 + 4 * 8 * 4);
  EXPECT_EQ(costs.total.flops, 2 * 8 * 4 * 16 + 2 * 8 * 4);
}

TEST(Ledger, AGatheredTableCountsItsRows) {
  const Schedule schedule = as_schedule(
      parse_one("program f(t: bf16[V, K], ids: i32[M]) -> (y: bf16[M, K]) { y = t[ids] }"));
  EXPECT_EQ(ledger(schedule, {{"V", 1000}, {"K", 4}, {"M", 5}}).total.bytes_read,
            2 * 5 * 4 + 4 * 5);
  EXPECT_EQ(ledger(schedule, {{"V", 3}, {"K", 4}, {"M", 5}}).total.bytes_read, 2 * 3 * 4 + 4 * 5);
}

TEST(Ledger, CausalAttentionIsHalf) {
  const auto flops = [](const std::string& options) {
    const Program program =
        block("(q: bf16[B*S, H*E], k: bf16[B*S, G*E], v: bf16[B*S, G*E]) -> (o: bf16[B*S, H*E])",
              "o, _lse = attention(q, k, v" + options + ")");
    return ledger(rewrite(program).forward.schedule,
                  {{"B", 2}, {"S", 10}, {"H", 4}, {"G", 2}, {"E", 8}})
        .total.flops;
  };
  EXPECT_EQ(flops(""), 2 * 4 * (4 * 10 * 10 * 8));
  EXPECT_EQ(flops(", causal: true"), 2 * 4 * (2 * 10 * 10 * 8));
}

TEST(Unfused, IsOneStepForEachOpThatWorks) {
  EXPECT_EQ(shape(unfused(block("(x: bf16[M, H*E], w: bf16[N, H*E], b: bf16[N]) -> (y: bf16[M, N])",
                                "a, c = split(x, E: E/2, E/2)\n"
                                "y = tanh(join(E: -a, c) @ w + b * (1 + 2))"))),
            "stream(neg) stream(join) gemm(product) stream(mul) stream(add_1) stream(y)");
}

TEST(Explain, NamesEveryStatementAndItsKernel) {
  const Program program = block("(x: bf16[M, K], w: bf16[N, K]) -> (y: bf16[M, N])",
                                "h = x @ w\ny = h * sum(h * h, N)");
  const Sizes sizes = {{"M", 64}, {"N", 128}, {"K", 32}};
  const std::string text = explain(program, sizes);
  for (const char* part : {"sum(h * h, N)", "needs the whole row", "f_1_h", "gemm", "unfused"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in\n" << text;
  }
  const nlohmann::json told = explain_json(report(program, sizes));
  EXPECT_EQ(told["block"], "f");
  EXPECT_EQ(told["kernels"].size(), 2u);
  EXPECT_EQ(told["kernels"][0]["flops"], 2 * 64 * 128 * 32 + 2 * 64 * 128);
  EXPECT_EQ(told["statements"][0]["kernel"], 0);
  EXPECT_LT(told["total"]["bytes_read"], told["unfused"]["bytes_read"]);
}

}  // namespace
}  // namespace coda
