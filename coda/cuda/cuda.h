// coda/cuda/cuda.h: the Hopper backend: programs as kernels that are compiled where they run.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "coda/backend/backend.h"
#include "coda/cuda/choose.h"

namespace coda::cuda {

// Whose device memory the backend takes: the driver's where a function is empty.
struct Allocator {
  std::function<void*(std::size_t bytes)> allocate;  // 256-byte aligned; throws where there is none
  std::function<void(void* memory)> release;
};

struct Options {
  PlanOptions plan;
  Allocator allocator;
  // Whether its kernels have the GPU's processors to themselves. False where others run beside
  // them, as the collectives of distributed training do: then products share their tiles among
  // those processors that are free.
  bool exclusive = true;
};

// On the device of this process (driver.h), in its primary context. Throws Unsupported, with what
// to install, where there is none. Kernels are compiled for dense tensors, and so is their scratch;
// the first run with other strides or a misaligned pointer compiles that variant, and takes memory
// for the stream where it needs more. Other runs allocate nothing and wait for nothing, so a stream
// may be captured into a graph once it has run with the same tensors' strides; a graph with such a
// variant uses the memory of the stream that it was captured on.
std::unique_ptr<Backend> backend(const Options& options = {});

}  // namespace coda::cuda
