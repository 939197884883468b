// tests/cpu_programs.h: programs as text on the CPU backend, for its tests.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "coda/check/bind.h"
#include "coda/check/check.h"
#include "coda/core/tensor.h"
#include "coda/cpu/cpu.h"
#include "coda/program/text.h"

namespace coda::testing {

// The backend with so many threads and, where given, tiles.
inline const Backend& cpu_with(int threads, std::int64_t rows = 0, std::int64_t columns = 0) {
  static std::map<std::tuple<int, std::int64_t, std::int64_t>, std::unique_ptr<Backend>> made;
  auto& backend = made[{threads, rows, columns}];
  if (!backend) {
    backend = cpu::backend({.threads = threads, .tile_rows = rows, .tile_columns = columns});
  }
  return *backend;
}

inline Program program_of(const std::string& text) {
  return parse("coda 1\n" + text, "test.coda").find("");
}

// Runs a program on tensors that the caller filled; results are dense.
inline std::vector<OwnedTensor> run_cpu(const Program& program, const Sizes& given,
                                        std::span<const Tensor> params,
                                        const Backend& backend = cpu_with(2)) {
  const Sizes sizes = bind_sizes(program, given);
  const Kernel kernel = backend.compile(check(program), sizes);
  std::vector<OwnedTensor> results;
  std::vector<Tensor> views;
  for (const Result& result : program.results()) {
    results.emplace_back(result.type.dtype, shape_of(result.type, sizes));
    views.push_back(results.back().tensor());
  }
  const OwnedTensor scratch(DType::u8, {static_cast<std::int64_t>(kernel.scratch_bytes())});
  kernel.run(params, views, {scratch.as<std::byte>(), kernel.scratch_bytes()});
  return results;
}

}  // namespace coda::testing
