// coda/check/equations.cpp: extents as polynomials in one unknown name.
//
// Doubles only propose a size; bind verifies every equation in exact integers.

#include "coda/check/equations.h"

#include <cmath>
#include <map>

#include "coda/core/error.h"

namespace coda {
namespace {

using Polynomial = std::map<int, double>;  // coefficient of each power

Polynomial times(const Polynomial& a, const Polynomial& b) {
  Polynomial product;
  for (auto [i, x] : a)
    for (auto [j, y] : b) product[i + j] += x * y;
  return product;
}

std::optional<Polynomial> polynomial(const Dim& dim, const std::string& unknown,
                                     const Sizes& sizes);

std::optional<Polynomial> polynomial(const Factor& factor, const std::string& unknown,
                                     const Sizes& sizes) {
  switch (factor.kind()) {
    case Factor::Kind::name: {
      if (factor.text() == unknown) return Polynomial{{1, 1.0}};
      auto size = sizes.find(factor.text());
      if (size == sizes.end()) return std::nullopt;
      return Polynomial{{0, static_cast<double>(size->second)}};
    }
    case Factor::Kind::number:
      return Polynomial{{0, static_cast<double>(factor.number())}};
    case Factor::Kind::sum: {
      Polynomial total;
      for (const Factor::Term& term : factor.terms()) {
        std::optional<Polynomial> part = polynomial(term.dim, unknown, sizes);
        if (!part) return std::nullopt;
        for (auto [degree, c] : *part) total[degree] += term.sign * c;
      }
      return total;
    }
    case Factor::Kind::quotient: {
      std::optional<Polynomial> whole = polynomial(factor.dim(), unknown, sizes);
      if (!whole) return std::nullopt;
      for (auto& [degree, c] : *whole) c /= static_cast<double>(factor.number());
      return whole;
    }
    case Factor::Kind::blocks: {
      // A ceiling is no polynomial: a count of blocks does not determine what it counts.
      std::optional<std::int64_t> count = known_extent(dim_of(factor), sizes);
      if (!count) return std::nullopt;
      return Polynomial{{0, static_cast<double>(*count)}};
    }
  }
  throw InternalError("a factor of no kind");
}

std::optional<Polynomial> polynomial(const Dim& dim, const std::string& unknown,
                                     const Sizes& sizes) {
  Polynomial product{{0, 1.0}};
  for (const Factor& factor : dim.factors) {
    std::optional<Polynomial> part = polynomial(factor, unknown, sizes);
    if (!part) return std::nullopt;
    product = times(product, *part);
  }
  return product;
}

}  // namespace

std::set<std::string> names_in(const Equation& equation) {
  std::set<std::string> names;
  collect_names(equation.left, names);
  for (const Dim& dim : equation.right) collect_names(dim, names);
  return names;
}

std::string right_text(const Equation& equation) {
  if (equation.value) return std::to_string(*equation.value);
  std::string text;
  for (const Dim& dim : equation.right) text += (text.empty() ? "" : " + ") + dim.text();
  return text;
}

std::optional<std::int64_t> known_extent(const Dim& dim, const Sizes& sizes) {
  try {
    return extent(dim, sizes);
  } catch (const ProgramError&) {
    return std::nullopt;  // an inexact quotient or a negative sum: an error of its own elsewhere
  }
}

std::optional<double> solve_for(const Equation& equation, const std::string& unknown,
                                const Sizes& sizes) {
  std::optional<Polynomial> total = polynomial(equation.left, unknown, sizes);
  if (!total) return std::nullopt;
  if (equation.value) (*total)[0] -= static_cast<double>(*equation.value);
  for (const Dim& dim : equation.right) {
    std::optional<Polynomial> part = polynomial(dim, unknown, sizes);
    if (!part) return std::nullopt;
    for (auto [degree, c] : *part) (*total)[degree] -= c;
  }
  const double constant = (*total)[0];
  total->erase(0);
  std::erase_if(*total, [](const auto& term) { return std::abs(term.second) < 1e-9; });
  if (total->size() != 1) return std::nullopt;
  const auto [degree, coefficient] = *total->begin();
  const double power = -constant / coefficient;
  return power <= 0 ? power : std::pow(power, 1.0 / degree);
}

}  // namespace coda
