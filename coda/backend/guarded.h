// coda/backend/guarded.h: tensors of the host run in a backend's memory, between guard zones.
#pragma once

#include <functional>
#include <span>
#include <string_view>

#include "coda/backend/backend.h"

namespace coda {

inline constexpr std::size_t kGuard = 4096;  // bytes before and after each tensor

// What a run inside gets: the same tensors in the backend's memory, and scratch.
using GuardedRun = std::function<void(
    std::span<const Tensor> params, std::span<const Tensor> results, std::span<std::byte> scratch)>;

// Copies every tensor into the memory, strides, gaps and the address modulo 256 kept, runs, and
// copies the results back, gaps too; no two tensors share memory. Scratch starts as all ones: NaNs
// to whoever reads it first. Throws InternalError that names `name` and the tensor where a byte of
// a guard zone or of a parameter has changed.
void run_guarded(const Memory& memory, std::string_view name, std::span<const Tensor> params,
                 std::span<const Tensor> results, std::size_t scratch_bytes, const GuardedRun& run);

}  // namespace coda
