// coda/cpu/plain_transfer.h: loads, stores and roundings without SIMD. Behind vector_ops.h.
#pragma once

#include "coda/cpu/vector_ops.h"

namespace coda::cpu {

Load plain_load(DType from, Lane to);
Put plain_store(DType to, Lane from, Store store);
Map plain_round(DType dtype, Lane lane);

// load_run and store_run for elements at any address, one by one.
void load_unaligned(DType from, Lane to, const std::byte* data, std::int64_t step, std::int64_t n,
                    std::byte* lanes);
void store_unaligned(DType to, Lane from, Store store, const std::byte* lanes,
                     std::int64_t lane_step, std::int64_t n, std::byte* data, std::int64_t step);

// Does `data` lie as elements of this dtype should?
bool is_aligned(const void* data, DType dtype);

}  // namespace coda::cpu
