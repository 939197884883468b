// bench/devices.h: what the benchmarks ask of a device beside running programs: each library has
// its own.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "coda/backend/backend.h"
#include "coda/check/check.h"

namespace coda::bench {

struct Wanted {
  std::string device;
  std::string tile;             // pins a candidate; empty: chosen for each program
  int threads = 0;              // cpu; 0: flags::threads()
  bool whole_products = false;  // cpu: a step that is only a product is one call of oneDNN
  auto operator<=>(const Wanted&) const = default;
};

// Throws ProgramError for a device that this library does not have.
std::unique_ptr<Backend> device_backend(const Wanted& wanted);

// What a program of these sizes may be pinned to.
std::vector<std::string> candidate_tiles(const Checked& program, const Sizes& sizes);

}  // namespace coda::bench
