// coda/device/steps.cuh: offsets in memory of a flat index.
#pragma once

namespace coda {

// What a flat index steps through: N loops, the outermost first.
template <int N>
struct Steps {
  long long extent[N], stride[N];  // elements

  __device__ __forceinline__ long long at(long long i) const {
    long long offset = 0;
#pragma unroll
    for (int n = N - 1; n > 0; --n) {
      offset += i % extent[n] * stride[n];
      i /= extent[n];
    }
    return offset + i * stride[0];
  }
};

}  // namespace coda
