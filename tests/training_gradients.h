// tests/training_gradients.h: what training differentiates a block by.
#pragma once

#include "coda/rewrite/grad.h"

namespace coda::testing {

// Tensors, no scalars and no tables of positions.
inline GradOptions training_gradients(const Program& block) {
  GradOptions options;
  for (const Param& param : block.params()) {
    const bool is_table = param.name == "cos" || param.name == "sin";
    if (is_float(param.type.dtype) && !param.type.is_scalar() && !is_table) {
      options.wrt.push_back(param.name);
    }
  }
  return options;
}

}  // namespace coda::testing
