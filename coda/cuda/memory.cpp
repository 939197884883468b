// coda/cuda/memory.cpp: allocations and copies through the driver, fills in a stream's order.
#include "coda/cuda/memory.h"

#include <algorithm>
#include <utility>

#include "coda/cuda/driver.h"

namespace coda::cuda {
namespace {

constexpr std::string_view kWho = "";  // these calls belong to no program
constexpr std::int64_t kMostPitch = (std::int64_t{1} << 31) - 1;

DevicePointer address(const void* memory) {
  return reinterpret_cast<DevicePointer>(memory);
}

Stream stream_of(coda::Stream stream) {
  return static_cast<Stream>(stream.handle);
}

void* allocate(std::size_t bytes) {
  const auto wanted = static_cast<std::int64_t>(std::max<std::size_t>(bytes, 1));
  return reinterpret_cast<void*>(Driver::get().allocate(wanted, kWho));
}

// NOTE: the driver's own copies may return before the last bytes have arrived, and streams that do
// not wait for the default one would read what was there before.
void copy_in(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  const Driver& driver = Driver::get();
  driver.check(driver.call().MemcpyHtoD(address(to), from, bytes), "cuMemcpyHtoD", kWho);
  driver.check(driver.call().StreamSynchronize(nullptr), "cuStreamSynchronize", kWho);
}

void copy_out(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  const Driver& driver = Driver::get();
  driver.check(driver.call().MemcpyDtoH(to, address(from), bytes), "cuMemcpyDtoH", kWho);
}

void zero(const Tensor& tensor, coda::Stream stream) {
  const Driver& driver = Driver::get();
  for (const ByteRows& rows : byte_rows(tensor)) {
    const DevicePointer first = address(tensor.data) + static_cast<DevicePointer>(rows.offset);
    const auto width = static_cast<std::size_t>(rows.width);
    const bool is_flat = rows.height == 1;
    if (!is_flat && rows.pitch <= kMostPitch) {
      driver.check(
          driver.call().MemsetD2D8Async(first, static_cast<std::size_t>(rows.pitch), 0, width,
                                        static_cast<std::size_t>(rows.height), stream_of(stream)),
          "cuMemsetD2D8Async", kWho);
      continue;
    }
    for (std::int64_t i = 0; i < rows.height; ++i) {
      const DevicePointer row = first + static_cast<DevicePointer>(i * rows.pitch);
      driver.check(driver.call().MemsetD8Async(row, 0, width, stream_of(stream)), "cuMemsetD8Async",
                   kWho);
    }
  }
}

// NOTE: fills, not a copy: a captured copy would read the host's memory when the graph runs.
void write(void* to, std::int64_t value, coda::Stream stream) {
  const Driver& driver = Driver::get();
  const auto bits = static_cast<std::uint64_t>(value);
  for (const int half : {0, 1}) {
    driver.check(driver.call().MemsetD32Async(address(to) + 4 * static_cast<DevicePointer>(half),
                                              static_cast<unsigned>(bits >> (32 * half)), 1,
                                              stream_of(stream)),
                 "cuMemsetD32Async", kWho);
  }
}

void wait(coda::Stream stream) {
  const Driver& driver = Driver::get();
  driver.check(driver.call().StreamSynchronize(stream_of(stream)), "cuStreamSynchronize", kWho);
}

void release(void* memory) {
  Driver::get().release(address(memory));
}

}  // namespace

Memory device_memory(const Allocator& allocator) {
  Memory memory;
  memory.allocate = allocator.allocate ? allocator.allocate : allocate;
  memory.release = allocator.release ? allocator.release : release;
  memory.copy_in = copy_in;
  memory.copy_out = copy_out;
  memory.zero = zero;
  memory.write = write;
  memory.wait = wait;
  return memory;
}

Allocator poisoned_allocator() {
  const auto allocate_poisoned = [](std::size_t bytes) {
    void* memory = allocate(bytes);
    const Driver& driver = Driver::get();
    driver.check(driver.call().MemsetD8Async(address(memory), 0xff, bytes, nullptr),
                 "cuMemsetD8Async", kWho);
    wait({});
    return memory;
  };
  return {.allocate = allocate_poisoned, .release = release};
}

}  // namespace coda::cuda
