// coda/reference/fence.cpp: layouts of verified tensors, and the guard bytes around them.
#include "coda/reference/fence.h"

#include <algorithm>
#include <cstring>

#include "coda/check/bind.h"
#include "coda/reference/ops.h"

namespace coda {
namespace {

constexpr std::size_t kGuard = 256;  // bytes before and after
constexpr std::size_t kAlignment = 64;

std::vector<std::int64_t> strides_of(const std::vector<std::int64_t>& shape, Layouts layout) {
  std::vector<std::int64_t> strides = dense_strides(shape);
  const std::size_t rank = shape.size();
  switch (layout) {
    case Layouts::dense:
      break;
    case Layouts::padded: {
      std::int64_t stride = 1;
      for (std::size_t d = rank; d-- > 0;) {
        strides[d] = stride;
        stride = stride * std::max<std::int64_t>(shape[d], 1) + 3;
      }
      break;
    }
    case Layouts::transposed: {
      std::int64_t stride = rank == 1 ? 2 : 1;
      for (std::size_t d = 0; d < rank; ++d) {
        strides[d] = stride;
        stride *= std::max<std::int64_t>(shape[d], 1);
      }
      break;
    }
    case Layouts::broadcast: {
      if (rank == 0) break;
      strides = dense_strides(std::vector<std::int64_t>(shape.begin() + 1, shape.end()));
      strides.insert(strides.begin(), 0);
      break;
    }
  }
  return strides;
}

}  // namespace

Fenced::Fenced(const Type& type, const Sizes& sizes, Layouts layout, Axes axes) {
  tensor_.dtype = type.dtype;
  const bool all_have_factors =
      std::ranges::none_of(type.dims, [](const Dim& dim) { return dim.factors.empty(); });
  if (axes == Axes::factors && all_have_factors) {
    for (const Factor& factor : factors_of(type)) {
      tensor_.shape.push_back(require_extent(factor, sizes));
    }
  } else {
    tensor_.shape = shape_of(type, sizes);
  }
  tensor_.strides = strides_of(tensor_.shape, layout);
  offsets_ = reference::strided(tensor_.shape, tensor_.strides);

  const std::size_t size = size_of(type.dtype);
  const std::int64_t last = offsets_.empty() ? -1 : *std::ranges::max_element(offsets_);
  // Room for a dense tensor too: who ignores a stride of 0 shall read guards, not crash.
  const std::int64_t room = std::max(last + 1, tensor_.elements());
  const std::size_t off = layout == Layouts::padded ? size : 0;  // as misaligned as may be
  memory_.resize(kGuard + kAlignment + off + static_cast<std::size_t>(room) * size + kGuard);
  const auto address = reinterpret_cast<std::uintptr_t>(memory_.data() + kGuard);
  first_ = kGuard + (kAlignment - address % kAlignment) % kAlignment + off;
  tensor_.data = base();
}

void Fenced::fill(std::byte pattern) {
  std::ranges::fill(memory_, pattern);
}

void Fenced::put(const Tensor& dense) {
  const std::size_t size = size_of(tensor_.dtype);
  const auto* from = static_cast<const std::byte*>(dense.data);
  for (std::size_t i = offsets_.size(); i-- > 0;) {
    std::memcpy(base() + offsets_[i] * static_cast<std::ptrdiff_t>(size), from + i * size, size);
  }
}

std::vector<std::byte> Fenced::elements() const {
  const std::size_t size = size_of(tensor_.dtype);
  std::vector<std::byte> out(offsets_.size() * size);
  for (std::size_t i = 0; i < offsets_.size(); ++i) {
    std::memcpy(out.data() + i * size, base() + offsets_[i] * static_cast<std::ptrdiff_t>(size),
                size);
  }
  return out;
}

std::optional<std::string> Fenced::trespass(std::byte pattern) const {
  const std::size_t size = size_of(tensor_.dtype);
  std::vector<char> owned(memory_.size(), 0);
  for (const std::int64_t offset : offsets_) {
    const std::size_t at = first_ + static_cast<std::size_t>(offset) * size;
    std::fill_n(owned.begin() + static_cast<std::ptrdiff_t>(at), size, 1);
  }
  std::size_t count = 0, where = 0;
  for (std::size_t i = 0; i < memory_.size(); ++i) {
    if (owned[i] != 0 || memory_[i] == pattern) continue;
    if (count++ == 0) where = i;
  }
  if (count == 0) return std::nullopt;
  const auto from_base = static_cast<std::int64_t>(where) - static_cast<std::int64_t>(first_);
  return "wrote " + std::to_string(count) + " bytes outside its elements, the first at byte " +
         std::to_string(from_base) + " of " + to_string(tensor_);
}

}  // namespace coda
