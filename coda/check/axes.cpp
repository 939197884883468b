// coda/check/axes.cpp: shapes of types, and the strides of factors inside the axes of tensors.

#include "coda/check/axes.h"

#include <utility>

#include "coda/check/bind.h"

namespace coda {
namespace {

void extend(const Type& type, std::size_t rank, std::size_t d, AxisDims& so_far,
            std::vector<AxisDims>& fits) {
  if (so_far.size() > rank) return;
  if (d == type.dims.size()) {
    if (so_far.size() == rank) fits.push_back(so_far);
    return;
  }
  const Dim& dim = type.dims[d];
  const std::size_t before = so_far.size();
  so_far.push_back(dim);
  extend(type, rank, d + 1, so_far, fits);
  so_far.resize(before);
  if (dim.factors.size() == 1) return;
  for (const Factor& factor : dim.factors) so_far.push_back(dim_of(factor));
  extend(type, rank, d + 1, so_far, fits);
  so_far.resize(before);
}

bool holds(const AxisDims& axes, const Tensor& tensor, const Sizes& sizes) {
  for (std::size_t a = 0; a < axes.size(); ++a)
    if (require_extent(axes[a], sizes) != tensor.shape[a]) return false;
  return true;
}

}  // namespace

std::vector<AxisDims> axis_fits(const Type& type, std::size_t rank) {
  if (rank == type.dims.size()) return {type.dims};
  std::vector<AxisDims> fits;
  AxisDims so_far;
  extend(type, rank, 0, so_far, fits);
  return fits;
}

std::vector<std::int64_t> shape_of(const Type& type, const Sizes& sizes) {
  std::vector<std::int64_t> shape;
  for (const Dim& dim : type.dims) shape.push_back(require_extent(dim, sizes));
  return shape;
}

std::int64_t elements_of(const Type& type, const Sizes& sizes) {
  std::int64_t elements = 1;
  for (const Dim& dim : type.dims) elements *= require_extent(dim, sizes);
  return elements;
}

std::vector<std::int64_t> factor_strides(const Type& type, const Tensor& tensor,
                                         const Sizes& sizes) {
  // Where several fits hold, they differ in factors of extent 1 only, whose strides nothing reads.
  for (const AxisDims& axes : axis_fits(type, tensor.shape.size())) {
    if (!holds(axes, tensor, sizes)) continue;
    std::vector<std::int64_t> strides;
    for (std::size_t a = 0; a < axes.size(); ++a) {
      const std::vector<Factor>& factors = axes[a].factors;
      std::vector<std::int64_t> inside(factors.size());
      std::int64_t stride = tensor.strides[a];
      for (std::size_t f = factors.size(); f-- > 0;) {
        inside[f] = stride;
        stride *= require_extent(factors[f], sizes);
      }
      strides.insert(strides.end(), inside.begin(), inside.end());
    }
    return strides;
  }
  throw ProgramError(
      "a tensor " + to_string(tensor) + " does not hold " + type.text() + " under the bound sizes",
      "bind the tensors again: their shapes changed after the sizes were taken");
}

}  // namespace coda
