// coda/rewrite/saving.h: which forward values a backward pass reads, and which it computes again.
#pragma once

#include <set>
#include <vector>

#include "coda/program/program.h"

namespace coda {

// What a backward pass needs of a forward program.
struct Needs {
  std::set<Value> values;  // read by it, directly
  std::set<Value>
      operands;  // those among them that its products and calls read: stored, if not saved
};

// The values to save, in the order of the program: the cheapest set from which, with the
// parameters, maps and layout give all that is needed. Products, reductions, indexed and opaque ops
// never run again. A value that the forward stores anyway (an operand of its products and calls, a
// result of it) costs half of one that it would store only for this.
std::vector<Value> choose_saved(const Program& forward, const Needs& needs);

}  // namespace coda
