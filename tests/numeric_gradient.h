// tests/numeric_gradient.h: gradients against central differences, in double through the exact
// reference.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "coda/check/bind.h"
#include "coda/core/tensor.h"
#include "coda/reference/reference.h"
#include "coda/rewrite/grad.h"

namespace coda::testing {

// Named tensors; every float is held as f64, whatever the program declares: the exact mode rounds
// nothing.
using Tensors = std::map<std::string, OwnedTensor>;

// `known`, and 8 for every other name of the program; but what pieces add up to follows from them.
inline Sizes complete(const Program& program, Sizes known) {
  std::set<std::string> names, sums;
  for (const ValueInfo& value : program.values()) {
    for (const Dim& dim : value.type.dims) collect_names(dim, names);
  }
  for (const Node& node : program.nodes()) {
    if (node.op != Op::split && node.op != Op::join) continue;
    std::set<std::string> pieces;
    for (const Dim& dim : node.attr.dims) collect_names(dim, pieces);
    if (!pieces.contains(node.attr.axis.text())) sums.insert(node.attr.axis.text());
  }
  for (const std::string& name : names) {
    known.emplace(name, 8);
    if (sums.contains(name)) known.erase(name);
  }
  return bind_sizes(program, known);
}

struct Fill {
  std::uint64_t seed = 1;
  std::int64_t ids = 3;       // integer tensors hold 0 … ids - 1; integer scalars a number ≥ 1
  double low = -1, high = 1;  // floats are uniform in [low, high)
  std::map<std::string, double> at = {};  // constant fill of the named parameters
};

inline DType held(DType dtype) {
  return is_float(dtype) ? DType::f64 : dtype == DType::boolean ? DType::boolean : DType::i64;
}

inline void fill(OwnedTensor& tensor, const std::string& name, const Fill& how,
                 std::mt19937_64& random) {
  const Tensor& view = tensor.tensor();
  std::uniform_real_distribution<double> real(how.low, how.high);
  std::uniform_int_distribution<std::int64_t> id(0, how.ids - 1);
  const auto constant = how.at.find(name);
  for (std::int64_t i = 0; i < view.elements(); ++i) {
    const double drawn = view.dtype == DType::f64       ? real(random)
                         : view.dtype == DType::boolean ? 1.0
                         : view.shape.empty()           ? static_cast<double>(1 + id(random))
                                                        : static_cast<double>(id(random));
    store(view.dtype, view.data, i, constant == how.at.end() ? drawn : constant->second);
  }
}

// Draws the parameters of `program` that `tensors` does not hold yet.
inline void draw(const Program& program, const Sizes& sizes, const Fill& how, Tensors& tensors) {
  std::mt19937_64 random(how.seed);
  for (const Param& param : program.params()) {
    if (tensors.contains(param.name)) continue;
    OwnedTensor tensor(held(param.type.dtype), shape_of(param.type, sizes));
    fill(tensor, param.name, how, random);
    tensors.emplace(param.name, std::move(tensor));
  }
}

inline std::map<std::string, std::vector<double>> evaluate(const Program& program,
                                                           const Sizes& sizes,
                                                           const Tensors& tensors) {
  std::vector<Tensor> params;
  for (const Param& param : program.params()) params.push_back(tensors.at(param.name).tensor());
  std::map<std::string, std::vector<double>> results;
  std::vector<reference::Array> arrays =
      reference::evaluate(program, sizes, params, reference::Mode::exact);
  for (std::size_t r = 0; r < arrays.size(); ++r) {
    results[program.results()[r].name] = std::move(arrays[r].data);
  }
  return results;
}

// Adds the results of `program` to `tensors`, as a later program's parameters.
inline void add_results(const Program& program, const Sizes& sizes, Tensors& tensors) {
  for (const auto& [name, values] : evaluate(program, sizes, tensors)) {
    const int index = program.find_result(name);
    const Type& type = program.results()[static_cast<std::size_t>(index)].type;
    OwnedTensor tensor(held(type.dtype), shape_of(type, sizes));
    for (std::size_t i = 0; i < values.size(); ++i) {
      store(tensor.tensor().dtype, tensor.tensor().data, static_cast<std::int64_t>(i), values[i]);
    }
    tensors.emplace(name, std::move(tensor));
  }
}

// ‖a - b‖ / ‖b‖, or ‖a - b‖ where b is small.
inline double relative_error(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return INFINITY;
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    error += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(error) / std::max(1e-3, std::sqrt(norm));
}

struct Numeric {
  Fill fill = {};
  GradOptions grad = {};
  double step = 1e-5;
  double tolerance = 1e-6;
  int elements =
      12;  // single elements that are compared for each parameter; all where it has no more
};

// The gradient block of `program` gives the central differences of ⟨results, upstream⟩: element by
// element where a parameter has few, and along a random direction over all of its elements.
inline void expect_gradient(const Program& program, const Sizes& sizes,
                            const Numeric& numeric = {}) {
  SCOPED_TRACE(program.name());
  bind_sizes(program, sizes);
  const Program gradient = grad(program, numeric.grad);
  Tensors tensors;
  draw(program, sizes, numeric.fill, tensors);
  Fill upstream = numeric.fill;
  upstream.seed += 1000;
  upstream.low = -1;
  upstream.high = 1;
  draw(gradient, sizes, upstream, tensors);
  const auto analytic = evaluate(gradient, sizes, tensors);

  std::map<std::string, std::vector<double>> weights;
  for (const Result& result : program.results()) {
    if (gradient.find_param("d_" + result.name) < 0) continue;
    const Tensor& d = tensors.at("d_" + result.name).tensor();
    for (std::int64_t i = 0; i < d.elements(); ++i) {
      weights[result.name].push_back(load(d.dtype, d.data, i));
    }
  }
  const auto loss = [&] {
    double total = 0;
    const auto results = evaluate(program, sizes, tensors);
    for (const auto& [name, weight] : weights) {
      for (std::size_t i = 0; i < weight.size(); ++i) total += weight[i] * results.at(name)[i];
    }
    return total;
  };

  std::mt19937_64 random(numeric.fill.seed + 2000);
  for (const Result& result : gradient.results()) {
    SCOPED_TRACE(result.name);
    const std::vector<double>& values = analytic.at(result.name);
    const OwnedTensor& x = tensors.at(result.name.substr(2));
    const auto n = static_cast<std::size_t>(x.tensor().elements());
    ASSERT_EQ(values.size(), n);
    const std::vector<double> before(x.as<double>(), x.as<double>() + n);
    const auto difference = [&](const std::vector<double>& direction) {
      double sides[2];
      for (const int side : {0, 1}) {
        for (std::size_t i = 0; i < n; ++i) {
          x.as<double>()[i] = before[i] + (side == 0 ? -1 : 1) * numeric.step * direction[i];
        }
        sides[side] = loss();
      }
      std::copy(before.begin(), before.end(), x.as<double>());
      return (sides[1] - sides[0]) / (2 * numeric.step);
    };
    std::vector<double> expected, got;
    for (int k = 0; k < std::min<int>(numeric.elements, static_cast<int>(n)); ++k) {
      const std::size_t i = n <= static_cast<std::size_t>(numeric.elements)
                                ? static_cast<std::size_t>(k)
                                : std::uniform_int_distribution<std::size_t>(0, n - 1)(random);
      std::vector<double> direction(n);
      direction[i] = 1;
      expected.push_back(difference(direction));
      got.push_back(values[i]);
    }
    if (n > static_cast<std::size_t>(numeric.elements)) {
      std::vector<double> direction(n);
      double slope = 0;
      for (std::size_t i = 0; i < n; ++i) {
        direction[i] = std::uniform_real_distribution<double>(-1, 1)(random);
        slope += direction[i] * values[i];
      }
      expected.push_back(difference(direction));
      got.push_back(slope);
    }
    double scale = 1;
    for (const double value : expected) scale = std::max(scale, std::abs(value));
    for (std::size_t k = 0; k < expected.size(); ++k) {
      EXPECT_NEAR(got[k], expected[k], numeric.tolerance * scale) << "comparison " << k;
    }
  }
}

}  // namespace coda::testing
