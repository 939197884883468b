// coda/cuda/memory.h: the device's memory as the contract of backends has it.
#pragma once

#include "coda/backend/memory.h"
#include "coda/cuda/cuda.h"

namespace coda::cuda {

// Needs the driver.
Memory device_memory(const Allocator& allocator);

// The driver's memory, all ones (NaN in every float dtype): results show what a kernel read before
// anything was written there.
Allocator poisoned_allocator();

}  // namespace coda::cuda
