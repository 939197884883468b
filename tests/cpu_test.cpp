// tests/cpu_test.cpp: the CPU backend on programs as text, judged by the verifier.
//
// The case table (cases_test.cpp) runs the library's programs; here is what they do not reach:
// every op, every operand order, tile edges, threads, memory that is shared or misaligned.
#include "tests/cpu_programs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "coda/reference/verify.h"
#include "coda/rewrite/retype.h"

namespace coda::testing {
namespace {

// The library's AVX-512 kernels add up in one order whatever the tile; its older ones do not.
bool tiles_keep_bits() {
  const Program program = program_of("program p(x: f32[N]) -> (y: f32[N]) { y = x }");
  return cpu_with(1).compile(check(program), {{"N", 1}}).note().find("AVX3") != std::string::npos;
}

constexpr auto kEveryLayout = {Layouts::dense, Layouts::padded, Layouts::transposed,
                               Layouts::broadcast};

void expect_right(const std::string& text, const Sizes& sizes, DType dtype = DType::bf16,
                  std::vector<Layouts> layouts = {Layouts::dense}, int seeds = 2) {
  const Program program = retype(program_of(text), DType::bf16, dtype);
  SCOPED_TRACE(text + " as " + std::string(name_of(dtype)));
  VerifyOptions options{.inputs = {Inputs::normal}, .layouts = std::move(layouts), .seeds = seeds};
  options.same_bits = {executor_of(cpu_with(1)), executor_of(cpu_with(3))};
  if (tiles_keep_bits()) options.same_bits.push_back(executor_of(cpu_with(2, 64, 64)));
  const auto verdicts =
      verify(program, bind_sizes(program, sizes), executor_of(cpu_with(2)), options);
  for (const Verdict& verdict : verdicts) {
    if (!verdict.passed) {
      ADD_FAILURE() << table(verdicts);
      return;
    }
  }
}

// ---- products ----

TEST(Cpu, MultipliesEveryOperandOrder) {
  for (const char* text :
       {"program p(x: bf16[M, K], w: bf16[N, K]) -> (y: bf16[M, N]) { y = x @ w }",
        "program p(x: bf16[M, K], w: bf16[K, N]) -> (y: bf16[M, N]) { y = x @ w }",
        "program p(x: bf16[K, M], w: bf16[N, K]) -> (y: bf16[M, N]) { y = x @ w }",
        "program p(x: bf16[K, M], w: bf16[K, N]) -> (y: f32[N, M]) { y = x @ w }",
        "program p(x: bf16[M, K], w: bf16[N, K]) -> (y: bf16[N, M]) { y = w @ x }"}) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
      expect_right(text, {{"M", 65}, {"N", 70}, {"K", 33}}, dtype);
    }
    expect_right(text, {{"M", 200}, {"N", 300}, {"K", 129}}, DType::bf16, kEveryLayout);
  }
}

TEST(Cpu, MultipliesAtEveryTileEdge) {
  const char* text =
      "program p(x: bf16[M, K], w: bf16[N, K], r: f32[M]) -> (y: bf16[M, N], s: f32[M, blocks(N)]) "
      "{\n"
      "  y = r * (x @ w)\n  s = block_sum(y * y, N)\n}";
  for (const std::int64_t m : {0, 1, 63, 64, 65, 257}) {
    for (const std::int64_t n : {0, 1, 63, 64, 65, 257}) {
      for (const std::int64_t k : {0, 1, 64}) {
        expect_right(text, {{"M", m}, {"N", n}, {"K", k}}, m % 2 ? DType::f32 : DType::bf16,
                     {Layouts::dense}, 1);
      }
    }
  }
}

