// coda/cuda/general.h: the predicated path: any checked program, any dtypes, strides, alignment and
// sizes.
//
// A sequence of plain kernels: products by tiles on the FP32 units (f64 and small ones an element a
// thread), everything else one element a thread. Every product and every reduction is stored in
// workspace, then the results are computed from these. The order of every sum is a function of the
// sizes alone. A result may share its memory with a parameter that is read at the same element
// only (not in attention).
#pragma once

#include <span>

#include "coda/cuda/plan.h"

namespace coda::cuda {

Plan plan_general(const Checked& checked, const Sizes& sizes, std::span<const Layout> layouts,
                  const Target& target);

}  // namespace coda::cuda
