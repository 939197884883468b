// coda/cpu/products.h: the products of a space: which operand is read where it lies, which is
// packed, and where.
//
// A right operand (a weight) is put into the library's order once a run, panel by panel, before the
// tiles; where there are few rows it is read as it lies. A left operand is read as it lies if its
// rows or its columns run along memory. All else (casts, merged strides, broadcasts, mixed dtypes)
// is copied to dense panels: for all tiles at once where dense tensors would need it, else for each
// tile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "coda/check/input_view.h"
#include "coda/cpu/bound_access.h"
#include "coda/cpu/frame.h"
#include "coda/cpu/gemm.h"

namespace coda::cpu {

// One side of a product as a matrix [outer, inner]: inner is contracted.
struct MatrixView {
  InputView view;
  DType stored = DType::f32;
  std::vector<SubAxis> outer, inner;
  std::int64_t outer_extent = 1, inner_extent = 1;
};

// The same for the tensors of one run.
struct BoundMatrix {
  struct Loop {
    std::int64_t n = 1, stride = 0;
  };
  BoundMatrix(const MatrixView& view, const BoundTensor& tensor);

  const MatrixView* view;
  const std::byte* data = nullptr;
  std::vector<Loop> outer, inner;  // neighbours merged
  bool matrix = false;             // one step a side, one of them 1, no overlap
  std::int64_t outer_step = 0, inner_step = 0;

  // Elements [first, first + count) × all inner, as `dtype`, to to[i * outer_to + k * inner_to].
  void copy(std::int64_t first, std::int64_t count, DType dtype, std::byte* to,
            std::int64_t outer_to, std::int64_t inner_to) const;
};

class Products {
 public:
  // `gemm` outlives this. Shared scratch begins at `offset`; it is of the whole run.
  Products(const Frame& frame, const Cut& rows, const Cut& columns, Lane real, const TileGemm& gemm,
           std::size_t offset, std::vector<std::string>& notes);

  std::size_t shared_end() const { return shared_end_; }
  std::size_t worker_bytes() const { return worker_bytes_; }

  class Bound;

 private:
  friend class Bound;
  // Packed panels in shared scratch.
  struct Region {
    std::size_t offset = 0;
    std::size_t panel = 0;  // bytes from one to the next
  };
  struct Side {
    MatrixView matrix;
    std::optional<Region> region;
  };
  struct Term {
    Side left, right;
    DType dtype = DType::f32;
    std::int64_t k = 0;
    bool leads_left = true, leads_right = true;  // packs its region; false: another term does
  };
  bool packs_well(std::int64_t k, DType dtype) const;
  void add_term(const Frame& frame, const Accumulator::Term& term, Lane real,
                std::vector<std::string>& notes);

  const TileGemm* gemm_;
  Cut rows_, columns_;
  std::vector<std::vector<Term>> accumulators_;
  std::vector<std::tuple<std::int32_t, std::string, bool, DType, Region>>
      regions_;  // value, axis, left
  std::size_t shared_end_ = 0;
  std::size_t left_panel_ = 0, right_panel_ = 0, library_scratch_ = 0, worker_bytes_ = 0;
};

// The products of a space in one run.
class Products::Bound {
 public:
  Bound(const Products& products, std::span<const BoundTensor> tensors, std::byte* shared);

  // Work to do before any tile.
  std::int64_t pack_tasks() const { return static_cast<std::int64_t>(tasks_.size()); }
  void pack(std::int64_t task, std::byte* scratch) const;
  // Accumulator `index` of a tile, dense.
  void multiply(std::size_t index, std::int64_t row_tile, std::int64_t column_tile, std::byte* c,
                std::byte* scratch) const;

 private:
  struct Side {
    BoundMatrix matrix;
    std::byte* packed = nullptr;  // null: as it lies, or a panel for each tile
    bool direct = false;
  };
  struct Term {
    const Products::Term* term;
    Side left, right;
  };
  struct Task {
    std::size_t accumulator, term;
    bool left;
    std::int64_t panel;
  };
  MatrixRef left(const Term& term, std::int64_t tile, std::byte* scratch) const;
  MatrixRef right(const Term& term, std::int64_t tile, std::byte* scratch) const;
  TileShape shape(const Products::Term& term, std::int64_t row_tile,
                  std::int64_t column_tile) const;

  const Products* products_;
  std::vector<std::vector<Term>> accumulators_;
  std::vector<Task> tasks_;
};

}  // namespace coda::cpu
