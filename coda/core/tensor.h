// coda/core/tensor.h: a strided view of memory (DLPack-shaped), and the buffer that owns some.
//
// A Tensor never owns: whoever makes one keeps `data` alive while it is in use. Strides count
// elements and may be 0 (broadcast) or larger than dense; a tensor without dimensions is
// a scalar. Both types are values without locks: one thread at a time may change one, any number
// may read it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "coda/core/allocator.h"
#include "coda/core/dtype.h"

namespace coda {

struct Tensor {
  void* data = nullptr;  // the first element; aligned to one element at least
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;    // in elements, outermost first
  std::vector<std::int64_t> strides;  // in elements, one for each entry of shape

  std::int64_t elements() const;  // 1 of a scalar
  bool is_dense() const;          // row-major with no gaps
};

// Bytes of a dense tensor; nullopt past 2^62, and where an empty one's strides would pass 2^63.
std::optional<std::int64_t> bytes_of(DType dtype, const std::vector<std::int64_t>& shape);

std::vector<std::int64_t> dense_strides(const std::vector<std::int64_t>& shape);
std::string to_string(const Tensor& tensor);  // "bf16[128, 64]", with strides where not dense

// A dense tensor over `data`, which it does not own.
Tensor dense(void* data, DType dtype, std::vector<std::int64_t> shape);

// A tensor that owns its memory (allocator.h): dense, aligned to kAllocationAlignment, zeroed.
// Movable; tensor() stays valid when the owner moves, and until it goes.
class OwnedTensor {
 public:
  OwnedTensor() = default;
  // Extents of 0 or more. Throws ProgramError where the memory is not there, with the bytes that
  // were asked for, or past 2^62.
  OwnedTensor(DType dtype, std::vector<std::int64_t> shape);

  const Tensor& tensor() const { return tensor_; }
  std::size_t bytes() const { return bytes_; }
  // The elements, row-major. NOTE: T is the caller's word: nothing compares it with the dtype.
  template <class T>
  T* as() const {
    return static_cast<T*>(tensor_.data);
  }

 private:
  HostBlock memory_;
  std::size_t bytes_ = 0;
  Tensor tensor_;
};

// The elements of any strided view, in row-major order. Throws as OwnedTensor does.
OwnedTensor dense_copy(const Tensor& tensor);

}  // namespace coda
