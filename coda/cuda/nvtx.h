// coda/cuda/nvtx.h: named ranges in NVIDIA's profilers, where one is attached.
//
// Profilers say that they are there by NVTX_INJECTION64_PATH. Then NVTX's library is looked for,
// once; where it is missing, or nobody listens, a range costs one look at a variable.
#pragma once

namespace coda::cuda {

// The work that this thread issues while it lives, under `name`.
class ProfilerRange {
 public:
  explicit ProfilerRange(const char* name);
  ~ProfilerRange();
  ProfilerRange(const ProfilerRange&) = delete;
  ProfilerRange& operator=(const ProfilerRange&) = delete;
};

}  // namespace coda::cuda