TEST(Cpu, PacksWhatIsNoMatrix) {
  // Merged contractions, contractions in two orders, a broadcast operand, casts, ranges, mixed
  // dtypes.
  expect_right("program p(x: bf16[B*S, K], w: bf16[B*S, N]) -> (y: f32[K, N]) { y = x @ w }",
               {{"B", 3}, {"S", 31}, {"K", 65}, {"N", 33}}, DType::bf16, kEveryLayout);
  expect_right(
      "program p(x: bf16[M, H, E], w: bf16[E, N, H]) -> (y: bf16[M, N]) { y = x @[H, E] w }",
      {{"M", 130}, {"H", 3}, {"E", 8}, {"N", 65}}, DType::bf16, kEveryLayout);
  expect_right("program p(x: f32[M, K], w: bf16[N, K]) -> (y: f32[M, N]) { y = x @ w }",
               {{"M", 129}, {"N", 65}, {"K", 40}}, DType::bf16, kEveryLayout);
  expect_right("program p(x: f32[M, K], w: bf16[N, K]) -> (y: f32[M, N]) { y = bf16(x) @ w }",
               {{"M", 129}, {"N", 65}, {"K", 40}});
  expect_right(
      "program p(x: bf16[M, K], w: bf16[P, K]) -> (y: bf16[M, N], z: bf16[M, N]) {\n"
      "  a, b = split(w, P: N, N)\n  y = x @ a\n  z = x @ b\n}",
      {{"M", 129}, {"N", 65}, {"P", 130}, {"K", 40}}, DType::bf16, kEveryLayout);
}

TEST(Cpu, SumsPairsAndStacksProducts) {
  expect_right(
      "program p(x: bf16[M, K], v: bf16[N, K], y: bf16[M, L], w: bf16[N, L]) -> (z: bf16[M, N]) {\n"
      "  z = x @ v + y @ w\n}",
      {{"M", 129}, {"N", 257}, {"K", 40}, {"L", 65}}, DType::bf16, kEveryLayout);
  expect_right(
      "program p(x: bf16[M, K], g: bf16[F, K], u: bf16[F, K]) -> (y: bf16[M, F]) {\n"
      "  y = sigmoid(x @ g) * (x @ u)\n}",
      {{"M", 257}, {"F", 300}, {"K", 65}}, DType::f32);
  expect_right(
      "program p(a: bf16[M, N], b: bf16[M, L], x: bf16[M, K]) -> (da: +f32[N, K], db: +f32[L, K]) "
      "{\n"
      "  da += a @ x\n  db += b @ x\n}",
      {{"M", 130}, {"N", 65}, {"L", 300}, {"K", 70}}, DType::bf16, kEveryLayout);
}

// A left operand that is turned, and weights of more than one panel.
TEST(Cpu, TurnsALeftOperandForManyColumns) {
  const char* text = "program p(x: bf16[K, M], w: bf16[K, N]) -> (y: f32[M, N]) { y = x @ w }";
  for (const DType dtype : {DType::f32, DType::bf16}) {
    expect_right(text, {{"M", 200}, {"N", 900}, {"K", 30}}, dtype, kEveryLayout, 1);
  }
}

// ---- after the product ----

TEST(Cpu, EvaluatesHeadsInsideTiles) {
  const char* text =
      "program p(x: bf16[B*S, D], w: bf16[H*E, D], cos: f32[S, E/2], sin: f32[S, E/2], g: "
      "bf16[E])\n"
      "    -> (q: bf16[B*S, H*E], s: f32[B*S, H]) {\n"
      "  z = x @ w\n"
      "  s = sum(z * z, E)\n"
      "  n = z * rsqrt(s / size(E) + 0.1) * g\n"
      "  a, b = split(n, E: E/2, E/2)\n"
      "  q = join(E: a * cos - b * sin, b * cos + a * sin)\n}";
  for (const std::int64_t e : {2, 10, 64, 96}) {
    expect_right(text, {{"B", 3}, {"S", 25}, {"D", 40}, {"H", 5}, {"E", e}}, DType::f32,
                 kEveryLayout);
  }
}

