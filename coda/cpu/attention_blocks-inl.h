// coda/cpu/attention_blocks-inl.h: small products, and rows in and out, for one SIMD target.
//
// Included once for each target by foreach_target.h, so it has the toggling guard of Highway.
#if defined(CODA_CPU_ATTENTION_BLOCKS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef CODA_CPU_ATTENTION_BLOCKS_INL_H_
#undef CODA_CPU_ATTENTION_BLOCKS_INL_H_
#else
#define CODA_CPU_ATTENTION_BLOCKS_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "coda/core/dtype.h"
#include "coda/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coda::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<float, 16>;
using V = hn::Vec<D>;
constexpr std::int64_t kLanes = static_cast<std::int64_t>(hn::MaxLanes(D()));

// to[r] = Σ_i a[r][i] · b[r][i], term after term as Gemm does: a row of b that is a row of Gemm's
// right operand gives the same bits. Rows are side by side because one alone waits for its sums.
template <int kRows>
HWY_INLINE void DotRows(std::int64_t n, const float* a, const float* b, std::int64_t stride,
                        float* to) {
  const hn::CappedTag<float, 1> d1;
  hn::Vec<decltype(d1)> sum[kRows];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) sum[r] = hn::Zero(d1);
  for (std::int64_t i = 0; i < n; ++i) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      sum[r] =
          hn::MulAdd(hn::LoadU(d1, a + r * stride + i), hn::LoadU(d1, b + r * stride + i), sum[r]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) to[r] = hn::GetLane(sum[r]);
}

// from[i * stride] for i < n, as f32.
HWY_INLINE void LoadRow(DType dtype, const void* from, std::int64_t stride, std::int64_t n,
                        float* to) {
  std::int64_t i = 0;
  if (stride == 1 && dtype == DType::f32) {
    std::memcpy(to, from, static_cast<std::size_t>(n) * sizeof(float));
    return;
  }
  if (stride == 1 && dtype == DType::bf16) {
    const D d;
    const hn::Rebind<std::uint32_t, D> d32;
    const hn::Rebind<std::uint16_t, D> d16;
    const auto* bits = static_cast<const std::uint16_t*>(from);
    for (; i + kLanes <= n; i += kLanes) {
      const auto wide = hn::ShiftLeft<16>(hn::PromoteTo(d32, hn::LoadU(d16, bits + i)));
      hn::StoreU(hn::BitCast(d, wide), d, to + i);
    }
  }
  for (; i < n; ++i) to[i] = static_cast<float>(load(dtype, from, i * stride));
}

HWY_INLINE void StoreRow(DType dtype, void* to, std::int64_t stride, std::int64_t n,
                         const float* from) {
  std::int64_t i = 0;
  if (stride == 1 && dtype == DType::f32) {
    std::memcpy(to, from, static_cast<std::size_t>(n) * sizeof(float));
    return;
  }
  if (stride == 1 && dtype == DType::bf16) {
    const D d;
    const hn::Rebind<std::uint32_t, D> d32;
    const hn::Rebind<std::int32_t, D> di;
    const hn::Rebind<std::uint16_t, D> d16;
    auto* bits = static_cast<std::uint16_t*>(to);
    for (; i + kLanes <= n; i += kLanes) {
      const V v = hn::LoadU(d, from + i);
      const auto x = hn::BitCast(d32, v);
      const auto odd = hn::And(hn::ShiftRight<16>(x), hn::Set(d32, 1));
      const auto even = hn::Add(x, hn::Add(odd, hn::Set(d32, 0x7fff)));
      const auto quiet = hn::Or(x, hn::Set(d32, 0x00400000));
      const auto high =
          hn::ShiftRight<16>(hn::IfThenElse(hn::RebindMask(d32, hn::IsNaN(v)), quiet, even));
      hn::StoreU(hn::DemoteTo(d16, hn::BitCast(di, high)), d16, bits + i);
    }
  }
  for (; i < n; ++i) store(dtype, to, i * stride, from[i]);
}

