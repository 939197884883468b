// coda/cpu/lower_layout.cpp: split, join, as and spread: views of memory, or copies where strides
// cannot say it.
#include <algorithm>

#include "coda/core/error.h"
#include "coda/cpu/lowering.h"

namespace coda::cpu {
namespace {

bool has_role(const Frame& frame, Value value, const Dim& axis, Role role) {
  const std::vector<Factor> factors = factors_of(frame.program().type(value));
  const std::vector<Role>& roles = frame.checked().roles(frame.space_index(), value);
  for (std::size_t f = 0; f < factors.size() && f < roles.size(); ++f) {
    if (roles[f] == role && std::ranges::find(axis.factors, factors[f]) != axis.factors.end()) {
      return true;
    }
  }
  return false;
}

std::size_t axis_index(const Held& value, const std::string& factor) {
  for (std::size_t a = 0; a < value.axes.size(); ++a) {
    if (value.axes[a].factor == factor) return a;
  }
  return value.axes.size();
}

void erase_axes(Held& value, const std::vector<std::string>& factors) {
  std::erase_if(value.axes, [&](const HeldAxis& axis) {
    return std::ranges::find(factors, axis.factor) != factors.end();
  });
}

// Axes of `factors` that divide a flat axis.
std::vector<HeldAxis> divided(const HeldAxis& flat, const Dim& dim, const Sizes& sizes) {
  std::vector<HeldAxis> axes;
  std::int64_t stride = flat.stride;
  for (std::size_t f = dim.factors.size(); f-- > 0;) {
    const std::int64_t extent = require_extent(dim.factors[f], sizes);
    axes.insert(axes.begin(), HeldAxis{dim.factors[f].text(), extent, stride});
    stride *= extent;
  }
  return axes;
}

}  // namespace

// A parameter seen through casts, splits and `as`, loaded by its own strides.
Held Lowering::lower_view(const InputView& view, Value value, Where where) {
  const DType stored = program_.params()[static_cast<std::size_t>(view.parameter)].type.dtype;
  Access access;
  access.tensor = view.parameter;
  access.dtype = stored;
  access.offsets = view.offsets;
  const std::vector<FactorPlace> places = frame_.places(value);
  for (std::size_t f = 0; f < places.size(); ++f) {
    const FactorPlace& place = places[f];
    const std::vector<SubAxis>& loops = view.factors[f];
    if (place.kind == FactorPlace::Kind::row) {
      if (loops.size() > 1 && place.place.block > 1)
        throw Unsupported("blocks of merged rows of an input");
      std::int64_t inner = place.place.inner;
      for (std::size_t l = loops.size(); l-- > 0;) {
        const std::int64_t extent = loops.size() == 1 ? place.place.extent : loops[l].extent;
        access.rows.push_back(
            {Place{inner, extent, place.place.block}, loops[l].factor, loops[l].scale});
        inner *= loops[l].extent;
      }
      continue;
    }
    const std::int64_t held = frame_.held(place, width_);
    if (loops.size() == 1) {
      if (place.kind == FactorPlace::Kind::column) {
        access.columns.push_back({place.place, loops[0].factor, loops[0].scale});
      }
      access.axes.push_back({held, loops[0].factor, loops[0].scale});
    } else if (held == place.extent) {
      for (const SubAxis& loop : loops)
        access.axes.push_back({loop.extent, loop.factor, loop.scale});
    } else {
      throw Unsupported("a range of merged columns of an input");
    }
  }
  Held held = make(where, lane_of(stored), axes_of(value));
  Statement statement;
  statement.kind = Statement::Kind::load;
  statement.access = add_access(std::move(access));
  statement.lane = held.lane;
  statement.slots[0] = slot(held, where);
  statement.slot_count = 1;
  emit(where, std::move(statement));
  for (const DType cast : view.casts) {
    held = coerce(held, lane_of(cast));
    emit_round(held, cast);
  }
  return held;
}

Held Lowering::lower_split(Value value, Where context) {
  const Node& node = program_.node(value);
  if (has_role(frame_, node.args[0], node.attr.axis, Role::row) ||
      has_role(frame_, value, node.attr.dims[static_cast<std::size_t>(program_.value(value).slot)],
               Role::row)) {
    const std::optional<InputView> view = view_input(program_, value, sizes_);
    if (!view) throw Unsupported("a split of rows is a range of an input");
    return lower_view(*view, value, where_of(value, context));
  }
  Held held = lower(node.args[0], context);
  const std::vector<std::string> axis = texts(node.attr.axis);
  const HeldAxis flat = flat_axis(held, axis);
  const std::size_t at = axis_index(held, axis[0]);
  std::int64_t start = 0;
  const auto slot = static_cast<std::size_t>(program_.value(value).slot);
  for (std::size_t p = 0; p < slot; ++p) start += require_extent(node.attr.dims[p], sizes_);
  held.offset += start * flat.stride;
  erase_axes(held, axis);
  const std::vector<HeldAxis> pieces = divided(flat, node.attr.dims[slot], sizes_);
  held.axes.insert(held.axes.begin() + static_cast<std::ptrdiff_t>(std::min(at, held.axes.size())),
                   pieces.begin(), pieces.end());
  return held;
}

Held Lowering::lower_join(Value value, Where context) {
  const Node& node = program_.node(value);
  const Where where = where_of(value, context);
  if (has_role(frame_, value, node.attr.axis, Role::row)) return lower_row_join(value, where);
  const Lane lane = lane_of(value);
  Held whole = make(where, lane, axes_of(value));
  const std::vector<std::string> axis = texts(node.attr.axis);
  const HeldAxis flat = flat_axis(whole, axis);
  std::int64_t start = 0;
  for (std::size_t p = 0; p < node.args.size(); ++p) {
    const Dim& dim = node.attr.dims[p];
    Held place = whole;
    place.offset += start * flat.stride;
    erase_axes(place, axis);
    const std::vector<HeldAxis> pieces = divided(flat, dim, sizes_);
    place.axes.insert(place.axes.end(), pieces.begin(), pieces.end());
    start += require_extent(dim, sizes_);
    // In the order of the piece's own type.
    std::vector<HeldAxis> order;
    for (const HeldAxis& own : axes_of(node.args[p])) {
      order.push_back(place.axes[axis_index(place, own.factor)]);
    }
    place.axes = std::move(order);
    // A value that does not exist yet is made in its place.
    const Held piece = lower(node.args[p], context, lane, &place);
    if (piece.mask >= 0) whole.mask = piece.mask;
    if (piece.buffer != place.buffer || piece.offset != place.offset) emit_copy(place, piece);
  }
  return whole;
}

// Each row comes from one of the pieces, which are inputs.
Held Lowering::lower_row_join(Value value, Where where) {
  const Node& node = program_.node(value);
  const std::vector<Factor> factors = factors_of(program_.type(value));
  const std::vector<FactorPlace> places = frame_.places(value);
  const std::vector<std::string> axis = texts(node.attr.axis);
  const Lane lane = lane_of(value);
  Held held = make(where, lane, axes_of(value));
  Statement statement;
  statement.kind = Statement::Kind::load_join;
  statement.lane = lane;
  statement.slots[0] = slot(held, where);
  statement.slot_count = 1;
  statement.joined = Place{1, 1, 1};
  for (std::size_t f = factors.size(); f-- > 0;) {
    if (std::ranges::find(axis, factors[f].text()) == axis.end()) continue;
    if (statement.joined.extent == 1) statement.joined.inner = places[f].place.inner;
    statement.joined.extent *= places[f].extent;
  }
  std::int64_t first = 0;
  for (std::size_t p = 0; p < node.args.size(); ++p) {
    const std::optional<InputView> view = view_input(program_, node.args[p], sizes_);
    if (!view) throw Unsupported("a join of rows joins inputs");
    const DType stored = program_.params()[static_cast<std::size_t>(view->parameter)].type.dtype;
    Statement::Piece piece;
    piece.first = first;
    piece.count = require_extent(node.attr.dims[p], sizes_);
    first += piece.count;
    Access access;
    access.tensor = view->parameter;
    access.dtype = stored;
    access.offsets = view->offsets;
    const std::vector<std::string> own = texts(node.attr.dims[p]);
    const std::vector<Factor> piece_factors = factors_of(program_.type(node.args[p]));
    std::int64_t along = 1;
    for (std::size_t f = piece_factors.size(); f-- > 0;) {
      const std::vector<SubAxis>& loops = view->factors[f];
      const std::string& text = piece_factors[f].text();
      if (std::ranges::find(own, text) != own.end()) {
        for (std::size_t l = loops.size(); l-- > 0;) {
          access.along.push_back(
              {Place{along, loops[l].extent, 1}, loops[l].factor, loops[l].scale});
          along *= loops[l].extent;
        }
        continue;
      }
      const auto at = std::ranges::find(places, text, &FactorPlace::text);
      if (at == places.end()) throw InternalError("a piece has a factor that its join lacks");
      if (at->kind == FactorPlace::Kind::row) {
        std::int64_t inner = at->place.inner;
        for (std::size_t l = loops.size(); l-- > 0;) {
          access.rows.push_back(
              {Place{inner, loops[l].extent, 1}, loops[l].factor, loops[l].scale});
          inner *= loops[l].extent;
        }
        continue;
      }
      const std::int64_t count = frame_.held(*at, width_);
      if (at->kind == FactorPlace::Kind::column && loops.size() == 1) {
        access.columns.push_back({at->place, loops[0].factor, loops[0].scale});
      }
      if (loops.size() != 1 && count != at->extent) {
        throw Unsupported("a range of merged columns of an input");
      }
      for (std::size_t l = loops.size(); l-- > 0;) {
        access.axes.insert(access.axes.begin(), {loops.size() == 1 ? count : loops[l].extent,
                                                 loops[l].factor, loops[l].scale});
      }
    }
    piece.access = add_access(std::move(access));
    for (const DType cast : view->casts) piece.rounds.push_back(round_loops(cast, lane));
    statement.pieces.push_back(std::move(piece));
  }
  emit(where, std::move(statement));
  return held;
}

Held Lowering::lower_as(Value value, Where context) {
  const Node& node = program_.node(value);
  Held held = lower(node.args[0], context);
  const Type& from = program_.type(node.args[0]);
  const Type& to = program_.type(value);
  const std::vector<FactorPlace> places = frame_.places(value);
  std::vector<HeldAxis> axes;
  std::size_t at = 0;
  for (std::size_t d = 0; d < to.dims.size(); ++d) {
    const std::vector<Factor>& factors = to.dims[d].factors;
    std::vector<HeldAxis> own;
    std::int64_t total = 1;
    for (std::size_t f = 0; f < factors.size(); ++f, ++at) {
      if (places[at].kind == FactorPlace::Kind::row) continue;
      own.push_back({places[at].text, frame_.held(places[at], width_), 0});
      total *= own.back().extent;
    }
    if (own.empty()) continue;
    const std::vector<std::string> before = texts(from.dims[d]);
    // The same factors under other names keep their strides; else they lie side by side.
    std::vector<HeldAxis> old;
    for (const std::string& text : before) {
      const std::size_t a = axis_index(held, text);
      if (a < held.axes.size()) old.push_back(held.axes[a]);
    }
    const bool renamed = std::ranges::equal(old, own, {}, &HeldAxis::extent, &HeldAxis::extent);
    if (renamed) {
      for (std::size_t a = 0; a < own.size(); ++a) own[a].stride = old[a].stride;
    } else {
      const HeldAxis flat = flat_axis(held, before);
      if (flat.extent != total && total != 0)
        throw InternalError("`as` changes the size of a tile");
      std::int64_t stride = flat.stride;
      for (std::size_t a = own.size(); a-- > 0;) {
        own[a].stride = stride;
        stride *= own[a].extent;
      }
    }
    axes.insert(axes.end(), own.begin(), own.end());
  }
  held.axes = std::move(axes);
  return held;
}

Held Lowering::lower_spread(Value value, Where context) {
  const Node& node = program_.node(value);
  const Attr& attr = node.attr;
  Held held = lower(node.args[0], context);
  if (attr.block == 0) {
    // Axes that the operand lacks repeat it.
    for (const HeldAxis& axis : axes_of(value)) {
      if (axis_index(held, axis.factor) == held.axes.size()) {
        held.axes.push_back({axis.factor, axis.extent, 0});
      }
    }
    return held;
  }
  // A row reads its own block: the operand, evaluated in the row, is the value.
  if (has_role(frame_, value, attr.axis, Role::row)) return held;
  const std::string blocks = Factor::blocks(attr.axis, attr.block).text();
  const std::size_t at = axis_index(held, blocks);
  if (at == held.axes.size()) throw InternalError("spread of blocks without blocks");
  const HeldAxis from = held.axes[at];
  // In the operand's order, the axis in place of its blocks.
  std::vector<HeldAxis> axes = held.axes;
  axes.erase(axes.begin() + static_cast<std::ptrdiff_t>(at));
  std::vector<HeldAxis> own;
  for (const HeldAxis& axis : axes_of(value)) {
    const std::vector<std::string> axis_texts = texts(attr.axis);
    if (std::ranges::find(axis_texts, axis.factor) != axis_texts.end()) own.push_back(axis);
  }
  axes.insert(axes.begin() + static_cast<std::ptrdiff_t>(at), own.begin(), own.end());
  Held whole = make(held.where, held.lane, axes);
  whole.mask = held.mask;
  const HeldAxis to = flat_axis(whole, texts(attr.axis));
  const std::int64_t full = to.extent / attr.block;
  const auto part = [&](std::int64_t first, std::int64_t count, std::int64_t elements) {
    if (count == 0 || elements == 0) return;
    Held out = whole, in = held;
    out.offset += first * attr.block * to.stride;
    in.offset += first * from.stride;
    erase_axes(out, texts(attr.axis));
    in.axes.erase(in.axes.begin() + static_cast<std::ptrdiff_t>(at));
    out.axes.push_back({"(block)", count, attr.block * to.stride});
    out.axes.push_back({"(element)", elements, to.stride});
    in.axes.push_back({"(block)", count, from.stride});
    emit_copy(out, in);
  };
  part(0, full, attr.block);
  part(full, 1, to.extent - full * attr.block);
  return whole;
}

}  // namespace coda::cpu
