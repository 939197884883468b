// tests/attention_test.cpp: attention and its gradient against whole score matrices in double.
#include "coda/cpu/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>

#include "coda/check/check.h"
#include "coda/core/tensor.h"
#include "coda/program/builder.h"
#include "coda/reference/reference.h"

namespace coda::cpu {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Case {
  AttentionSizes sizes;
  AttentionOptions options;
  DType dtype = DType::f32;
};

// Elements between heads' rows, to see strides honoured.
enum class Layout { tokens, heads, gaps, columns };

// One tensor with its own memory. tokens: [B, S, H, E] as a layer has it; heads: [B, H, S, E];
// gaps: tokens with room between rows; columns: [B, H, E, S].
struct Operand {
  std::vector<std::byte> memory;
  HeadsView view;

  Operand(DType dtype, std::int64_t batch, std::int64_t heads, std::int64_t positions,
          std::int64_t width, Layout layout) {
    const std::int64_t gap = layout == Layout::gaps ? 3 : 0;
    const std::int64_t token = heads * width + gap;
    const bool by_token = layout == Layout::tokens || layout == Layout::gaps;
    const std::int64_t head = by_token ? width : positions * width;
    view.position = by_token ? token : layout == Layout::columns ? 1 : width;
    view.element = layout == Layout::columns ? positions : 1;
    for (std::int64_t b = 0; b < batch; ++b) view.batch.push_back(b * positions * token);
    for (std::int64_t h = 0; h < heads; ++h) view.head.push_back(h * head);
    view.dtype = dtype;
    memory.resize(static_cast<std::size_t>(batch * positions * token + 1) * size_of(dtype));
    view.data = memory.data();
    for (std::int64_t i = 0; i < batch * positions * token; ++i) {
      store(dtype, view.data, i, std::nan(""));
    }
  }

  std::int64_t at(std::int64_t b, std::int64_t h, std::int64_t s, std::int64_t e) const {
    return view.batch[static_cast<std::size_t>(b)] + view.head[static_cast<std::size_t>(h)] +
           s * view.position + e * view.element;
  }
  double operator()(std::int64_t b, std::int64_t h, std::int64_t s, std::int64_t e) const {
    return load(view.dtype, view.data, at(b, h, s, e));
  }
};

struct Call {
  Case of;
  Operand q, k, v, o, lse, d_o, dq, dk, dv;

  Call(const Case& c, Layout layout, std::uint64_t seed)
      : of(c),
        q(c.dtype, c.sizes.batch, c.sizes.heads, c.sizes.queries, c.sizes.width, layout),
        k(c.dtype, c.sizes.batch, c.sizes.key_heads, c.sizes.keys, c.sizes.width, layout),
        v(c.dtype, c.sizes.batch, c.sizes.key_heads, c.sizes.keys, c.sizes.value_width, layout),
        o(c.dtype, c.sizes.batch, c.sizes.heads, c.sizes.queries, c.sizes.value_width, layout),
        lse(c.dtype == DType::f64 ? DType::f64 : DType::f32, c.sizes.batch, c.sizes.heads,
            c.sizes.queries, 1, layout),
        d_o(c.dtype, c.sizes.batch, c.sizes.heads, c.sizes.queries, c.sizes.value_width, layout),
        dq(c.dtype, c.sizes.batch, c.sizes.heads, c.sizes.queries, c.sizes.width, layout),
        dk(c.dtype, c.sizes.batch, c.sizes.key_heads, c.sizes.keys, c.sizes.width, layout),
        dv(c.dtype, c.sizes.batch, c.sizes.key_heads, c.sizes.keys, c.sizes.value_width, layout) {
    std::mt19937_64 random(seed);
    std::normal_distribution<double> normal;
    const auto fill = [&](Operand& x, std::int64_t heads, std::int64_t rows, std::int64_t width) {
      for (std::int64_t b = 0; b < c.sizes.batch; ++b) {
        for (std::int64_t h = 0; h < heads; ++h) {
          for (std::int64_t s = 0; s < rows; ++s) {
            for (std::int64_t e = 0; e < width; ++e) {
              store(x.view.dtype, x.view.data, x.at(b, h, s, e), normal(random));
            }
          }
        }
      }
    };
    fill(q, c.sizes.heads, c.sizes.queries, c.sizes.width);
    fill(k, c.sizes.key_heads, c.sizes.keys, c.sizes.width);
    fill(v, c.sizes.key_heads, c.sizes.keys, c.sizes.value_width);
    fill(d_o, c.sizes.heads, c.sizes.queries, c.sizes.value_width);
  }

