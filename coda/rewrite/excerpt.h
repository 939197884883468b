// coda/rewrite/excerpt.h: one layer of a stack's report, to look at without the others.
#pragma once

#include <vector>

#include "coda/rewrite/explain.h"

namespace coda {

// The steps of `schedule` that `keep` says, as a schedule named `name`: its parameters are what
// they read from elsewhere, its results what others, or the schedule's caller, read of theirs.
// Steps in loops are left out.
Schedule excerpt(const Schedule& schedule, const std::vector<bool>& keep, const std::string& name);

// The kernels that mainly work for layer `layer` of a stack, as they run among the others, and the
// calls of the unfused sequence that do.
Report excerpt(const Report& whole, int layer);

}  // namespace coda
