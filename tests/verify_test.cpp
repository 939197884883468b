// tests/verify_test.cpp: the verifier verified: deliberately wrong executors must all be caught,
// and honest ones must pass.
//
// A mutant is a fault inside an executor (Fault) or a wrapper around it.
#include "coda/reference/verify.h"

#include <gtest/gtest.h>

#include <memory>

#include "coda/reference/reference.h"
#include "coda/reference/tolerance.h"
#include "tests/verify_executors.h"

namespace coda {
namespace {

const Sizes kSizes = {{"M", 19}, {"N", 70}, {"K", 33}, {"V", 11}};

VerifyOptions everything() {
  return {.inputs = {Inputs::normal, Inputs::outliers, Inputs::tiny, Inputs::huge},
          .layouts = {Layouts::dense, Layouts::padded, Layouts::transposed, Layouts::broadcast}};
}

struct Base {
  std::string name;
  std::function<Program(DType)> program;
  Honest run;
};

const std::vector<Base>& bases() {
  static const std::vector<Base> all = {
      {"residual_norm", residual_norm, run_residual_norm},
      {"row_scale", row_scale, run_row_scale},
      {"weight_grad", [](DType dtype) { return weight_grad(dtype); }, run_weight_grad},
      {"lookup", lookup, run_lookup},
      {"relu_grad", relu_grad, run_relu_grad},
  };
  return all;
}

void expect_pass(const Program& program, const Sizes& sizes, const Executor& executor,
                 const VerifyOptions& options) {
  for (const Verdict& verdict : verify(program, sizes, executor, options)) {
    EXPECT_TRUE(verdict.passed) << table(std::vector<Verdict>{verdict});
  }
}

// The reasons of all failures, a line each.
std::string reasons(const Program& program, const Executor& executor,
                    const VerifyOptions& options) {
  std::string text;
  for (const Verdict& verdict : verify(program, kSizes, executor, options)) {
    EXPECT_EQ(verdict.passed, verdict.why.empty());
    if (!verdict.passed) text += verdict.result + ": " + verdict.why + "\n";
  }
  return text;
}

void expect_caught(const std::string& name, const Program& program, const Executor& executor,
                   const std::string& because, VerifyOptions options = {}) {
  const std::string text = reasons(program, executor, options);
  EXPECT_NE(text.find(because), std::string::npos)
      << name << ": expected \"" << because << "\", got:\n"
      << (text.empty() ? "a pass" : text);
}

TEST(Verify, HonestExecutorsPassOnEveryInputLayoutAndDtype) {
  for (const Base& base : bases()) {
    for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
      SCOPED_TRACE(base.name + " " + std::string(name_of(dtype)));
      expect_pass(base.program(dtype), kSizes, faulty(base.run, Fault::none), everything());
    }
  }
}

TEST(Verify, TheRoundedReferencePasses) {
  const Executor rounded = [](const Program& program, const Sizes& sizes, Tensors in, Tensors out) {
    const auto values = reference::evaluate(program, sizes, in, reference::Mode::rounded, out);
    for (std::size_t r = 0; r < values.size(); ++r) reference::store(values[r], out[r], sizes);
  };
  for (const Base& base : bases()) {
    for (const DType dtype : {DType::bf16, DType::f64}) {
      SCOPED_TRACE(base.name + " " + std::string(name_of(dtype)));
      expect_pass(base.program(dtype), kSizes, rounded, everything());
    }
  }
}

TEST(Verify, EmptyAndZeroResultsPass) {
  const Executor honest = faulty(run_residual_norm, Fault::none);
  for (const Sizes& sizes : {Sizes{{"M", 0}, {"N", 70}, {"K", 33}},
                             {{"M", 5}, {"N", 0}, {"K", 3}},
                             {{"M", 5}, {"N", 7}, {"K", 0}},
                             {{"M", 1}, {"N", 1}, {"K", 1}}}) {
    expect_pass(residual_norm(DType::bf16), sizes, honest, everything());
  }
  Builder b("zero", Program::Kind::program);
  const Expr x{&b, b.param("x", {DType::bf16, {D("M"), D("N")}})};
  b.result("y", {DType::bf16, {D("M"), D("N")}}, (x - x).value);
  const Program zero = std::move(b).finish();
  const auto fill = [](float value) {
    return [value](const Program&, const Sizes&, Tensors, Tensors out) {
      for (std::int64_t i = 0; i < out[0].shape[0]; ++i)
        for (std::int64_t j = 0; j < out[0].shape[1]; ++j) put(out[0], i, j, value);
    };
  };
  expect_pass(zero, kSizes, fill(0), everything());
  expect_caught("not zero", zero, fill(1e-6f), "y[");
}

struct Mutant {
  Fault fault;
  Honest run;
  std::function<Program()> program;
  std::string because;
  VerifyOptions options = {};
};

TEST(Verify, CatchesFaultsInsideAnExecutor) {
  const auto norm = [] {
    return residual_norm(DType::bf16);
  };
  const auto scale = [] {
    return row_scale(DType::bf16);
  };
  const auto grad = [] {
    return weight_grad(DType::bf16);
  };
  const auto look = [] {
    return lookup(DType::bf16);
  };
  const auto relu = [] {
    return relu_grad(DType::bf16);
  };
  const std::vector<Mutant> mutants = {
      {Fault::drops_last_k, run_residual_norm, norm, "h: error"},
      {Fault::drops_last_k, run_row_scale, scale, "s: error"},
      {Fault::drops_k_slice, run_residual_norm, norm, "h: error"},
      {Fault::truncates, run_residual_norm, norm, "p: error"},
      {Fault::sums_in_f16, run_row_scale, scale, "s: error"},
      {Fault::rounds_accumulator, run_row_scale, scale, "s: error"},
      {Fault::rounds_at_two_thirds, run_row_scale, scale, "s: error"},
      {Fault::wrong_block, run_residual_norm, norm, "ss: error"},
      {Fault::statistic_of_stored, run_residual_norm, norm, "ss: error"},
      {Fault::gamma_by_row, run_residual_norm, norm, "p: error"},
      {Fault::transposed_result, run_residual_norm, norm, "h: error"},
      {Fault::scale_twice, run_row_scale, scale, "y: error"},
      {Fault::no_scale, run_row_scale, scale, "y: error"},
      {Fault::no_eps, run_row_scale, scale, "r: error"},
      {Fault::eps_outside_root, run_row_scale, scale, "r: error"},
      {Fault::ignores_accumulate, run_weight_grad, grad, "dw: error"},
      {Fault::accumulates_twice, run_weight_grad, grad, "dw: error"},
      {Fault::wraps_ids, run_lookup, look, "y: error"},
      {Fault::clamps_ids, run_lookup, look, "y: error"},
      {Fault::seed_of_32_bits, run_lookup, look, "u: error"},
      {Fault::one_off_counter, run_lookup, look, "u: error"},
      {Fault::divides_by_upstream, run_relu_grad, relu, "dx: dx["},
      {Fault::upstream_is_one, run_relu_grad, relu, "dx: error"},
      {Fault::fast_log, run_relu_grad, relu, "l: error"},
  };
  for (const Mutant& mutant : mutants) {
    expect_caught("fault " + std::to_string(static_cast<int>(mutant.fault)), mutant.program(),
                  faulty(mutant.run, mutant.fault), mutant.because, mutant.options);
  }
}

TEST(Verify, CatchesWhatIsNotWrittenOrWrittenElsewhere) {
  const Program norm = residual_norm(DType::bf16);
  const Honest run = run_residual_norm;
  using I = std::int64_t;
  expect_caught("last row missing", norm,
                keeping(run, [](const Tensor& y, I i, I) { return i == y.shape[0] - 1; }),
                "left 70 elements unwritten, the first h[18, 0]");
  expect_caught("tail column missing", norm,
                keeping(run, [](const Tensor& y, I, I j) { return j == y.shape[1] - 1; }),
                "left 19 elements unwritten");
  expect_caught("one stale element", norm,
                keeping(run, [](const Tensor&, I i, I j) { return i == 7 && j == 3; }),
                "left 1 elements unwritten, the first h[7, 3]");
  expect_caught(
      "nothing written", norm, [](const Program&, const Sizes&, Tensors, Tensors) {},
      "left 1330 elements unwritten");
  expect_caught("writes one past", norm,
                wrapped(run, [](Tensors, Tensors out) { put(out[0], 18, 70, 1); }),
                "wrote 2 bytes outside its elements");
  expect_caught("writes before the base", norm,
                wrapped(run, [](Tensors, Tensors out) { put(out[2], 0, -1, 1); }),
                "wrote 4 bytes outside its elements, the first at byte -4");
  expect_caught("writes into the gap", norm,
                wrapped(run, [](Tensors, Tensors out) { put(out[1], 3, out[1].shape[1], 1); }),
                "outside its elements", {.layouts = {Layouts::padded}});
  expect_caught("overwrites an input", norm,
                wrapped(run, [](Tensors in, Tensors) { put(in[2], 4, 4, 0.125); }),
                "changed its input residual");
  expect_caught("writes into an input's gap", norm,
                wrapped(run, [](Tensors in, Tensors) { put(in[0], 0, in[0].shape[1], 1); }),
                "changed its input x", {.layouts = {Layouts::padded}});
}

TEST(Verify, CatchesSingleWrongElements) {
  const Program norm = residual_norm(DType::bf16);
  const Honest run = run_residual_norm;
  const auto spoil = [&](double value) {
    return wrapped(run, [value](Tensors, Tensors out) { put(out[0], 18, 69, value); });
  };
  expect_caught("a NaN", norm, spoil(std::nan("")), "h[18, 69] is nan");
  expect_caught("an infinity", norm, spoil(INFINITY), "h[18, 69] is inf");
  expect_caught("a zero", norm, spoil(0), "h[18, 69]");
  expect_caught("two rows swapped", norm,
                wrapped(run,
                        [](Tensors, Tensors out) {
                          for (std::int64_t j = 0; j < out[1].shape[1]; ++j) {
                            const float a = at(out[1], 2, j), b = at(out[1], 3, j);
                            put(out[1], 2, j, b);
                            put(out[1], 3, j, a);
                          }
                        }),
                "p: error");
  const Program look = lookup(DType::bf16);
  expect_caught("a wrong integer", look,
                wrapped(run_lookup, [](Tensors, Tensors out) { put(out[2], 18, 0, 999); }),
                "next[18] is 999");
  expect_caught(
      "a wrong bool", look,
      wrapped(run_lookup, [](Tensors, Tensors out) { put(out[1], 5, 0, 1 - at(out[1], 5)); }),
      "1 elements differ, the first: inside[5]");
  expect_caught("no bool", look,
                wrapped(run_lookup,
                        [](Tensors, Tensors out) {
                          std::byte* byte = address(out[1], 5, 0);
                          if (*byte == std::byte{1}) *byte = std::byte{255};
                        }),
                "inside[5] holds the byte 255");
}

TEST(Verify, CatchesStridesThatAreIgnored) {
  const Program norm = residual_norm(DType::bf16);
  const Executor inputs_dense = [](const Program&, const Sizes&, Tensors in, Tensors out) {
    run_residual_norm(as_if_dense(in), out, Fault::none);
  };
  const Executor results_dense = [](const Program&, const Sizes&, Tensors in, Tensors out) {
    run_residual_norm(in, as_if_dense(out), Fault::none);
  };
  EXPECT_EQ(reasons(norm, inputs_dense, {}), "");  // right as long as all is dense
  EXPECT_EQ(reasons(norm, results_dense, {}), "");
  for (const Layouts layout : {Layouts::padded, Layouts::transposed}) {
    EXPECT_NE(reasons(norm, inputs_dense, {.layouts = {layout}}), "") << name_of(layout);
    EXPECT_NE(reasons(norm, results_dense, {.layouts = {layout}}), "") << name_of(layout);
  }
  // Past a repeated row lie guard bytes: NaN.
  expect_caught("broadcast read as dense", norm, inputs_dense, "nan",
                {.layouts = {Layouts::broadcast}});
}

TEST(Verify, CatchesResultsThatVary) {
  const Program norm = residual_norm(DType::bf16);
  auto runs = std::make_shared<int>(0);
  expect_caught("every other run", norm,
                wrapped(run_residual_norm,
                        [runs](Tensors, Tensors out) {
                          if (++*runs % 2 == 0) flip_last_bit(out[0]);
                        }),
                "h: a second run gives other bits: h[0, 0] is");
  const Executor honest = faulty(run_residual_norm, Fault::none);
  const Executor other =
      wrapped(run_residual_norm, [](Tensors, Tensors out) { flip_last_bit(out[1]); });
  expect_caught("another thread count", norm, honest,
                "p: an executor that must give the same bits does not: p[0, 0]",
                {.same_bits = {honest, other}});
  expect_pass(norm, kSizes, honest, {.same_bits = {honest}});
}

TEST(Verify, CatchesWhatOnlySomeInputsShow) {
  // Overflow of f16: infinity is right, the largest number is not.
  const Executor saturates = wrapped(run_residual_norm, [](Tensors, Tensors out) {
    for (std::int64_t i = 0; i < out[0].shape[0]; ++i)
      for (std::int64_t j = 0; j < out[0].shape[1]; ++j)
        if (std::isinf(at(out[0], i, j))) put(out[0], i, j, std::copysign(65504, at(out[0], i, j)));
  });
  const Program f16 = residual_norm(DType::f16);
  EXPECT_EQ(reasons(f16, saturates, {}), "");
  expect_caught("saturates", f16, saturates, "65504, the truth is -", {.inputs = {Inputs::huge}});
  // An eps of 1e-3 hides behind O(1) statistics in 16 bits, not behind small ones.
  const Executor loose = [](const Program&, const Sizes&, Tensors in, Tensors out) {
    const float eps = 1e-3f;
    std::vector<Tensor> changed(in.begin(), in.end());
    changed[3].data = const_cast<float*>(&eps);
    run_row_scale(changed, out, Fault::none);
  };
  expect_caught("another eps", row_scale(DType::bf16), loose, "r: error",
                {.inputs = {Inputs::tiny}});
  // Sums in f16 overflow.
  expect_caught("f16 sums", row_scale(DType::bf16), faulty(run_row_scale, Fault::sums_in_f16),
                "inf, the truth is", {.inputs = {Inputs::huge}});
}

TEST(Verify, InputsMakeSense) {
  const auto floats = [](const OwnedTensor& owned) {
    std::vector<double> values;
    for (std::int64_t i = 0; i < owned.tensor().elements(); ++i) {
      values.push_back(load(owned.tensor().dtype, owned.tensor().data, i));
    }
    return values;
  };
  const auto scale = random_inputs(row_scale(DType::bf16), kSizes, 1);
  for (const double x : floats(scale[2])) EXPECT_GT(x, 0);  // a root is taken of its sum
  EXPECT_NEAR(floats(scale[3])[0], 1e-5, 1e-12);            // eps
  const auto look = random_inputs(lookup(DType::bf16), {{"M", 1000}, {"N", 1}, {"V", 11}}, 1);
  int outside = 0;
  for (const double id : floats(look[1])) {
    const bool inside = id >= 0 && id < 11;
    EXPECT_TRUE(inside || id == -1 || id == 11 || id == -100) << id;
    outside += inside ? 0 : 1;
  }
  EXPECT_GT(outside, 50);
  EXPECT_LT(outside, 200);
  const auto relu = random_inputs(relu_grad(DType::bf16), kSizes, 1);
  const auto dy = floats(relu[1]);
  for (const double few : {0.0, -1.0, 0.5, 3.0}) EXPECT_GT(std::ranges::count(dy, few), 20) << few;
  EXPECT_NE(floats(relu[0]), floats(random_inputs(relu_grad(DType::bf16), kSizes, 2)[0]));
  EXPECT_EQ(floats(relu[0]), floats(random_inputs(relu_grad(DType::bf16), kSizes, 1)[0]));
}

TEST(Verify, AnAttentionGradientGetsTheStatisticsOfItsInputs) {
  Builder b("grad", Program::Kind::program);
  const Type q{DType::f64, {D("S"), D("E")}}, lse{DType::f64, {D("S")}};
  std::vector<Value> args;
  for (const char* name : {"do", "q", "k", "v", "o"}) args.push_back(b.param(name, q));
  args.push_back(b.param("lse", lse));
  int i = 0;
  for (const Value v : b.ops(Op::attention_grad, args)) {
    b.result("y" + std::to_string(i++), b.type(v), v);
  }
  const auto drawn = random_inputs(std::move(b).finish(), {{"S", 2}, {"E", 1}}, 1, Inputs::huge);
  const double *query = drawn[1].as<double>(), *key = drawn[2].as<double>();
  const double sum = std::exp(query[0] * key[0]) + std::exp(query[0] * key[1]);
  EXPECT_NEAR(drawn[5].as<double>()[0], std::log(sum), 1e-12);
  EXPECT_LT(std::abs(query[0]), 10);                  // an exponential is taken of its product
  EXPECT_GT(std::abs(drawn[3].as<double>()[0]), 10);  // not of the values
}

// The verdict on y = sum(x, K), f16[M], whose elements are `exact`, of the naive sequence `naive`.
Verdict judged(const std::vector<double>& exact, const std::vector<double>& naive,
               const std::vector<double>& got) {
  const auto m = static_cast<std::int64_t>(exact.size());
  const Sizes sizes = {{"M", m}, {"K", 256}};
  const Type type{DType::f16, {D("M")}};
  Builder b("sums", Program::Kind::program);
  const Value x = b.param("x", {DType::f16, {D("M"), D("K")}});
  b.result("y", type, b.op(Op::sum, {x}, {.axis = D("K")}));
  const Program program = std::move(b).finish();
  Errors errors(program, sizes, program.results()[0]);
  const OwnedTensor memory(DType::f16, {m});
  for (std::int64_t i = 0; i < m; ++i) {
    store(DType::f16, memory.tensor().data, i, got[static_cast<std::size_t>(i)]);
  }
  const auto array = [&](const std::vector<double>& data) {
    return reference::Array{.type = type, .extents = {m}, .data = data};
  };
  errors.add(array(exact), array(naive), {memory.as<std::byte>(), memory.bytes()});
  return errors.verdict();
}

TEST(Verify, WhereMostOverflowsKindsAreCounted) {
  const double infinity = std::numeric_limits<double>::infinity();
  const std::vector<double> exact(100, -1e6);
  std::vector<double> naive(100, -infinity), got(100, -infinity);
  std::fill_n(naive.begin(), 20, std::nan(""));  // it met inf - inf
  std::fill_n(got.begin(), 15, infinity);        // one of the two infinities only
  EXPECT_TRUE(judged(exact, naive, got).passed);
  std::fill_n(got.begin(), 60, infinity);
  EXPECT_FALSE(judged(exact, naive, got).passed);
  EXPECT_FALSE(judged(exact, naive, std::vector<double>(100, 65504)).passed);
}

TEST(Verify, TermsThatUnderflowMayAddUp) {
  const double step = 0x1p-24;  // of f16's subnormal numbers
  const std::vector<double> exact(100, 40 * step);
  EXPECT_TRUE(judged(exact, exact, std::vector<double>(100, 43 * step)).passed);
  EXPECT_FALSE(judged(exact, exact, std::vector<double>(100, 60 * step)).passed);
}

TEST(Verify, TheTableNamesTheReason) {
  const auto verdicts =
      verify(residual_norm(DType::bf16), kSizes, faulty(run_residual_norm, Fault::wrong_block));
  const std::string text = table(verdicts);
  EXPECT_NE(text.find("worst/naive"), std::string::npos);
  EXPECT_NE(text.find("FAILED\n  error"), std::string::npos) << text;
  EXPECT_NE(text.find("  ok\n"), std::string::npos) << text;
}

}  // namespace
}  // namespace coda