  AttentionArguments arguments() const {
    AttentionArguments a;
    a.sizes = of.sizes;
    a.options = of.options;
    a.q = q.view, a.k = k.view, a.v = v.view, a.o = o.view, a.lse = lse.view;
    a.d_o = d_o.view, a.dq = dq.view, a.dk = dk.view, a.dv = dv.view;
    return a;
  }

  void run(int threads) const {
    std::vector<std::byte> scratch(attention_scratch_bytes(of.sizes, threads) + 64);
    const auto start = reinterpret_cast<std::uintptr_t>(scratch.data());
    const std::span<std::byte> aligned =
        std::span(scratch).subspan((start + 63) / 64 * 64 - start).first(scratch.size() - 64);
    attention(arguments(), threads, aligned);
    attention_grad(arguments(), threads, aligned);
  }
};

// An operand's elements as doubles, [batch, heads, positions, width].
struct Elements {
  std::int64_t heads, positions, width;
  std::vector<double> data;

  Elements(const Operand& x, std::int64_t batch, std::int64_t heads, std::int64_t positions,
           std::int64_t width)
      : heads(heads), positions(positions), width(width) {
    for (std::int64_t row = 0; row < batch * heads * positions; ++row) {
      for (std::int64_t e = 0; e < width; ++e) {
        data.push_back(x(row / positions / heads, row / positions % heads, row % positions, e));
      }
    }
  }
  const double* row(std::int64_t b, std::int64_t h, std::int64_t s) const {
    return data.data() + ((b * heads + h) * positions + s) * width;
  }
};

// What the call means, in double, from whole rows of scores.
struct Truth {
  std::vector<double> o, lse, dq, dk, dv;