TEST(Cpu, EvaluatesAdjacentPairsAndPartialHeads) {
  expect_right(
      "program p(x: bf16[M, D], w: bf16[H*E, D], c: f32[M, E/2]) -> (q: bf16[M, H*E]) {\n"
      "  a, b = split((x @ w) as [M, H*(E/2)*2], 2: 1, 1)\n"
      "  q = join(2: a * c - b, b * c + a) as [M, H*E]\n}",
      {{"M", 70}, {"D", 33}, {"H", 9}, {"E", 34}}, DType::f32);
  expect_right(
      "program p(x: bf16[M, D], w: bf16[H*E, D]) -> (q: bf16[M, H*E]) {\n"
      "  a, b, rest = split(x @ w, E: R/2, R/2, E - R)\n"
      "  q = join(a - b, b + a, rest, E: R/2, R/2, E - R)\n}",
      {{"M", 70}, {"D", 33}, {"H", 9}, {"E", 34}, {"R", 10}});
}

TEST(Cpu, SplitsAPackedWeightsColumns) {
  expect_right(
      "program p(x: bf16[M, D], w: bf16[N, D]) -> (q: bf16[M, H*E], k: bf16[M, G*E], m: f32[M, H]) "
      "{\n"
      "  q, k = split(x @ w, N: H*E, G*E)\n  m = max(q, E)\n}",
      {{"M", 70}, {"D", 33}, {"H", 9}, {"G", 3}, {"E", 34}, {"N", 408}});
}

TEST(Cpu, ReducesBlocksOfRowsAndColumns) {
  const char* text =
      "program p(x: bf16[M, K], w: bf16[N, K]) -> (a: f32[blocks(M), N], b: f32[blocks(M), N],\n"
      "    c: f32[blocks(M, 128), N], d: f32[M, blocks(N)], e: f32[M, blocks(N, 128)]) {\n"
      "  z = x @ w\n  a = block_sum(z, M)\n  b = block_max(z * z, M) * 2\n"
      "  c = block_logsumexp(z, M, 128)\n  d = block_logsumexp(z, N)\n  e = block_max(z, N, "
      "128)\n}";
  for (const std::int64_t m : {1, 64, 129, 300}) {
    expect_right(text, {{"M", m}, {"N", 300}, {"K", 30}}, DType::f32, kEveryLayout, 1);
  }
}

TEST(Cpu, PicksAcrossTiles) {
  for (const char* text :
       {"program p(x: bf16[M, K], w: bf16[V, K], t: i64[M]) -> (a: f32[M], z: f32[M, V]) {\n"
        "  z = x @ w\n  a = pick(z, t) * 2 + 1\n}",
        "program p(x: bf16[M, K], w: bf16[V, K], t: i64[M], u: i32[M]) -> (b: +f32[M]) {\n"
        "  z = x @ w\n  b += pick(z, t) - pick(z, u)\n}"}) {
    for (const std::int64_t v : {1, 63, 700}) {
      expect_right(text, {{"M", 70}, {"V", v}, {"K", 30}}, DType::f32);
    }
  }
  // Ids outside give 0, whichever tile looks.
  const Program program = program_of(
      "program p(x: f32[M, K], w: f32[V, K], t: i64[M]) -> (a: +f32[M]) { a += pick(x @ w, t) + 5 "
      "}");
  OwnedTensor x(DType::f32, {4, 1}), w(DType::f32, {700, 1}), t(DType::i64, {4});
  std::fill_n(x.as<float>(), 4, 1.0f);
  for (int v = 0; v < 700; ++v) w.as<float>()[v] = static_cast<float>(v);
  const std::int64_t ids[] = {-1, 699, 700, std::numeric_limits<std::int64_t>::max()};
  std::copy_n(ids, 4, t.as<std::int64_t>());
  const auto got = run_cpu(program, {{"M", 4}, {"K", 1}, {"V", 700}},
                           std::vector{x.tensor(), w.tensor(), t.tensor()});
  const float want[] = {5, 704, 5, 5};
  EXPECT_TRUE(std::equal(want, want + 4, got[0].as<float>()));
}

