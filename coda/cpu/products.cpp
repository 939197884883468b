// coda/cpu/products.cpp: operands as matrices, packed or not.
#include "coda/cpu/products.h"

#include <algorithm>
#include <tuple>

#include "coda/core/error.h"
#include "coda/cpu/plain_transfer.h"
#include "coda/cpu/vector_ops.h"

namespace coda::cpu {
namespace {

// Below so many rows a weight is not worth packing.
constexpr std::int64_t kPackRows = 128;
// From so many columns on, a left operand that runs along memory the wrong way is worth turning.
constexpr std::int64_t kTurnColumns = 768;

std::size_t round_up(std::size_t n) {
  return (n + 63) / 64 * 64;
}

MatrixView view_operand(const Program& program, const Operand& operand, const Dim& contracted,
                        const Sizes& sizes) {
  const std::optional<InputView> view = view_input(program, operand.value, sizes);
  if (!view) {
    throw Unsupported("an operand of a product, " + describe(program, operand.value) +
                      ", is a range that cuts a merged dimension");
  }
  MatrixView matrix;
  matrix.view = *view;
  matrix.stored = program.type(operand.input).dtype;
  const std::vector<Factor> factors = factors_of(program.type(operand.value));
  const auto append = [](std::vector<SubAxis>& to, std::int64_t& extent,
                         const std::vector<SubAxis>& loops) {
    for (const SubAxis& loop : loops) {
      to.push_back(loop);
      extent *= loop.extent;
    }
  };
  for (std::size_t f = 0; f < factors.size(); ++f) {
    if (std::ranges::find(contracted.factors, factors[f]) == contracted.factors.end()) {
      append(matrix.outer, matrix.outer_extent, view->factors[f]);
    }
  }
  for (const Factor& factor : contracted.factors) {
    const auto at = std::ranges::find(factors, factor);
    if (at == factors.end()) throw InternalError("an operand lacks a contracted factor");
    append(matrix.inner, matrix.inner_extent,
           view->factors[static_cast<std::size_t>(at - factors.begin())]);
  }
  return matrix;
}

// A tensor of the parameter's type as its caller most likely binds it.
BoundTensor dense_tensor(const Type& type, const Sizes& sizes) {
  BoundTensor tensor;
  tensor.dtype = type.dtype;
  const std::vector<Factor> factors = factors_of(type);
  tensor.strides.resize(factors.size());
  std::int64_t stride = 1;
  for (std::size_t f = factors.size(); f-- > 0;) {
    tensor.strides[f] = stride;
    stride *= require_extent(factors[f], sizes);
  }
  return tensor;
}

DType product_dtype(const MatrixView& a, const MatrixView& b, Lane real, const TileGemm& gemm) {
  if (real == Lane::f64) return DType::f64;
  const bool small = holds_all(DType::bf16, a.view.dtype) && holds_all(DType::bf16, b.view.dtype);
  return small && gemm.in_library(DType::bf16) ? DType::bf16 : DType::f32;
}

bool as_it_lies(const BoundMatrix& matrix, DType dtype) {
  return matrix.matrix && matrix.view->stored == dtype && matrix.view->view.casts.empty();
}

void merge(std::vector<BoundMatrix::Loop>& loops, BoundMatrix::Loop loop) {
  if (loop.n == 1) return;
  if (!loops.empty() && loops.back().stride == loop.stride * loop.n) {
    loops.back() = {loops.back().n * loop.n, loop.stride};
  } else {
    loops.push_back(loop);
  }
}

}  // namespace

// ---- one operand ----

BoundMatrix::BoundMatrix(const MatrixView& view, const BoundTensor& tensor)
    : view(&view), data(tensor.data) {
  const auto bytes = static_cast<std::int64_t>(size_of(tensor.dtype));
  for (const InputView::Offset& offset : view.view.offsets) {
    data += offset.count * tensor.strides[static_cast<std::size_t>(offset.factor)] * bytes;
  }
  for (const SubAxis& axis : view.outer) {
    merge(outer, {axis.extent, tensor.strides[static_cast<std::size_t>(axis.factor)] * axis.scale});
  }
  for (const SubAxis& axis : view.inner) {
    merge(inner, {axis.extent, tensor.strides[static_cast<std::size_t>(axis.factor)] * axis.scale});
  }
  if (outer.size() > 1 || inner.size() > 1) return;
  outer_step = outer.empty() ? 0 : outer[0].stride;
  inner_step = inner.empty() ? 0 : inner[0].stride;
  // A side of one element steps as suits the other.
  if (inner.empty()) inner_step = 1;
  if (outer.empty())
    outer_step = inner_step == 1 ? std::max<std::int64_t>(view.inner_extent, 1) : 1;
  const bool aligned = is_aligned(data, tensor.dtype);
  matrix = aligned && ((inner_step == 1 && outer_step >= view.inner_extent) ||
                       (outer_step == 1 && inner_step >= view.outer_extent));
}

void BoundMatrix::copy(std::int64_t first, std::int64_t count, DType dtype, std::byte* to,
                       std::int64_t outer_to, std::int64_t inner_to) const {
  const Lane lane = dtype == DType::f64 ? Lane::f64 : Lane::f32;
  const auto in_bytes = static_cast<std::int64_t>(size_of(view->stored));
  const auto out_bytes = static_cast<std::int64_t>(size_of(dtype));
  const bool aligned = is_aligned(data, view->stored);
  const Load load = load_run(view->stored, lane);
  const Put put = store_run(dtype, lane, Store::overwrite);
  constexpr std::int64_t kRun = 512;
  alignas(64) std::byte lanes[kRun * 8];
  // n elements, `step` apart from `at`, to out.
  const auto run = [&](std::int64_t at, std::int64_t step, std::int64_t n, std::byte* out,
                       std::int64_t out_step) {
    for (std::int64_t k = 0; k < n; k += kRun) {
      const std::int64_t part = std::min(kRun, n - k);
      const std::byte* from = data + (at + k * step) * in_bytes;
      if (aligned) {
        load(from, step, part, lanes);
      } else {
        load_unaligned(view->stored, lane, from, step, part, lanes);
      }
      for (const DType cast : view->view.casts) {
        const Arg args[2] = {{lanes, {0, 0, 1}}, {lanes, {0, 0, 1}}};
        round_loops(cast, lane)(Loops{{1, 1, part}}, args);
      }
      put(lanes, 1, part, out + k * out_step * out_bytes, out_step);
    }
  };
  // Where the outer side runs along memory, in strips of it, so that a cache line is read once.
  if (outer.size() == 1 && outer[0].stride == 1 && !inner.empty() && inner.back().stride != 1) {
    constexpr std::int64_t kStrip = 64;
    for (std::int64_t i = 0; i < count; i += kStrip) {
      for (std::int64_t k = 0; k < view->inner_extent; ++k) {
        std::int64_t at = first + i, rest = k;
        for (std::size_t l = inner.size(); l-- > 0;) {
          at += rest % inner[l].n * inner[l].stride;
          rest /= inner[l].n;
        }
        run(at, 1, std::min(kStrip, count - i), to + (i * outer_to + k * inner_to) * out_bytes,
            outer_to);
      }
    }
    return;
  }
  const std::int64_t last = inner.empty() ? 1 : inner.back().n;
  const std::int64_t step = inner.empty() ? 0 : inner.back().stride;
  if (last == 0) return;
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t row = 0, rest = first + i;
    for (std::size_t l = outer.size(); l-- > 0;) {
      row += rest % outer[l].n * outer[l].stride;
      rest /= outer[l].n;
    }
    for (std::int64_t k = 0; k < view->inner_extent; k += last) {
      std::int64_t at = row, above = k / last;
      for (std::size_t l = inner.size(); l-- > 1;) {
        at += above % inner[l - 1].n * inner[l - 1].stride;
        above /= inner[l - 1].n;
      }
      run(at, step, last, to + (i * outer_to + k * inner_to) * out_bytes, inner_to);
    }
  }
}