  explicit Truth(const Call& c) {
    const auto [batch, heads, key_heads, queries, keys, width, values] = c.of.sizes;
    const AttentionOptions& option = c.of.options;
    const Elements all_q(c.q, batch, heads, queries, width),
        all_k(c.k, batch, key_heads, keys, width);
    const Elements all_v(c.v, batch, key_heads, keys, values);
    const Elements all_d(c.d_o, batch, heads, queries, values);
    o.assign(static_cast<std::size_t>(batch * heads * queries * values), 0);
    lse.assign(static_cast<std::size_t>(batch * heads * queries), 0);
    dq.assign(static_cast<std::size_t>(batch * heads * queries * width), 0);
    dk.assign(static_cast<std::size_t>(batch * key_heads * keys * width), 0);
    dv.assign(static_cast<std::size_t>(batch * key_heads * keys * values), 0);
    std::vector<double> p(static_cast<std::size_t>(keys)), tanh(p.size());
    for (std::int64_t row = 0; row < batch * heads * queries; ++row) {
      const std::int64_t b = row / queries / heads, h = row / queries % heads, i = row % queries;
      const std::int64_t g = h / (heads / key_heads), position = i + keys - queries;
      const double *q = all_q.row(b, h, i), *d_o = all_d.row(b, h, i);
      double sum = 0;
      for (std::int64_t j = 0; j < keys; ++j) {
        const auto at = static_cast<std::size_t>(j);
        const double* k = all_k.row(b, g, j);
        double x = 0;
        for (std::int64_t e = 0; e < width; ++e) x += q[e] * k[e];
        x *= option.scale;
        tanh[at] = option.softcap > 0 ? std::tanh(x / option.softcap) : 0;
        if (option.softcap > 0) x = option.softcap * tanh[at];
        const bool ahead = (option.causal || option.window > 0) && j > position;
        const bool behind = option.window > 0 && j <= position - option.window;
        p[at] = ahead || behind ? 0 : std::exp(x);
        sum += p[at];
      }
      lse[static_cast<std::size_t>(row)] = std::log(sum);
      if (sum == 0) continue;
      double dot = 0;
      double* out = o.data() + row * values;
      for (std::int64_t e = 0; e < values; ++e) {
        for (std::int64_t j = 0; j < keys; ++j) {
          out[e] += p[static_cast<std::size_t>(j)] / sum * all_v.row(b, g, j)[e];
        }
        dot += out[e] * d_o[e];
      }
      for (std::int64_t j = 0; j < keys; ++j) {
        const auto at = static_cast<std::size_t>(j);
        const double weight = p[at] / sum;
        const double *k = all_k.row(b, g, j), *v = all_v.row(b, g, j);
        double d = -dot;
        for (std::int64_t e = 0; e < values; ++e) {
          d += d_o[e] * v[e];
          dv[static_cast<std::size_t>(((b * key_heads + g) * keys + j) * values + e)] +=
              weight * d_o[e];
        }
        const double ds = weight * d * option.scale * (1 - tanh[at] * tanh[at]);
        for (std::int64_t e = 0; e < width; ++e) {
          dq[static_cast<std::size_t>(row * width + e)] += ds * k[e];
          dk[static_cast<std::size_t>(((b * key_heads + g) * keys + j) * width + e)] += ds * q[e];
        }
      }
    }
  }
};

// ‖got − want‖ / ‖want‖ over [batch, heads, rows, width], ‖want‖ at least that of elements of 0.1;
// infinities must be equal.
double error(const Operand& got, const std::vector<double>& want, std::int64_t batch,
             std::int64_t heads, std::int64_t rows, std::int64_t width) {
  double difference = 0, norm = 1e-30, least = 0;
  std::size_t i = 0;
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t s = 0; s < rows; ++s) {
        for (std::int64_t e = 0; e < width; ++e, ++i) {
          const double x = got(b, h, s, e);
          if (std::isinf(want[i])) {
            EXPECT_EQ(x, want[i]);
            continue;
          }
          difference += (x - want[i]) * (x - want[i]);
          norm += want[i] * want[i];
          least += 0.01;
        }
      }
    }
  }
  return std::sqrt(difference / std::max(norm, least));
}

void expect_right(const Case& c, Layout layout, double tolerance) {
  SCOPED_TRACE(testing::Message() << "B " << c.sizes.batch << " H " << c.sizes.heads << " G "
                                  << c.sizes.key_heads << " S " << c.sizes.queries << " T "
                                  << c.sizes.keys << " E " << c.sizes.width << " Ev "
                                  << c.sizes.value_width << " causal " << c.options.causal
                                  << " window " << c.options.window << " softcap "
                                  << c.options.softcap << " " << name_of(c.dtype) << " layout "
                                  << static_cast<int>(layout));
  const Call call(c, layout, 7);
  call.run(1);
  const Truth truth(call);
  const AttentionSizes& n = c.sizes;
  EXPECT_LT(error(call.o, truth.o, n.batch, n.heads, n.queries, n.value_width), tolerance);
  EXPECT_LT(error(call.lse, truth.lse, n.batch, n.heads, n.queries, 1),
            c.dtype == DType::f64 ? 1e-14 : 1e-6);
  EXPECT_LT(error(call.dq, truth.dq, n.batch, n.heads, n.queries, n.width), 2 * tolerance);
  EXPECT_LT(error(call.dk, truth.dk, n.batch, n.key_heads, n.keys, n.width), 2 * tolerance);
  EXPECT_LT(error(call.dv, truth.dv, n.batch, n.key_heads, n.keys, n.value_width), 2 * tolerance);
}

AttentionOptions options(bool causal, std::int64_t window, double softcap, std::int64_t width) {
  return {.causal = causal,
          .window = window,
          .softcap = softcap,
          .scale = 1 / std::sqrt(static_cast<double>(width))};
}

double tolerance(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return 1e-13;
    case DType::bf16:
      return 6e-3;
    case DType::f16:
      return 8e-4;
    default:
      return 2e-6;
  }
}

