// coda/rewrite/grad.h: reverse mode. Program → Program; the gradient of a block is a block.
#pragma once

#include <string>
#include <vector>

#include "coda/program/program.h"

namespace coda {

struct GradOptions {
  std::vector<std::string> of = {};  // results to differentiate; empty: every floating-point result
  // Parameters; empty: every floating-point one, but for the scalars that attention takes as
  // options.
  std::vector<std::string> wrt = {};
};

// A block with the parameters that the gradients need, then the upstream gradient `d_<result>` of
// each result in `of` (of its type); its results are `d_<param>`, of each parameter's type. Forward
// values are recomputed inside. What no gradient needs is not there.
Program grad(const Program& program, const GradOptions& options = {});

// Forward and backward as two blocks with the values between them named: the backward reads what
// the forward saved.
struct Training {
  Program forward;   // the parameters; the results, then one result for each saved value
  Program backward;  // needed parameters, needed results and saved values by name, then d_<result>;
                     // results d_<param>
  std::vector<std::string> saved;  // names of the extra results of `forward`
};
// Saves what is dear (products, reductions, opaque calls, gathers), recomputes maps and layout from
// it; of all such sets the cheapest one (saving.h).
Training grad_for_training(const Program& program, const GradOptions& options = {});

}  // namespace coda
