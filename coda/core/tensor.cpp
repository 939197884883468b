// coda/core/tensor.cpp: sizes, strides and memory of tensors.
#include "coda/core/tensor.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "coda/core/error.h"

namespace coda {
namespace {

std::string list(const std::vector<std::int64_t>& numbers) {
  std::string out = "[";
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (i > 0) out += ", ";
    out += std::to_string(numbers[i]);
  }
  return out + "]";
}

std::size_t checked_bytes(DType dtype, const std::vector<std::int64_t>& shape) {
  for (const std::int64_t extent : shape) {
    if (extent < 0) throw InternalError("a tensor of shape " + list(shape));
  }
  const std::optional<std::int64_t> bytes = bytes_of(dtype, shape);
  if (!bytes) {
    throw ProgramError(
        "a tensor " + std::string(name_of(dtype)) + list(shape) + " is larger than any memory",
        "check the sizes");
  }
  return static_cast<std::size_t>(*bytes);
}

// Copies the view's elements, row-major, to `to`. `Element` only says how many bytes one has.
template <class Element>
void gather(const Tensor& tensor, std::byte* to) {
  const std::size_t rank = tensor.shape.size();
  const std::int64_t row = rank == 0 ? 1 : tensor.shape[rank - 1];
  const std::int64_t step = rank == 0 ? 1 : tensor.strides[rank - 1];
  const std::int64_t rows = row == 0 ? 0 : tensor.elements() / row;
  std::vector<std::int64_t> at(rank, 0);
  std::int64_t offset = 0;
  const auto* from = static_cast<const std::byte*>(tensor.data);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t i = 0; i < row; ++i) {
      // NOTE: memcpy, because a view may be misaligned.
      std::memcpy(to, from + (offset + i * step) * std::int64_t{sizeof(Element)}, sizeof(Element));
      to += sizeof(Element);
    }
    for (std::size_t d = rank - 1; rank > 1 && d-- > 0;) {
      offset += tensor.strides[d];
      if (++at[d] < tensor.shape[d]) break;
      offset -= at[d] * tensor.strides[d];
      at[d] = 0;
    }
  }
}

}  // namespace

std::int64_t Tensor::elements() const {
  std::int64_t product = 1;
  for (const std::int64_t extent : shape) product *= extent;
  return product;
}

bool Tensor::is_dense() const {
  std::int64_t expected = 1;
  bool gaps = false;
  for (std::size_t d = shape.size(); d-- > 0;) {
    if (shape[d] == 0) return true;
    if (shape[d] != 1 && strides[d] != expected) gaps = true;
    expected *= shape[d];
  }
  return !gaps;
}

std::optional<std::int64_t> bytes_of(DType dtype, const std::vector<std::int64_t>& shape) {
  // NOTE: of an empty tensor too: its strides are products of its other extents.
  std::int64_t elements = 1;
  bool empty = false;
  bool overflow = false;
  for (const std::int64_t extent : shape) {
    empty |= extent == 0;
    overflow |= __builtin_mul_overflow(elements, std::max<std::int64_t>(extent, 1), &elements);
  }
  if (overflow) return std::nullopt;
  if (empty) return 0;
  std::int64_t bytes = 0;
  overflow = __builtin_mul_overflow(elements, static_cast<std::int64_t>(size_of(dtype)), &bytes);
  if (overflow || bytes > (std::int64_t{1} << 62)) return std::nullopt;
  return bytes;
}

std::vector<std::int64_t> dense_strides(const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> strides(shape.size());
  std::int64_t stride = 1;
  for (std::size_t d = shape.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= std::max<std::int64_t>(shape[d], 1);
  }
  return strides;
}

std::string to_string(const Tensor& tensor) {
  std::string out = std::string(name_of(tensor.dtype)) + list(tensor.shape);
  if (!tensor.is_dense()) out += " strides " + list(tensor.strides);
  return out;
}

Tensor dense(void* data, DType dtype, std::vector<std::int64_t> shape) {
  std::vector<std::int64_t> strides = dense_strides(shape);
  return Tensor{
      .data = data, .dtype = dtype, .shape = std::move(shape), .strides = std::move(strides)};
}

OwnedTensor::OwnedTensor(DType dtype, std::vector<std::int64_t> shape)
    : bytes_(checked_bytes(dtype, shape)) {
  memory_ = allocate_block(bytes_, std::string(name_of(dtype)) + list(shape));
  std::memset(memory_.get(), 0, bytes_);
  tensor_ = dense(memory_.get(), dtype, std::move(shape));
}

OwnedTensor dense_copy(const Tensor& tensor) {
  OwnedTensor copy(tensor.dtype, tensor.shape);
  if (copy.bytes() == 0) return copy;
  std::byte* to = copy.as<std::byte>();
  if (tensor.is_dense()) {
    std::memcpy(to, tensor.data, copy.bytes());
    return copy;
  }
  switch (size_of(tensor.dtype)) {
    case 1:
      gather<std::uint8_t>(tensor, to);
      break;
    case 2:
      gather<std::uint16_t>(tensor, to);
      break;
    case 4:
      gather<std::uint32_t>(tensor, to);
      break;
    default:
      gather<std::uint64_t>(tensor, to);
      break;
  }
  return copy;
}

}  // namespace coda
