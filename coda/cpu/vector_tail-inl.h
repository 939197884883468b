// coda/cpu/vector_tail-inl.h: the first n lanes of a vector in memory. Included once for each
// target.
//
// NOTE: Highway's own masked loads and stores touch whole, aligned vectors on targets without
// masks.

#if defined(CODA_CPU_VECTOR_TAIL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef CODA_CPU_VECTOR_TAIL_INL_H_
#undef CODA_CPU_VECTOR_TAIL_INL_H_
#else
#define CODA_CPU_VECTOR_TAIL_INL_H_
#endif

#include <algorithm>
#include <cstddef>

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace coda::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Zeros in the other lanes.
template <class D>
HWY_INLINE hn::Vec<D> load_first(D d, const hn::TFromD<D>* from, std::size_t n) {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  return hn::MaskedLoad(hn::FirstN(d, n), d, from);
#else
  HWY_ALIGN hn::TFromD<D> lanes[hn::MaxLanes(D())] = {};
  std::copy_n(from, n, lanes);
  return hn::Load(d, lanes);
#endif
}

template <class D>
HWY_INLINE void store_first(D d, hn::Vec<D> value, hn::TFromD<D>* to, std::size_t n) {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  hn::BlendedStore(value, hn::FirstN(d, n), d, to);
#else
  HWY_ALIGN hn::TFromD<D> lanes[hn::MaxLanes(D())];
  hn::Store(value, d, lanes);
  std::copy_n(lanes, n, to);
#endif
}

}  // namespace coda::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // CODA_CPU_VECTOR_TAIL_INL_H_
