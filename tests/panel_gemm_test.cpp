// tests/panel_gemm_test.cpp: bf16 products in pairs: packing, edges, the model of AMX, and AMX
// itself where the machine has it.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <tuple>
#include <vector>

#include "coda/core/error.h"
#include "coda/cpu/panel_gemm.h"
#include "coda/cpu/panel_pack.h"
#include "coda/cpu/tile_registers.h"

namespace coda::cpu {

std::ostream& operator<<(std::ostream& out, PanelKernel kernel) {
  const char* const names[] = {"none", "amx", "dot", "model", "fma"};
  return out << names[static_cast<int>(kernel)];
}

namespace {

using Int = std::int64_t;
using Half = std::uint16_t;

Half half_of(float x) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &x, sizeof bits);
  return static_cast<Half>(bits >> 16);
}

float wide(Half half) {
  const std::uint32_t bits = std::uint32_t{half} << 16;
  float x = 0;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}
float wide(float x) {
  return x;
}

template <class T>
T narrow(float x) {
  if constexpr (sizeof(T) == 2) return half_of(x);
  return T(x);
}

template <class T>
constexpr DType kDType = sizeof(T) == 2 ? DType::bf16 : DType::f32;
template <class T>
constexpr Int kIn = 4 / sizeof(T);  // of k in a unit

template <class T>
T nan() {
  if constexpr (sizeof(T) == 2) return 0x7fff;
  return std::numeric_limits<T>::quiet_NaN();
}

template <class T>
bool same(const T* a, const T* b, std::size_t n) {
  return std::memcmp(a, b, n * sizeof(T)) == 0;
}

enum class Along { rows, columns, neither };

// A matrix somewhere inside memory that is NaN but for it.
template <class T>
struct Matrix {
  Int rows, columns, row_step, column_step;
  std::vector<T> memory;

  Matrix(Int rows, Int columns, Along along, unsigned seed) : rows(rows), columns(columns) {
    const Int gap = along == Along::neither ? 2 : 1;
    row_step = along == Along::rows ? 1 : (columns + 3) * gap;
    column_step = along == Along::rows ? rows + 5 : gap;
    memory.assign(static_cast<std::size_t>((rows + 8) * (columns + 8) * gap), nan<T>());
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (Int i = 0; i < rows; ++i) {
      for (Int j = 0; j < columns; ++j) at(i, j) = narrow<T>(normal(random));
    }
  }
  T& at(Int i, Int j) { return memory[static_cast<std::size_t>(i * row_step + j * column_step)]; }
  T at(Int i, Int j) const { return const_cast<Matrix*>(this)->at(i, j); }
  MatrixRef ref() const {
    return {reinterpret_cast<const std::byte*>(memory.data()), row_step, column_step, false};
  }
};