TEST(Cpu, GathersInputsAfterAProduct) {
  expect_right(
      "program p(x: bf16[M, K], w: bf16[N, K], e: bf16[V, N], c: f32[V], t: i64[M])\n"
      "    -> (y: bf16[M, N]) { y = (x @ w + e[t]) * c[t] }",
      {{"M", 70}, {"N", 300}, {"K", 30}, {"V", 20}}, DType::bf16, kEveryLayout);
}

TEST(Cpu, GathersAndPicksByColumns) {
  expect_right(
      "program p(x: bf16[M, K], w: bf16[H*E, K], c: f32[V], t: i64[H*E], u: i64[M, H])\n"
      "    -> (y: bf16[M, H*E], z: f32[M, H]) {\n"
      "  y = (x @ w) * c[t]\n  z = pick(y * 2, u)\n}",
      {{"M", 70}, {"H", 30}, {"E", 10}, {"K", 30}, {"V", 20}}, DType::bf16, kEveryLayout);
}

TEST(Cpu, ReadsAndWritesEightBits) {
  expect_right(
      "program p(x: f8e4m3[M, K], w: f8e5m2[N, K], r: f8e4m3[N]) -> (y: f8e4m3[M, N], z: f8e5m2[M, "
      "N]) {\n"
      "  y = x @ w + r\n  z = f8e4m3(y) * 0.5\n}",
      {{"M", 70}, {"N", 65}, {"K", 30}});
}

TEST(Cpu, FinishesStatisticsOfInputs) {
  expect_right(
      "program p(dz: bf16[M, N], x: bf16[M, K], part: f32[blocks(M), N], ss: f32[K, blocks(N)])\n"
      "    -> (dw: +f32[N, K], db: +f32[N], r: +f32[K]) {\n"
      "  dw += dz @ x\n  db += sum(part, blocks(M))\n  r += rsqrt(sum(ss * ss, blocks(N)) + 1)\n}",
      {{"M", 130}, {"N", 300}, {"K", 270}}, DType::f32, kEveryLayout);
}

// ---- every map, and streams ----

TEST(Cpu, EvaluatesEveryMap) {
  const char* text =
      "program p(x: bf16[M, N], y: bf16[M, N], r: bf16[M], c: bf16[N], s: bf16)\n"
      "    -> (a: f32[M, N], b: f32[M, N], d: f32[M, N], e: f32[M, N], f: bool[M, N], g: f32[N, "
      "M]) {\n"
      "  a = exp(x) + log(abs(y) + 0.1) * sqrt(abs(x)) - rsqrt(1 + y * y) / (2 + tanh(x * r))\n"
      "  b = sigmoid(x - c) * erf(y) + min(x, y) - max(x, s)\n"
      "  d = where(x < y, c, where(x >= 0.5, r, -y)) + where(x == x, 1, 0) * where(r != c, 2, 3)\n"
      "  e = r * c + (f32(f16(x)) - bf16(y)) * where(x <= c, s, where(x > r, 1.5, s))\n"
      "  f = x < y\n  g = c * r + s\n}";
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    expect_right(text, {{"M", 67}, {"N", 35}}, dtype, kEveryLayout);
  }
  expect_right(text, {{"M", 1}, {"N", 1}});
  expect_right(text, {{"M", 0}, {"N", 3}});
}

