// coda/rewrite/nominal.h: sizes before sizes are known, to compare what moving tensors would cost.
#pragma once

#include "coda/program/program.h"

namespace coda {

// Elements of a value of that type where every plain name counts as 1024.
double nominal_elements(const Type& type);

}  // namespace coda
