// tests/cuda_general_test.cpp: the predicated path, run on the host and judged by the verifier.
//
// What is shown is everything but the GPU's own arithmetic (the leaves of device/maps.cuh). That
// the same pages compile for a GPU, without spills, is shown where there is an NVRTC.
#include "coda/cuda/general.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "coda/cuda/nvrtc.h"
#include "coda/program/text.h"
#include "coda/reference/reference.h"
#include "coda/rewrite/grad.h"
#include "coda/rewrite/retype.h"
#include "tests/cases.h"
#include "tests/cuda_pages.h"
#include "tests/random_transformer.h"

namespace coda::cuda {
namespace {

using ::coda::testing::Case;
using ::coda::testing::case_table;

constexpr auto kEveryLayout = {Layouts::dense, Layouts::padded, Layouts::transposed,
                               Layouts::broadcast};

Program program_of(const std::string& text) {
  return parse("coda 1\n" + text, "test.coda").find("");
}

// Under sanitizers the verifier is ten times slower: a sample will do.
#ifdef __SANITIZE_ADDRESS__
constexpr std::size_t kEach = 9;
#else
constexpr std::size_t kEach = 1;
#endif

std::vector<Case> cases() {
  std::vector<Case> some;
  for (std::size_t i = 0; i < case_table().cases.size(); i += kEach) {
    some.push_back(case_table().cases[i]);
  }
  return some;
}

std::size_t odd(const Case& entry) {
  return entry.sizes.size() > 1 ? 1 : 0;
}

TEST(CudaGeneral, CasesErrNoMoreThanTheUnfusedSequence) {
  Sweep sweep;
  for (const Case& entry : cases()) {
    for (std::size_t i = 0; i < entry.sizes.size(); ++i) {
      VerifyOptions options{.inputs = {Inputs::normal}, .seed = 1 + i};
      if (i == odd(entry)) options.layouts = case_table().layouts;
      sweep.add(test_name(entry) + " sizes " + std::to_string(i), entry.load(), entry.sizes[i],
                options);
    }
  }
  sweep.run();
}

TEST(CudaGeneral, CasesRunInOtherDtypes) {
  Sweep sweep;
  for (const Case& entry : cases()) {
    for (const DType dtype : {DType::f32, DType::f16}) {
      sweep.add(test_name(entry) + " as " + std::string(name_of(dtype)),
                retype(entry.load(), DType::bf16, dtype), entry.sizes[odd(entry)],
                {.inputs = {Inputs::normal}});
    }
  }
  sweep.run();
}

TEST(CudaGeneral, GradientsOfCasesRun) {
  Sweep sweep;
  for (const Case& entry : cases()) {
    if (!entry.no_gradient_bound.empty()) continue;
    const Program program = entry.load();
    GradOptions options;
    for (const Param& param : program.params()) {
      const bool is_table = param.name == "cos" || param.name == "sin";
      if (is_float(param.type.dtype) && !param.type.is_scalar() && !is_table) {
        options.wrt.push_back(param.name);
      }
    }
    sweep.add("gradient of " + test_name(entry), grad(program, options), entry.sizes[odd(entry)],
              {.inputs = {Inputs::normal}});
  }
  sweep.run();
}

// What the case table does not reach: every op, operand order, placement and dtype.
struct Text {
  const char* text;
  std::vector<Sizes> sizes;
  std::vector<DType> dtypes = {DType::bf16};
};

const std::vector<DType> kFloats = {DType::bf16, DType::f64};

const std::vector<Text> kTexts = {
    {"program p(x: bf16[K, M], w: bf16[K, N]) -> (y: f32[N, M]) { y = x @ w }",
     {{{"M", 65}, {"N", 70}, {"K", 33}}, {{"M", 5}, {"N", 3}, {"K", 0}}},
     kFloats},
    {"program p(x: bf16[M, K], w: bf16[N, K]) -> (y: bf16[N, M]) { y = w @ x }",
     {{{"M", 65}, {"N", 70}, {"K", 129}}}},
    {"program p(x: bf16[M, H, E], w: bf16[E, N, H]) -> (y: bf16[M, N]) { y = x @[H, E] w }",
     {{{"M", 30}, {"H", 3}, {"E", 8}, {"N", 65}}}},
    {"program p(x: bf16[B*S, K], w: bf16[B*S, N]) -> (y: f32[K, N]) { y = x @ w }",
     {{{"B", 3}, {"S", 31}, {"K", 65}, {"N", 33}}}},
    {"program p(x: f32[M, K], w: bf16[N, K]) -> (y: f32[M, N]) { y = bf16(x) @ w }",
     {{{"M", 29}, {"N", 65}, {"K", 40}}}},
    {"program p(x: bf16[M, K], w: bf16[P, K]) -> (y: bf16[M, N], z: bf16[M, N]) {\n"
     "  a, b = split(w, P: N, N)\n  y = x @ a\n  z = x @ b\n}",
     {{{"M", 29}, {"N", 65}, {"P", 130}, {"K", 40}}}},
    {"program p(x: bf16[M, K], v: bf16[N, K], y: bf16[M, L], w: bf16[N, L]) -> (z: bf16[M, N]) {\n"
     "  z = x @ v + y @ w\n}",
     {{{"M", 29}, {"N", 57}, {"K", 40}, {"L", 65}}}},
    {"program p(a: bf16[M, N], b: bf16[M, L], x: bf16[M, K]) -> (da: +f32[N, K], db: +f32[L, K]) {"
     "\n  da += a @ x\n  db += b @ x\n}",
     {{{"M", 130}, {"N", 65}, {"L", 30}, {"K", 70}}}},
    {"program p(x: bf16[M, D], w: bf16[H*E, D], c: f32[M, E/2]) -> (q: bf16[M, H*E]) {\n"
     "  a, b = split((x @ w) as [M, H*(E/2)*2], 2: 1, 1)\n"
     "  q = join(2: a * c - b, b * c + a) as [M, H*E]\n}",
     {{{"M", 70}, {"D", 33}, {"H", 9}, {"E", 34}}}},
    {"program p(x: bf16[M, D], w: bf16[H*E, D]) -> (q: bf16[M, H*E]) {\n"
     "  a, b, rest = split(x @ w, E: R/2, R/2, E - R)\n"
     "  q = join(a - b, b + a, rest, E: R/2, R/2, E - R)\n}",
     {{{"M", 70}, {"D", 33}, {"H", 9}, {"E", 34}, {"R", 10}}}},
    {"program p(x: bf16[M, D], w: bf16[N, D]) -> (q: bf16[M, H*E], k: bf16[M, G*E], m: f32[M, H]) {"
     "\n  q, k = split(x @ w, N: H*E, G*E)\n  m = max(q, E)\n}",
     {{{"M", 70}, {"D", 33}, {"H", 9}, {"G", 3}, {"E", 34}, {"N", 408}}}},
    {"program p(x: f32[M, K], w: f32[N, K]) -> (a: f32[blocks(M), N], b: f32[blocks(M), N],\n"
     "    c: f32[blocks(M, 128), N], d: f32[M, blocks(N)], e: f32[M, blocks(N, 128)]) {\n"
     "  z = x @ w\n  a = block_sum(z, M)\n  b = block_max(z * z, M) * 2\n"
     "  c = block_logsumexp(z, M, 128)\n  d = block_logsumexp(z, N)\n  e = block_max(z, N, 128)\n}",
     {{{"M", 1}, {"N", 200}, {"K", 9}}, {{"M", 129}, {"N", 65}, {"K", 9}}}},
    {"program p(x: bf16[M, K], w: bf16[V, K], t: i64[M], u: i32[M]) -> (b: +f32[M]) {\n"
     "  z = x @ w\n  b += pick(z, t) - pick(z, u)\n}",
     {{{"M", 70}, {"V", 63}, {"K", 30}}}},
    {"program p(x: bf16[M, K], w: bf16[H*E, K], c: f32[V], t: i64[H*E], u: i64[M, H])\n"
     "    -> (y: bf16[M, H*E], z: f32[M, H]) {\n"
     "  y = (x @ w) * c[t]\n  z = pick(y * 2, u)\n}",
     {{{"M", 20}, {"H", 30}, {"E", 10}, {"K", 30}, {"V", 20}}}},
    {"program p(x: f8e4m3[M, K], w: f8e5m2[N, K], r: f8e4m3[N])\n"
     "    -> (y: f8e4m3[M, N], z: f8e5m2[M, N]) {\n  y = x @ w + r\n  z = f8e4m3(y) * 0.5\n}",
     {{{"M", 70}, {"N", 65}, {"K", 30}}}},
    {"program p(dz: bf16[M, N], x: bf16[M, K], part: f32[blocks(M), N], ss: f32[K, blocks(N)])\n"
     "    -> (dw: +f32[N, K], db: +f32[N], r: +f32[K]) {\n"
     "  dw += dz @ x\n  db += sum(part, blocks(M))\n  r += rsqrt(sum(ss * ss, blocks(N)) + 1)\n}",
     {{{"M", 130}, {"N", 30}, {"K", 27}}}},
    {"program p(x: bf16[M, N], y: bf16[M, N], r: bf16[M], c: bf16[N], s: bf16)\n"
     "    -> (a: f32[M, N], b: f32[M, N], d: f32[M, N], e: f32[M, N], f: bool[M, N], g: f32[N, M]) "
     "{\n"
     "  a = exp(x) + log(abs(y) + 0.1) * sqrt(abs(x)) - rsqrt(1 + y * y) / (2 + tanh(x * r))\n"
     "  b = sigmoid(x - c) * erf(y) + min(x, y) - max(x, s)\n"
     "  d = where(x < y, c, where(x >= 0.5, r, -y)) + where(x == x, 1, 0) * where(r != c, 2, 3)\n"
     "  e = r * c + (f32(f16(x)) - bf16(y)) * where(x <= c, s, where(x > r, 1.5, s))\n"
     "  f = x < y\n  g = c * r + s\n}",
     {{{"M", 67}, {"N", 35}}, {{"M", 1}, {"N", 1}}, {{"M", 0}, {"N", 3}}},
     {DType::bf16, DType::f16, DType::f32, DType::f64}},
    {"program p(x: f32[M, N], g: f32[N]) -> (y: f32[M, N], s: f32[M], l: f32[M], m: f32[M]) {\n"
     "  s = sum(x * x, N)\n  y = x * rsqrt(s / size(N) + 1e-5) * g\n  l = logsumexp(x, N)\n"
     "  m = max(x, N)\n}",
     {{{"M", 7}, {"N", 0}}, {{"M", 7}, {"N", 65}}, {{"M", 3}, {"N", 5000}}},
     {DType::f32}},
    {"program p(x: bf16[B*S, N]) -> (a: f32[B*blocks(S), N], b: f32[B*blocks(S)]) {\n"
     "  a = block_sum(x * x, S)\n  b = block_logsumexp(sum(x, N), S)\n}",
     {{{"B", 7}, {"S", 100}, {"N", 33}}}},
    {"program p(x: bf16[B*S, N]) -> (a: f32[blocks(B)*S, N]) { a = block_sum(x, B) }",
     {{{"B", 130}, {"S", 3}, {"N", 33}}}},
    {"program p(x: f32[N]) -> (s: f32, m: f32) { s = sum(x * x, N)\n  m = sqrt(s) }",
     {{{"N", 300001}}, {{"N", 0}}}},
    {"program p(x: f32[N]) -> (l: f32, m: f32) { l = logsumexp(x, N)\n  m = max(x, N) }",
     {{{"N", 300001}}, {{"N", 1}}}},
    {"program p(x: bf16[M, N]) -> (s: f32[N]) { s = sum(x, M) }", {{{"M", 9000}, {"N", 3}}}},
    {"program p(a: f32, b: f32) -> (s: f32, i: i64) { s = a * b + 1\n  i = i64(a * 100) }", {{}}},
    {"program p(x: bf16[M, H*E], d: f32[M, blocks(N)], s: f32[blocks(M)], n: bf16[M, N])\n"
     "    -> (a: bf16[M, E*H], b: f32[M, N], c: f32[M, N], e: f32[M, N, R]) {\n"
     "  a = x\n  b = spread(d, N) * n\n  c = spread(s, M) + n\n  e = spread(n * 2, R)\n}",
     {{{"M", 130}, {"H", 3}, {"E", 5}, {"N", 70}, {"R", 3}}}},
    {"program p(x: bf16[M, N], y: bf16[L, N]) -> (z: bf16[P, N]) { z = join(P: x, y) }",
     {{{"M", 70}, {"L", 35}, {"P", 105}, {"N", 40}}}},
    {"program p(z: bf16[P, N]) -> (x: bf16[M, N], y: bf16[L, N]) { x, y = split(z, P: M, L) }",
     {{{"M", 70}, {"L", 35}, {"P", 105}, {"N", 40}}}},
    {"program p(t: bf16[V, D], q: bf16[S, D], ids: i64[B*S]) -> (x: bf16[B*S, D]) {\n"
     "  x = t[ids] + q[index(S)]\n}",
     {{{"V", 7}, {"D", 33}, {"B", 3}, {"S", 50}}}},
    {"program p(x: bf16[B*S, D], ids: i32[B*S]) -> (t: +f32[V, D]) {\n"
     "  t += scatter_sum(x, ids, V)\n}",
     {{{"V", 1}, {"D", 33}, {"B", 3}, {"S", 50}}, {{"V", 300}, {"D", 3}, {"B", 3}, {"S", 43}}}},
    {"program p(x: bf16[M, N], rate: f32, seed: i64) -> (y: bf16[M, N]) {\n"
     "  y = where(uniform(seed, x) < rate, 0, x / (1 - rate))\n}",
     {{{"M", 33}, {"N", 70}}}},
};

TEST(CudaGeneral, RunsEveryOpInEveryLayout) {
  Sweep sweep;
  for (const Text& each : kTexts) {
    for (const Sizes& sizes : each.sizes) {
      for (const DType dtype : each.dtypes) {
        sweep.add(each.text, retype(program_of(each.text), DType::bf16, dtype), sizes,
                  {.inputs = {Inputs::normal}, .layouts = kEveryLayout});
      }
    }
  }
  sweep.run();
}

TEST(CudaGeneral, AttentionTakesItsOptions) {
  const std::string inputs =
      "(q: bf16[B*S, H*E], k: bf16[B*T, G*E], v: bf16[B*T, G*F], window: i64, cap: f32)";
  Sweep sweep;
  for (const std::string options :
       {"", ", causal: true", ", causal: true, window: window", ", window: window, scale: 0.3",
        ", softcap: cap, causal: true"}) {
    const Program forward =
        program_of("program p" + inputs +
                   " -> (o: bf16[B*S, H*F], l: f32[B*S, H]) {\n  o, l = attention(q, "
                   "k, v" +
                   options + ")\n}");
    const Program backward = program_of(
        "program p(d: bf16[B*S, H*F], q: bf16[B*S, H*E], k: bf16[B*T, G*E], v: bf16[B*T, G*F],\n"
        "    o: bf16[B*S, H*F], l: f32[B*S, H], window: i64, cap: f32)\n"
        "    -> (dq: bf16[B*S, H*E], dk: bf16[B*T, G*E], dv: bf16[B*T, G*F]) {\n"
        "  dq, dk, dv = attention_grad(d, q, k, v, o, l" +
        options + ")\n}");
    for (const Sizes& sizes :
         {Sizes{{"B", 2}, {"S", 19}, {"T", 19}, {"H", 4}, {"G", 2}, {"E", 8}, {"F", 8}},
          Sizes{{"B", 1}, {"S", 30}, {"T", 21}, {"H", 3}, {"G", 1}, {"E", 35}, {"F", 40}}}) {
      const VerifyOptions every{.inputs = {Inputs::normal}, .layouts = kEveryLayout};
      sweep.add("attention" + options, forward, sizes, every);
      sweep.add("attention_grad" + options, backward, sizes, every);
    }
  }
  sweep.run();
}

TEST(CudaGeneral, SchedulesOfRandomTransformersRun) {
  Sweep sweep;
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    const ::coda::testing::RandomTransformer random(seed);
    sweep.add(random.text(), random.program(), random.sizes(), {.inputs = {Inputs::normal}});
  }
  sweep.run();
}

// ---- values ----

std::vector<OwnedTensor> results_of(const Program& program, const Sizes& sizes) {
  std::vector<OwnedTensor> results;
  for (const Result& result : program.results()) {
    results.emplace_back(result.type.dtype, shape_of(result.type, sizes));
  }
  return results;
}

std::vector<Tensor> views(const std::vector<OwnedTensor>& tensors) {
  std::vector<Tensor> views;
  for (const OwnedTensor& tensor : tensors) views.push_back(tensor.tensor());
  return views;
}

std::vector<OwnedTensor> run(const std::string& text, const Sizes& given,
                             std::span<const Tensor> params) {
  const Program program = program_of(text);
  const Sizes sizes = bind(program, params, {}, given);
  std::vector<OwnedTensor> results = results_of(program, sizes);
  OnHost().compile(check(program), sizes).run(params, views(results), {});
  return results;
}

TEST(CudaGeneral, ComputesWithIntegersExactly) {
  OwnedTensor i(DType::i64, {3}), j(DType::i32, {3}), b(DType::boolean, {3}), u(DType::u8, {3});
  const std::int64_t is[] = {(std::int64_t{1} << 60) + 1, -7, 5};
  const std::int32_t js[] = {2, -9, 4};
  const std::uint8_t bs[] = {1, 0, 200}, us[] = {7, 8, 255};
  std::copy_n(is, 3, i.as<std::int64_t>());
  std::copy_n(js, 3, j.as<std::int32_t>());
  std::copy_n(bs, 3, b.as<std::uint8_t>());
  std::copy_n(us, 3, u.as<std::uint8_t>());
  const auto got =
      run("program p(i: i64[M], j: i32[M], b: bool[M], u: u8[M]) -> (a: i64[M], c: i32[M], d: "
          "bool[M], e: i64[M]) {\n"
          "  a = (i + index(M)) * 2 - j\n  c = min(j, 3) + where(b, u, -j)\n  d = i > j\n"
          "  e = where(b == false, abs(j), max(i, size(M)))\n}",
          {}, std::vector{i.tensor(), j.tensor(), b.tensor(), u.tensor()});
  for (int k = 0; k < 3; ++k) {
    EXPECT_EQ(got[0].as<std::int64_t>()[k], (is[k] + k) * 2 - js[k]);
    EXPECT_EQ(got[1].as<std::int32_t>()[k], std::min(js[k], 3) + (bs[k] ? us[k] : -js[k]));
    EXPECT_EQ(got[2].as<std::uint8_t>()[k], is[k] > js[k] ? 1 : 0);
    EXPECT_EQ(got[3].as<std::int64_t>()[k],
              bs[k] ? std::max<std::int64_t>(is[k], 3) : std::abs(js[k]));
  }
}

// Every dtype, from f32 and from f64 (where two roundings would not be one).
TEST(CudaGeneral, CastsRoundAsDtypesDo) {
  std::vector<double> numbers = {
      0,      -0.0, 464,    464.0000001, -465,  1e-9, 61440, 61439.999, 65504,    65519.9999, 65520,
      3.4e38, 1e39, -1e300, 1e-40,       255.5, -3.7, 3e9,   1e19,      INFINITY, -INFINITY,  NAN};
  for (int e = -20; e <= 20; ++e) {
    for (int m = 0; m < 64; ++m) {
      // Halfway between two numbers of some format, and a hair beside.
      const double half = std::ldexp(1 + m / 64.0, e);
      numbers.insert(numbers.end(), {half, -half * (1 + 1e-12), half * (1 - 1e-12)});
    }
  }
  const auto n = static_cast<std::int64_t>(numbers.size());
  OwnedTensor x(DType::f64, {n}), y(DType::f32, {n});
  for (std::int64_t i = 0; i < n; ++i) {
    x.as<double>()[i] = numbers[static_cast<std::size_t>(i)];
    y.as<float>()[i] = static_cast<float>(numbers[static_cast<std::size_t>(i)]);
  }
  constexpr DType kDTypes[] = {DType::bf16, DType::f16, DType::f8e4m3, DType::f8e5m2,
                               DType::i32,  DType::i64, DType::u8,     DType::boolean};
  const auto text_of = [](const std::string& own, const std::string& to) {
    return "program p(x: " + own + "[N]) -> (a: " + to + "[N], b: " + own + "[N]) {\n  a = " + to +
           "(x)\n  b = " + own + "(a) * 1\n}";
  };
  for (const DType dtype : kDTypes) {
    for (const std::string own : {"f64", "f32"}) {
      const Program program = program_of(text_of(own, std::string(name_of(dtype))));
      OnHost().compile(check(program), {{"N", n}});
    }
  }
  for (const DType dtype : kDTypes) {
    const std::string to(name_of(dtype));
    for (const OwnedTensor* from : {&x, &y}) {
      const std::string own(name_of(from->tensor().dtype));
      const auto got = run(text_of(own, to), {}, std::vector{from->tensor()});
      for (std::int64_t i = 0; i < n; ++i) {
        const double value = load(from->tensor().dtype, from->tensor().data, i);
        const double want = round_to(dtype, value);
        const double stored = load(dtype, got[0].tensor().data, i);
        const double cast = load(from->tensor().dtype, got[1].tensor().data, i);
        if (std::isnan(want)) {
          ASSERT_TRUE(std::isnan(stored) && std::isnan(cast)) << to << " of " << value;
        } else {
          ASSERT_EQ(stored, want) << to << " of " << value;
          ASSERT_EQ(cast, own == "f32" ? static_cast<float>(want) : want) << to << " of " << value;
        }
      }
    }
  }
}

TEST(CudaGeneral, NaNStaysNaN) {
  OwnedTensor x(DType::f32, {2, 70}), w(DType::f32, {70});
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (int i = 0; i < 140; ++i) x.as<float>()[i] = i < 70 ? 1.0f : nan;
  x.as<float>()[5] = nan;
  const auto got =
      run("program p(x: f32[M, N], w: f32[N]) -> (a: bf16[M, N], b: f16[M, N], c: f32[M], d: "
          "f32[M], e: f32[M], f: f8e4m3[M, N], g: f8e5m2[M, N]) {\n"
          "  a = exp(x) + log(x) + tanh(x) + sigmoid(x) + erf(x)\n  b = min(w, x) + max(x, w)\n"
          "  c = max(x, N)\n  d = logsumexp(x, N)\n  e = sum(x, N)\n  f = min(x, w)\n  g = x\n}",
          {}, std::vector{x.tensor(), w.tensor()});
  for (std::size_t r = 0; r < got.size(); ++r) {
    const std::int64_t n = got[r].tensor().elements();
    for (std::int64_t i = n == 2 ? 0 : 70; i < n; ++i) {
      ASSERT_TRUE(std::isnan(load(got[r].tensor().dtype, got[r].tensor().data, i)))
          << r << " " << i;
    }
  }
}

// An optimiser's step, its results in the memory of what they are computed from; and two kernels,
// the later of which reads what the earlier one may have overwritten.
TEST(CudaGeneral, RunsInPlaceElementByElement) {
  for (const char* text :
       {"program p(w: f32[M, N], g: f32[M, N], m: f32[M, N]) -> (v: f32[M, N], w2: f32[M, N]) {\n"
        "  v = 0.9 * m + g\n  w2 = w - 0.1 * v * w\n}",
        "program p(w: f32[M, N], g: f32[M, N], m: f32[M, N]) -> (v: f32[M, N], w2: f32[P, Q]) {\n"
        "  v = 0.9 * m + g\n  w2 = (w - 0.1 * v * w) as [P, Q]\n}"}) {
    const Program program = program_of(text);
    const Sizes sizes = bind_sizes(program, {{"M", 70}, {"N", 40}, {"P", 70}, {"Q", 40}});
    const std::vector<OwnedTensor> inputs = random_inputs(program, sizes, 3);
    std::vector<Tensor> params;
    for (const OwnedTensor& input : inputs) params.push_back(input.tensor());
    const auto want = run(text, sizes, params);
    const Kernel kernel = OnHost().compile(check(program), sizes);
    kernel.run(params, std::vector{params[0], params[2]}, {});
    EXPECT_EQ(std::memcmp(want[0].as<float>(), params[0].data, 70 * 40 * 4), 0) << text;
    EXPECT_EQ(std::memcmp(want[1].as<float>(), params[2].data, 70 * 40 * 4), 0) << text;
  }
}

// Tiles are large where they occupy the processors; elements at odd addresses have no tiles.
TEST(CudaGeneral, TilesKeepTheBits) {
  const Target small{.processors = 1};
  for (const char* text :
       {"program p(x: bf16[B*S, K], w: bf16[N, K], v: bf16[L, N]) -> (y: f32[B*S, N]) {\n"
        "  y = x @ w\n}",
        "program p(x: f32[K, H*E], w: f32[K, B*S], y: f32[L, H*E], v: f32[L, B*S])\n"
        "    -> (z: f32[H*E, B*S]) {\n  z = x @ w + y @ v\n}"}) {
    const Program program = program_of(text);
    for (const std::int64_t s : {33, 34, 35}) {
      const Sizes sizes = bind_sizes(
          program, {{"B", 2}, {"S", s}, {"K", 70}, {"N", 70}, {"L", 9}, {"H", 3}, {"E", 25}});
      const std::vector<OwnedTensor> inputs = random_inputs(program, sizes, 4);
      const std::vector<OwnedTensor> one = results_of(program, sizes);
      const std::vector<OwnedTensor> tiled = results_of(program, sizes);
      const std::vector<Layout> layouts = dense_layouts(program, sizes);
      const Plan plan = plan_general(check(program), sizes, layouts, {});
      const Plan tiles = plan_general(check(program), sizes, layouts, small);
      EXPECT_NE(plan.page.find("ProductTile<4>"), std::string::npos);
      EXPECT_NE(tiles.page.find("ProductTile<8>"), std::string::npos);
      launch_on_host(plan, views(inputs), views(one));
      launch_on_host(tiles, views(inputs), views(tiled));
      EXPECT_EQ(std::memcmp(one[0].as<float>(), tiled[0].as<float>(), one[0].bytes()), 0) << text;
      std::vector<Layout> odd = layouts;
      for (Layout& layout : odd) layout.alignment = 1;
      for (const Target& target : {Target{}, small}) {
        const Plan plain = plan_general(check(program), sizes, odd, target);
        EXPECT_EQ(plain.page.find("ProductTile"), std::string::npos);
        launch_on_host(plain, views(inputs), views(tiled));
        EXPECT_EQ(std::memcmp(one[0].as<float>(), tiled[0].as<float>(), one[0].bytes()), 0) << text;
      }
    }
  }
}

// Every tensor one byte off: read and written by bytes.
TEST(CudaGeneral, TensorsAtOddAddresses) {
  for (const char* text :
       {"program p(x: f32[M, K], w: bf16[N, K], r: f64[N]) -> (y: bf16[M, N], z: f64[M, N]) {\n"
        "  z = x @ w + r\n  y = z\n}",
        "program p(x: f32[M, N], i: i64[M]) -> (y: +f32[K, N]) { y += scatter_sum(x, i, K) }"}) {
    const Program program = program_of(text);
    const Sizes sizes = bind_sizes(program, {{"M", 9}, {"N", 20}, {"K", 5}});
    const std::vector<OwnedTensor> inputs = random_inputs(program, sizes, 2);
    const std::vector<OwnedTensor> want = results_of(program, sizes);
    const Kernel kernel = OnHost().compile(check(program), sizes);
    kernel.run(views(inputs), views(want), {});
    std::vector<std::vector<std::byte>> memory;
    const auto moved = [&](const std::vector<OwnedTensor>& tensors) {
      std::vector<Tensor> odd = views(tensors);
      for (Tensor& tensor : odd) {
        const auto bytes = static_cast<std::size_t>(tensor.elements()) * size_of(tensor.dtype);
        memory.emplace_back(bytes + 16);
        std::memcpy(memory.back().data() + 1, tensor.data, bytes);
        tensor.data = memory.back().data() + 1;
      }
      return odd;
    };
    const std::vector<Tensor> params = moved(inputs), results = moved(results_of(program, sizes));
    kernel.run(params, results, {});
    for (std::size_t r = 0; r < want.size(); ++r) {
      EXPECT_EQ(std::memcmp(want[r].tensor().data, results[r].data, want[r].bytes()), 0) << text;
    }
  }
}

// ---- for a GPU ----

TEST(CudaGeneral, PagesCompileForAGpuWithoutSpills) {
  if (const auto problem = nvrtc_problem()) GTEST_SKIP() << "skipped: " << *problem;
  HostPages pages;
  const auto add = [&](const Program& program, const Sizes& given, const Target& target = {}) {
    const Sizes sizes = bind_sizes(program, given);
    pages.want(plan_general(check(program), sizes, dense_layouts(program, sizes), target));
  };
  for (const Text& each : kTexts) {
    for (const DType dtype : each.dtypes) {
      add(retype(program_of(each.text), DType::bf16, dtype), each.sizes.back());
    }
  }
  for (const DType dtype : {DType::bf16, DType::f32, DType::f64}) {
    const char* text = "program p(x: bf16[M, K], w: bf16[N, K]) -> (y: bf16[M, N]) { y = x @ w }";
    add(retype(program_of(text), DType::bf16, dtype), {{"M", 4096}, {"N", 4096}, {"K", 64}});
  }
  const Sizes heads = {{"B", 1}, {"S", 64}, {"H", 4}, {"E", 128}};
  const std::string inputs = "q: bf16[B*S, H*E], k: bf16[B*S, H*E], v: bf16[B*S, H*E], cap: f32";
  const std::string options = ", causal: true, softcap: cap)";
  add(program_of("program p(" + inputs + ") -> (o: bf16[B*S, H*E], l: f32[B*S, H]) {\n" +
                 "  o, l = attention(q, k, v" + options + "\n}"),
      heads);
  add(program_of("program p(d: bf16[B*S, H*E], " + inputs + ", o: bf16[B*S, H*E], l: f32[B*S, H])" +
                 " -> (dq: bf16[B*S, H*E], dk: bf16[B*S, H*E], dv: bf16[B*S, H*E]) {\n" +
                 "  dq, dk, dv = attention_grad(d, q, k, v, o, l" + options + "\n}"),
      heads);
  std::string text;
  for (std::size_t i = 0; i < pages.count(); ++i) text += pages.page(i);
  const Compiled compiled = compile("general", text, device_files());
  ASSERT_GT(compiled.entries.size(), pages.count());
  for (const Compiled::Entry& entry : compiled.entries) {
    EXPECT_EQ(entry.spill_stores + entry.spill_loads, 0) << entry.name;
    EXPECT_LE(entry.registers, entry.shared > 30000 ? 255 : 128) << entry.name;
  }
}

}  // namespace
}  // namespace coda::cuda
