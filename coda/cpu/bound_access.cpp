// coda/cpu/bound_access.cpp: strides put into terms and loops.
#include "coda/cpu/bound_access.h"

#include <algorithm>
#include <limits>

#include "coda/cpu/plain_transfer.h"

namespace coda::cpu {
namespace {

constexpr std::int64_t kLine = 64;  // bytes of a line of the caches

}  // namespace

BoundAccess::BoundAccess(const Access& access, const BoundTensor* tensor, std::int64_t rows) {
  const std::vector<std::int64_t>& strides = tensor != nullptr ? tensor->strides : access.strides;
  const auto stride_of = [&](int factor, std::int64_t scale) {
    return factor < 0 ? 0 : strides[static_cast<std::size_t>(factor)] * scale;
  };
  if (tensor != nullptr) {
    data = tensor->data;
    alone = tensor->alone;
    bytes = static_cast<std::int64_t>(size_of(tensor->dtype));
    aligned = is_aligned(data, tensor->dtype);
  }
  for (const InputView::Offset& offset : access.offsets) {
    base_ += stride_of(offset.factor, 1) * offset.count;
  }
  for (const Access::Term& term : access.rows) {
    rows_.push_back({term.place, stride_of(term.factor, term.scale)});
  }
  for (const Access::Term& term : access.columns) {
    columns_.push_back({term.place, stride_of(term.factor, term.scale)});
  }
  for (const Access::Term& term : access.along) {
    along_.push_back({term.place, stride_of(term.factor, term.scale)});
  }
  along_extent_ = access.along_extent;
  elements = access.elements();
  std::int64_t dense = elements;
  packed = true;
  for (const Access::Axis& axis : access.axes) {
    if (axis.extent == 1) continue;
    dense = axis.extent == 0 ? 0 : dense / axis.extent;
    const Axis loop{axis.extent, stride_of(axis.factor, axis.scale), dense};
    packed = packed && loop.stride == loop.dense;
    if (!axes.empty() && axes.back().stride == loop.stride * loop.n) {
      axes.back() = {axes.back().n * loop.n, loop.stride, loop.dense};
    } else {
      axes.push_back(loop);
    }
  }
  find_run(rows);
}

void BoundAccess::find_run(std::int64_t rows) {
  std::vector<Term> terms = rows_;
  std::erase_if(terms, [](const Term& term) { return term.place.extent == 1; });
  std::ranges::sort(terms, {}, [](const Term& term) { return term.place.inner; });
  std::int64_t inside = 1;
  all_rows_ = true;
  for (const Term& term : terms) {
    all_rows_ = all_rows_ && term.place.inner == inside && term.place.block == 1;
    inside *= term.place.extent;
  }
  all_rows_ = all_rows_ && inside == rows;

  constexpr std::int64_t kAll = std::numeric_limits<std::int64_t>::max();
  std::erase_if(terms, [](const Term& term) { return term.stride == 0; });
  if (terms.empty()) {
    run_ = kAll;
    return;
  }
  if (std::ranges::any_of(terms, [](const Term& term) { return term.place.block > 1; })) {
    run_ = 0;
    return;
  }
  if (terms[0].place.inner > 1) {
    run_ = terms[0].place.inner;
    return;
  }
  row_stride = terms[0].stride;
  run_ = terms[0].place.extent;
  std::size_t next = 1;
  while (next < terms.size() && terms[next].place.inner == run_ &&
         terms[next].stride == row_stride * run_) {
    run_ *= terms[next].place.extent;
    ++next;
  }
  if (next == terms.size() && run_ >= rows) run_ = kAll;
}

void BoundAccess::prefetch(std::int64_t row, std::int64_t rows, std::int64_t column) const {
  if (!packed || row_stride == 0 || elements * bytes < kLine || run(row) < rows) return;
  const std::byte* at = data + (column + at_row(row)) * bytes;
  for (std::int64_t r = 0; r < rows; ++r, at += row_stride * bytes) {
    for (std::int64_t b = 0; b < elements * bytes; b += kLine) __builtin_prefetch(at + b);
  }
}

std::int64_t BoundAccess::covered(const std::vector<Term>& terms, std::int64_t position) {
  std::int64_t total = 0;
  for (const Term& term : terms) {
    total += term.place.at(position) * term.place.block * term.place.inner;
  }
  return total;
}

}  // namespace coda::cpu
