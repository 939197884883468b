// tests/cuda_maps_test.cpp: the fast maps of kernels that store 16 bits, against double precision.
//
// The GPU's own approximations (2^x, 1/x, roots: two units in the last place) are the host's
// functions here; what is made of them is judged.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "tests/cuda_on_host.h"

#include "coda/device/maps.cuh"

namespace coda {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// The largest error of `fast` over 200,000 points, as a multiple of `allowed`.
template <class Fast, class True, class Allowed>
double worst(float from, float to, Fast fast, True truth, Allowed allowed) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> draw(from, to);
  double most = 0;
  for (int i = 0; i < 200000; ++i) {
    const float x = draw(random);
    const double wanted = truth(static_cast<double>(x));
    most = std::max(most, std::fabs(static_cast<double>(fast(x)) - wanted) / allowed(x, wanted));
  }
  return most;
}

// What device/maps.cuh promises.
double relative(float x, double value) {
  return 1e-6 * (1 + std::fabs(x)) * std::fabs(value);
}

TEST(FastMaps, AreAsPreciseAsTheySay) {
  const auto exp_of = [](double x) {
    return std::exp(x);
  };
  const auto sigmoid_of = [](double x) {
    return 1 / (1 + std::exp(-x));
  };
  const auto tanh_of = [](double x) {
    return std::tanh(x);
  };
  EXPECT_LT(worst(-80, 80, [](float x) { return fast::exp(x); }, exp_of, relative), 1);
  EXPECT_LT(worst(-80, 20, [](float x) { return fast::sigmoid(x); }, sigmoid_of, relative), 1);
  EXPECT_LT(worst(-1, 1, [](float x) { return fast::tanh(x); }, tanh_of, relative), 1);
  EXPECT_LT(worst(-20, 20, [](float x) { return fast::tanh(x); }, tanh_of, relative), 1);
  EXPECT_LT(worst(-1e-3f, 1e-3f, [](float x) { return fast::tanh(x); }, tanh_of, relative), 1);
}

TEST(FastMaps, ErfIsAsPreciseAsItSays) {
  const auto fast_erf = [](float x) {
    return fast::erf(x);
  };
  const auto true_erf = [](double x) {
    return std::erf(x);
  };
  const auto absolute = [](float, double) {
    return 1.2e-7;
  };
  const auto of_value = [](float, double value) {
    return 1.4e-6 * std::fabs(value);
  };
  for (const float reach : {6.0f, 1.0f, 0.1f}) {
    EXPECT_LT(worst(-reach, reach, fast_erf, true_erf, absolute), 1) << reach;
    EXPECT_LT(worst(-reach, reach, fast_erf, true_erf, of_value), 1) << reach;
  }
}

TEST(FastMaps, EndAtTheirEnds) {
  EXPECT_EQ(fast::exp(kInfinity), kInfinity);
  EXPECT_EQ(fast::exp(-kInfinity), 0);
  EXPECT_EQ(fast::sigmoid(kInfinity), 1);
  EXPECT_EQ(fast::sigmoid(-kInfinity), 0);
  EXPECT_EQ(fast::tanh(kInfinity), 1);
  EXPECT_EQ(fast::tanh(-kInfinity), -1);
  EXPECT_EQ(fast::erf(kInfinity), 1);
  EXPECT_EQ(fast::erf(-kInfinity), -1);
  EXPECT_EQ(fast::erf(0.0f), 0);
  EXPECT_TRUE(std::signbit(fast::erf(-0.0f)));
  EXPECT_EQ(fast::div(3.0f, kInfinity), 0);
  EXPECT_EQ(fast::div(1.0f, 0.0f), kInfinity);
  for (const float y : {fast::exp(kNan), fast::sigmoid(kNan), fast::tanh(kNan), fast::erf(kNan),
                        fast::div(kNan, 1.0f), fast::sqrt(-1.0f)}) {
    EXPECT_TRUE(std::isnan(y));
  }
}

}  // namespace
}  // namespace coda
