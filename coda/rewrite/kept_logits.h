// coda/rewrite/kept_logits.h: a backward that reads rounded logits gets the logsumexp of what it
// reads.
#pragma once

#include <optional>

#include "coda/rewrite/halves.h"

namespace coda {

// joint(block, …), whose first `results` results are the block's own, where the backward takes the
// logsumexp of each value that forward keeps in fewer bits from the rounded value; nullopt: there
// is none. The block's own results are as before.
//
// NOTE: exp(z - lse) - 1 is rounding alone where a row is sure of its class, unless lse is that of
// the same z.
std::optional<Program> with_logsumexps_of_kept(const Program& joint, std::size_t results,
                                               const Training& training);

}  // namespace coda
