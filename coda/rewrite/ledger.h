// coda/rewrite/ledger.h: bytes read and written and flops of each kernel, and of the unfused
// sequence.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
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

std::int64_t bytes_moved(const Cost& cost);

struct Ledger {
  std::vector<Cost> steps;
  Cost total;
};

// Each distinct tensor that a step names is read or written once (an accumulating result is both).
// Gathered tables count the rows read. A step in a loop counts all of its chunks. Throws
// ProgramError where `sizes` lacks a name.
Ledger ledger(const Schedule& schedule, const Sizes& sizes);

// What no fusion can avoid: every distinct input of a block is read once, every result written
// once. With the gradient of the block, its upstream gradients and its results too; what forward
// keeps for it is not counted. No flops.
Cost ideal(const Program& block, const Sizes& sizes);
Cost ideal(const Program& block, const Program& backward, const Sizes& sizes);

// 1050000, "B" → "1.05 MB".
std::string amount(std::int64_t count, std::string_view unit);

// One kernel alone, as a schedule of one step. Named after the program's own parameters and
// results.
Schedule as_schedule(const Program& program);

}  // namespace coda