TEST(Cpu, ComputesWithIntegersExactly) {
  const Program program = program_of(
      "program p(i: i64[M], j: i32[M], b: bool[M], u: u8[M]) -> (a: i64[M], c: i32[M], d: bool[M], "
      "e: i64[M]) {\n"
      "  a = (i + index(M)) * 2 - j\n  c = min(j, 3) + where(b, u, -j)\n  d = i > j\n"
      "  e = where(b == false, abs(j), max(i, size(M)))\n}");
  OwnedTensor i(DType::i64, {3}), j(DType::i32, {3}), b(DType::boolean, {3}), u(DType::u8, {3});
  const std::int64_t big = (std::int64_t{1} << 60) + 1;
  const std::int64_t is[] = {big, -7, 5};
  const std::int32_t js[] = {2, -9, 4};
  const std::uint8_t bs[] = {1, 0, 200}, us[] = {7, 8, 255};
  std::copy_n(is, 3, i.as<std::int64_t>());
  std::copy_n(js, 3, j.as<std::int32_t>());
  std::copy_n(bs, 3, b.as<std::uint8_t>());
  std::copy_n(us, 3, u.as<std::uint8_t>());
  const auto got =
      run_cpu(program, {{"M", 3}}, std::vector{i.tensor(), j.tensor(), b.tensor(), u.tensor()});
  for (int k = 0; k < 3; ++k) {
    EXPECT_EQ(got[0].as<std::int64_t>()[k], (is[k] + k) * 2 - js[k]);
    EXPECT_EQ(got[1].as<std::int32_t>()[k], std::min(js[k], 3) + (bs[k] ? us[k] : -js[k]));
    EXPECT_EQ(got[2].as<std::uint8_t>()[k], is[k] > js[k] ? 1 : 0);
    EXPECT_EQ(got[3].as<std::int64_t>()[k],
              bs[k] ? std::max<std::int64_t>(is[k], 3) : std::abs(js[k]));
  }
}

TEST(Cpu, StreamsReduceWholeRows) {
  const char* text =
      "program p(x: bf16[M, N], g: bf16[N]) -> (y: bf16[M, N], s: f32[M], l: f32[M], m: f32[M]) {\n"
      "  s = sum(x * x, N)\n  y = x * rsqrt(s / size(N) + 1e-5) * g\n  l = logsumexp(x, N)\n  m = "
      "max(x, N)\n}";
  for (const std::int64_t n : {0, 1, 63, 64, 65, 257, 5000}) {
    expect_right(text, {{"M", 70}, {"N", n}}, DType::f32, kEveryLayout, 1);
  }
  expect_right(text, {{"M", 3}, {"N", 65}}, DType::f64);
}

TEST(Cpu, StreamsReduceBlocksOfRows) {
  const char* text =
      "program p(x: bf16[B*S, N]) -> (a: f32[B*blocks(S), N], b: f32[B*blocks(S)]) {\n"
      "  a = block_sum(x * x, S)\n  b = block_logsumexp(sum(x, N), S)\n}";
  for (const std::int64_t s : {1, 10, 64, 100, 192}) {
    expect_right(text, {{"B", 7}, {"S", s}, {"N", 33}}, DType::f32, kEveryLayout, 1);
  }
}

// Blocks along rows that are not the last: each row of the result reads its own block.
TEST(Cpu, StreamsReduceBlocksOfOuterRows) {
  for (const std::int64_t b : {1, 64, 130}) {
    expect_right("program p(x: bf16[B*S, N]) -> (a: f32[blocks(B)*S, N]) { a = block_sum(x, B) }",
                 {{"B", b}, {"S", 3}, {"N", 33}}, DType::bf16, kEveryLayout, 1);
  }
}

TEST(Cpu, StreamsOfVectorsAndScalars) {
  expect_right("program p(x: f32[N], y: f32[N]) -> (z: f32[N]) { z = x * y + 1 }", {{"N", 40001}});
  expect_right("program p(x: f32[N]) -> (s: f32, m: f32) { s = sum(x * x, N)\n  m = sqrt(s) }",
               {{"N", 3001}});
  expect_right("program p(x: f32[N]) -> (s: f32[blocks(N)]) { s = block_sum(x, N) }",
               {{"N", 3001}});
  expect_right(
      "program p(a: f32, b: f32) -> (s: f32, i: i64) { s = a * b + 1\n  i = i64(a * 100) }", {});
}

