// coda/core/tensor.h: a strided view of memory (DLPack-shaped), and the buffer that owns some.
//
// A Tensor never owns. Strides count elements and may be 0 (broadcast) or larger than dense; a
// tensor without dimensions is a scalar.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coda/core/dtype.h"

namespace coda {

struct Tensor {
  void* data = nullptr;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;  // in elements, one for each entry of shape

  std::int64_t elements() const;
  bool is_dense() const;  // row-major with no gaps
};

// Bytes of a dense tensor; nullopt where that passes 2^62, which no file and no memory holds.
std::optional<std::int64_t> bytes_of(DType dtype, const std::vector<std::int64_t>& shape);

std::vector<std::int64_t> dense_strides(const std::vector<std::int64_t>& shape);
std::string to_string(const Tensor& tensor);  // "bf16[128, 64]", with strides where not dense

// A dense tensor over `data`.
Tensor dense(void* data, DType dtype, std::vector<std::int64_t> shape);

// An owned, dense, 64-byte-aligned, zeroed tensor. Movable; tensor() stays valid when the owner
// moves.
class OwnedTensor {
 public:
  OwnedTensor() = default;
  OwnedTensor(DType dtype, std::vector<std::int64_t> shape);

  const Tensor& tensor() const { return tensor_; }
  std::size_t bytes() const { return bytes_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(tensor_.data);
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  std::unique_ptr<std::byte, Free> memory_;
  std::size_t bytes_ = 0;
  Tensor tensor_;
};

// The elements of any strided view, in row-major order.
OwnedTensor dense_copy(const Tensor& tensor);

}  // namespace coda