// to[c][r] = rows[r][c], r < count, c < width; rows is readable up to its padded width.
HWY_INLINE void Transpose(const float* rows, std::int64_t stride, std::int64_t count,
                          std::int64_t width, float* to, std::int64_t to_stride) {
  std::int64_t r = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::Full128<float> d4;
  const hn::Full128<double> d2;
  for (; r + 4 <= count; r += 4) {
    for (std::int64_t c = 0; c < width; c += 4) {
      const float* at = rows + r * stride + c;
      const auto r0 = hn::LoadU(d4, at), r1 = hn::LoadU(d4, at + stride);
      const auto r2 = hn::LoadU(d4, at + 2 * stride), r3 = hn::LoadU(d4, at + 3 * stride);
      const auto low01 = hn::BitCast(d2, hn::InterleaveLower(d4, r0, r1));
      const auto low23 = hn::BitCast(d2, hn::InterleaveLower(d4, r2, r3));
      const auto high01 = hn::BitCast(d2, hn::InterleaveUpper(d4, r0, r1));
      const auto high23 = hn::BitCast(d2, hn::InterleaveUpper(d4, r2, r3));
      const hn::Vec<hn::Full128<double>> columns[4] = {
          hn::InterleaveLower(d2, low01, low23), hn::InterleaveUpper(d2, low01, low23),
          hn::InterleaveLower(d2, high01, high23), hn::InterleaveUpper(d2, high01, high23)};
      for (std::int64_t k = 0; k < 4 && c + k < width; ++k) {
        hn::StoreU(hn::BitCast(d4, columns[k]), d4, to + (c + k) * to_stride + r);
      }
    }
  }
#endif
  for (; r < count; ++r) {
    for (std::int64_t c = 0; c < width; ++c) to[c * to_stride + r] = rows[r * stride + c];
  }
}

// The left operand of a small product: element (m, k) at data[m * row + k * depth].
struct Left {
  const float* data;
  std::int64_t row, depth;
};

enum class Into : std::uint8_t { overwrite, accumulate };

// NOTE: without the pragmas g++ keeps `sum` in memory, at a third of the speed.
template <int kRows, int kVectors>
HWY_INLINE void Micro(std::int64_t depth, Left a, const float* HWY_RESTRICT b, std::int64_t ldb,
                      float* HWY_RESTRICT c, std::int64_t ldc, Into into) {
  const D d;
  V sum[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      sum[r][v] = into == Into::accumulate ? hn::Load(d, c + r * ldc + v * kLanes) : hn::Zero(d);
    }
  }
  for (std::int64_t k = 0; k < depth; ++k) {
    V right[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) right[v] = hn::Load(d, b + k * ldb + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const V left = hn::Set(d, a.data[r * a.row + k * a.depth]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::MulAdd(left, right[v], sum[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) hn::Store(sum[r][v], d, c + r * ldc + v * kLanes);
  }
}

template <int kVectors>
HWY_INLINE void Panel(std::int64_t rows, std::int64_t depth, Left a, const float* b,
                      std::int64_t ldb, float* c, std::int64_t ldc, Into into) {
  const auto step = [&](std::int64_t by) {
    a.data += by * a.row;
    c += by * ldc;
    return by;
  };
  for (; rows >= 6; rows -= step(6)) Micro<6, kVectors>(depth, a, b, ldb, c, ldc, into);
  for (; rows >= 4; rows -= step(4)) Micro<4, kVectors>(depth, a, b, ldb, c, ldc, into);
  for (; rows >= 1; rows -= step(1)) Micro<1, kVectors>(depth, a, b, ldb, c, ldc, into);
}

// c[rows][columns] (+)= a[rows][depth] b[depth][columns]; columns is a multiple of 16, b and c are
// aligned for whole vectors. Each sum runs over depth in order, whatever the blocking.
HWY_NOINLINE void Gemm(std::int64_t rows, std::int64_t columns, std::int64_t depth, Left a,
                       const float* b, std::int64_t ldb, float* c, std::int64_t ldc, Into into) {
  // As many vectors as leave 6 rows of accumulators in the registers.
  constexpr int kWide = kLanes == 16 ? 4 : 2;
  std::int64_t n = 0;
  for (; n + kWide * kLanes <= columns; n += kWide * kLanes) {
    Panel<kWide>(rows, depth, a, b + n, ldb, c + n, ldc, into);
  }
  for (; n + 2 * kLanes <= columns; n += 2 * kLanes) {
    Panel<2>(rows, depth, a, b + n, ldb, c + n, ldc, into);
  }
  for (; n < columns; n += kLanes) Panel<1>(rows, depth, a, b + n, ldb, c + n, ldc, into);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace
}  // namespace coda::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
