// tests/reference_attention_test.cpp: attention against the dense formula, its gradient against
// central differences.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "coda/program/builder.h"
#include "coda/reference/reference.h"

namespace coda {
namespace {

using reference::Array;
using reference::Mode;
using Numbers = std::vector<double>;

constexpr double kInf = std::numeric_limits<double>::infinity();

struct Options {
  bool causal = false;
  int window = 0;
  double softcap = 0;
  double scale = 0;  // 0: the default
};

// Batch 2; S queries and T keys; 4 query heads on 2 key heads of size 3, values of size 2.
struct Setting {
  std::string name;
  int queries, keys;
  Options options;
};

const std::vector<Setting>& settings() {
  static const std::vector<Setting> all = {
      {"plain", 4, 5, {}},
      {"scaled", 3, 3, {.scale = 0.3}},
      {"causal", 5, 5, {.causal = true}},
      {"causal, more keys", 3, 6, {.causal = true}},
      {"causal, more queries", 6, 4, {.causal = true}},
      {"window", 6, 6, {.causal = true, .window = 2}},
      {"window, more keys", 3, 7, {.window = 3}},
      {"softcap", 4, 4, {.causal = true, .softcap = 1.5}},
      {"all", 5, 6, {.causal = true, .window = 3, .softcap = 2, .scale = 0.7}},
  };
  return all;
}

constexpr int kBatch = 2, kHeads = 4, kGroups = 2, kSize = 3, kValue = 2;

struct Call {
  Program program;
  Sizes sizes;
  std::vector<OwnedTensor> owned;

  std::vector<Tensor> tensors() const {
    std::vector<Tensor> views;
    for (const OwnedTensor& each : owned) views.push_back(each.tensor());
    return views;
  }
  std::vector<Array> run(Mode mode = Mode::exact) const {
    return reference::evaluate(program, sizes, tensors(), mode);
  }
};

Dim D(std::string name) {
  return dim_of(std::move(name));
}

Call make(const Setting& setting, Op op, DType dtype = DType::f64) {
  const Options& options = setting.options;
  const Dim rows = D("B") * D("S"), keys = D("B") * D("T");
  const DType statistic = dtype == DType::f64 ? DType::f64 : DType::f32;
  const Type q{dtype, {rows, D("H") * D("E")}}, k{dtype, {keys, D("G") * D("E")}},
      v{dtype, {keys, D("G") * D("F")}}, o{dtype, {rows, D("H") * D("F")}},
      lse{statistic, {rows, D("H")}};
  Call call{.program = {},
            .sizes = {{"B", kBatch},
                      {"S", setting.queries},
                      {"T", setting.keys},
                      {"H", kHeads},
                      {"G", kGroups},
                      {"E", kSize},
                      {"F", kValue}},
            .owned = {}};
  Builder builder("call", Program::Kind::block);
  std::vector<Value> args;
  const auto add = [&](const std::string& name, const Type& type) {
    args.push_back(builder.param(name, type));
    std::vector<std::int64_t> shape;
    for (const Dim& dim : type.dims) shape.push_back(require_extent(dim, call.sizes));
    call.owned.emplace_back(type.dtype, shape);
    std::mt19937_64 generator(args.size());
    std::normal_distribution<double> normal;
    const Tensor& tensor = call.owned.back().tensor();
    for (std::int64_t i = 0; i < tensor.elements(); ++i) {
      store(tensor.dtype, tensor.data, i, normal(generator));
    }
  };
  if (op == Op::attention_grad) add("do", o);
  add("q", q);
  add("k", k);
  add("v", v);
  if (op == Op::attention_grad) {
    add("o", o);
    add("lse", lse);
  }
  Attr attr;
  const auto keyword = [&](const std::string& name, double value, DType type) {
    attr.keywords.push_back(name);
    args.push_back(builder.op(Op::constant, {}, {.number = value, .dtype = type}));
  };
  if (options.causal) keyword("causal", 1, DType::boolean);
  if (options.window > 0) keyword("window", options.window, DType::i64);
  if (options.softcap > 0) keyword("softcap", options.softcap, DType::f64);
  if (options.scale > 0) keyword("scale", options.scale, DType::f64);
  int i = 0;
  for (const Value result : builder.ops(op, args, attr)) {
    builder.result("y" + std::to_string(i++), builder.type(result), result);
  }
  call.program = std::move(builder).finish();
  return call;
}

// The textbook: every score, a mask of -inf, a softmax of the row, a sum over all keys.
void dense_softmax(const Setting& setting, const Call& call, Numbers& o, Numbers& lse) {
  const int queries = setting.queries, keys = setting.keys;
  const Options& options = setting.options;
  const double *q = call.owned[0].as<double>(), *k = call.owned[1].as<double>(),
               *v = call.owned[2].as<double>();
  for (int b = 0; b < kBatch; ++b) {
    for (int i = 0; i < queries; ++i) {
      for (int h = 0; h < kHeads; ++h) {
        const int g = h / 2;
        Numbers p(static_cast<std::size_t>(keys), 0.0);
        double total = 0;
        for (int j = 0; j < keys; ++j) {
          double score = 0;
          for (int e = 0; e < kSize; ++e) {
            score += q[((b * queries + i) * kHeads + h) * kSize + e] *
                     k[((b * keys + j) * kGroups + g) * kSize + e];
          }
          score *= options.scale > 0 ? options.scale : 1 / std::sqrt(3.0);
          if (options.softcap > 0) score = options.softcap * std::tanh(score / options.softcap);
          const int behind = (i + keys - queries) - j;  // how far the key lies before the query
          if ((options.causal || options.window > 0) && behind < 0) score = -kInf;
          if (options.window > 0 && behind >= options.window) score = -kInf;
          p[static_cast<std::size_t>(j)] = std::exp(score);
          total += std::exp(score);
        }
        lse.push_back(std::log(total));
        for (int f = 0; f < kValue; ++f) {
          double sum = 0;
          for (int j = 0; j < keys; ++j) {
            sum += p[static_cast<std::size_t>(j)] * v[((b * keys + j) * kGroups + g) * kValue + f];
          }
          o.push_back(total == 0 ? 0 : sum / total);
        }
      }
    }
  }
}

void expect_near(const Numbers& got, const Numbers& expected, double tolerance) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::isinf(expected[i])) {
      EXPECT_EQ(got[i], expected[i]);
    } else {
      EXPECT_NEAR(got[i], expected[i], tolerance) << "element " << i;
    }
  }
}

