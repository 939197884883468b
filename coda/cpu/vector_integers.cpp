// coda/cpu/vector_integers.cpp: maps on i64 lanes and conversions between lanes, as plain loops
// that the compiler vectorises for each SIMD target. Integers wrap around.
#include "coda/cpu/vector_integers.h"

#include <cmath>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "coda/cpu/vector_integers.cpp"
#include "coda/cpu/vector_targets.h"
// After the targets.
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC push_options
#pragma GCC optimize("O3")
#endif

HWY_BEFORE_NAMESPACE();
namespace coda::cpu::HWY_NAMESPACE {
namespace {

using Int = std::int64_t;

template <class T>
const T* at(const Arg& arg, Int i, Int j) {
  return reinterpret_cast<const T*>(arg.data) + i * arg.step[0] + j * arg.step[1];
}

template <class To, class A, class F>
void unary(const Loops& loops, const Arg* args) {
  for (Int i = 0; i < loops.n[0]; ++i) {
    for (Int j = 0; j < loops.n[1]; ++j) {
      To* out = const_cast<To*>(at<To>(args[0], i, j));
      const A* a = at<A>(args[1], i, j);
      const Int n = loops.n[2];
      if (args[1].step[2] == 0) {
        const To value = F()(*a);
        for (Int k = 0; k < n; ++k) out[k] = value;
      } else {
        for (Int k = 0; k < n; ++k) out[k] = F()(a[k]);
      }
    }
  }
}

template <class To, class F>
void binary(const Loops& loops, const Arg* args) {
  for (Int i = 0; i < loops.n[0]; ++i) {
    for (Int j = 0; j < loops.n[1]; ++j) {
      To* out = const_cast<To*>(at<To>(args[0], i, j));
      const Int* a = at<Int>(args[1], i, j);
      const Int* b = at<Int>(args[2], i, j);
      const Int n = loops.n[2];
      if (args[1].step[2] == 0) {
        const Int first = *a;
        const Int step = args[2].step[2];
        for (Int k = 0; k < n; ++k) out[k] = F()(first, b[k * step]);
      } else if (args[2].step[2] == 0) {
        const Int second = *b;
        for (Int k = 0; k < n; ++k) out[k] = F()(a[k], second);
      } else {
        for (Int k = 0; k < n; ++k) out[k] = F()(a[k], b[k]);
      }
    }
  }
}

template <class Real>
void choose(const Loops& loops, const Arg* args) {
  for (Int i = 0; i < loops.n[0]; ++i) {
    for (Int j = 0; j < loops.n[1]; ++j) {
      Int* out = const_cast<Int*>(at<Int>(args[0], i, j));
      const Real* c = at<Real>(args[1], i, j);
      const Int* a = at<Int>(args[2], i, j);
      const Int* b = at<Int>(args[3], i, j);
      const Int sc = args[1].step[2], sa = args[2].step[2], sb = args[3].step[2];
      for (Int k = 0; k < loops.n[2]; ++k) out[k] = c[k * sc] != 0 ? a[k * sa] : b[k * sb];
    }
  }
}

// Signed overflow is undefined in C++; unsigned arithmetic wraps.
Int wrap(std::uint64_t value) {
  return static_cast<Int>(value);
}
std::uint64_t bits(Int value) {
  return static_cast<std::uint64_t>(value);
}

#define CODA_INTEGER(name, parameters, value)     \
  struct name {                                   \
    HWY_INLINE auto operator() parameters const { \
      return value;                               \
    }                                             \
  }
CODA_INTEGER(Neg, (Int a), wrap(0 - bits(a)));
CODA_INTEGER(Abs, (Int a), a < 0 ? wrap(0 - bits(a)) : a);
CODA_INTEGER(Add, (Int a, Int b), wrap(bits(a) + bits(b)));
CODA_INTEGER(Sub, (Int a, Int b), wrap(bits(a) - bits(b)));
CODA_INTEGER(Mul, (Int a, Int b), wrap(bits(a) * bits(b)));
CODA_INTEGER(Minimum, (Int a, Int b), a < b ? a : b);
CODA_INTEGER(Maximum, (Int a, Int b), a < b ? b : a);
CODA_INTEGER(Eq, (Int a, Int b), a == b ? 1 : 0);
CODA_INTEGER(Ne, (Int a, Int b), a != b ? 1 : 0);
CODA_INTEGER(Lt, (Int a, Int b), a < b ? 1 : 0);
CODA_INTEGER(Le, (Int a, Int b), a <= b ? 1 : 0);
CODA_INTEGER(Gt, (Int a, Int b), a > b ? 1 : 0);
CODA_INTEGER(Ge, (Int a, Int b), a >= b ? 1 : 0);
CODA_INTEGER(Truth, (Int a), a != 0 ? 1 : 0);

template <class T>
struct ToReal {
  HWY_INLINE T operator()(Int a) const { return static_cast<T>(a); }
};
// Towards zero; what does not fit saturates, NaN is 0.
template <class T>
struct ToInteger {
  HWY_INLINE Int operator()(T a) const {
    if (!(a == a)) return 0;
    if (a >= T{0x1p63}) return std::numeric_limits<Int>::max();
    if (a < -T{0x1p63}) return std::numeric_limits<Int>::min();
    return static_cast<Int>(a);
  }
};
template <class To, class From>
struct Same {
  HWY_INLINE To operator()(From a) const { return static_cast<To>(a); }
};

template <class Real>
Map find(Op op) {
  switch (op) {
    case Op::neg:
      return unary<Int, Int, Neg>;
    case Op::abs:
      return unary<Int, Int, Abs>;
    case Op::add:
      return binary<Int, Add>;
    case Op::sub:
      return binary<Int, Sub>;
    case Op::mul:
      return binary<Int, Mul>;
    case Op::minimum:
      return binary<Int, Minimum>;
    case Op::maximum:
      return binary<Int, Maximum>;
    case Op::eq:
      return binary<Real, Eq>;
    case Op::ne:
      return binary<Real, Ne>;
    case Op::lt:
      return binary<Real, Lt>;
    case Op::le:
      return binary<Real, Le>;
    case Op::gt:
      return binary<Real, Gt>;
    case Op::ge:
      return binary<Real, Ge>;
    case Op::where:
      return choose<Real>;
    default:
      return nullptr;  // the type rules make reals of integers everywhere else
  }
}

Map FindInteger(Op op, bool wide) {
  return wide ? find<double>(op) : find<float>(op);
}
Map FindIntegerTruth(bool wide) {
  return wide ? unary<double, Int, Truth> : unary<float, Int, Truth>;
}

Map FindConversion(Lane from, Lane to) {
  if (from == Lane::i64) {
    if (to == Lane::f32) return unary<float, Int, ToReal<float>>;
    return to == Lane::f64 ? unary<double, Int, ToReal<double>> : unary<Int, Int, Same<Int, Int>>;
  }
  if (from == Lane::f32) {
    return to == Lane::i64 ? unary<Int, float, ToInteger<float>>
                           : unary<float, float, Same<float, float>>;
  }
  return to == Lane::i64 ? unary<Int, double, ToInteger<double>>
                         : unary<double, double, Same<double, double>>;
}

template <class T>
void copy(const Loops& loops, const Arg& to, const Arg& from) {
  const Int so = to.step[2], si = from.step[2];
  for (Int i = 0; i < loops.n[0]; ++i) {
    for (Int j = 0; j < loops.n[1]; ++j) {
      T* out = const_cast<T*>(at<T>(to, i, j));
      const T* in = at<T>(from, i, j);
      if (so == 1 && si == 1) {
        for (Int k = 0; k < loops.n[2]; ++k) out[k] = in[k];
      } else if (so == 1 && si == 0) {
        const T value = *in;
        for (Int k = 0; k < loops.n[2]; ++k) out[k] = value;
      } else {
        for (Int k = 0; k < loops.n[2]; ++k) out[k * so] = in[k * si];
      }
    }
  }
}

void Copy(std::size_t bytes, const Loops& loops, const Arg& to, const Arg& from) {
  bytes == 4 ? copy<std::uint32_t>(loops, to, from) : copy<std::uint64_t>(loops, to, from);
}

}  // namespace
}  // namespace coda::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC pop_options
#endif

#if HWY_ONCE
namespace coda::cpu {
namespace {
HWY_EXPORT(FindInteger);
HWY_EXPORT(FindIntegerTruth);
HWY_EXPORT(FindConversion);
HWY_EXPORT(Copy);
}  // namespace

Map integer_map(Op op, Lane real) {
  return HWY_DYNAMIC_DISPATCH(FindInteger)(op, real == Lane::f64);
}

Map integer_truth(Lane real) {
  return HWY_DYNAMIC_DISPATCH(FindIntegerTruth)(real == Lane::f64);
}

Map convert_loops(Lane from, Lane to) {
  return HWY_DYNAMIC_DISPATCH(FindConversion)(from, to);
}

void copy_loops(std::size_t bytes, const Loops& loops, const Arg& to, const Arg& from) {
  HWY_DYNAMIC_DISPATCH(Copy)(bytes, loops, to, from);
}

}  // namespace coda::cpu
#endif  // HWY_ONCE
