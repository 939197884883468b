// coda/cpu/vector_reduce.cpp: sums, maxima and logsumexp of the middle of three loops.
//
// The order of additions is part of the result, so it is fixed here for all SIMD targets: along
// memory, 64 partial sums (element k goes to sum k mod 64) that are then halved; across memory, one
// element after the other in groups of 64, the groups' sums in turn.
#include <algorithm>
#include <cmath>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "coda/cpu/vector_reduce.cpp"
#include "coda/cpu/vector_targets.h"
// After the targets.
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

#include "coda/cpu/vector_math-inl.h"
#include "coda/cpu/vector_ops.h"
#include "coda/cpu/vector_tail-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coda::cpu::HWY_NAMESPACE {
namespace {

using Int = std::int64_t;
constexpr Int kGroup = 64;

struct Sum {
  template <class T>
  static constexpr T kNeutral = 0;
  template <class T>
  static T apply(T a, T b) {
    return a + b;
  }
  template <class D, class V>
  static HWY_INLINE V apply(D, V a, V b) {
    return hn::Add(a, b);
  }
};

// NaN wins.
struct Largest {
  template <class T>
  static constexpr T kNeutral = -std::numeric_limits<T>::infinity();
  template <class T>
  static T apply(T a, T b) {
    return a != a ? a : (b != b ? b : std::max(a, b));
  }
  template <class D, class V>
  static HWY_INLINE V apply(D, V a, V b) {
    return hn::IfThenElse(hn::IsNaN(a), a, hn::IfThenElse(hn::IsNaN(b), b, hn::Max(a, b)));
  }
};

struct Itself {
  template <class D, class V>
  HWY_INLINE V operator()(D, V a) const {
    return a;
  }
  template <class T>
  T operator()(T a) const {
    return a;
  }
};

template <class V>
struct ExpMinus {
  V shift;
  template <class D>
  HWY_INLINE V operator()(D d, V a) const {
    const V x = hn::Sub(a, shift);
    if constexpr (sizeof(hn::TFromD<D>) == 4) {
      return exp_f32(d, x);
    } else {
      return each_lane(d, x, [](double v) { return std::exp(v); });
    }
  }
};

// The lanes of a vector as one: halves are added, the upper to the lower, until one lane is left.
template <class F, class D, class V>
HWY_INLINE hn::TFromD<D> fold(D d, V v) {
#if HWY_TARGET != HWY_SCALAR  // which has no halves
  if constexpr (hn::MaxLanes(D()) * sizeof(hn::TFromD<D>) > 16) {
    const hn::Half<D> half;
    return fold<F>(half, F::apply(half, hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
#endif
#if HWY_TARGET != HWY_SCALAR
  if constexpr (sizeof(hn::TFromD<D>) == 4 && hn::MaxLanes(D()) == 4) {
    v = F::apply(d, v, hn::Shuffle1032(v));
    return hn::GetLane(F::apply(d, v, hn::Shuffle2301(v)));
  }
#endif
  HWY_ALIGN hn::TFromD<D> lanes[hn::MaxLanes(D())];
  hn::Store(v, d, lanes);
  for (std::size_t width = hn::MaxLanes(D()) / 2; width > 0; width /= 2) {
    for (std::size_t l = 0; l < width; ++l) lanes[l] = F::apply(lanes[l], lanes[l + width]);
  }
  return lanes[0];
}

// One run along memory.
template <class F, class T, class Before>
HWY_INLINE T along(const T* in, Int n, const Before& before) {
  const hn::CappedTag<T, 16> d;
  using V = hn::Vec<decltype(d)>;
  constexpr Int kLanes = static_cast<Int>(hn::MaxLanes(hn::CappedTag<T, 16>()));
  constexpr Int kVectors = kGroup / kLanes;
  const V neutral = hn::Set(d, F::template kNeutral<T>);
  V sums[kVectors];
  Int k = 0;
  if (n >= kGroup) {
#pragma GCC unroll 8
    for (Int v = 0; v < kVectors; ++v) sums[v] = before(d, hn::LoadU(d, in + v * kLanes));
    for (k = kGroup; k + kGroup <= n; k += kGroup) {
#pragma GCC unroll 8
      for (Int v = 0; v < kVectors; ++v) {
        sums[v] = F::apply(d, sums[v], before(d, hn::LoadU(d, in + k + v * kLanes)));
      }
    }
  } else {
#pragma GCC unroll 8
    for (Int v = 0; v < kVectors; ++v) sums[v] = neutral;
  }
  if (k < n) {
#pragma GCC unroll 8
    for (Int v = 0; v < kVectors; ++v, k += kLanes) {
      const auto count = static_cast<std::size_t>(std::clamp<Int>(n - k, 0, kLanes));
      const V value = hn::IfThenElse(hn::FirstN(d, count),
                                     before(d, load_first(d, in + std::min(k, n), count)), neutral);
      sums[v] = F::apply(d, sums[v], value);
    }
  }
  // 64 sums are halved: vectors first.
  for (Int width = kVectors / 2; width > 0; width /= 2) {
    for (Int v = 0; v < width; ++v) sums[v] = F::apply(d, sums[v], sums[v + width]);
  }
  return fold<F>(d, sums[0]);
}

// One vector of columns, `count` of them there, n elements down, `step` apart.
template <class F, class T, class D, class Before>
HWY_INLINE hn::Vec<D> down(D d, const T* in, Int n, Int step, std::size_t count, hn::Vec<D> start,
                           const Before& before) {
  const bool whole = count == hn::Lanes(d);
  const auto element = [&](Int j) HWY_ATTR {
    const T* from = in + j * step;
    return before(d, whole ? hn::LoadU(d, from) : load_first(d, from, count));
  };
  hn::Vec<D> total = start;
  for (Int group = 0; group < n; group += kGroup) {
    const Int end = std::min(n, group + kGroup);
    if (n <= kGroup) {
      for (Int j = 0; j < n; ++j) total = F::apply(d, total, element(j));
    } else {
      hn::Vec<D> sum = element(group);
      for (Int j = group + 1; j < end; ++j) sum = F::apply(d, sum, element(j));
      total = F::apply(d, total, sum);
    }
  }
  return total;
}

template <class F, class T>
void reduce_run(Int n, Int inner, T* out, const T* in, Int step, Begin begin) {
  if (inner == 1 && step == 1) {
    const T value = along<F>(in, n, Itself());
    *out = begin == Begin::proceed ? F::apply(*out, value) : value;
    return;
  }
  const hn::ScalableTag<T> d;
  const Int lanes = static_cast<Int>(hn::Lanes(d));
  for (Int k = 0; k < inner; k += lanes) {
    const auto count = static_cast<std::size_t>(std::min(lanes, inner - k));
    auto start = hn::Set(d, F::template kNeutral<T>);
    if (begin == Begin::proceed) start = load_first(d, out + k, count);
    store_first(d, down<F>(d, in + k, n, step, count, start, Itself()), out + k, count);
  }
}

// max + log Σ e^(x - max). A maximum of ±inf or NaN is the result.
template <class T>
HWY_INLINE T finish_logsumexp(T largest, T sum) {
  return std::isfinite(largest) ? largest + std::log(sum) : largest;
}

template <class T>
void logsumexp_run(Int n, Int inner, T* out, const T* in, Int step) {
  if (inner == 1 && step == 1) {
    const hn::CappedTag<T, 16> d;
    using V = hn::Vec<decltype(d)>;
    const T largest = along<Largest>(in, n, Itself());
    if (!std::isfinite(largest)) {
      *out = largest;
      return;
    }
    *out = finish_logsumexp(largest, along<Sum>(in, n, ExpMinus<V>{hn::Set(d, largest)}));
    return;
  }
  const hn::ScalableTag<T> d;
  using V = hn::Vec<decltype(d)>;
  const Int lanes = static_cast<Int>(hn::Lanes(d));
  HWY_ALIGN T largest[hn::MaxLanes(hn::ScalableTag<T>())];
  HWY_ALIGN T sums[hn::MaxLanes(hn::ScalableTag<T>())];
  for (Int k = 0; k < inner; k += lanes) {
    const auto count = static_cast<std::size_t>(std::min(lanes, inner - k));
    const V m =
        down<Largest>(d, in + k, n, step, count, hn::Set(d, Largest::kNeutral<T>), Itself());
    const V sum = down<Sum>(d, in + k, n, step, count, hn::Zero(d), ExpMinus<V>{m});
    hn::Store(m, d, largest);
    hn::Store(sum, d, sums);
    for (std::size_t l = 0; l < count; ++l) {
      out[k + static_cast<Int>(l)] = finish_logsumexp(largest[l], sums[l]);
    }
  }
}

template <class T>
const T* at(const Arg& arg, Int i, Int k) {
  return reinterpret_cast<const T*>(arg.data) + i * arg.step[0] + k * arg.step[2];
}

// Runs Row(n, inner, out, in) for each outer position, over as many inner columns as lie side by
// side.
template <class T, class Row>
void for_each_row(const Loops& loops, const Arg& out, const Arg& in, const Row& row) {
  const bool together = loops.n[2] == 1 || (in.step[2] == 1 && out.step[2] == 1);
  const Int columns = together ? 1 : loops.n[2];
  for (Int i = 0; i < loops.n[0]; ++i) {
    for (Int k = 0; k < columns; ++k) {
      row(loops.n[1], loops.n[2] / columns, const_cast<T*>(at<T>(out, i, k)), at<T>(in, i, k));
    }
  }
}

template <class T, class F>
void reduce(const Loops& loops, const Arg& out, const Arg& in, Begin begin) {
  for_each_row<T>(loops, out, in, [&](Int n, Int inner, T* to, const T* from) {
    reduce_run<F>(n, inner, to, from, in.step[1], begin);
  });
}

// Of runs along memory, 16 logarithms at a time.
void logsumexp_runs(const Loops& loops, const Arg& out, const Arg& in) {
  const hn::CappedTag<float, 16> d;
  using V = hn::Vec<decltype(d)>;
  constexpr Int kTogether = static_cast<Int>(hn::MaxLanes(hn::CappedTag<float, 16>()));
  HWY_ALIGN float largest[kTogether];
  HWY_ALIGN float sums[kTogether];
  for (Int i = 0; i < loops.n[0]; i += kTogether) {
    const Int count = std::min(kTogether, loops.n[0] - i);
    for (Int r = 0; r < kTogether; ++r) {
      largest[r] = sums[r] = 1;
      if (r >= count) continue;
      const float* from = at<float>(in, i + r, 0);
      largest[r] = along<Largest>(from, loops.n[1], Itself());
      if (!std::isfinite(largest[r])) continue;
      sums[r] = along<Sum>(from, loops.n[1], ExpMinus<V>{hn::Set(d, largest[r])});
    }
    // A maximum of ±inf or NaN is the result: its sum is left at 1.
    hn::Store(hn::Add(hn::Load(d, largest), log_f32(d, hn::Load(d, sums))), d, sums);
    for (Int r = 0; r < count; ++r) *const_cast<float*>(at<float>(out, i + r, 0)) = sums[r];
  }
}

template <class T>
void logsumexp(const Loops& loops, const Arg& out, const Arg& in, Begin) {
  if constexpr (sizeof(T) == 4) {
    if (loops.n[2] == 1 && in.step[1] == 1) return logsumexp_runs(loops, out, in);
  }
  for_each_row<T>(loops, out, in, [&](Int n, Int inner, T* to, const T* from) {
    logsumexp_run(n, inner, to, from, in.step[1]);
  });
}

template <class T>
Reduce find(Op op) {
  switch (op) {
    case Op::sum:
    case Op::block_sum:
      return reduce<T, Sum>;
    case Op::reduce_max:
    case Op::block_max:
      return reduce<T, Largest>;
    case Op::logsumexp:
    case Op::block_logsumexp:
      return logsumexp<T>;
    default:
      return nullptr;
  }
}

Reduce FindReduce(Op op, bool wide) {
  return wide ? find<double>(op) : find<float>(op);
}

}  // namespace
}  // namespace coda::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace coda::cpu {
namespace {

HWY_EXPORT(FindReduce);

// Integers are exact in any order. The maximum of nothing is the smallest integer.
void reduce_integers(Op op, const Loops& loops, const Arg& out, const Arg& in, Begin begin) {
  const bool largest = op == Op::reduce_max || op == Op::block_max;
  for (std::int64_t i = 0; i < loops.n[0]; ++i) {
    for (std::int64_t k = 0; k < loops.n[2]; ++k) {
      auto* to = reinterpret_cast<std::int64_t*>(out.data) + i * out.step[0] + k * out.step[2];
      const auto* from =
          reinterpret_cast<const std::int64_t*>(in.data) + i * in.step[0] + k * in.step[2];
      std::int64_t value = largest ? std::numeric_limits<std::int64_t>::min() : 0;
      if (begin == Begin::proceed) value = *to;
      for (std::int64_t j = 0; j < loops.n[1]; ++j) {
        const std::int64_t element = from[j * in.step[1]];
        value = largest ? std::max(value, element)
                        : static_cast<std::int64_t>(static_cast<std::uint64_t>(value) +
                                                    static_cast<std::uint64_t>(element));
      }
      *to = value;
    }
  }
}

}  // namespace

Reduce reduce_loops(Op op, Lane lane) {
  if (lane != Lane::i64) return HWY_DYNAMIC_DISPATCH(FindReduce)(op, lane == Lane::f64);
  if (op == Op::sum || op == Op::block_sum) {
    return [](const Loops& l, const Arg& o, const Arg& i, Begin b) {
      reduce_integers(Op::sum, l, o, i, b);
    };
  }
  return [](const Loops& l, const Arg& o, const Arg& i, Begin b) {
    reduce_integers(Op::reduce_max, l, o, i, b);
  };
}

}  // namespace coda::cpu
#endif  // HWY_ONCE
