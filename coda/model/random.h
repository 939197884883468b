// coda/model/random.h: random numbers that are the same on every machine and compiler.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

namespace coda {

// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  // Random(state()) gives the same numbers as this from here on.
  std::uint64_t state() const { return state_; }
  std::uint64_t bits() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  // In [0, 1).
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
  // In [0, end), end ≥ 1.
  std::int64_t below(std::int64_t end) {
    return static_cast<std::int64_t>(uniform() * static_cast<double>(end));
  }
  // Box and Muller.
  double normal() {
    const double radius = std::sqrt(-2 * std::log(1 - uniform()));
    return radius * std::cos(2 * std::numbers::pi * uniform());
  }

 private:
  std::uint64_t state_;
};

}  // namespace coda