TEST(Attention, EqualsWholeRowsOfScores) {
  const AttentionSizes sizes[] = {
      {1, 1, 1, 1, 1, 1, 1},       {2, 4, 2, 64, 64, 32, 32},   {1, 2, 1, 65, 65, 20, 12},
      {1, 6, 3, 130, 130, 16, 16}, {1, 2, 2, 7, 200, 64, 80},   {2, 3, 1, 100, 40, 33, 5},
      {1, 1, 1, 63, 129, 128, 64}, {1, 2, 1, 257, 257, 24, 24},
  };
  const AttentionOptions all[] = {options(false, 0, 0, 1), options(true, 0, 0, 1),
                                  options(true, 50, 0, 1), options(false, 1, 0.7, 1),
                                  options(true, 0, 0.7, 1)};
  for (const AttentionSizes& n : sizes) {
    for (AttentionOptions option : all) {
      option.scale = 1 / std::sqrt(static_cast<double>(n.width));
      expect_right({n, option, DType::f32}, Layout::tokens, tolerance(DType::f32));
    }
  }
}

TEST(Attention, ReadsEveryDtypeAndLayout) {
  const AttentionSizes n{2, 4, 2, 70, 90, 24, 40};
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    for (const Layout layout : {Layout::tokens, Layout::heads, Layout::gaps, Layout::columns}) {
      expect_right({n, options(true, 30, 2.0, n.width), dtype}, layout, tolerance(dtype));
      expect_right({n, options(false, 0, 0, n.width), dtype}, layout, tolerance(dtype));
    }
  }
}

TEST(Attention, EmptySizesGiveEmptyOrZeroResults) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const AttentionSizes n : {AttentionSizes{0, 2, 1, 5, 5, 8, 8},
                                   {1, 2, 1, 0, 5, 8, 8},
                                   {1, 2, 1, 5, 0, 8, 8},
                                   {1, 2, 1, 5, 5, 8, 0}}) {
      expect_right({n, options(true, 0, 0, 8), dtype}, Layout::tokens, tolerance(dtype));
    }
  }
}

TEST(Attention, ARowThatSeesNoKeyIsZero) {
  // 5 queries, 2 keys, causal: the first three queries come before every key.
  const Call call({{1, 1, 1, 5, 2, 8, 8}, options(true, 0, 0, 8), DType::f32}, Layout::tokens, 1);
  call.run(1);
  for (std::int64_t i = 0; i < 5; ++i) {
    EXPECT_EQ(call.lse(0, 0, i, 0) == -kInfinity, i < 3);
    EXPECT_EQ(call.o(0, 0, i, 3) == 0, i < 3);
    EXPECT_NEAR(call.dq(0, 0, i, 3), 0, i < 4 ? 1e-6 : 10);  // one key: its weight is always 1
  }
}

// Its weight is 1 whatever q and k are. No remainder at all: large q and k would multiply it.
TEST(Attention, AQueryThatSeesOneKeyHasNoGradient) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    const AttentionSizes n{1, 2, 1, 70, 70, 24, 80};
    const Call call({n, options(true, 1, 0, n.width), dtype}, Layout::tokens, 4);
    call.run(1);
    for (std::int64_t i = 0; i < n.queries; ++i) {
      for (std::int64_t e = 0; e < n.width; ++e) {
        EXPECT_EQ(call.dq(0, 1, i, e), 0) << name_of(dtype);
        EXPECT_EQ(call.dk(0, 0, i, e), 0) << name_of(dtype);
      }
    }
  }
}

TEST(Attention, SurvivesScoresThatOverflowExp) {
  Call call({{1, 1, 1, 70, 70, 16, 16}, options(true, 0, 0, 16), DType::f32}, Layout::tokens, 3);
  auto* q = reinterpret_cast<float*>(call.q.memory.data());
  for (std::int64_t i = 0; i < 70 * 16; ++i) q[i] *= 300;  // scores of ± 1000
  call.run(1);
  for (std::int64_t i = 0; i < 70; ++i) {
    EXPECT_TRUE(std::isfinite(call.lse(0, 0, i, 0)));
    EXPECT_TRUE(std::isfinite(call.o(0, 0, i, 5)));
    EXPECT_TRUE(std::isfinite(call.dk(0, 0, i, 5)));
  }
}

