// coda/rewrite/simplify.h: the same program with nothing computed twice, for nothing, or with
// neutral constants.
#pragma once

#include <cstdint>

#include "coda/program/program.h"

namespace coda {

// detach, save and recompute tell grad and what follows it something; then they may go.
enum class Hints : std::uint8_t { keep, drop };

// Common subexpressions, dead values, arithmetic of constants, x*1, x+0, double negation, inverse
// layouts, plain casts to the dtype that a value would be stored in (pin keeps a cast). Every value
// that stays keeps its bits, NaN included, but for the sign of a zero and the roundings of dropped
// casts. Applying it twice changes nothing more.
Program simplify(const Program& program, Hints hints = Hints::keep);

}  // namespace coda
