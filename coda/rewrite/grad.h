// coda/rewrite/grad.h: reverse mode. Program → Program; the gradient of a block is a block.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "coda/program/program.h"

namespace coda {

struct GradOptions {
  std::vector<std::string> of = {};  // results to differentiate; empty: every floating-point result
  // Parameters; empty: every floating-point one, but for the scalars that attention takes as
  // options.
  std::vector<std::string> wrt = {};
  // Parameters whose gradient adds into what its result holds, and that result's dtype.
  std::map<std::string, DType> accumulate = {};
};

// A block with the parameters that the gradients need, then the upstream gradient `d_<result>` of
// each result in `of` (of its type); its results are `d_<param>`, of each parameter's type. Forward
// values are recomputed inside. What no gradient needs is not there. Throws ProgramError where an
// option names no parameter or result, or one that is no floating-point tensor.
Program grad(const Program& program, const GradOptions& options = {});

// Both in one: all parameters, then `d_<result>`; all results, then `d_<param>`.
Program joint(const Program& program, const GradOptions& options = {});

}  // namespace coda
