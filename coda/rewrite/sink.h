// coda/rewrite/sink.h: values that readers compute again rather than read.
#pragma once

#include "coda/rewrite/kernels.h"

namespace coda {

// A value that crosses, though what it comes from is stored as well, is computed again by its
// readers where that moves less.
void sink(Kernels& kernels);

}  // namespace coda
