// tests/pair_gemm_test.cpp: bf16 products in pairs: packing, edges, the model of AMX, and AMX
// itself where the machine has it.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <tuple>
#include <vector>

#include "coda/core/error.h"
#include "coda/cpu/pair_gemm.h"
#include "coda/cpu/pair_pack.h"
#include "coda/cpu/tile_registers.h"

namespace coda::cpu {

std::ostream& operator<<(std::ostream& out, PairKernel kernel) {
  const char* const names[] = {"none", "amx", "dot", "model"};
  return out << names[static_cast<int>(kernel)];
}

namespace {

using Int = std::int64_t;
using Half = std::uint16_t;

constexpr Half kNan = 0x7fff;

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

enum class Along { rows, columns, neither };

// A matrix somewhere inside memory that is NaN but for it.
struct Matrix {
  Int rows, columns, row_step, column_step;
  std::vector<Half> memory;

  Matrix(Int rows, Int columns, Along along, unsigned seed) : rows(rows), columns(columns) {
    const Int gap = along == Along::neither ? 2 : 1;
    row_step = along == Along::rows ? 1 : (columns + 3) * gap;
    column_step = along == Along::rows ? rows + 5 : gap;
    memory.assign(static_cast<std::size_t>((rows + 8) * (columns + 8) * gap), kNan);
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (Int i = 0; i < rows; ++i) {
      for (Int j = 0; j < columns; ++j) at(i, j) = half_of(normal(random));
    }
  }
  Half& at(Int i, Int j) {
    return memory[static_cast<std::size_t>(i * row_step + j * column_step)];
  }
  Half at(Int i, Int j) const { return const_cast<Matrix*>(this)->at(i, j); }
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

Aligned<Half> packed(const Matrix& b) {
  Aligned<Half> to(pair_bytes(b.rows, b.columns) / 2, kNan);
  pack_pairs(b.rows, b.columns, b.ref(), to.bytes());
  return to;
}

std::vector<PairKernel> kernels() {
  std::vector<PairKernel> found = {PairKernel::model};
  for (const PairKernel kernel : {PairKernel::dot, PairKernel::amx}) {
    if (problem_of(kernel).empty()) found.push_back(kernel);
  }
  return found;
}

std::vector<float> product(PairKernel kernel, const Matrix& a, const Matrix& b, Onto onto,
                           float before, Int row = 0, Int rows = -1) {
  Aligned<Half> right = packed(b);
  if (rows < 0) rows = a.rows;
  const TileShape shape{rows, b.columns, b.rows, DType::bf16};
  const auto size = static_cast<std::size_t>(shape.m * shape.n);
  std::vector<float> c(size + 16, before);
  Aligned<std::byte> scratch(pair_scratch(shape), std::byte{0x7f});
  MatrixRef left = a.ref();
  left.data += row * a.row_step * 2;
  multiply_pairs(kernel, shape, left, right.bytes(), c.data(), onto,
                 {scratch.data(), pair_scratch(shape)});
  for (std::size_t i = size; i < c.size(); ++i) EXPECT_EQ(c[i], before) << "past the end";
  c.resize(size);
  return c;
}

// ---- packing ----

TEST(PairPack, PutsNeighboursInKSideBySideAndZerosPastTheEnd) {
  for (const Along along : {Along::rows, Along::columns, Along::neither}) {
    for (const Int k : {1, 2, 31, 32, 33, 64, 95}) {
      for (const Int n : {1, 15, 31, 32, 33, 64, 100}) {
        const Matrix b(k, n, along, 7);
        Aligned<Half> fast = packed(b);
        const Int depth = padded(k, kStep);
        for (Int p = 0; p < depth; ++p) {
          for (Int j = 0; j < padded(n, kPanel); ++j) {
            const Half got = fast.data()[(j / 32 * depth + p / 2 * 2) * 32 + j % 32 * 2 + p % 2];
            ASSERT_EQ(got, p < k && j < n ? b.at(p, j) : 0)
                << "k " << p << " of " << k << ", column " << j << " of " << n;
          }
        }
        EXPECT_EQ(fast.data()[depth * padded(n, kPanel)], kNan) << "past the end";
        Aligned<Half> plain(pair_bytes(k, n) / 2, kNan);
        pack_pairs_plainly(k, n, b.ref(), plain.bytes());
        EXPECT_EQ(std::memcmp(fast.data(), plain.data(), pair_bytes(k, n)), 0);
      }
    }
  }
}

TEST(PairPack, TurnsALeftOperand) {
  for (const Int m : {1, 31, 32, 33, 70, 128}) {
    for (const Int k : {1, 31, 32, 33, 70, 128}) {
      const Matrix a(m, k, Along::rows, 3);
      std::vector<Half> turned(static_cast<std::size_t>(m * k + 1), kNan);
      turn_pairs(m, k, a.ref().data, a.column_step, reinterpret_cast<std::byte*>(turned.data()));
      for (Int i = 0; i < m; ++i) {
        for (Int p = 0; p < k; ++p) {
          ASSERT_EQ(turned[static_cast<std::size_t>(i * k + p)], a.at(i, p)) << i << ", " << p;
        }
      }
      EXPECT_EQ(turned.back(), kNan) << "past the end";
    }
  }
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
void expect_the_manuals_order(Tiles tiles) {
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
  expect_the_manuals_order(ModelTiles());
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
  expect_the_manuals_order(AmxTiles());
  for (const auto& [m, n, k] : std::vector<std::tuple<Int, Int, Int>>{
           {1, 1, 1}, {16, 16, 32}, {17, 33, 65}, {32, 32, 1024}, {50, 70, 600}, {64, 96, 1100}}) {
    const Matrix a(m, k, Along::columns, 1), b(k, n, Along::rows, 2);
    for (const Onto onto : {Onto::fresh, Onto::add}) {
      EXPECT_EQ(product(PairKernel::amx, a, b, onto, 0.25f),
                product(PairKernel::model, a, b, onto, 0.25f))
          << m << " × " << n << " × " << k;
    }
  }
}

// ---- products ----

TEST(PairGemm, MultipliesAtEveryEdge) {
  for (const PairKernel kernel : kernels()) {
    for (const Int m : {1, 5, 6, 7, 16, 17, 33}) {
      for (const Int n : {1, 16, 17, 32, 33, 65, 100}) {
        for (const Int k : {1, 2, 31, 32, 33, 70}) {
          const Matrix a(m, k, Along::columns, 1), b(k, n, Along::rows, 2);
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

// More than one block of k.
TEST(PairGemm, AgreesWithOneDnnWithinRounding) {
  const TileGemm library;
  if (!library.in_library(DType::bf16)) GTEST_SKIP() << "oneDNN multiplies no bf16 here";
  const Matrix a(37, 2200, Along::columns, 5), b(2200, 75, Along::columns, 6);
  const TileShape shape{37, 75, 2200, DType::bf16};
  std::vector<float> want(37 * 75);
  const OneThread one;
  library.multiply(shape, a.ref(), b.ref(), reinterpret_cast<std::byte*>(want.data()), Onto::fresh,
                   {});
  for (const PairKernel kernel : kernels()) {
    const std::vector<float> got = product(kernel, a, b, Onto::fresh, 0);
    double error = 0, norm = 0;
    for (std::size_t i = 0; i < want.size(); ++i) {
      error += std::pow(double{got[i]} - want[i], 2);
      norm += std::pow(double{want[i]}, 2);
    }
    EXPECT_LT(std::sqrt(error / norm), 2e-6) << kernel;
  }
}

TEST(PairGemm, GivesTheSameBitsForEveryTile) {
  for (const PairKernel kernel : kernels()) {
    const Matrix a(50, 700, Along::columns, 8), b(700, 90, Along::rows, 9);
    const std::vector<float> whole = product(kernel, a, b, Onto::fresh, 0);
    for (const Int rows : {1, 7, 16, 31}) {
      for (Int row = 0; row < 50; row += rows) {
        const Int count = std::min(rows, 50 - row);
        const std::vector<float> part = product(kernel, a, b, Onto::fresh, 0, row, count);
        ASSERT_EQ(std::memcmp(part.data(), whole.data() + row * 90, part.size() * 4), 0)
            << kernel << " rows " << row << " to " << row + count;
      }
    }
    Matrix left_columns(700, 41, Along::rows, 0);
    for (Int p = 0; p < 700; ++p) {
      for (Int j = 0; j < 41; ++j) left_columns.at(p, j) = b.at(p, j + 40);
    }
    const std::vector<float> part = product(kernel, a, left_columns, Onto::fresh, 0);
    for (Int i = 0; i < 50; ++i) {
      ASSERT_EQ(std::memcmp(part.data() + i * 41, whole.data() + i * 90 + 40, 41 * 4), 0)
          << kernel << " columns 40 to 81 of row " << i;
    }
  }
}

TEST(PairGemm, SaysWhatItUsesAndWhyNothingFaster) {
  const std::string said = describe_products();
  EXPECT_FALSE(said.empty());
  if (!amx_problem().empty() && said.find("CODA_BF16") == std::string::npos) {
    EXPECT_NE(said.find(amx_problem()), std::string::npos) << said;
  }
}

}  // namespace
}  // namespace coda::cpu
