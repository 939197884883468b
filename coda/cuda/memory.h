// coda/cuda/memory.h: the device's memory as the contract of backends has it.
#pragma once

#include "coda/backend/memory.h"
#include "coda/cuda/cuda.h"

namespace coda::cuda {

// Needs the driver.
Memory device_memory(const Allocator& allocator);

}  // namespace coda::cuda
