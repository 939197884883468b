// coda/cpu/vector_maps.cpp: maps on real lanes, once for each SIMD target.
//
// An op is a functor on vectors; Unary, Binary and Ternary make loops of it, one instance for each
// pattern of broadcast operands, so that the inner loop has no branch.
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "coda/cpu/vector_maps.cpp"
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

template <class T>
const T* at(const Arg& arg, std::int64_t i, std::int64_t j) {
  return reinterpret_cast<const T*>(arg.data) + i * arg.step[0] + j * arg.step[1];
}
template <class T>
T* at(Arg& arg, std::int64_t i, std::int64_t j) {
  return reinterpret_cast<T*>(arg.data) + i * arg.step[0] + j * arg.step[1];
}

// An operand of the inner loop: a run of memory, or one element in every lane.
template <class T, bool kRun>
struct In {
  using D = hn::ScalableTag<T>;
  const T* data;
  hn::Vec<D> splat;
  HWY_INLINE explicit In(const T* from) : data(from), splat(hn::Set(D(), kRun ? T{0} : *from)) {}
  HWY_INLINE hn::Vec<D> full(std::int64_t k) const {
    if constexpr (kRun) return hn::LoadU(D(), data + k);
    return splat;
  }
  HWY_INLINE hn::Vec<D> first(std::size_t n, std::int64_t k) const {
    if constexpr (kRun) return load_first(D(), data + k, n);
    return splat;
  }
};

template <class T, class F, bool... kRuns>
HWY_INLINE void run(std::int64_t n, T* out, const In<T, kRuns>&... in) {
  const hn::ScalableTag<T> d;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t k = 0;
  for (; k + lanes <= n; k += lanes) hn::StoreU(F()(d, in.full(k)...), d, out + k);
  if (k < n) {
    const auto rest = static_cast<std::size_t>(n - k);
    store_first(d, F()(d, in.first(rest, k)...), out + k, rest);
  }
}

template <class T, class F, bool kA>
void unary_loops(const Loops& loops, const Arg* args) {
  Arg out = args[0];
  for (std::int64_t i = 0; i < loops.n[0]; ++i) {
    for (std::int64_t j = 0; j < loops.n[1]; ++j) {
      run<T, F>(loops.n[2], at<T>(out, i, j), In<T, kA>(at<T>(args[1], i, j)));
    }
  }
}

template <class T, class F>
void unary(const Loops& loops, const Arg* args) {
  (args[1].step[2] == 0 ? unary_loops<T, F, false> : unary_loops<T, F, true>)(loops, args);
}

template <class T, class F, bool kA, bool kB>
void binary_loops(const Loops& loops, const Arg* args) {
  Arg out = args[0];
  for (std::int64_t i = 0; i < loops.n[0]; ++i) {
    for (std::int64_t j = 0; j < loops.n[1]; ++j) {
      run<T, F>(loops.n[2], at<T>(out, i, j), In<T, kA>(at<T>(args[1], i, j)),
                In<T, kB>(at<T>(args[2], i, j)));
    }
  }
}

template <class T, class F>
void binary(const Loops& loops, const Arg* args) {
  constexpr Map patterns[] = {binary_loops<T, F, false, false>, binary_loops<T, F, true, false>,
                              binary_loops<T, F, false, true>, binary_loops<T, F, true, true>};
  patterns[args[1].step[2] + 2 * args[2].step[2]](loops, args);
}

template <class T, class F, bool kA, bool kB, bool kC>
void ternary_loops(const Loops& loops, const Arg* args) {
  Arg out = args[0];
  for (std::int64_t i = 0; i < loops.n[0]; ++i) {
    for (std::int64_t j = 0; j < loops.n[1]; ++j) {
      run<T, F>(loops.n[2], at<T>(out, i, j), In<T, kA>(at<T>(args[1], i, j)),
                In<T, kB>(at<T>(args[2], i, j)), In<T, kC>(at<T>(args[3], i, j)));
    }
  }
}

