// coda/reference/fence.h: a tensor in a layout of its own, with guard bytes wherever it has no
// element.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "coda/program/program.h"
#include "coda/reference/verify.h"

namespace coda {

class Fenced {
 public:
  // Axes of the tensor: one for each dim, or one for each factor of a dim.
  enum class Axes : std::uint8_t { dims, factors };

  Fenced(const Type& type, const Sizes& sizes, Layouts layout, Axes axes);
  Fenced(Fenced&&) = default;  // the memory, and so the tensor's address, goes along
  Fenced(const Fenced&) = delete;

  const Tensor& tensor() const { return tensor_; }

  // Every byte, elements and guards.
  void fill(std::byte pattern);
  // The elements from a dense tensor of as many; along a stride of 0 the first one stays.
  void put(const Tensor& dense);
  // The elements' bytes, row-major.
  std::vector<std::byte> elements() const;
  // Everything, to compare with later.
  const std::vector<std::byte>& bytes() const { return memory_; }
  // How many bytes outside the elements differ from `pattern`, and where the first one is; nullopt:
  // none.
  std::optional<std::string> trespass(std::byte pattern) const;

 private:
  std::byte* base() { return memory_.data() + first_; }
  const std::byte* base() const { return memory_.data() + first_; }

  Tensor tensor_;
  std::vector<std::int64_t> offsets_;  // of each element, row-major, in elements
  std::vector<std::byte> memory_;
  std::size_t first_ = 0;  // of the tensor's base in memory_
};

}  // namespace coda
