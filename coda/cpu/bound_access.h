// coda/cpu/bound_access.h: an Access with the strides of the tensors of one run.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "coda/core/tensor.h"
#include "coda/cpu/tile_program.h"

namespace coda::cpu {

// A tensor of a run: its memory, and the stride in elements of each factor of its type.
struct BoundTensor {
  std::byte* data = nullptr;
  DType dtype = DType::f32;
  std::vector<std::int64_t> strides;
  bool alone = false;  // a result that shares no memory with any parameter
};

// Offsets are in elements.
class BoundAccess {
 public:
  BoundAccess() = default;
  // `rows`: of the space.
  BoundAccess(const Access& access, const BoundTensor* tensor, std::int64_t rows);

  struct Term {
    Place place;
    std::int64_t stride = 0;
  };
  struct Axis {
    std::int64_t n = 1, stride = 0, dense = 0;  // dense: its stride in the buffer
  };

  std::byte* data = nullptr;
  std::int64_t bytes = 0;  // of an element
  bool aligned = true;     // to the element's size
  bool alone = false;      // BoundTensor::alone
  bool packed = false;     // the axes lie in the tensor as in the buffer
  std::int64_t elements = 1;
  std::vector<Axis> axes;  // neighbours merged; empty: one element

  std::int64_t at_column(std::int64_t column) const { return base_ + sum(columns_, column); }
  std::int64_t at_row(std::int64_t row) const { return sum(rows_, row); }
  // The offset of a gather's id, a place in a joined piece or in a block.
  std::int64_t along(std::int64_t index) const { return sum(along_, index); }
  std::int64_t table_rows() const { return along_extent_; }
  // From `row`, at_row goes on by row_stride for so many rows (itself included).
  std::int64_t run(std::int64_t row) const { return run_ == 0 ? 1 : run_ - row % run_; }
  std::int64_t row_stride = 0;

  // Asks for the lines of rows [row, row + rows) of the tile at `column` (at_column), where they
  // are dense runs.
  void prefetch(std::int64_t row, std::int64_t rows, std::int64_t column) const;

  // Of a result: does the tile at `column`, the row, store it? A result without some factor of the
  // space is stored where that factor's coordinate is 0.
  bool owns_column(std::int64_t column) const { return column == covered(columns_, column); }
  bool owns_row(std::int64_t row) const { return all_rows_ || row == covered(rows_, row); }
  bool all_rows() const { return all_rows_; }

 private:
  static std::int64_t sum(const std::vector<Term>& terms, std::int64_t position) {
    std::int64_t total = 0;
    for (const Term& term : terms) total += term.place.at(position) * term.stride;
    return total;
  }
  static std::int64_t covered(const std::vector<Term>& terms, std::int64_t position);
  void find_run(std::int64_t rows);

  std::vector<Term> rows_, columns_, along_;
  std::int64_t along_extent_ = 1;
  std::int64_t base_ = 0;
  std::int64_t run_ = 1;  // rows from one break of the stride to the next; 0: every row
  bool all_rows_ = false;
};

}  // namespace coda::cpu
