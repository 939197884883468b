// tests/cuda_host_map.h: a tensor map on the host: what stands behind the 128 bytes of one.
#pragma once

namespace coda::host {

struct HostMap {
  unsigned char* base = nullptr;
  int bytes = 2;  // of an element
  int rank = 2;
  long long extents[5] = {1, 1, 1, 1, 1};
  long long strides[5] = {};  // bytes
  int box[5] = {1, 1, 1, 1, 1};
  int swizzle = 128;
  unsigned char* written = nullptr;  // how often each element was stored; may be null

  long long box_bytes() const {
    long long all = bytes;
    for (int a = 0; a < rank; ++a) all *= box[a];
    return all;
  }
};

}  // namespace coda::host
