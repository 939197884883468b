// coda/cuda/planned.h: a backend that plans, and compiles and runs nothing.
#pragma once

#include <memory>

#include "coda/backend/backend.h"
#include "coda/cuda/choose.h"

namespace coda::cuda {

// Its kernels' notes are those of backend() on such a device: what a schedule would become where
// there is none. Needs neither driver nor compiler. Running a kernel throws InternalError.
std::unique_ptr<Backend> planned_backend(const Target& target = {},
                                         const PlanOptions& options = {});

}  // namespace coda::cuda
