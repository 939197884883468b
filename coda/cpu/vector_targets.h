// coda/cpu/vector_targets.h: the SIMD targets that the backend is compiled for. Before
// foreach_target.h.
//
// On x86: SSE4, AVX2 and AVX-512. Vectors have a length that the compiler knows.
#ifndef CODA_CPU_VECTOR_TARGETS_H_
#define CODA_CPU_VECTOR_TARGETS_H_

#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)

#endif  // CODA_CPU_VECTOR_TARGETS_H_
