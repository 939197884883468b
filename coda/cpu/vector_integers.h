// coda/cpu/vector_integers.h: maps on i64 lanes, and the ways between lanes. Behind vector_ops.h.
#pragma once

#include "coda/cpu/vector_ops.h"

namespace coda::cpu {

// Null where the op is not defined on integers. Comparisons give `real` lanes; the condition of
// where is real.
Map integer_map(Op op, Lane real);
Map integer_truth(Lane real);

}  // namespace coda::cpu