TEST(ReferenceAttention, IsTheDenseSoftmaxFormula) {
  for (const Setting& setting : settings()) {
    SCOPED_TRACE(setting.name);
    const Call call = make(setting, Op::attention);
    Numbers o, lse;
    dense_softmax(setting, call, o, lse);
    const std::vector<Array> got = call.run();
    expect_near(got[0].data, o, 1e-13);
    expect_near(got[1].data, lse, 1e-13);
  }
}

TEST(ReferenceAttention, ARowThatSeesNoKeyIsZeroWithNoWeight) {
  const Call call = make({"more queries", 6, 4, {.causal = true}}, Op::attention);
  const std::vector<Array> got = call.run();
  for (int i = 0; i < 2 * kHeads; ++i) EXPECT_EQ(got[1].data[static_cast<std::size_t>(i)], -kInf);
  for (int i = 0; i < 2 * kHeads * kValue; ++i) {
    EXPECT_EQ(got[0].data[static_cast<std::size_t>(i)], 0);
  }
}

TEST(ReferenceAttention, GradientIsTheCentralDifference) {
  for (const Setting& setting : settings()) {
    SCOPED_TRACE(setting.name);
    Call forward = make(setting, Op::attention);
    Call backward = make(setting, Op::attention_grad);
    const std::vector<Array> made = forward.run();
    for (std::size_t i = 0; i < 3; ++i) {  // the same q, k, v; then o and lse
      const Tensor& from = forward.owned[i].tensor();
      std::copy_n(static_cast<double*>(from.data), from.elements(),
                  backward.owned[i + 1].as<double>());
    }
    std::ranges::copy(made[0].data, backward.owned[4].as<double>());
    std::ranges::copy(made[1].data, backward.owned[5].as<double>());
    const std::vector<Array> gradients = backward.run();

    const double* upstream = backward.owned[0].as<double>();
    const auto loss = [&] {
      const Array o = forward.run()[0];
      double total = 0;
      for (std::size_t i = 0; i < o.data.size(); ++i) total += upstream[i] * o.data[i];
      return total;
    };
    for (std::size_t p = 0; p < 3; ++p) {
      for (std::size_t i = 0; i < gradients[p].data.size(); ++i) {
        double& x = forward.owned[p].as<double>()[i];
        const double kept = x, step = 1e-5;
        x = kept + step;
        const double above = loss();
        x = kept - step;
        const double below = loss();
        x = kept;
        EXPECT_NEAR(gradients[p].data[i], (above - below) / (2 * step), 1e-8)
            << "input " << p << " element " << i;
      }
    }
  }
}

TEST(ReferenceAttention, GradientWithoutKeysInSightIsZero) {
  const Call call = make({"no keys", 2, 0, {.causal = true}}, Op::attention_grad);
  const std::vector<Array> got = call.run();
  for (const double x : got[0].data) EXPECT_EQ(x, 0);
  EXPECT_TRUE(got[1].data.empty());
}

TEST(ReferenceAttention, RoundedModeIsNearTheTruthAndRoundedToTheDtype) {
  for (const DType dtype : {DType::bf16, DType::f32}) {
    const Call call = make(settings().back(), Op::attention, dtype);
    const std::vector<Array> exact = call.run(Mode::exact), rounded = call.run(Mode::rounded);
    double worst = 0;
    for (std::size_t i = 0; i < exact[0].data.size(); ++i) {
      worst = std::max(worst, std::abs(exact[0].data[i] - rounded[0].data[i]));
      EXPECT_EQ(rounded[0].data[i], round_to(dtype, rounded[0].data[i]));
    }
    EXPECT_GT(worst, dtype == DType::bf16 ? 1e-4 : 1e-9);
    EXPECT_LT(worst, dtype == DType::bf16 ? 3e-2 : 1e-6);
  }
}

TEST(ReferenceAttention, OneHeadNeedsNoHeadFactor) {
  Builder builder("one", Program::Kind::block);
  const Type q{DType::f64, {D("S"), D("E")}}, k{DType::f64, {D("T"), D("E")}};
  const std::vector<Value> results = builder.ops(
      Op::attention, {builder.param("q", q), builder.param("k", k), builder.param("v", k)});
  builder.result("o", builder.type(results[0]), results[0]);
  const Program program = std::move(builder).finish();
  OwnedTensor a(DType::f64, {1, 1}), b(DType::f64, {2, 1}), c(DType::f64, {2, 1});
  a.as<double>()[0] = 1;
  b.as<double>()[0] = std::log(3.0);
  c.as<double>()[0] = 4;
  c.as<double>()[1] = 8;
  const std::vector<Tensor> tensors = {a.tensor(), b.tensor(), c.tensor()};
  const auto got =
      reference::evaluate(program, {{"S", 1}, {"T", 2}, {"E", 1}}, tensors, Mode::exact);
  EXPECT_NEAR(got[0].data[0], 5, 1e-14);  // weights 3/4 and 1/4
}

}  // namespace
}  // namespace coda
