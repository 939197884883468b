// coda/device/philox.cuh: random numbers that follow from a seed and a position only.
//
// Philox4x32-10 (Salmon et al., SC 2011): key = the seed, counter = (position, 0).
#pragma once

namespace coda {

// In [0, 1): the upper 24 bits of the first output word.
__device__ __forceinline__ float uniform_at(long long seed, long long position) {
  unsigned counter0 = static_cast<unsigned>(position);
  unsigned counter1 = static_cast<unsigned>(static_cast<unsigned long long>(position) >> 32);
  unsigned counter2 = 0, counter3 = 0;
  unsigned key0 = static_cast<unsigned>(seed);
  unsigned key1 = static_cast<unsigned>(static_cast<unsigned long long>(seed) >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const unsigned long long a = 0xD2511F53ULL * counter0;
    const unsigned long long b = 0xCD9E8D57ULL * counter2;
    counter0 = static_cast<unsigned>(b >> 32) ^ counter1 ^ key0;
    counter1 = static_cast<unsigned>(b);
    counter2 = static_cast<unsigned>(a >> 32) ^ counter3 ^ key1;
    counter3 = static_cast<unsigned>(a);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return static_cast<float>(counter0 >> 8) * 5.9604644775390625e-8f;
}

}  // namespace coda
