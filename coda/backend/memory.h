// coda/backend/memory.h: where a backend's tensors live, and the little that is done to them there
// beside running kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "coda/core/tensor.h"

namespace coda {

// A queue of work on a device, as its driver knows it (CUstream); null: the default one. Backends
// of the host have none and ignore it: their work is done when run returns.
struct Stream {
  void* handle = nullptr;
};

// The memory that a backend's kernels read and write. A value: copies stand for the same memory,
// and outlive the backend. Functions throw as the backend does.
struct Memory {
  // 64-byte aligned at least, for 0 bytes too. ProgramError where there is no room.
  std::function<void*(std::size_t bytes)> allocate;
  std::function<void(void* memory)> release;
  // From and to the host's memory; done when they return.
  std::function<void(void* to, const void* from, std::size_t bytes)> copy_in, copy_out;
  // In the stream's order, without waiting; a capture of the stream records them. zero touches the
  // tensor's elements only, none of its gaps; write needs 8-byte alignment.
  std::function<void(const Tensor& tensor, Stream stream)> zero;
  std::function<void(void* to, std::int64_t value, Stream stream)> write;
  // Until the work of the stream is done; throws what went wrong in it.
  std::function<void(Stream stream)> wait;
};

// That of coda/core/allocator.h. Everything is done when a function returns; streams are ignored.
const Memory& host_memory();

// Rows of bytes: `height` of `width` bytes, `pitch` bytes apart, from `offset` bytes after the
// tensor's first element on.
struct ByteRows {
  std::int64_t offset = 0, width = 0, height = 1, pitch = 0;
  bool operator==(const ByteRows&) const = default;
};

// What the elements of a tensor cover, as few and as wide rows as its strides allow; no two
// elements share an address.
std::vector<ByteRows> byte_rows(const Tensor& tensor);

}  // namespace coda