// ---- the products of a space ----

Products::Products(const Frame& frame, const Cut& rows, const Cut& columns, Lane real,
                   const TileGemm& gemm, std::size_t offset, std::vector<std::string>& notes)
    : gemm_(&gemm), rows_(rows), columns_(columns), shared_end_(round_up(offset)) {
  for (const Accumulator& accumulator : frame.space().accumulators) {
    accumulators_.emplace_back();
    for (const Accumulator::Term& term : accumulator.terms) add_term(frame, term, real, notes);
  }
  worker_bytes_ = left_panel_ + right_panel_ + library_scratch_;
}

// Has the library a fast kernel on packed weights for every tile, tails included?
bool Products::packs_well(std::int64_t k, DType dtype) const {
  const std::int64_t row_tail = rows_.tail(), column_tail = columns_.tail();
  for (const std::int64_t n : {columns_.size, column_tail}) {
    if (gemm_->packed_bytes({rows_.size, n, k, dtype}) == 0) return false;
    for (const std::int64_t m : {rows_.size, row_tail}) {
      if (!gemm_->is_fast({m, n, k, dtype}, {nullptr, k, 1, false}, {nullptr, 0, 0, true})) {
        return false;
      }
    }
  }
  return true;
}

void Products::add_term(const Frame& frame, const Accumulator::Term& source, Lane real,
                        std::vector<std::string>& notes) {
  const Program& program = frame.program();
  const Dim& contracted = program.nodes()[static_cast<std::size_t>(source.node)].attr.axis;
  Term term;
  term.left.matrix = view_operand(program, source.left, contracted, frame.sizes());
  term.right.matrix = view_operand(program, source.right, contracted, frame.sizes());
  term.k = term.left.matrix.inner_extent;
  term.dtype = product_dtype(term.left.matrix, term.right.matrix, real, *gemm_);
  const bool empty = rows_.extent == 0 || columns_.extent == 0 || term.k == 0;
  const auto bytes = size_of(term.dtype);
  const BoundTensor left_tensor = dense_tensor(program.type(source.left.input), frame.sizes());
  const BoundTensor right_tensor = dense_tensor(program.type(source.right.input), frame.sizes());
  const BoundMatrix left(term.left.matrix, left_tensor), right(term.right.matrix, right_tensor);
  const bool library = gemm_->in_library(term.dtype);
  const bool turned = left.inner_step != 1;
  const bool left_direct =
      as_it_lies(left, term.dtype) && (!turned || !library || columns_.extent < kTurnColumns);
  bool pack_right = !empty && library && rows_.extent >= kPackRows && !(left_direct && turned);
  if (pack_right) pack_right = packs_well(term.k, term.dtype);

  // A region that another term packs already, or a fresh one.
  const auto region = [&](Value value, bool is_left, std::size_t panel, std::int64_t panels,
                          bool& leads) {
    for (const auto& [id, axis, side, dtype, known] : regions_) {
      if (id == value.id && axis == contracted.text() && side == is_left && dtype == term.dtype) {
        leads = false;
        return known;
      }
    }
    const Region fresh{shared_end_, round_up(panel)};
    shared_end_ += fresh.panel * static_cast<std::size_t>(panels);
    regions_.emplace_back(value.id, contracted.text(), is_left, term.dtype, fresh);
    return fresh;
  };
  const auto k = static_cast<std::size_t>(term.k);
  if (!empty && !left_direct) {
    term.left.region =
        region(source.left.value, true, static_cast<std::size_t>(rows_.size) * k * bytes,
               rows_.tiles(), term.leads_left);
    notes.push_back("packs " + describe(program, source.left.value) + " for its rows");
  }
  const TileShape shape{rows_.size, columns_.size, term.k, term.dtype};
  if (pack_right) {
    const TileShape tail{rows_.size, columns_.tail(), term.k, term.dtype};
    const std::size_t panel = std::max(gemm_->packed_bytes(shape), gemm_->packed_bytes(tail));
    term.right.region =
        region(source.right.value, false, panel, columns_.tiles(), term.leads_right);
  }
  left_panel_ = std::max(left_panel_, round_up(static_cast<std::size_t>(rows_.size) * k * bytes));
  right_panel_ =
      std::max(right_panel_, round_up(static_cast<std::size_t>(columns_.size) * k * bytes));
  if (!empty && library) {
    const MatrixRef a = left_direct ? MatrixRef{nullptr, left.outer_step, left.inner_step, false}
                                    : MatrixRef{nullptr, term.k, 1, false};
    const bool right_direct = as_it_lies(right, term.dtype);
    const MatrixRef b = pack_right ? MatrixRef{nullptr, 0, 0, true}
                        : right_direct
                            ? MatrixRef{nullptr, right.inner_step, right.outer_step, false}
                            : MatrixRef{nullptr, columns_.size, 1, false};
    library_scratch_ = std::max(library_scratch_, round_up(gemm_->scratch_bytes(shape, a, b)));
  }
  accumulators_.back().push_back(std::move(term));
}

