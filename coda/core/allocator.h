// coda/core/allocator.h: the one place from which the library takes the host memory of tensors and
// scratch.
//
// OwnedTensor, host_memory() and the scratch that a CPU kernel lacks come from here; so a program
// that embeds the library sees, bounds and places what is large. What is small (programs, plans,
// lists of sizes), the reference's doubles and what oneDNN and the CUDA driver take themselves come
// from where they always do.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

namespace coda {

// Alignment in bytes of every block that the library asks for, and of every tensor that it owns.
inline constexpr std::size_t kAllocationAlignment = 64;

// A caller's memory. Both functions are called from any thread, several at once, and may not call
// back into the library.
struct Allocator {
  // `bytes` of memory (never 0), aligned to `alignment`, a power of two; need not be zeroed.
  // nullptr where there is none: the library then throws ProgramError, which says how much it asked
  // for. May not throw.
  void* (*allocate)(void* context, std::size_t bytes, std::size_t alignment) = nullptr;
  // Takes back what allocate gave, with the bytes and the alignment that were asked for. May not
  // throw.
  void (*release)(void* context, void* memory, std::size_t bytes, std::size_t alignment) = nullptr;
  void* context = nullptr;  // handed to both; must outlive every block
};

// From now on memory comes from `allocator`; from the system's again where both functions are
// nullptr. Blocks that exist go back to whoever gave them, so it may be called at any time, from
// any thread. Throws ProgramError where only one of the functions is given.
void set_allocator(const Allocator& allocator);
// Where memory comes from now; both functions are nullptr for the system's.
Allocator current_allocator();

// At least `bytes` bytes, aligned to kAllocationAlignment, for 0 bytes too. Not zeroed. `what` is
// what they are for, and stands in the ProgramError where there are none: "no memory for
// f32[8, 4]: 128 bytes".
void* allocate(std::size_t bytes, std::string_view what);
// Takes back what allocate() gave, or nullptr.
void release(void* memory) noexcept;

// Memory of allocate() that goes back when it goes out of scope.
struct Release {
  void operator()(std::byte* memory) const noexcept { release(memory); }
};
using HostBlock = std::unique_ptr<std::byte, Release>;

inline HostBlock allocate_block(std::size_t bytes, std::string_view what) {
  return HostBlock(static_cast<std::byte*>(allocate(bytes, what)));
}

}  // namespace coda