TEST(Attention, ANaNStaysANaN) {
  Call call({{1, 1, 1, 70, 70, 16, 16}, options(true, 0, 0.5, 16), DType::f32}, Layout::tokens, 3);
  auto* q = reinterpret_cast<float*>(call.q.memory.data());
  q[66 * 16 + 2] = std::numeric_limits<float>::quiet_NaN();
  call.run(1);
  EXPECT_TRUE(std::isnan(call.o(0, 0, 66, 0)));
  EXPECT_TRUE(std::isnan(call.lse(0, 0, 66, 0)));
  EXPECT_FALSE(std::isnan(call.o(0, 0, 65, 0)));
  EXPECT_FALSE(std::isnan(call.o(0, 0, 67, 0)));
}

TEST(Attention, GivesTheSameBitsWithAnyNumberOfThreads) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Case c{{2, 6, 2, 333, 333, 32, 32}, options(true, 0, 0, 32), dtype};
    const Call one(c, Layout::tokens, 5);
    one.run(1);
    for (const int threads : {2, 3, 8}) {
      const Call many(c, Layout::tokens, 5);
      many.run(threads);
      EXPECT_EQ(one.o.memory, many.o.memory);
      EXPECT_EQ(one.lse.memory, many.lse.memory);
      EXPECT_EQ(one.dq.memory, many.dq.memory);
      EXPECT_EQ(one.dk.memory, many.dk.memory);
      EXPECT_EQ(one.dv.memory, many.dv.memory);
    }
  }
}

TEST(Attention, ScratchGrowsWithTheSequenceNotItsSquare) {
  const AttentionSizes n{1, 8, 8, 1 << 14, 1 << 14, 64, 64};
  AttentionSizes twice = n;
  twice.queries *= 2, twice.keys *= 2;
  EXPECT_LT(attention_scratch_bytes(n, 1), std::size_t{64} << 20);
  EXPECT_LT(attention_scratch_bytes(twice, 1), 2 * attention_scratch_bytes(n, 1) + 1);
}

TEST(Attention, AResultThatNobodyWantsIsNotWritten) {
  const Case c{{1, 2, 1, 20, 20, 8, 8}, options(true, 0, 0, 8), DType::f32};
  const Call all(c, Layout::tokens, 5);
  all.run(1);
  AttentionArguments a = all.arguments();
  std::vector<float> dv(20 * 8);
  a.dq.data = a.dk.data = nullptr;
  a.dv.data = dv.data();
  OwnedTensor scratch(DType::u8, {static_cast<std::int64_t>(attention_scratch_bytes(c.sizes, 1))});
  attention_grad(a, 1, {scratch.as<std::byte>(), scratch.bytes()});
  EXPECT_EQ(std::memcmp(dv.data(), all.dv.memory.data(), dv.size() * sizeof(float)), 0);
}

// ---- programs that are one call ----

Dim product(std::initializer_list<const char*> names) {
  Dim dim;
  for (const char* name : names) dim = dim * dim_of(name);
  return dim;
}

OwnedTensor random_tensor(DType dtype, std::vector<std::int64_t> shape, std::uint64_t seed) {
  OwnedTensor tensor(dtype, std::move(shape));
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  for (std::int64_t i = 0; i < tensor.tensor().elements(); ++i) {
    store(dtype, tensor.tensor().data, i, normal(random));
  }
  return tensor;
}

