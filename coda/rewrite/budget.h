// coda/rewrite/budget.h: keeping less than what pays, where memory is short.
#pragma once

#include <optional>

#include "coda/rewrite/halves.h"

namespace coda {

// Bytes that forward keeps for backward, results of the block among them.
std::int64_t kept_bytes(const Training& training, const Sizes& sizes);

// halves() that keeps at most `memory` bytes: as long as it keeps more, what is cheapest to compute
// again for each byte that this frees is not kept; products run again for it. What it cannot free
// it keeps. At most two rounds for each kept value.
Training halves_within(const Program& joint, std::size_t params, std::size_t results, Saving saving,
                       std::int64_t memory, const Sizes& sizes);

// `sizes`, and 1024 for each name of the program that is not among them.
Sizes assumed_sizes(const Program& program, const Sizes& sizes);

}  // namespace coda