template <class T, class F>
void ternary(const Loops& loops, const Arg* args) {
  constexpr Map patterns[] = {
      ternary_loops<T, F, false, false, false>, ternary_loops<T, F, true, false, false>,
      ternary_loops<T, F, false, true, false>,  ternary_loops<T, F, true, true, false>,
      ternary_loops<T, F, false, false, true>,  ternary_loops<T, F, true, false, true>,
      ternary_loops<T, F, false, true, true>,   ternary_loops<T, F, true, true, true>};
  patterns[args[1].step[2] + 2 * args[2].step[2] + 4 * args[3].step[2]](loops, args);
}

#define CODA_FUNCTOR(name, parameters, ...)    \
  struct name {                                \
    template <class D, class V>                \
    HWY_INLINE V operator() parameters const { \
      __VA_ARGS__                              \
    }                                          \
  }

CODA_FUNCTOR(Itself, (D, V a), return a;);
CODA_FUNCTOR(Neg, (D, V a), return hn::Neg(a););
CODA_FUNCTOR(Abs, (D, V a), return hn::Abs(a););
CODA_FUNCTOR(Sqrt, (D, V a), return hn::Sqrt(a););
CODA_FUNCTOR(Rsqrt, (D d, V a), return hn::Div(hn::Set(d, 1), hn::Sqrt(a)););
CODA_FUNCTOR(Add, (D, V a, V b), return hn::Add(a, b););
CODA_FUNCTOR(Sub, (D, V a, V b), return hn::Sub(a, b););
CODA_FUNCTOR(Mul, (D, V a, V b), return hn::Mul(a, b););
CODA_FUNCTOR(Div, (D, V a, V b), return hn::Div(a, b););
// x86's own minimum forgets a NaN on one side.
CODA_FUNCTOR(Minimum, (D, V a, V b), const V m = hn::Min(a, b);
             return hn::IfThenElse(hn::IsNaN(a), a, hn::IfThenElse(hn::IsNaN(b), b, m)););
CODA_FUNCTOR(Maximum, (D, V a, V b), const V m = hn::Max(a, b);
             return hn::IfThenElse(hn::IsNaN(a), a, hn::IfThenElse(hn::IsNaN(b), b, m)););
CODA_FUNCTOR(Eq, (D d, V a, V b), return hn::IfThenElseZero(hn::Eq(a, b), hn::Set(d, 1)););
CODA_FUNCTOR(Ne, (D d, V a, V b), return hn::IfThenElseZero(hn::Ne(a, b), hn::Set(d, 1)););
CODA_FUNCTOR(Lt, (D d, V a, V b), return hn::IfThenElseZero(hn::Lt(a, b), hn::Set(d, 1)););
CODA_FUNCTOR(Le, (D d, V a, V b), return hn::IfThenElseZero(hn::Le(a, b), hn::Set(d, 1)););
CODA_FUNCTOR(Gt, (D d, V a, V b), return hn::IfThenElseZero(hn::Gt(a, b), hn::Set(d, 1)););
CODA_FUNCTOR(Ge, (D d, V a, V b), return hn::IfThenElseZero(hn::Ge(a, b), hn::Set(d, 1)););
CODA_FUNCTOR(Truth, (D d, V a), return hn::IfThenElseZero(hn::Ne(a, hn::Zero(d)), hn::Set(d, 1)););
CODA_FUNCTOR(Where, (D d, V c, V a, V b), return hn::IfThenElse(hn::Ne(c, hn::Zero(d)), a, b););

// f32 by our polynomials, f64 by the C library.
#define CODA_TRANSCENDENTAL(name, f32, f64)                   \
  struct name {                                               \
    template <class D, class V>                               \
    HWY_INLINE V operator()(D d, V a) const {                 \
      if constexpr (sizeof(hn::TFromD<D>) == 4) {             \
        return f32(d, a);                                     \
      } else {                                                \
        return each_lane(d, a, [](double x) { return f64; }); \
      }                                                       \
    }                                                         \
  }

