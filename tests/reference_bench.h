// tests/reference_bench.h: builds a small block with given numbers and evaluates it.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "coda/program/builder.h"
#include "coda/reference/reference.h"

namespace coda {

using reference::Array;
using reference::Mode;
using Numbers = std::vector<double>;

inline constexpr double kInf = std::numeric_limits<double>::infinity();
inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

inline OwnedTensor filled(DType dtype, std::vector<std::int64_t> shape, const Numbers& values) {
  OwnedTensor tensor(dtype, std::move(shape));
  for (std::size_t i = 0; i < values.size(); ++i) {
    store(dtype, tensor.tensor().data, static_cast<std::int64_t>(i), values[i]);
  }
  return tensor;
}

inline std::vector<Tensor> views(const std::vector<OwnedTensor>& owned) {
  std::vector<Tensor> tensors;
  for (const OwnedTensor& each : owned) tensors.push_back(each.tensor());
  return tensors;
}

inline Dim D(std::string name) {
  return dim_of(std::move(name));
}
inline Dim number(std::int64_t n) {
  return dim_of(Factor::number(n));
}
inline Dim half(const std::string& name) {
  return dim_of(Factor::quotient(D(name), 2));
}
inline Dim blocks(const std::string& name, std::int64_t block) {
  return dim_of(Factor::blocks(D(name), block));
}

// A block with parameters of given values, and what it gives.
struct Bench {
  Builder builder{"bench", Program::Kind::block};
  Sizes sizes;
  std::vector<OwnedTensor> owned{};

  Expr param(const std::string& name, Type type, const Numbers& values) {
    std::vector<std::int64_t> shape;
    for (const Dim& dim : type.dims) shape.push_back(require_extent(dim, sizes));
    owned.push_back(filled(type.dtype, std::move(shape), values));
    return {&builder, builder.param(name, std::move(type))};
  }
  Expr op(Op op, const std::vector<Expr>& args, Attr attr = {}) {
    std::vector<Value> values;
    for (const Expr& arg : args) values.push_back(arg.value);
    return {&builder, builder.op(op, std::move(values), std::move(attr))};
  }
  std::vector<Expr> ops(Op op, const std::vector<Expr>& args, Attr attr = {}) {
    std::vector<Value> values;
    for (const Expr& arg : args) values.push_back(arg.value);
    std::vector<Expr> results;
    for (const Value v : builder.ops(op, std::move(values), std::move(attr))) {
      results.push_back({&builder, v});
    }
    return results;
  }
  // The values of `results`, declared as they are.
  std::vector<Numbers> run(const std::vector<Expr>& results, Mode mode = Mode::exact) {
    for (std::size_t i = 0; i < results.size(); ++i) {
      builder.result("y" + std::to_string(i), results[i].type(), results[i].value);
    }
    const Program program = std::move(builder).finish();
    std::vector<Numbers> out;
    for (Array& array : reference::evaluate(program, sizes, views(owned), mode)) {
      out.push_back(std::move(array.data));
    }
    return out;
  }
  Numbers run(Expr result, Mode mode = Mode::exact) {
    return run(std::vector<Expr>{result}, mode)[0];
  }
};

inline void expect_near(const Numbers& got, const Numbers& expected, double tolerance = 1e-12) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(expected[i])) {
      EXPECT_TRUE(std::isnan(got[i])) << "element " << i << " is " << got[i];
    } else if (std::isinf(expected[i])) {
      EXPECT_EQ(got[i], expected[i]) << "element " << i;
    } else {
      EXPECT_NEAR(got[i], expected[i], tolerance * std::max(1.0, std::abs(expected[i])))
          << "element " << i;
    }
  }
}

inline Numbers random_numbers(std::size_t count, unsigned seed) {
  std::mt19937_64 generator(seed);
  std::normal_distribution<double> normal;
  Numbers numbers(count);
  for (double& x : numbers) x = normal(generator);
  return numbers;
}

inline const Type kVector{DType::f64, {dim_of("N")}};

}  // namespace coda
