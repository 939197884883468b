// coda/check/axes.h: how the axes of a tensor may stand for the dimensions of a type.
#pragma once

#include <cstddef>
#include <vector>

#include "coda/program/program.h"

namespace coda {

// One Dim for each axis of a tensor: each dimension of the type on one axis, or on one for each of
// its factors.
using AxisDims = std::vector<Dim>;

// All ways in which `rank` axes can hold `type`. As many axes as dimensions means one each; so one
// way in most cases, none where the rank does not fit, several where only sizes can tell ([B*S,
// H*E] on three axes).
std::vector<AxisDims> axis_fits(const Type& type, std::size_t rank);

}  // namespace coda
