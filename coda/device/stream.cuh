// coda/device/stream.cuh: vectors of a row in registers, and reductions among the threads of a row.
//
// A Pack is N neighbouring elements as memory holds them; its lanes are read one by one. Loads and
// stores keep the order in which the page has them, so results may lie where parameters do.
// Reductions take a fixed order that depends on the number of threads a row only.
#pragma once

#include "maps.cuh"

// Once for each of a vector's lanes, i.
#ifndef CODA_HOST
#define EACH(n) _Pragma("unroll") for (int i = 0; i < n; ++i)
#else
#define EACH(n) for (int i = 0; i < n; ++i)
#endif

namespace coda {

// ---- memory ----

#ifndef CODA_HOST

template <int kWords>
__device__ __forceinline__ void load_words(unsigned* words, const void* from) {
  if constexpr (kWords == 4) {
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "l"(from));
  } else if constexpr (kWords == 2) {
    asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(words[0]), "=r"(words[1]) : "l"(from));
  } else {
    asm volatile("ld.global.u32 %0, [%1];" : "=r"(words[0]) : "l"(from));
  }
}
template <int kWords>
__device__ __forceinline__ void store_words(void* to, const unsigned* words) {
  if constexpr (kWords == 4) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(words[0]), "r"(words[1]),
                 "r"(words[2]), "r"(words[3])
                 : "memory");
  } else if constexpr (kWords == 2) {
    asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(words[0]), "r"(words[1])
                 : "memory");
  } else {
    asm volatile("st.global.u32 [%0], %1;" ::"l"(to), "r"(words[0]) : "memory");
  }
}

#else

template <int kWords>
inline void load_words(unsigned* words, const void* from) {
  if (reinterpret_cast<unsigned long long>(from) % (4 * kWords) != 0) __builtin_trap();
  __builtin_memcpy(words, from, 4 * kWords);
}
template <int kWords>
inline void store_words(void* to, const unsigned* words) {
  if (reinterpret_cast<unsigned long long>(to) % (4 * kWords) != 0) __builtin_trap();
  __builtin_memcpy(to, words, 4 * kWords);
}

#endif

// Elements to and from the words that hold them, the first one in the low bits.
template <class T>
__device__ __forceinline__ unsigned bits_in_word(T x) {
  if constexpr (sizeof(T) == 1) return *reinterpret_cast<const unsigned char*>(&x);
  if constexpr (sizeof(T) == 2) return *reinterpret_cast<const unsigned short*>(&x);
  return 0;
}
template <class T>
__device__ __forceinline__ T from_words(const unsigned* words, int i) {
  if constexpr (sizeof(T) == 8) {
    const unsigned long long low = words[2 * i], high = words[2 * i + 1];
    return static_cast<T>(low | high << 32);
  } else if constexpr (sizeof(T) == 4) {
    if constexpr (T(0.5f) != T(0)) return float_of(words[i]);
    return static_cast<T>(words[i]);
  } else if constexpr (sizeof(T) == 2) {
    return T{static_cast<unsigned short>(words[i / 2] >> (16 * (i % 2)))};
  } else {
    return T{static_cast<unsigned char>(words[i / 4] >> (8 * (i % 4)) & 0xffu)};
  }
}

template <class T, int N>
struct Pack {
  static constexpr int kBytes = N * static_cast<int>(sizeof(T));
  static constexpr int kWords = kBytes < 4 ? 1 : kBytes / 4;
  static constexpr int kAtOnce = kWords < 4 ? kWords : 4;
  unsigned words[kWords];

