// coda/backend/memory.cpp: the host's memory, and a strided tensor as rows of bytes.
#include "coda/backend/memory.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "coda/core/allocator.h"

namespace coda {
namespace {

Memory make_host_memory() {
  Memory host;
  host.allocate = [](std::size_t bytes) {
    return coda::allocate(bytes, "tensors or scratch");
  };
  host.release = [](void* memory) {
    coda::release(memory);
  };
  host.copy_in = [](void* to, const void* from, std::size_t bytes) {
    if (bytes > 0) std::memcpy(to, from, bytes);
  };
  host.copy_out = host.copy_in;
  host.zero = [](const Tensor& tensor, Stream) {
    for (const ByteRows& rows : byte_rows(tensor)) {
      std::byte* row = static_cast<std::byte*>(tensor.data) + rows.offset;
      for (std::int64_t i = 0; i < rows.height; ++i, row += rows.pitch) {
        std::memset(row, 0, static_cast<std::size_t>(rows.width));
      }
    }
  };
  host.write = [](void* to, std::int64_t value, Stream) {
    std::memcpy(to, &value, sizeof value);
  };
  host.wait = [](Stream) {
  };
  return host;
}

struct Axis {
  std::int64_t extent, stride;  // bytes
};

}  // namespace

const Memory& host_memory() {
  static const Memory host = make_host_memory();
  return host;
}

std::vector<ByteRows> byte_rows(const Tensor& tensor) {
  const auto size = static_cast<std::int64_t>(size_of(tensor.dtype));
  ByteRows rows{.offset = 0, .width = size};
  std::vector<Axis> axes;
  for (std::size_t d = 0; d < tensor.shape.size(); ++d) {
    const std::int64_t extent = tensor.shape[d], stride = tensor.strides[d] * size;
    if (extent == 0) return {};
    if (extent == 1) continue;
    if (stride < 0) rows.offset += (extent - 1) * stride;
    axes.push_back({extent, std::abs(stride)});
  }
  std::ranges::stable_sort(axes, {}, &Axis::stride);
  auto axis = axes.begin();
  for (; axis != axes.end() && axis->stride == rows.width; ++axis) rows.width *= axis->extent;
  if (axis != axes.end()) {
    rows.height = axis->extent;
    rows.pitch = axis->stride;
    for (++axis; axis != axes.end() && axis->stride == rows.pitch * rows.height; ++axis) {
      rows.height *= axis->extent;
    }
  }
  std::vector<ByteRows> all = {rows};
  for (; axis != axes.end(); ++axis) {
    const std::size_t count = all.size();
    for (std::int64_t i = 1; i < axis->extent; ++i) {
      for (std::size_t r = 0; r < count; ++r) {
        all.push_back(all[r]);
        all.back().offset += i * axis->stride;
      }
    }
  }
  return all;
}

}  // namespace coda
