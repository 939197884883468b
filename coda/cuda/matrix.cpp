// coda/cuda/matrix.cpp: strides to the axes of tensor maps.
#include "coda/cuda/matrix.h"

#include <algorithm>

#include "coda/core/error.h"

namespace coda::cuda {
namespace {

std::string stride_text(std::int64_t stride) {
  return std::to_string(stride);
}

}  // namespace

void merge(std::vector<MemoryLoop>& loops, MemoryLoop loop) {
  if (loop.extent == 1) return;
  if (!loops.empty() && loops.back().stride == loop.stride * loop.extent) {
    loops.back() = {loops.back().extent * loop.extent, loop.stride};
  } else {
    loops.push_back(loop);
  }
}

std::optional<std::string> alignment_refusal(const Layout& layout, std::int64_t offset,
                                             std::int64_t stride, DType dtype) {
  const auto bytes = static_cast<std::int64_t>(size_of(dtype));
  if (layout.alignment < 16 || offset * bytes % 16 != 0) return "is not aligned to 16 bytes";
  if (stride <= 0) return "has a stride of " + stride_text(stride);
  if (stride * bytes % 16 != 0) {
    return "has rows of " + stride_text(stride * bytes) + " bytes, no multiple of 16";
  }
  if (stride * bytes >= std::int64_t{1} << 40) return "has rows of more than 2^40 bytes";
  return std::nullopt;
}

OperandResult operand_matrix(const Program& program, const Operand& operand, const Dim& contracted,
                             const Sizes& sizes, std::span<const Layout> layouts) {
  const std::string name = "`" + describe(program, operand.input) + "` ";
  const std::optional<InputView> view = view_input(program, operand.value, sizes);
  if (!view) return {std::nullopt, name + "is a range that cuts a merged dimension"};
  OperandMatrix matrix;
  matrix.tensor = view->parameter;
  matrix.dtype = program.type(operand.input).dtype;
  if (!view->casts.empty()) return {std::nullopt, name + "is cast"};
  if (matrix.dtype != DType::bf16 && matrix.dtype != DType::f16) {
    return {std::nullopt, name + "is " + std::string(name_of(matrix.dtype)) +
                              ": the tensor cores take bf16 and f16"};
  }
  const Layout& layout = layouts[static_cast<std::size_t>(matrix.tensor)];
  for (const InputView::Offset& offset : view->offsets) {
    matrix.offset += offset.count * layout.strides[static_cast<std::size_t>(offset.factor)];
  }
  const std::vector<Factor> factors = factors_of(program.type(operand.value));
  std::vector<MemoryLoop> outer, inner;
  const auto append = [&](std::vector<MemoryLoop>& loops, std::int64_t& extent,
                          const std::vector<SubAxis>& axes) {
    for (const SubAxis& axis : axes) {
      extent *= axis.extent;
      merge(loops,
            {axis.extent, layout.strides[static_cast<std::size_t>(axis.factor)] * axis.scale});
    }
  };
  for (std::size_t f = 0; f < factors.size(); ++f) {
    if (std::ranges::find(contracted.factors, factors[f]) == contracted.factors.end()) {
      append(outer, matrix.outer, view->factors[f]);
    }
  }
  for (const Factor& factor : contracted.factors) {
    const auto at = std::ranges::find(factors, factor);
    append(inner, matrix.inner, view->factors[static_cast<std::size_t>(at - factors.begin())]);
  }
  if (matrix.outer == 0 || matrix.inner == 0) return {std::nullopt, name + "has no elements"};
  if (outer.size() > 1 || inner.size() > 1) return {std::nullopt, name + "is no matrix in memory"};
  matrix.outer_stride = outer.empty() ? 0 : outer[0].stride;
  matrix.inner_stride = inner.empty() ? 0 : inner[0].stride;
  // A side of one element steps as suits the other.
  if (inner.empty() && (outer.empty() || matrix.outer_stride != 1)) matrix.inner_stride = 1;
  if (outer.empty() && matrix.inner_stride == 1) matrix.outer_stride = (matrix.inner + 7) / 8 * 8;
  if (matrix.inner_stride == 1 && outer.size() + inner.size() > 0) {
    matrix.inner_first = true;
  } else if (matrix.outer_stride == 1 || outer.empty()) {
    matrix.inner_first = false;
    if (inner.empty()) matrix.inner_stride = (matrix.outer + 7) / 8 * 8;
    if (outer.empty())
      return {std::nullopt, name + "has a stride of " + stride_text(matrix.inner_stride)};
  } else {
    return {std::nullopt, name + "has no contiguous axis"};
  }
  const std::int64_t stride = matrix.inner_first ? matrix.outer_stride : matrix.inner_stride;
  if (const auto refusal = alignment_refusal(layout, matrix.offset, stride, matrix.dtype)) {
    return {std::nullopt, name + *refusal};
  }
  return {matrix, ""};
}

std::optional<Line> line_of(std::vector<PlacedFactor> factors) {
  std::erase_if(factors, [](const PlacedFactor& each) { return each.place.extent == 1; });
  std::ranges::sort(factors, {}, [](const PlacedFactor& each) { return each.place.inner; });
  Line line;
  for (const PlacedFactor& each : factors) {
    if (each.place.block != 1 || each.place.inner != line.period) return std::nullopt;
    if (line.period == 1) {
      line.stride = each.stride;
    } else if (each.stride != line.stride * line.period) {
      return std::nullopt;
    }
    line.period *= each.place.extent;
  }
  return line;
}

}  // namespace coda::cuda