  __device__ __forceinline__ auto at(int i) const {
    return Element<T>::value(from_words<T>(words, i));
  }
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int w = 0; w < kWords; ++w) words[w] = 0;
  }
  __device__ __forceinline__ void spread(T x) {
    clear();
#pragma unroll
    for (int i = 0; i < N; ++i) insert(i, x);
  }
  // Neighbours: `from` is aligned to all of their bytes, or to 16.
  __device__ __forceinline__ void load(const T* from) {
    if constexpr (kBytes < 4) {
      load(from, 1);
    } else {
#pragma unroll
      for (int w = 0; w < kWords; w += kAtOnce) {
        load_words<kAtOnce>(words + w, reinterpret_cast<const unsigned*>(from) + w);
      }
    }
  }
  // Elements `stride` apart.
  __device__ __forceinline__ void load(const T* from, long long stride) {
    clear();
#pragma unroll
    for (int i = 0; i < N; ++i) insert(i, from[i * stride]);
  }
  __device__ __forceinline__ void insert(int i, T x) {
    if constexpr (sizeof(T) == 8) {
      const unsigned long long bits = static_cast<unsigned long long>(x);
      words[2 * i] = static_cast<unsigned>(bits);
      words[2 * i + 1] = static_cast<unsigned>(bits >> 32);
    } else if constexpr (sizeof(T) == 4) {
      if constexpr (T(0.5f) != T(0)) {
        words[i] = bits_of(x);
      } else {
        words[i] = static_cast<unsigned>(x);
      }
    } else {
      constexpr int kPerWord = 4 / static_cast<int>(sizeof(T));
      words[i / kPerWord] |= bits_in_word(x) << (8 * static_cast<int>(sizeof(T)) * (i % kPerWord));
    }
  }
  template <class Lane>
  __device__ __forceinline__ void fill(const Lane (&lanes)[N]) {
    clear();
#pragma unroll
    for (int i = 0; i < N; ++i) insert(i, Element<T>::rounded(lanes[i]));
  }
  __device__ __forceinline__ void store(T* to) const {
    if constexpr (kBytes < 4) {
      store(to, 1);
    } else {
#pragma unroll
      for (int w = 0; w < kWords; w += kAtOnce) {
        store_words<kAtOnce>(reinterpret_cast<unsigned*>(to) + w, words + w);
      }
    }
  }
  __device__ __forceinline__ void store(T* to, long long stride) const {
#pragma unroll
    for (int i = 0; i < N; ++i) to[i * stride] = from_words<T>(words, i);
  }
};

// Two lanes at once where there is an instruction for it.
template <>
template <>
__device__ __forceinline__ void Pack<bf16_t, 8>::fill<float>(const float (&lanes)[8]) {
#pragma unroll
  for (int w = 0; w < 4; ++w) words[w] = pack_bf16(lanes[2 * w], lanes[2 * w + 1]);
}
template <>
template <>
__device__ __forceinline__ void Pack<bf16_t, 4>::fill<float>(const float (&lanes)[4]) {
#pragma unroll
  for (int w = 0; w < 2; ++w) words[w] = pack_bf16(lanes[2 * w], lanes[2 * w + 1]);
}
template <>
template <>
__device__ __forceinline__ void Pack<bf16_t, 16>::fill<float>(const float (&lanes)[16]) {
#pragma unroll
  for (int w = 0; w < 8; ++w) words[w] = pack_bf16(lanes[2 * w], lanes[2 * w + 1]);
}
template <>
template <>
__device__ __forceinline__ void Pack<f16_t, 8>::fill<float>(const float (&lanes)[8]) {
#pragma unroll
  for (int w = 0; w < 4; ++w) words[w] = pack_f16(lanes[2 * w], lanes[2 * w + 1]);
}

// All of them are loaded before any is used: an operand that is 0, which the compiler cannot know.
// NOTE: otherwise loads are moved down to where their values are used, and few are in flight.
template <class T, int N, int kSlots>
__device__ __forceinline__ void together(Pack<T, N> (&packs)[kSlots]) {
  unsigned all = blockIdx.z;
#pragma unroll
  for (int u = 0; u < kSlots; ++u) all &= packs[u].words[0];
#pragma unroll
  for (int u = 0; u < kSlots; ++u) packs[u].words[0] |= all;
}

// Elements before the first one whose address is a multiple of N elements.
template <int N, class T>
__device__ __forceinline__ unsigned lead_of(const T* from) {
  const unsigned long long at = reinterpret_cast<unsigned long long>(from) / sizeof(T);
  return static_cast<unsigned>((N - at % N) % N);
}

// One element.
template <class T>
__device__ __forceinline__ auto value_at(const T* from) {
  return Element<T>::value(*from);
}
template <class T, class Lane>
__device__ __forceinline__ void put(T* to, Lane x) {
  *to = Element<T>::rounded(x);
}

// ---- reductions ----

struct Sum {
  template <class T>
  static __device__ __forceinline__ T none() {
    return T(0);
  }
  static __device__ __forceinline__ float of(float a, float b) { return a + b; }
  static __device__ __forceinline__ long long of(long long a, long long b) {
    return exact::add(a, b);
  }
};
struct Max {
  template <class T>
  static __device__ __forceinline__ T none() {
    if constexpr (sizeof(T) == 4) {
      return -infinity();
    } else {
      return T(-9223372036854775807LL - 1);
    }
  }
  static __device__ __forceinline__ float of(float a, float b) { return maximum_nan(a, b); }
  static __device__ __forceinline__ long long of(long long a, long long b) { return a > b ? a : b; }
};

