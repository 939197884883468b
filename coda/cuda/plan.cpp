// coda/cuda/plan.cpp: how the tensors of a call lie in memory.
#include "coda/cuda/plan.h"

#include "coda/check/bind.h"
#include "coda/core/error.h"

namespace coda::cuda {
namespace {

constexpr std::int64_t kMostAlignment = 128;

template <class Each>
void each_type(const Program& program, Each each) {
  for (const Param& param : program.params()) each(param.type);
  for (const Result& result : program.results()) each(result.type);
}

std::int64_t alignment_of(const void* address) {
  const auto bits = reinterpret_cast<std::uintptr_t>(address) | std::uintptr_t{kMostAlignment};
  return static_cast<std::int64_t>(bits & (~bits + 1));
}

}  // namespace

std::vector<Layout> dense_layouts(const Program& program, const Sizes& sizes) {
  std::vector<Layout> layouts;
  each_type(program, [&](const Type& type) {
    std::vector<std::int64_t> extents;
    for (const Factor& factor : factors_of(type)) extents.push_back(require_extent(factor, sizes));
    layouts.push_back({.strides = dense_strides(extents), .alignment = kMostAlignment});
  });
  return layouts;
}

std::vector<Layout> layouts_of(const Program& program, const Sizes& sizes,
                               std::span<const Tensor> params, std::span<const Tensor> results) {
  if (params.size() != program.params().size() || results.size() != program.results().size()) {
    throw InternalError("a kernel of " + program.name() +
                        " runs with one tensor for each parameter and result");
  }
  std::vector<Layout> layouts;
  each_type(program, [&](const Type& type) {
    const std::size_t i = layouts.size();
    const Tensor& tensor = i < params.size() ? params[i] : results[i - params.size()];
    layouts.push_back(
        {.strides = factor_strides(type, tensor, sizes), .alignment = alignment_of(tensor.data)});
  });
  return layouts;
}

std::int64_t aligned_pitch(std::int64_t bytes) {
  constexpr std::int64_t kNarrow = 128, kWide = 2048, kStep = 16, kLine = 128;
  if (bytes < kNarrow || bytes % kStep == 0) return bytes;
  const std::int64_t step = bytes < kWide ? kStep : kLine;
  return (bytes + step - 1) / step * step;
}

}  // namespace coda::cuda
