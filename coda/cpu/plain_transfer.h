// coda/cpu/plain_transfer.h: loads, stores and roundings without SIMD. Behind vector_ops.h.
#pragma once

#include "coda/cpu/vector_ops.h"

namespace coda::cpu {

Load plain_load(DType from, Lane to);
Put plain_store(DType to, Lane from, Store store);
Map plain_round(DType dtype, Lane lane);

}  // namespace coda::cpu