// ---- one run ----

Products::Bound::Bound(const Products& products, std::span<const BoundTensor> tensors,
                       std::byte* shared)
    : products_(&products) {
  for (std::size_t a = 0; a < products.accumulators_.size(); ++a) {
    accumulators_.emplace_back();
    for (const Products::Term& term : products.accumulators_[a]) {
      const auto side = [&](const Products::Side& from) {
        const auto tensor = static_cast<std::size_t>(from.matrix.view.parameter);
        Side bound{BoundMatrix(from.matrix, tensors[tensor]), nullptr, false};
        bound.direct = as_it_lies(bound.matrix, term.dtype);
        if (from.region) bound.packed = shared + from.region->offset;
        return bound;
      };
      Term bound{&term, side(term.left), side(term.right)};
      // What lies well at this run needs no packing; rows of a packed product run along memory.
      const bool library = products.gemm_->in_library(term.dtype);
      const bool rows_along = bound.left.matrix.inner_step == 1;
      if (bound.left.direct && rows_along) bound.left.packed = nullptr;
      if (bound.left.direct && !rows_along) {
        bound.left.direct = !bound.left.packed && !(library && bound.right.packed);
      }
      if (bound.left.packed) bound.left.direct = false;
      if (bound.right.packed) bound.right.direct = false;
      if (!library) {
        bound.right.direct = bound.right.direct && bound.right.matrix.outer_step == 1;
      }
      const std::size_t t = accumulators_.back().size();
      if (bound.left.packed && term.leads_left) {
        for (std::int64_t p = 0; p < products.rows_.tiles(); ++p) tasks_.push_back({a, t, true, p});
      }
      if (bound.right.packed && term.leads_right) {
        for (std::int64_t p = 0; p < products.columns_.tiles(); ++p) {
          tasks_.push_back({a, t, false, p});
        }
      }
      accumulators_.back().push_back(std::move(bound));
    }
  }
}

