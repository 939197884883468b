// coda/rewrite/nominal.cpp: every name is 1024, and what is derived from names follows.
#include "coda/rewrite/nominal.h"

#include <algorithm>

namespace coda {
namespace {

double nominal(const Dim& dim);

double nominal(const Factor& factor) {
  switch (factor.kind()) {
    case Factor::Kind::name:
      return 1024;
    case Factor::Kind::number:
      return static_cast<double>(factor.number());
    case Factor::Kind::sum:
      return nominal(factor.terms().front().dim) / 2;
    case Factor::Kind::quotient:
    case Factor::Kind::blocks:
      return std::max(1.0, nominal(factor.dim()) / static_cast<double>(factor.number()));
  }
  throw InternalError("a kind of factor that has no nominal size");
}

double nominal(const Dim& dim) {
  double size = 1;
  for (const Factor& factor : dim.factors) size *= nominal(factor);
  return size;
}

}  // namespace

double nominal_elements(const Type& type) {
  double elements = 1;
  for (const Dim& dim : type.dims) elements *= nominal(dim);
  return elements;
}

}  // namespace coda
