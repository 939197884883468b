// coda/rewrite/simplify.h: the same program with nothing computed twice, for nothing, or with
// neutral constants.
#pragma once

#include "coda/program/program.h"

namespace coda {

// Common subexpressions, dead values, arithmetic of constants, x*1, x+0, double negation, inverse
// layouts. Every value that stays keeps its bits (but for the sign of a zero), NaN included.
// Applying it twice changes nothing more.
Program simplify(const Program& program);

}  // namespace coda
