// coda/rewrite/nominal.cpp: what is derived from names follows from the sizes of names.
#include "coda/rewrite/nominal.h"

#include <algorithm>
#include <cmath>
#include <set>

namespace coda {
namespace {

constexpr double kAlone = 4096, kLast = 128, kBefore = 32;

template <class OfName>
double extent_of(const Dim& dim, const OfName& of_name);

template <class OfName>
double extent_of(const Factor& factor, const OfName& of_name) {
  switch (factor.kind()) {
    case Factor::Kind::name:
      return of_name(factor.text());
    case Factor::Kind::number:
      return static_cast<double>(factor.number());
    case Factor::Kind::sum: {
      double sum = 0;
      for (const Factor::Term& term : factor.terms()) {
        sum += term.sign * extent_of(term.dim, of_name);
      }
      return sum > 0 ? sum : extent_of(factor.terms().front().dim, of_name) / 2;
    }
    case Factor::Kind::quotient:
      return std::max(1.0, extent_of(factor.dim(), of_name) / static_cast<double>(factor.number()));
    case Factor::Kind::blocks:
      return std::ceil(extent_of(factor.dim(), of_name) / static_cast<double>(factor.number()));
  }
  throw InternalError("a kind of factor that has no nominal size");
}

template <class OfName>
double extent_of(const Dim& dim, const OfName& of_name) {
  double size = 1;
  for (const Factor& factor : dim.factors) size *= extent_of(factor, of_name);
  return size;
}

}  // namespace

Nominal::Nominal(const Program& block, const Sizes& given) {
  const auto visit = [&](const Dim& dim) {
    std::vector<std::set<std::string>> parts;
    for (const Factor& factor : dim.factors) {
      std::set<std::string> names;
      collect_names(dim_of(factor), names);
      if (!names.empty()) parts.push_back(std::move(names));
    }
    for (std::size_t p = 0; p < parts.size(); ++p) {
      const double size = parts.size() == 1 ? kAlone : p + 1 == parts.size() ? kLast : kBefore;
      for (const std::string& name : parts[p]) {
        double& known = names_.try_emplace(name, size).first->second;
        known = std::min(known, size);
      }
    }
  };
  for (const ValueInfo& value : block.values()) {
    for (const Dim& dim : value.type.dims) visit(dim);
  }
  for (const auto& [name, size] : given) names_[name] = static_cast<double>(size);
}

double Nominal::extent(const Factor& factor) const {
  return extent_of(factor, [&](const std::string& name) {
    const auto found = names_.find(name);
    return found == names_.end() ? kAlone : found->second;
  });
}

double Nominal::extent(const Dim& dim) const {
  double size = 1;
  for (const Factor& factor : dim.factors) size *= extent(factor);
  return size;
}

double Nominal::elements(const Type& type) const {
  double elements = 1;
  for (const Dim& dim : type.dims) elements *= extent(dim);
  return elements;
}

double nominal_elements(const Type& type) {
  double elements = 1;
  for (const Dim& dim : type.dims) {
    elements *= extent_of(dim, [](const std::string&) { return 1024.0; });
  }
  return elements;
}

}  // namespace coda