#ifndef CODA_HOST
__device__ __forceinline__ float power_of_two(float x) {
  return exp2_approx(x);
}
#else
inline float power_of_two(float x) {
  return ::exp2f(x);
}
#endif

// sum = Σ exp(x - shift), top = max x, and shift is top where that is finite: infinities and NaN
// leave the terms as they are. A term is one multiplication and 2^x; its error is as large as one
// rounding of the result.
struct Exponents {
  float top, sum;
  static constexpr float kLog2 = 1.4426950408889634f;

  __device__ __forceinline__ float value() const {
    return sum == 0.0f ? top : shift(top) + exact::log(sum);
  }
  static __device__ __forceinline__ float shift(float top) {
    return top - top == 0.0f ? top : 0.0f;
  }
  static __device__ __forceinline__ float scaled(float shift) { return shift * -kLog2; }
  static __device__ __forceinline__ float term(float x, float scaled) {
    return power_of_two(::fmaf(x, kLog2, scaled));
  }
  // What the sum weighs under the shift of a larger top, and that is exactly the sum where the
  // shift is the same. Where the shift is smaller, the sum is 0 or the new terms are not finite.
  __device__ __forceinline__ float under(float to) const {
    const float apart = (shift(top) - to) * kLog2;
    return sum * power_of_two(apart < 0.0f ? apart : 0.0f);
  }
};
struct LogSumExp {
  template <class T>
  static __device__ __forceinline__ T none() {
    return T{-infinity(), 0.0f};
  }
  static __device__ __forceinline__ Exponents of(Exponents a, Exponents b) {
    const float top = maximum_nan(a.top, b.top);
    const float to = Exponents::shift(top);
    return {top, a.under(to) + b.under(to)};
  }
};

// Of a thread's lanes, pairs first.
template <class Op, class T, int N>
__device__ __forceinline__ T fold(const T (&lanes)[N]) {
  T x[N];
#pragma unroll
  for (int i = 0; i < N; ++i) x[i] = lanes[i];
#pragma unroll
  for (int half = N / 2; half > 0; half /= 2) {
#pragma unroll
    for (int i = 0; i < half; ++i) x[i] = Op::of(x[i], x[i + half]);
  }
  return x[0];
}
// What was summed so far, and more lanes.
template <int N>
__device__ __forceinline__ Exponents exponents(Exponents before, const float (&lanes)[N]) {
  const float top = maximum_nan(before.top, fold<Max>(lanes));
  const float shift = Exponents::shift(top), scaled = Exponents::scaled(shift);
  float terms[N];
#pragma unroll
  for (int i = 0; i < N; ++i) terms[i] = Exponents::term(lanes[i], scaled);
  return {top, before.under(shift) + fold<Sum>(terms)};
}
template <int N>
__device__ __forceinline__ Exponents exponents(const float (&lanes)[N]) {
  return exponents(LogSumExp::none<Exponents>(), lanes);
}

template <class T>
__device__ __forceinline__ T other_lane(T x, int mask) {
  return __shfl_xor_sync(0xffffffffu, x, mask);
}
__device__ __forceinline__ Exponents other_lane(Exponents x, int mask) {
  return {other_lane(x.top, mask), other_lane(x.sum, mask)};
}

// Among kThreads neighbouring threads of a warp; each gets the result.
template <class Op, int kThreads, class T>
__device__ __forceinline__ T among(T x) {
#pragma unroll
  for (int mask = kThreads / 2; mask > 0; mask /= 2) x = Op::of(x, other_lane(x, mask));
  return x;
}

// Among all warps of a block: each warp posts its own, and after a barrier each thread collects.
struct alignas(8) Posted {
  unsigned words[2];
};
template <class T>
__device__ __forceinline__ void post(Posted* board, T x) {
  if (threadIdx.x % 32 == 0) *reinterpret_cast<T*>(board + threadIdx.x / 32) = x;
}
template <class Op, int kWarps, class T>
__device__ __forceinline__ void collect(const Posted* board, T& x) {
  if constexpr (kWarps > 4) {
    x = among<Op, kWarps>(*reinterpret_cast<const T*>(board + threadIdx.x % kWarps));
  } else {
    x = *reinterpret_cast<const T*>(board);
#pragma unroll
    for (int w = 1; w < kWarps; ++w) x = Op::of(x, *reinterpret_cast<const T*>(board + w));
  }
}

}  // namespace coda
