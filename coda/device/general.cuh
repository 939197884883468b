// coda/device/general.cuh: what kernels of the predicated path do beside maps: sorted ids, and
// which keys a query sees.
#pragma once

namespace coda {

// Element `i` of an array at an address that is no multiple of the element's size.
template <class T>
__device__ __forceinline__ T load_bytes(const T* array, long long i) {
  const unsigned char* from = reinterpret_cast<const unsigned char*>(array) + i * sizeof(T);
  T element;
  unsigned char* to = reinterpret_cast<unsigned char*>(&element);
  for (unsigned b = 0; b < sizeof(T); ++b) to[b] = from[b];
  return element;
}
template <class T>
__device__ __forceinline__ void store_bytes(T* array, long long i, T element) {
  unsigned char* to = reinterpret_cast<unsigned char*>(array) + i * sizeof(T);
  const unsigned char* from = reinterpret_cast<const unsigned char*>(&element);
  for (unsigned b = 0; b < sizeof(T); ++b) to[b] = from[b];
}

// The first index in first … last - 1 whose key is not below `key`; keys ascend.
__device__ __forceinline__ long long lower_bound(const long long* keys, long long first,
                                                 long long last, long long key) {
  while (first < last) {
    const long long middle = first + (last - first) / 2;
    if (keys[middle] < key) {
      first = middle + 1;
    } else {
      last = middle;
    }
  }
  return first;
}

// Where key `i` of runs that are sorted, `width` keys each, goes when every two of them become one.
// All keys differ.
__device__ __forceinline__ long long merged_place(const long long* keys, long long count,
                                                  long long width, long long i) {
  const long long run = i / width;
  const long long first = (run ^ 1) * width < count ? (run ^ 1) * width : count;
  const long long last = first + width < count ? first + width : count;
  const long long rank = lower_bound(keys, first, last, keys[i]) - first;
  return (run & ~1LL) * width + (i - run * width) + rank;
}

struct Visible {
  long long first, last;
};

__device__ __forceinline__ long long inside(long long x, long long low, long long high) {
  return x < low ? low : x > high ? high : x;
}

// Query i stands at position i + keys - queries: the last one sees the last key. window 0: none.
__device__ __forceinline__ Visible visible_keys(long long query, long long queries, long long keys,
                                                bool causal, long long window) {
  const long long position = query + keys - queries;
  Visible seen = {0, keys};
  if (causal || window > 0) seen.last = inside(position + 1, 0, keys);
  if (window > 0) seen.first = inside(position - window + 1, 0, seen.last);
  return seen;
}

// The queries that see `key`.
__device__ __forceinline__ Visible visible_queries(long long key, long long queries, long long keys,
                                                   bool causal, long long window) {
  const long long first = key - (keys - queries);
  const long long span = window < queries + keys ? window : queries + keys;
  Visible seen = {0, queries};
  if (causal || window > 0) seen.first = inside(first, 0, queries);
  if (window > 0) seen.last = inside(first + span, seen.first, queries);
  return seen;
}

}  // namespace coda
