// coda/rewrite/lazy.h: values that no kernel stores yet: who needs them computes them again.
#pragma once

#include "coda/rewrite/kernels.h"

namespace coda {

// Maps that a reader computes again for one value, at most.
inline constexpr std::size_t kLongestChain = 12;
inline bool is_cheap(Op op) {  // to compute again
  return is_map(op) || class_of(op) == OpClass::layout || class_of(op) == OpClass::leaf;
}

// When a kernel reads a lazy value, which some kernel must then store, instead of computing it.
enum class Reading : std::uint8_t {
  where_better,  // where that moves less, or a tile would do a whole sum again
  always,        // but for what costs nothing
};

// What kernel `k` (kNone: a new one) takes to compute node `n`.
struct Pulled {
  std::set<int> nodes;    // `n` and the lazy nodes under it
  std::set<Value> reads;  // lazy values that it reads instead
};
Pulled pull(const Kernels& kernels, int n, int k, Reading reading);

// The node and all lazy nodes under it.
std::set<int> with_lazy(const Kernels& kernels, int n);

// Why kernel `k` could not read these lazy values, even if they were stored: they come from what it
// makes.
std::optional<std::string> waits_for(const Kernels& kernels, const std::set<Value>& lazy, int k);

}  // namespace coda
