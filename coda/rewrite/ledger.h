// coda/rewrite/ledger.h: bytes read and written and flops of each kernel, and of the unfused
// sequence.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coda/program/schedule.h"

namespace coda {

struct Cost {
  std::string step;
  std::string kind;  // gemm, stream, opaque
  std::int64_t bytes_read = 0;
  std::int64_t bytes_written = 0;
  std::int64_t flops = 0;
};

// Bytes and flops of both. NOTE: counts of absurd sizes stop at the largest number.
Cost& operator+=(Cost& sum, const Cost& cost);

struct Ledger {
  std::vector<Cost> steps;
  Cost total;
};

// Each distinct tensor that a step names is read or written once (an accumulating result is both).
// Gathered tables count the rows read.
Ledger ledger(const Schedule& schedule, const Sizes& sizes);

// One kernel alone, as a schedule of one step. Named after the program's own parameters and
// results.
Schedule as_schedule(const Program& program);

}  // namespace coda
