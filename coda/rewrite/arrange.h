// coda/rewrite/arrange.h: a block with its sums in the order that suits kernels.
#pragma once

#include "coda/program/program.h"

namespace coda {

// The same values over the reals:
//   * sum(sum(v, B), H) of v[B*S, H*E] becomes sum(sum(v, H), B): what is inside of rows goes
//   first,
//     so that rows keep their partial sums and one kernel finishes them;
//   * products that only feed one sum, p + a @ w + b @ u, add up first: one accumulator.
Program arrange(const Program& block);

}  // namespace coda
