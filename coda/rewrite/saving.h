// coda/rewrite/saving.h: which forward values a backward pass reads, and which it computes again.
#pragma once

#include <set>
#include <vector>

#include "coda/program/program.h"

namespace coda {

// What a backward pass needs of the forward values of a joint program.
struct Needs {
  std::set<Value> values;  // read by it, directly
  // Those among them that its products and calls read: stored, if not saved.
  std::set<Value> operands;
  std::set<Value> results;  // stored by forward in any case
  std::set<Value> forward;  // computed by forward in any case; the rest only backward needs
  std::set<Value> saved, recomputed;  // by order of the author
  std::set<Value> again;              // products that may run once more, in the backward
};

// The values to save, in the order of the program: the cheapest set from which, with the
// parameters, maps and layout give all that is needed. Products, reductions, indexed and opaque ops
// that need no upstream gradient run in the forward, once. A value that the forward stores anyway
// (an operand of its products and calls, a result of it) costs half of one that it would store only
// for this; one that waits for a whole row of a product, as a softmax does, costs the product too.
std::vector<Value> choose_saved(const Program& joint, const Needs& needs);

}  // namespace coda
