// coda/cpu/plain_gemm.cpp: products as plain loops that the compiler vectorises for each SIMD
// target.
//
// Sums run over k in order, so results do not depend on the tile.
#include "coda/cpu/plain_gemm.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "coda/cpu/plain_gemm.cpp"
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
constexpr Int kRows = 4;
constexpr Int kColumns = 32;

// A block of C in registers; `columns` of kColumns are there.
template <class T>
void block(Int k, const T* a, Int a_row, Int a_column, const T* b, Int b_row, Int b_column, T* c,
           Int c_row, Int rows, Int columns) {
  T sums[kRows][kColumns] = {};
  T line[kColumns] = {};
  for (Int p = 0; p < k; ++p) {
    const T* from = b + p * b_row;
    if (b_column == 1 && columns == kColumns) {
      for (Int j = 0; j < kColumns; ++j) line[j] = from[j];
    } else {
      for (Int j = 0; j < columns; ++j) line[j] = from[j * b_column];
    }
    for (Int i = 0; i < rows; ++i) {
      const T left = a[i * a_row + p * a_column];
      for (Int j = 0; j < kColumns; ++j) sums[i][j] += left * line[j];
    }
  }
  for (Int i = 0; i < rows; ++i) {
    for (Int j = 0; j < columns; ++j) c[i * c_row + j] += sums[i][j];
  }
}

template <class T>
void multiply(const TileShape& shape, const MatrixRef& a, const MatrixRef& b, T* c, Onto onto) {
  if (onto == Onto::fresh) std::fill(c, c + shape.m * shape.n, T{0});
  const auto* left = reinterpret_cast<const T*>(a.data);
  const auto* right = reinterpret_cast<const T*>(b.data);
  for (Int j = 0; j < shape.n; j += kColumns) {
    for (Int i = 0; i < shape.m; i += kRows) {
      block(shape.k, left + i * a.row_step, a.row_step, a.column_step, right + j * b.column_step,
            b.row_step, b.column_step, c + i * shape.n + j, shape.n, std::min(kRows, shape.m - i),
            std::min(kColumns, shape.n - j));
    }
  }
}

void Multiply(const TileShape& shape, const MatrixRef& a, const MatrixRef& b, std::byte* c,
              Onto onto) {
  shape.dtype == DType::f64 ? multiply(shape, a, b, reinterpret_cast<double*>(c), onto)
                            : multiply(shape, a, b, reinterpret_cast<float*>(c), onto);
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
HWY_EXPORT(Multiply);
}

void plain_multiply(const TileShape& shape, const MatrixRef& a, const MatrixRef& b, std::byte* c,
                    Onto onto) {
  HWY_DYNAMIC_DISPATCH(Multiply)(shape, a, b, c, onto);
}

}  // namespace coda::cpu
#endif  // HWY_ONCE
