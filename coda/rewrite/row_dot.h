// coda/rewrite/row_dot.h: the adjoint row dot: the gradient of a scale r, read where both sides are
// stored.
//
// In z = r·S the share of r is ⟨dz, S⟩ = ⟨dz, z⟩ / r, and ⟨dz, z⟩ may be read anywhere after z up
// to which all is linear: whatever y = L z, ⟨Lᵀdy, z⟩ = ⟨dy, L z⟩. So after a rotation it is ⟨dq,
// q⟩, and a bias y = z + b takes ⟨dy, b⟩ off. Neither S nor z need be saved for it.
#pragma once

#include "coda/rewrite/adjoints.h"

namespace coda {

// Whether operand `i` of the multiplication is such a scale: a reciprocal root that lacks factors
// of the other operand, which is on chip and nothing else reads.
bool scales_on_chip(const Adjoints& adjoints, const Node& node, std::size_t i);

// ⟨dz, z⟩ of z, the multiplication's result, elementwise sums left to the reader: its factors are
// those of z, or fewer.
Expr row_dot(const Adjoints& adjoints, const Node& node);

}  // namespace coda
