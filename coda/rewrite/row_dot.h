// coda/rewrite/row_dot.h: the adjoint row dot: the gradient of a scale r, read where both sides are
// stored.
//
// In z = r·S the share of r is ⟨dz, S⟩ = ⟨dz, z⟩ / r, and ⟨dz, z⟩ may be read anywhere after z up
// to which all is linear: whatever y = L z, ⟨Lᵀdy, z⟩ = ⟨dy, L z⟩. So after a rotation it is ⟨dq,
// q⟩, and a bias y = z + b takes ⟨dy, b⟩ off. Neither S nor z need be saved for it.
#pragma once

#include "coda/rewrite/adjoints.h"

namespace coda {

// The scale that operand `i` of the multiplication is, if its dot may be read so: a reciprocal
// root, or where(c, it, 0), that lacks factors of the other operand, which is on chip and nothing
// else reads.
std::optional<Value> scale_on_chip(const Adjoints& adjoints, const Node& node, std::size_t i);

// ⟨dz, z⟩ of z, the multiplication's result, for a scale with the factors of `rows`; sums left to
// the reader: its factors are those of z, or fewer.
Expr row_dot(const Adjoints& adjoints, const Node& node, const Type& rows);

}  // namespace coda