CODA_TRANSCENDENTAL(Exp, exp_f32, std::exp(x));
CODA_TRANSCENDENTAL(Log, log_f32, std::log(x));
CODA_TRANSCENDENTAL(Tanh, tanh_f32, std::tanh(x));
CODA_TRANSCENDENTAL(Erf, erf_f32, std::erf(x));
CODA_TRANSCENDENTAL(Sigmoid, sigmoid_f32,
                    x < 0 ? std::exp(x) / (1 + std::exp(x)) : 1 / (1 + std::exp(-x)));

template <class T>
Map find(Op op) {
  switch (op) {
    case Op::neg:
      return unary<T, Neg>;
    case Op::abs:
      return unary<T, Abs>;
    case Op::exp:
      return unary<T, Exp>;
    case Op::log:
      return unary<T, Log>;
    case Op::sqrt:
      return unary<T, Sqrt>;
    case Op::rsqrt:
      return unary<T, Rsqrt>;
    case Op::tanh:
      return unary<T, Tanh>;
    case Op::sigmoid:
      return unary<T, Sigmoid>;
    case Op::erf:
      return unary<T, Erf>;
    case Op::detach:
    case Op::save:
    case Op::recompute:
      return unary<T, Itself>;
    case Op::add:
      return binary<T, Add>;
    case Op::sub:
      return binary<T, Sub>;
    case Op::mul:
      return binary<T, Mul>;
    case Op::div:
      return binary<T, Div>;
    case Op::minimum:
      return binary<T, Minimum>;
    case Op::maximum:
      return binary<T, Maximum>;
    case Op::eq:
      return binary<T, Eq>;
    case Op::ne:
      return binary<T, Ne>;
    case Op::lt:
      return binary<T, Lt>;
    case Op::le:
      return binary<T, Le>;
    case Op::gt:
      return binary<T, Gt>;
    case Op::ge:
      return binary<T, Ge>;
    case Op::where:
      return ternary<T, Where>;
    case Op::constant:
    case Op::size:
    case Op::index:
    case Op::uniform:
    case Op::product:
    case Op::cast:
    case Op::pin:
    case Op::split:
    case Op::join:
    case Op::as:
    case Op::spread:
    case Op::sum:
    case Op::reduce_max:
    case Op::logsumexp:
    case Op::block_sum:
    case Op::block_max:
    case Op::block_logsumexp:
    case Op::gather:
    case Op::scatter_sum:
    case Op::pick:
    case Op::attention:
    case Op::attention_grad:
      return nullptr;
  }
  return nullptr;
}

Map FindMap(Op op, bool wide) {
  return wide ? find<double>(op) : find<float>(op);
}

Map FindTruth(bool wide) {
  return wide ? unary<double, Truth> : unary<float, Truth>;
}

const char* Target() {
  return hwy::TargetName(HWY_TARGET);
}

}  // namespace
}  // namespace coda::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "coda/cpu/vector_integers.h"

namespace coda::cpu {
namespace {
HWY_EXPORT(FindMap);
HWY_EXPORT(FindTruth);
HWY_EXPORT(Target);
}  // namespace

Map map_loops(Op op, Lane lane, Lane real) {
  if (lane == Lane::i64) return integer_map(op, real);
  return HWY_DYNAMIC_DISPATCH(FindMap)(op, lane == Lane::f64);
}

Map truth_loops(Lane from, Lane real) {
  if (from == Lane::i64) return integer_truth(real);
  return HWY_DYNAMIC_DISPATCH(FindTruth)(real == Lane::f64);
}

const char* vector_target() {
  return HWY_DYNAMIC_DISPATCH(Target)();
}

}  // namespace coda::cpu
#endif  // HWY_ONCE