void expect_as_the_reference(const Program& program, const Sizes& sizes,
                             const std::vector<Tensor>& params) {
  const Kernel kernel = compile_attention(check(program), sizes, 2);
  const auto truth = reference::evaluate(program, sizes, params, reference::Mode::exact);
  std::vector<OwnedTensor> results;
  std::vector<Tensor> views;
  for (std::size_t r = 0; r < truth.size(); ++r) {
    std::vector<std::int64_t> shape;
    for (const Dim& dim : program.results()[r].type.dims) {
      shape.push_back(require_extent(dim, sizes));
    }
    results.emplace_back(program.results()[r].type.dtype, shape);
    views.push_back(results.back().tensor());
  }
  const OwnedTensor scratch(DType::u8, {static_cast<std::int64_t>(kernel.scratch_bytes())});
  kernel.run(params, views, {scratch.as<std::byte>(), scratch.bytes()});
  for (std::size_t r = 0; r < truth.size(); ++r) {
    ASSERT_EQ(static_cast<std::int64_t>(truth[r].data.size()), views[r].elements());
    for (std::size_t i = 0; i < truth[r].data.size(); ++i) {
      ASSERT_NEAR(load(views[r].dtype, views[r].data, static_cast<std::int64_t>(i)),
                  truth[r].data[i], 1e-5)
          << program.results()[r].name << " " << i;
    }
  }
}

TEST(AttentionProgram, TakesOptionsFromNumbersAndParametersAndAnAxisAFactor) {
  const Sizes sizes{{"A", 2}, {"B", 3}, {"S", 5}, {"T", 9}, {"H", 4}, {"G", 2}, {"E", 6}, {"C", 7}};
  const Dim queries = product({"A", "B", "S"}), keys = product({"A", "B", "T"});
  Builder b("call", Program::Kind::program);
  const Value q = b.param("q", {DType::f32, {queries, product({"H", "E"})}});
  const Value k = b.param("k", {DType::f32, {keys, product({"G", "E"})}});
  const Value v = b.param("v", {DType::f32, {keys, product({"G", "C"})}});
  const Value cap = b.param("cap", {DType::f32, {}});
  Attr attr;
  attr.keywords = {"window", "softcap"};
  const auto out = b.ops(Op::attention, {q, k, v, b.constant(4), cap}, attr);
  b.result("o", {DType::f32, {queries, product({"H", "C"})}}, out[0]);
  b.result("lse", {DType::f32, {queries, dim_of("H")}}, out[1]);
  const Program program = std::move(b).finish();

  const OwnedTensor q_data = random_tensor(DType::f32, {30, 24}, 1);
  const OwnedTensor k_data = random_tensor(DType::f32, {2, 3, 9, 2, 6}, 2);  // an axis a factor
  const OwnedTensor v_data = random_tensor(DType::f32, {54, 14}, 3);
  OwnedTensor cap_data(DType::f32, {});
  cap_data.as<float>()[0] = 1.5f;
  expect_as_the_reference(program, sizes,
                          {q_data.tensor(), k_data.tensor(), v_data.tensor(), cap_data.tensor()});
}

TEST(AttentionProgram, GradientsComeFromWhatForwardStored) {
  const Sizes sizes{{"B", 2}, {"S", 5}, {"H", 4}, {"G", 2}, {"E", 6}};
  const Dim tokens = product({"B", "S"});
  const Type query{DType::f32, {tokens, product({"H", "E"})}};
  const Type key{DType::f32, {tokens, product({"G", "E"})}};
  Builder b("call", Program::Kind::program);
  std::vector<Value> args;
  for (const char* name : {"d", "q"}) args.push_back(b.param(name, query));
  for (const char* name : {"k", "v"}) args.push_back(b.param(name, key));
  args.push_back(b.param("o", query));
  args.push_back(b.param("lse", {DType::f32, {tokens, dim_of("H")}}));
  args.push_back(b.constant(1));
  Attr attr;
  attr.keywords = {"causal"};
  const auto out = b.ops(Op::attention_grad, args, attr);
  b.result("dv", key, out[2]);
  b.result("dq", query, out[0]);
  const Program program = std::move(b).finish();

  std::vector<OwnedTensor> owned;
  for (const std::int64_t columns : {24, 24, 12, 12, 24}) {
    owned.push_back(random_tensor(DType::f32, {10, columns}, 5 + owned.size()));
  }
  owned.emplace_back(DType::f32, std::vector<std::int64_t>{10, 4});
  for (std::int64_t i = 0; i < 40; ++i) owned[5].as<float>()[i] = 3;
  std::vector<Tensor> params;
  for (const OwnedTensor& tensor : owned) params.push_back(tensor.tensor());
  expect_as_the_reference(program, sizes, params);
}

}  // namespace
}  // namespace coda::cpu