TileShape Products::Bound::shape(const Products::Term& term, std::int64_t row_tile,
                                 std::int64_t column_tile) const {
  return {products_->rows_.count(row_tile), products_->columns_.count(column_tile), term.k,
          term.dtype};
}

void Products::Bound::pack(std::int64_t task, std::byte* scratch) const {
  const Task& todo = tasks_[static_cast<std::size_t>(task)];
  const Term& term = accumulators_[todo.accumulator][todo.term];
  const DType dtype = term.term->dtype;
  const std::int64_t k = term.term->k;
  if (todo.left) {
    std::byte* to =
        term.left.packed + static_cast<std::size_t>(todo.panel) * term.term->left.region->panel;
    const std::int64_t first = products_->rows_.first(todo.panel);
    const std::int64_t count = products_->rows_.count(todo.panel);
    const BoundMatrix& matrix = term.left.matrix;
    if (as_it_lies(matrix, dtype) && products_->gemm_->in_library(dtype)) {
      const MatrixRef from{
          matrix.data + first * matrix.outer_step * static_cast<std::int64_t>(size_of(dtype)),
          matrix.outer_step, matrix.inner_step, false};
      return products_->gemm_->turn(count, k, dtype, from, to);
    }
    return matrix.copy(first, count, dtype, to, k, 1);
  }
  std::byte* to =
      term.right.packed + static_cast<std::size_t>(todo.panel) * term.term->right.region->panel;
  const std::int64_t first = products_->columns_.first(todo.panel);
  const std::int64_t count = products_->columns_.count(todo.panel);
  const BoundMatrix& matrix = term.right.matrix;
  MatrixRef from;
  if (as_it_lies(matrix, dtype)) {
    from = {matrix.data + first * matrix.outer_step * static_cast<std::int64_t>(size_of(dtype)),
            matrix.inner_step, matrix.outer_step, false};
  } else {
    std::byte* panel = scratch + products_->left_panel_;
    matrix.copy(first, count, dtype, panel, 1, count);
    from = {panel, count, 1, false};
  }
  products_->gemm_->pack({products_->rows_.size, count, k, dtype}, from, to);
}

