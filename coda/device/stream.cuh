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

// sum = Σ exp(x - shift(top)), top = max x.
struct Exponents {
  float top, sum;

  __device__ __forceinline__ float value() const {
    return sum == 0.0f ? top : shift(top) + exact::log(sum);
  }
  // Infinities and NaN leave the terms as they are.
  static __device__ __forceinline__ float shift(float top) {
    return top - top == 0.0f ? top : 0.0f;
  }
  static __device__ __forceinline__ float term(float x, float shift) {
    return fast::exp(x - shift);
  }
  // What a sum with that top weighs under another shift.
  __device__ __forceinline__ float under(float to) const {
    return sum == 0.0f ? 0.0f : sum * term(shift(top), to);
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
template <int N>
__device__ __forceinline__ Exponents exponents(const float (&lanes)[N]) {
  const float top = fold<Max>(lanes);
  const float shift = Exponents::shift(top);
  float terms[N];
#pragma unroll
  for (int i = 0; i < N; ++i) terms[i] = Exponents::term(lanes[i], shift);
  return {top, fold<Sum>(terms)};
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
  x = *reinterpret_cast<const T*>(board);
#pragma unroll
  for (int w = 1; w < kWarps; ++w) x = Op::of(x, *reinterpret_cast<const T*>(board + w));
}

}  // namespace coda