TEST(Cpu, MovesSplitsJoinsAndSpreads) {
  expect_right(
      "program p(x: bf16[M, H*E], d: f32[M, blocks(N)], s: f32[blocks(M)], n: bf16[M, N])\n"
      "    -> (a: bf16[M, E*H], b: f32[M, N], c: f32[M, N], e: f32[M, N, R]) {\n"
      "  a = x\n  b = spread(d, N) * n\n  c = spread(s, M) + n\n  e = spread(n * 2, R)\n}",
      {{"M", 130}, {"H", 3}, {"E", 5}, {"N", 200}, {"R", 3}}, DType::bf16, kEveryLayout);
  expect_right("program p(x: bf16[M, N], y: bf16[L, N]) -> (z: bf16[P, N]) { z = join(P: x, y) }",
               {{"M", 70}, {"L", 35}, {"P", 105}, {"N", 40}}, DType::bf16, kEveryLayout);
  expect_right(
      "program p(z: bf16[P, N]) -> (x: bf16[M, N], y: bf16[L, N]) { x, y = split(z, P: M, L) }",
      {{"M", 70}, {"L", 35}, {"P", 105}, {"N", 40}}, DType::bf16, kEveryLayout);
}

TEST(Cpu, GathersAndScattersRows) {
  const char* gather =
      "program p(t: bf16[V, D], q: bf16[S, D], ids: i64[B*S]) -> (x: bf16[B*S, D]) {\n"
      "  x = t[ids] + q[index(S)]\n}";
  const char* scatter =
      "program p(x: bf16[B*S, D], ids: i32[B*S]) -> (t: +f32[V, D]) { t += scatter_sum(x, ids, V) "
      "}";
  for (const std::int64_t v : {1, 7, 300}) {
    expect_right(gather, {{"V", v}, {"D", 33}, {"B", 3}, {"S", 50}}, DType::bf16, kEveryLayout);
    expect_right(scatter, {{"V", v}, {"D", 33}, {"B", 3}, {"S", 50}}, DType::bf16, kEveryLayout);
  }
}

TEST(Cpu, IdsOutsideReadZeroAndWriteNothing) {
  OwnedTensor table(DType::f32, {2, 2}), ids(DType::i64, {4}), rows(DType::f32, {4, 2});
  const float values[] = {1, 2, 3, 4};
  std::copy_n(values, 4, table.as<float>());
  std::fill_n(rows.as<float>(), 8, 1.0f);
  const std::int64_t which[] = {1, 2, -1, 0};
  std::copy_n(which, 4, ids.as<std::int64_t>());
  const auto got =
      run_cpu(program_of("program p(t: f32[V, D], i: i64[M]) -> (x: f32[M, D]) { x = t[i] }"),
              {{"V", 2}, {"D", 2}, {"M", 4}}, std::vector{table.tensor(), ids.tensor()});
  const float want[] = {3, 4, 0, 0, 0, 0, 1, 2};
  EXPECT_TRUE(std::equal(want, want + 8, got[0].as<float>()));
  const auto sums =
      run_cpu(program_of("program p(x: f32[M, D], i: i64[M]) -> (t: f32[V, D]) {\n"
                         "  t = scatter_sum(x, i, V)\n}"),
              {{"V", 2}, {"D", 2}, {"M", 4}}, std::vector{rows.tensor(), ids.tensor()});
  for (int k = 0; k < 4; ++k) EXPECT_EQ(sums[0].as<float>()[k], 1.0f);
}

// Salmon et al.'s reference implementation, counter 0, key 0: 6627e8d5 …
TEST(Cpu, UniformIsPhilox) {
  const Program program = program_of(
      "program p(seed: i64) -> (u: f32[M, N], v: f32[N, M]) {\n"
      "  u = uniform(seed, [M, N])\n  v = u\n}");
  OwnedTensor seed(DType::i64, {});
  const auto got = run_cpu(program, {{"M", 3}, {"N", 37}}, std::vector{seed.tensor()});
  EXPECT_EQ(got[0].as<float>()[0], static_cast<float>(0x6627e8d5u >> 8) * 0x1p-24f);
  for (int m = 0; m < 3; ++m) {
    for (int n = 0; n < 37; ++n) {
      EXPECT_EQ(got[1].as<float>()[n * 3 + m], got[0].as<float>()[m * 37 + n]);
    }
  }
}

}  // namespace
}  // namespace coda::testing