MatrixRef Products::Bound::left(const Term& term, std::int64_t tile, std::byte* scratch) const {
  const DType dtype = term.term->dtype;
  const std::int64_t first = products_->rows_.first(tile), k = term.term->k;
  const BoundMatrix& matrix = term.left.matrix;
  if (term.left.packed) {
    return {term.left.packed + static_cast<std::size_t>(tile) * term.term->left.region->panel, k, 1,
            false};
  }
  if (term.left.direct) {
    return {matrix.data + first * matrix.outer_step * static_cast<std::int64_t>(size_of(dtype)),
            matrix.outer_step, matrix.inner_step, false};
  }
  matrix.copy(first, products_->rows_.count(tile), dtype, scratch, k, 1);
  return {scratch, k, 1, false};
}

MatrixRef Products::Bound::right(const Term& term, std::int64_t tile, std::byte* scratch) const {
  const DType dtype = term.term->dtype;
  const std::int64_t first = products_->columns_.first(tile);
  const BoundMatrix& matrix = term.right.matrix;
  if (term.right.packed) {
    return {term.right.packed + static_cast<std::size_t>(tile) * term.term->right.region->panel, 0,
            0, true};
  }
  if (term.right.direct) {
    return {matrix.data + first * matrix.outer_step * static_cast<std::int64_t>(size_of(dtype)),
            matrix.inner_step, matrix.outer_step, false};
  }
  std::byte* panel = scratch + products_->left_panel_;
  const std::int64_t count = products_->columns_.count(tile);
  matrix.copy(first, count, dtype, panel, 1, count);
  return {panel, count, 1, false};
}

void Products::Bound::multiply(std::size_t index, std::int64_t row_tile, std::int64_t column_tile,
                               std::byte* c, std::byte* scratch) const {
  Onto onto = Onto::fresh;
  const std::span<std::byte> library(scratch + products_->left_panel_ + products_->right_panel_,
                                     products_->library_scratch_);
  for (const Term& term : accumulators_[index]) {
    const TileShape tile = shape(*term.term, row_tile, column_tile);
    if (tile.k == 0) {
      products_->gemm_->multiply(tile, {}, {}, c, onto, library);
    } else {
      const MatrixRef a = left(term, row_tile, scratch), b = right(term, column_tile, scratch);
      products_->gemm_->multiply(tile, a, b, c, onto, library);
    }
    onto = Onto::add;
  }
}

}  // namespace coda::cpu
