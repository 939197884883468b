// coda/cpu/scatter.h: the program that is one scatter_sum.
#pragma once

#include "coda/backend/backend.h"

namespace coda::cpu {

// Is it? Then compile_scatter runs it.
bool is_scatter(const Checked& checked);
Kernel compile_scatter(const Checked& checked, const Sizes& sizes, int threads);

}  // namespace coda::cpu
