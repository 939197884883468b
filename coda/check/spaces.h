// coda/check/spaces.h: the spaces of a program: which accumulators and which results go together.
#pragma once

#include <vector>

#include "coda/check/draft.h"

namespace coda {

// Rule 2: paired products share a space, side by side and stacked ones are spaces with an operand
// in common.
std::vector<Draft> gemm_spaces(const Program& program, std::span<const char> inputs,
                               const Products& products, Mistakes& report);
// Results with the same rows, or with work in common, share a space.
std::vector<Draft> stream_spaces(const Program& program, std::span<const char> inputs,
                                 Mistakes& report);

}  // namespace coda
