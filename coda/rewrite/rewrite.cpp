// coda/rewrite/rewrite.cpp: the passes, in order.
#include "coda/rewrite/partition.h"
#include "coda/rewrite/simplify.h"

namespace coda {

Partition rewrite(const Program& block) {
  Program program = simplify(block);
  // The algebra of whole blocks goes here: row scales past products, scales to the other operand,
  // adjoint row dots. Each is a Program → Program of its own, between two calls of simplify, and
  // removes a whole-row dependency between two products.
  return partition(program);
}

}  // namespace coda
