// coda/core/allocator.cpp: blocks with their allocator in front of them.
#include "coda/core/allocator.h"

#include <cstdint>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <new>
#include <string>

#include "coda/core/error.h"

namespace coda {
namespace {

// What stands before each block, so that it goes back to whoever gave it.
struct Head {
  Allocator from;
  std::size_t bytes = 0;  // of all, head included
};

constexpr std::size_t kHead = kAllocationAlignment;
static_assert(sizeof(Head) <= kHead);

void* from_system(void*, std::size_t bytes, std::size_t alignment) {
  // NOTE: aligned_alloc wants a multiple of the alignment.
  return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

void to_system(void*, void* memory, std::size_t, std::size_t) {
  std::free(memory);
}

struct Chosen {
  std::mutex mutex;
  Allocator allocator;
};

// NOTE: never destroyed: tensors that are static outlive it otherwise.
Chosen& chosen() {
  static Chosen* const one = new Chosen;
  return *one;
}

std::string amount(std::size_t bytes) {
  const std::string exact = std::to_string(bytes) + " bytes";
  return bytes < (std::size_t{1} << 20) ? exact
                                        : exact + " (" + std::to_string(bytes >> 20) + " MiB)";
}

[[noreturn]] void refuse(std::string_view what, std::size_t bytes, const Allocator& from) {
  throw ProgramError("no memory for " + std::string(what) + ": " + amount(bytes),
                     from.context == nullptr && from.allocate == from_system
                         ? "use smaller sizes, or a machine with more memory"
                         : "use smaller sizes, or let the allocator that was set give more");
}

}  // namespace

void set_allocator(const Allocator& allocator) {
  if ((allocator.allocate == nullptr) != (allocator.release == nullptr)) {
    throw ProgramError(std::string("the allocator has no function to ") +
                           (allocator.allocate == nullptr ? "allocate" : "release"),
                       "give both functions, or neither for the system's memory");
  }
  const std::lock_guard lock(chosen().mutex);
  chosen().allocator = allocator;
}

Allocator current_allocator() {
  const std::lock_guard lock(chosen().mutex);
  return chosen().allocator;
}

void* allocate(std::size_t bytes, std::string_view what) {
  Allocator from = current_allocator();
  if (from.allocate == nullptr) from = {from_system, to_system, nullptr};
  // At least one unit, so that an empty tensor has an address of its own too.
  const std::size_t asked = bytes == 0 ? kAllocationAlignment : bytes;
  if (asked > std::numeric_limits<std::size_t>::max() - 2 * kHead) refuse(what, bytes, from);
  const std::size_t all = asked + kHead;
  void* const begin = from.allocate(from.context, all, kAllocationAlignment);
  if (begin == nullptr) refuse(what, bytes, from);
  if (reinterpret_cast<std::uintptr_t>(begin) % kAllocationAlignment != 0) {
    from.release(from.context, begin, all, kAllocationAlignment);
    throw ProgramError("the allocator that was set gave memory for " + std::string(what) +
                           " that is not aligned to " + std::to_string(kAllocationAlignment) +
                           " bytes",
                       "align it as its last argument says");
  }
  new (begin) Head{from, all};
  return static_cast<std::byte*>(begin) + kHead;
}

void release(void* memory) noexcept {
  if (memory == nullptr) return;
  std::byte* const begin = static_cast<std::byte*>(memory) - kHead;
  const Head head = *std::launder(reinterpret_cast<const Head*>(begin));
  head.from.release(head.from.context, begin, head.bytes, kAllocationAlignment);
}

}  // namespace coda
