// tests/fake_driver/driver.h: what the fake driver has seen.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace coda::testing {

struct FakeDriver {
  struct Launch {
    std::string kernel;
    void* stream = nullptr;
    unsigned grid = 0;
    std::array<std::uint64_t, 8> argument = {};  // its first words
  };
  std::vector<Launch> launches;
  int modules = 0;      // loaded
  int allocations = 0;  // alive
  int maps = 0;         // encoded
  bool fail_launches = false;
};

}  // namespace coda::testing