// 64-byte aligned, with a guard behind it.
template <class T>
struct Aligned {
  std::vector<T> memory;
  std::size_t skip;
  explicit Aligned(std::size_t n, T fill) : memory(n + 128 / sizeof(T), fill) {
    skip = (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64 / sizeof(T);
  }
  T* data() { return memory.data() + skip; }
  std::byte* bytes() { return reinterpret_cast<std::byte*>(data()); }
};

template <class T>
Aligned<T> packed(const Matrix<T>& b) {
  Aligned<T> to(panel_bytes(kDType<T>, b.rows, b.columns) / sizeof(T), nan<T>());
  pack_panels(kDType<T>, b.rows, b.columns, b.ref(), to.bytes());
  return to;
}

// Those of the dtype that run here.
template <class T>
std::vector<PanelKernel> kernels() {
  std::vector<PanelKernel> found;
  if (sizeof(T) == 2) found.push_back(PanelKernel::model);
  for (const PanelKernel kernel : {PanelKernel::dot, PanelKernel::amx, PanelKernel::fma}) {
    const bool fits = (kernel == PanelKernel::fma) == (sizeof(T) == 4);
    if (fits && problem_of(kernel).empty()) found.push_back(kernel);
  }
  return found;
}

template <class T>
std::vector<float> product(PanelKernel kernel, const Matrix<T>& a, const Matrix<T>& b, Onto onto,
                           float before, Int row = 0, Int rows = -1) {
  Aligned<T> right = packed(b);
  if (rows < 0) rows = a.rows;
  const TileShape shape{rows, b.columns, b.rows, kDType<T>};
  const auto size = static_cast<std::size_t>(shape.m * shape.n);
  std::vector<float> c(size + 16, before);
  Aligned<std::byte> scratch(panel_scratch(shape), std::byte{0x7f});
  MatrixRef left = a.ref();
  left.data += row * a.row_step * static_cast<Int>(sizeof(T));
  multiply_panels(kernel, shape, left, right.bytes(), c.data(), onto,
                  {scratch.data(), panel_scratch(shape)});
  for (std::size_t i = size; i < c.size(); ++i) EXPECT_EQ(c[i], before) << "past the end";
  c.resize(size);
  return c;
}

// ---- packing ----

template <class T>
void expect_packed() {
  for (const Along along : {Along::rows, Along::columns, Along::neither}) {
    for (const Int k : {1, 2, 15, 16, 17, 31, 32, 33, 64, 95}) {
      for (const Int n : {1, 15, 31, 32, 33, 64, 100}) {
        const Matrix<T> b(k, n, along, 7);
        Aligned<T> fast = packed(b);
        const Int units = panel_units(kDType<T>, k);
        for (Int p = 0; p < units * kIn<T>; ++p) {
          for (Int j = 0; j < padded(n, kPanel); ++j) {
            const Int unit = (j / 32 * units + p / kIn<T>)*32 + j % 32;
            const T want = p < k && j < n ? b.at(p, j) : T{0};
            ASSERT_TRUE(same(&fast.data()[unit * kIn<T> + p % kIn<T>], &want, 1))
                << "k " << p << " of " << k << ", column " << j << " of " << n;
          }
        }
        const T guard = nan<T>();
        EXPECT_TRUE(same(&fast.data()[units * kIn<T> * padded(n, kPanel)], &guard, 1))
            << "past the end";
        const std::size_t bytes = panel_bytes(kDType<T>, k, n);
        Aligned<T> plain(bytes / sizeof(T), nan<T>());
        pack_panels_plainly(kDType<T>, k, n, b.ref(), plain.bytes());
        EXPECT_TRUE(same(fast.bytes(), plain.bytes(), bytes));
      }
    }
  }
}

TEST(PanelPack, PutsUnitsSideBySideAndZerosPastTheEnd) {
  expect_packed<Half>();
  expect_packed<float>();
}

template <class T>
void expect_turned() {
  for (const Int m : {1, 31, 32, 33, 70, 128}) {
    for (const Int k : {1, 15, 16, 31, 32, 33, 70, 128}) {
      const Matrix<T> a(m, k, Along::rows, 3);
      std::vector<T> turned(static_cast<std::size_t>(m * k + 1), nan<T>());
      turn_left(kDType<T>, m, k, a.ref().data, a.column_step,
                reinterpret_cast<std::byte*>(turned.data()));
      for (Int i = 0; i < m; ++i) {
        for (Int p = 0; p < k; ++p) {
          ASSERT_EQ(turned[static_cast<std::size_t>(i * k + p)], a.at(i, p)) << i << ", " << p;
        }
      }
      const T guard = nan<T>();
      EXPECT_TRUE(same(&turned.back(), &guard, 1)) << "past the end";
    }
  }
}

TEST(PanelPack, TurnsALeftOperand) {
  expect_turned<Half>();
  expect_turned<float>();
}

// ---- the model ----

// One row, one column, `pairs` pairs.
template <class Tiles>
float dot_of(Tiles& tiles, const std::vector<float>& a, const std::vector<float>& b, float c) {
  const int pairs = static_cast<int>(a.size() / 2);
  TileConfig config;
  config.set(0, 1, 4);
  config.set(4, 1, 4 * pairs);
  config.set(6, pairs, 4);
  std::vector<Half> left, right;
  for (const float x : a) left.push_back(half_of(x));
  for (const float x : b) right.push_back(half_of(x));
  tiles.configure(config);
  tiles.template load<0>(&c, 4);
  tiles.template load<4>(left.data(), 64);
  tiles.template load<6>(right.data(), 4);
  tiles.template dot<0, 4, 6>();
  tiles.template store<0>(&c, 4);
  tiles.release();
  return c;
}

template <class Tiles>
void expect_the_manuals_order() {
  Tiles tiles;
  const float big = 0x1p24f, tiny = 0x1p-130f, small = 0x1p-70f;
  // Summed apart: 2^24 + 1 rounds to 2^24, 1 - 2^24 is exact. One after the other would give 2.
  EXPECT_EQ(dot_of(tiles, {big, -big, 1, 1}, {1, 1, 1, 1}, 0), 1.0f);
  // Here one after the other would give 1.
  EXPECT_EQ(dot_of(tiles, {big, 1, -big, 1}, {1, 1, 1, 1}, 0), 2.0f);
  // The pairs' sum is added to C at the end: C itself loses nothing before.
  EXPECT_EQ(dot_of(tiles, {1, 0, 1, 0}, {1, 1, 1, 1}, big), big + 2);
  // Denormals count as zero: in an operand, in C, and in a result.
  EXPECT_EQ(dot_of(tiles, {tiny, 0}, {0x1p100f, 0}, 0), 0.0f);
  EXPECT_EQ(dot_of(tiles, {small, 0}, {small, 0}, 0), 0.0f);
  EXPECT_EQ(dot_of(tiles, {0, 0}, {0, 0}, tiny), 0.0f);
  // What is no number stays none.
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(std::isnan(dot_of(tiles, {inf, 1}, {0, 1}, 0)));
  EXPECT_EQ(dot_of(tiles, {inf, 1}, {2, 1}, 0), inf);
}

TEST(TileRegisters, TheModelAddsInTheOrderOfTheManual) {
  expect_the_manuals_order<ModelTiles>();
}

TEST(TileRegisters, TheModelRefusesWhatTheMachineWouldNotRun) {
  ModelTiles tiles;
  float c[16 * 16] = {};
  EXPECT_THROW(tiles.zero<0>(), InternalError) << "nothing is configured";
  TileConfig config;
  config.set(0, 16, 64);
  config.set(4, 16, 64);
  config.set(6, 15, 64);
  tiles.configure(config);
  EXPECT_THROW(tiles.load<1>(c, 64), InternalError) << "a tile without rows";
  EXPECT_THROW((tiles.dot<0, 4, 6>()), InternalError) << "16 pairs by 15";
  config.set(6, 17, 64);
  EXPECT_THROW(tiles.configure(config), InternalError) << "17 rows";
  config.set(6, 16, 68);
  EXPECT_THROW(tiles.configure(config), InternalError) << "68 bytes";
  tiles.release();
  EXPECT_THROW(tiles.store<0>(c, 64), InternalError) << "released";
}

TEST(TileRegisters, AmxDoesWhatTheModelDoes) {
  if (!amx_problem().empty()) GTEST_SKIP() << amx_problem();
  expect_the_manuals_order<AmxTiles>();
  for (const auto& [m, n, k] : std::vector<std::tuple<Int, Int, Int>>{
           {1, 1, 1}, {16, 16, 32}, {17, 33, 65}, {32, 32, 1024}, {50, 70, 600}, {64, 96, 1100}}) {
    const Matrix<Half> a(m, k, Along::columns, 1), b(k, n, Along::rows, 2);
    for (const Onto onto : {Onto::fresh, Onto::add}) {
      EXPECT_EQ(product(PanelKernel::amx, a, b, onto, 0.25f),
                product(PanelKernel::model, a, b, onto, 0.25f))
          << m << " × " << n << " × " << k;
    }
  }
}

// ---- products ----

template <class T>
void expect_products() {
  for (const PanelKernel kernel : kernels<T>()) {
    for (const Int m : {1, 5, 6, 7, 16, 17, 33}) {
      for (const Int n : {1, 16, 17, 32, 33, 65, 100}) {
        for (const Int k : {1, 2, 31, 32, 33, 70}) {
          const Matrix<T> a(m, k, Along::columns, 1), b(k, n, Along::rows, 2);
          for (const Onto onto : {Onto::fresh, Onto::add}) {
            const std::vector<float> c = product(kernel, a, b, onto, 0.5f);
            for (Int i = 0; i < m; ++i) {
              for (Int j = 0; j < n; ++j) {
                double exact = onto == Onto::add ? 0.5 : 0, size = exact;
                for (Int p = 0; p < k; ++p) {
                  const double term = double{wide(a.at(i, p))} * double{wide(b.at(p, j))};
                  exact += term;
                  size += std::abs(term);
                }
                const double bound = size * static_cast<double>(k + 2) * 0x1p-24;
                ASSERT_NEAR(c[static_cast<std::size_t>(i * n + j)], exact, bound)
                    << kernel << " " << m << " × " << n << " × " << k << " at " << i << ", " << j;
              }
            }
          }
        }
      }
    }
  }
}

TEST(PanelGemm, MultipliesAtEveryEdge) {
  expect_products<Half>();
  expect_products<float>();
}

// More than one block of k.
template <class T>
void expect_onednns() {
  const TileGemm library;
  if (!library.in_library(kDType<T>)) GTEST_SKIP() << "oneDNN multiplies no bf16 here";
  const Matrix<T> a(37, 2200, Along::columns, 5), b(2200, 75, Along::columns, 6);
  const TileShape shape{37, 75, 2200, kDType<T>};
  std::vector<float> want(37 * 75);
  const OneThread one;
  library.multiply(shape, a.ref(), b.ref(), reinterpret_cast<std::byte*>(want.data()), Onto::fresh,
                   {});
  for (const PanelKernel kernel : kernels<T>()) {
    const std::vector<float> got = product(kernel, a, b, Onto::fresh, 0);
    double error = 0, norm = 0;
    for (std::size_t i = 0; i < want.size(); ++i) {
      error += std::pow(double{got[i]} - want[i], 2);
      norm += std::pow(double{want[i]}, 2);
    }
    EXPECT_LT(std::sqrt(error / norm), 2e-6) << kernel;
  }
}

TEST(PanelGemm, AgreesWithOneDnnWithinRoundingInBf16) {
  expect_onednns<Half>();
}

TEST(PanelGemm, AgreesWithOneDnnWithinRoundingInF32) {
  expect_onednns<float>();
}

template <class T>
void expect_same_bits() {
  for (const PanelKernel kernel : kernels<T>()) {
    const Matrix<T> a(50, 1100, Along::columns, 8), b(1100, 90, Along::rows, 9);
    const std::vector<float> whole = product(kernel, a, b, Onto::fresh, 0);
    for (const Int rows : {1, 7, 16, 31}) {
      for (Int row = 0; row < 50; row += rows) {
        const Int count = std::min(rows, 50 - row);
        const std::vector<float> part = product(kernel, a, b, Onto::fresh, 0, row, count);
        ASSERT_TRUE(same(part.data(), whole.data() + row * 90, part.size()))
            << kernel << " rows " << row << " to " << row + count;
      }
    }
    Matrix<T> some(1100, 41, Along::rows, 0);
    for (Int p = 0; p < 1100; ++p) {
      for (Int j = 0; j < 41; ++j) some.at(p, j) = b.at(p, j + 40);
    }
    const std::vector<float> part = product(kernel, a, some, Onto::fresh, 0);
    for (Int i = 0; i < 50; ++i) {
      ASSERT_TRUE(same(part.data() + i * 41, whole.data() + i * 90 + 40, 41))
          << kernel << " columns 40 to 81 of row " << i;
    }
  }
}

TEST(PanelGemm, GivesTheSameBitsForEveryTile) {
  expect_same_bits<Half>();
  expect_same_bits<float>();
}

TEST(PanelGemm, SaysWhatItUsesAndWhyNothingFaster) {
  const std::string said = describe_products();
  EXPECT_FALSE(said.empty());
  if (!amx_problem().empty() && said.find("CODA_GEMM") == std::string::npos) {
    EXPECT_NE(said.find(amx_problem()), std::string::npos) << said;
  }
}

}  // namespace
}  // namespace coda::cpu
