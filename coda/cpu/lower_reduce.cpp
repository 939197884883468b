// coda/cpu/lower_reduce.cpp: reductions, positions, random numbers, gathers and picks.
#include <algorithm>

#include "coda/core/error.h"
#include "coda/cpu/lowering.h"

namespace coda::cpu {
namespace {

bool among(const std::vector<std::string>& texts, const std::string& text) {
  return std::ranges::find(texts, text) != texts.end();
}

std::vector<HeldAxis> without(std::vector<HeldAxis> axes, const std::vector<std::string>& removed) {
  std::erase_if(axes, [&](const HeldAxis& axis) { return among(removed, axis.factor); });
  return axes;
}

// Row-major strides of `dims`' factors.
std::vector<std::int64_t> positions(const std::vector<Factor>& factors, const Sizes& sizes) {
  std::vector<std::int64_t> strides(factors.size());
  std::int64_t stride = 1;
  for (std::size_t f = factors.size(); f-- > 0;) {
    strides[f] = stride;
    stride *= require_extent(factors[f], sizes);
  }
  return strides;
}

}  // namespace

Held Lowering::lower_reduce(Value value, Where context) {
  const Node& node = program_.node(value);
  Held in = lower(node.args[0], context, lane_of(value));
  const std::vector<std::string> axis = texts(node.attr.axis);
  const HeldAxis reduced = flat_axis(in, axis);
  Held out = make(in.where, in.lane, without(in.axes, axis));
  in.axes = without(in.axes, axis);
  emit_reduce(node.op, out, in, reduced);
  return out;
}

// Blocks of axes that the tile holds: whole, or a range that starts with a block.
Held Lowering::lower_block_reduce(Value value, Where context) {
  const Node& node = program_.node(value);
  const Attr& attr = node.attr;
  if (frame_.role_of(value, dim_of(Factor::blocks(attr.axis, attr.block))) == Role::row) {
    return lower_named_block(value, where_of(value, context));
  }
  Held in = lower(node.args[0], context, lane_of(value));
  const std::vector<std::string> axis = texts(attr.axis);
  const HeldAxis reduced = flat_axis(in, axis);
  const std::string blocks = Factor::blocks(attr.axis, attr.block).text();
  // The blocks stand where the axis stood.
  std::vector<HeldAxis> axes;
  for (const HeldAxis& own : in.axes) {
    if (own.factor == axis.front()) {
      axes.push_back({blocks, (reduced.extent + attr.block - 1) / attr.block, 0});
    } else if (!among(axis, own.factor)) {
      axes.push_back(own);
    }
  }
  const Held out = make(in.where, in.lane, axes);
  const auto block_axis = std::ranges::find(out.axes, blocks, &HeldAxis::factor);
  const auto part = [&](std::int64_t first, std::int64_t count, std::int64_t elements) {
    if (count == 0 || elements == 0) return;
    Held to = out, from = in;
    to.offset += first * block_axis->stride;
    from.offset += first * attr.block * reduced.stride;
    from.axes = without(from.axes, axis);
    from.axes.push_back({blocks, count, attr.block * reduced.stride});
    for (HeldAxis& own : to.axes) {
      if (own.factor == blocks) own.extent = count;
    }
    emit_reduce(node.op, to, from, {"", elements, reduced.stride});
  };
  const std::int64_t full = reduced.extent / attr.block;
  part(0, full, attr.block);
  part(full, 1, reduced.extent - full * attr.block);
  return out;
}

// The rows are blocks of an input's axis that is no row: each row reads its own block.
Held Lowering::lower_named_block(Value value, Where where) {
  const Node& node = program_.node(value);
  const Attr& attr = node.attr;
  const std::optional<InputView> view = view_input(program_, node.args[0], sizes_);
  if (!view) throw Unsupported("blocks that rows name are blocks of an input");
  const DType stored = program_.params()[static_cast<std::size_t>(view->parameter)].type.dtype;
  const std::string blocks = Factor::blocks(attr.axis, attr.block).text();
  const std::vector<std::string> axis = texts(attr.axis);
  const std::vector<FactorPlace> places = frame_.places(value);
  const std::vector<Factor> factors = factors_of(program_.type(node.args[0]));
  Statement statement;
  statement.kind = Statement::Kind::load_block;
  statement.lane = lane_of(value);
  statement.reduce = reduce_loops(node.op, statement.lane);
  statement.block = attr.block;
  statement.period = require_extent(attr.axis, sizes_);
  Access access;
  access.tensor = view->parameter;
  access.dtype = stored;
  access.offsets = view->offsets;
  std::int64_t kept = 1;
  bool regular = true;
  const SubAxis* along = nullptr;
  for (std::size_t f = 0; f < factors.size(); ++f) {
    const std::vector<SubAxis>& loops = view->factors[f];
    if (among(axis, factors[f].text())) {
      regular = regular && loops.size() == 1 && axis.size() == 1;
      along = &loops[0];
      continue;
    }
    const auto at = std::ranges::find(places, factors[f].text(), &FactorPlace::text);
    regular = regular && at != places.end() && loops.size() == 1;
    if (!regular) break;
    if (at->kind == FactorPlace::Kind::row) {
      access.rows.push_back({at->place, loops[0].factor, loops[0].scale});
      continue;
    }
    const std::int64_t count = frame_.held(*at, width_);
    if (at->kind == FactorPlace::Kind::column) {
      access.columns.push_back({at->place, loops[0].factor, loops[0].scale});
    }
    access.axes.push_back({count, loops[0].factor, loops[0].scale});
    kept *= count;
  }
  if (!regular || along == nullptr) throw Unsupported("blocks of merged factors that rows name");
  access.along = {{Place{1, statement.period, 1}, along->factor, along->scale}};
  for (const FactorPlace& place : places) {
    if (place.text == blocks) statement.joined = place.place;
  }
  for (const DType cast : view->casts)
    statement.rounds.push_back(round_loops(cast, statement.lane));
  const Held held = make(where, statement.lane, axes_of(value));
  const Held block = make(kTile, statement.lane, {{"(block)", attr.block, 0}, {"(kept)", kept, 0}});
  statement.slots[0] = slot(held, where);
  statement.slots[1] = slot(block, where);
  statement.slot_count = 2;
  statement.n[1] = kept;
  statement.access = add_access(std::move(access));
  emit(where, std::move(statement));
  return held;
}

// Rows add into the block that they belong to; what needs all rows of a block at once is kept
// first.
Held Lowering::lower_row_reduce(Value value, Where context) {
  const Node& node = program_.node(value);
  if (context < 0) throw Unsupported("a block reduction along rows is read by single rows");
  const TileProgram::Blocks blocks = out_.blocks[static_cast<std::size_t>(context)];
  Held in = lower(node.args[0], kRows, lane_of(value));
  const std::vector<HeldAxis> order = axes_of(value);
  const bool logsumexp = node.op == Op::block_logsumexp;
  std::int64_t stride = 1;
  bool in_order = in.offset == 0 && in.axes.size() == order.size();
  for (std::size_t a = order.size(); in_order && a-- > 0;) {
    in_order = in.axes[a].factor == order[a].factor &&
               (in.axes[a].extent == 1 || in.axes[a].stride == stride);
    stride *= in.axes[a].extent;
  }
  Statement statement;
  statement.reduce = reduce_loops(node.op, in.lane);
  statement.lane = in.lane;
  statement.block = blocks.block;
  statement.period = blocks.period;
  statement.slot_count = 2;
  if (in.where == kTile) {  // repeats in every row
    Held rows = make(kRows, in.lane, order);
    emit_copy(rows, in);
    in = rows;
  } else if (!in_order) {
    in = dense(in, order);
  }
  if (!logsumexp) {
    // A tile starts with a block, so it touches one block more than its rows fill, at most, for
    // each period.
    const std::int64_t periods = tile_rows_ / std::max<std::int64_t>(blocks.period, 1) + 2;
    Held out =
        make(context, in.lane, order, Buffer::Kind::indexed, tile_rows_ / blocks.block + periods);
    statement.kind = Statement::Kind::row_reduce;
    statement.slots[0] = Slot{out.buffer, 0, false, {0, 0}};
    statement.slots[1] = slot(in, kRows);
    statement.n[1] = in.elements();
    emit(kRows, std::move(statement));
    return out;
  }
  Held rows = in;
  if (out_.buffers[static_cast<std::size_t>(in.buffer)].kind != Buffer::Kind::indexed) {
    rows = make(kRows, in.lane, order, Buffer::Kind::indexed, tile_rows_);
    Statement spill;
    spill.kind = Statement::Kind::spill;
    spill.lane = in.lane;
    spill.slot_count = 2;
    spill.slots[0] = slot(rows, kRows);
    spill.slots[1] = slot(in, kRows);
    spill.n[1] = in.elements();
    emit(kRows, std::move(spill));
  }
  Held out = make(context, in.lane, order);
  statement.kind = Statement::Kind::block_reduce_rows;
  statement.slots[0] = slot(out, context);
  statement.slots[1] = Slot{rows.buffer, 0, false, {0, 0}};
  statement.n[1] = in.elements();
  emit(context, std::move(statement));
  return out;
}

Held Lowering::lower_position(Value value, Where where) {
  const Held held = make(where, Lane::i64, axes_of(value));
  Access access = access_of(value, -1, DType::i64);
  access.strides = positions(factors_of(program_.type(value)), sizes_);
  Statement statement;
  statement.kind = Statement::Kind::position;
  statement.lane = Lane::i64;
  statement.slots[0] = slot(held, where);
  statement.slot_count = 1;
  statement.access = add_access(std::move(access));
  emit(where, std::move(statement));
  return held;
}

Held Lowering::lower_uniform(Value value, Where context) {
  const Node& node = program_.node(value);
  const Held seed = lower(node.args[0], context, Lane::i64);
  const Where where = where_of(value, context);
  const Held held = make(where, real_, axes_of(value));
  Access access = access_of(value, -1, DType::f32);
  access.strides = positions(factors_of(program_.type(value)), sizes_);
  Statement statement;
  statement.kind = Statement::Kind::uniform;
  statement.lane = real_;
  statement.slots[0] = slot(held, where);
  statement.slots[1] = slot(seed, where);
  statement.slot_count = 2;
  statement.access = add_access(std::move(access));
  emit(where, std::move(statement));
  return held;
}

// table[ids]: for each id a run of the table's other axes.
Held Lowering::lower_gather(Value value, Where context) {
  const Node& node = program_.node(value);
  const Value table = node.args[0], id_value = node.args[1];
  const Where where = where_of(value, context);
  const std::optional<InputView> view = view_input(program_, table, sizes_);
  if (!view) throw Unsupported("a gathered table is an input");
  Held ids = lower(id_value, context, Lane::i64);
  if (ids.where == kTile && where != kTile) {
    Held rows = make(where, Lane::i64, ids.axes);
    emit_copy(rows, ids);
    ids = rows;
  } else if (!ids.axes.empty()) {
    ids = dense(ids, axes_of(id_value));
  }
  const DType stored = program_.params()[static_cast<std::size_t>(view->parameter)].type.dtype;
  Held held = make(where, lane_of(stored), axes_of(value));

  Statement statement;
  statement.kind = Statement::Kind::gather;
  statement.lane = held.lane;
  statement.slots[0] = slot(held, where);
  statement.slots[1] = slot(ids, where);
  statement.slot_count = 2;
  statement.ids = ids.elements();
  Access access;
  access.tensor = view->parameter;
  access.dtype = stored;
  access.offsets = view->offsets;
  // The table's first dimension is addressed by the id, the others as the result's last factors.
  const std::size_t first = program_.type(table).dims[0].factors.size();
  for (std::size_t f = first; f-- > 0;) {
    for (std::size_t l = view->factors[f].size(); l-- > 0;) {
      const SubAxis& loop = view->factors[f][l];
      access.along.push_back({Place{access.along_extent, loop.extent, 1}, loop.factor, loop.scale});
      access.along_extent *= loop.extent;
    }
  }
  const std::vector<FactorPlace> places = frame_.places(value);
  const std::size_t id_factors = factors_of(program_.type(id_value)).size();
  for (std::size_t f = id_factors; f < places.size(); ++f) {
    const FactorPlace& place = places[f];
    const std::vector<SubAxis>& loops = view->factors[first + f - id_factors];
    const std::int64_t count = frame_.held(place, width_);
    if (loops.size() != 1 && (count != place.extent || place.kind == FactorPlace::Kind::row)) {
      throw Unsupported("a range of a gathered table's merged factors");
    }
    if (place.kind == FactorPlace::Kind::row) {
      access.rows.push_back({place.place, loops[0].factor, loops[0].scale});
      continue;
    }
    if (place.kind == FactorPlace::Kind::column && loops.size() == 1) {
      access.columns.push_back({place.place, loops[0].factor, loops[0].scale});
    }
    for (const SubAxis& loop : loops) {
      access.axes.push_back({loops.size() == 1 ? count : loop.extent, loop.factor, loop.scale});
    }
  }
  statement.access = add_access(std::move(access));
  emit(where, std::move(statement));
  for (const DType cast : view->casts) {
    held = coerce(held, lane_of(cast));
    emit_round(held, cast);
  }
  return held;
}

// One element along the axes that the ids lack. Where a tile has only a range of them, the tile
// that has the element stores what follows from it; an id outside everything belongs to the first
// tile.
Held Lowering::lower_pick(Value value, Where context) {
  const Node& node = program_.node(value);
  Held from = lower(node.args[0], context, lane_of(value));
  Held ids = lower(node.args[1], context, Lane::i64);
  const Where where = from.where == kTile ? ids.where : from.where;
  const std::vector<HeldAxis> order = axes_of(value);
  ids = dense(ids, order);  // of the ids' axes only, in the result's order
  if (ids.where != where) {
    Held rows = make(where, Lane::i64, ids.axes);
    emit_copy(rows, ids);
    ids = rows;
  }
  Held held = make(where, from.lane, order);
  Statement statement;
  statement.kind = Statement::Kind::pick;
  statement.lane = from.lane;
  statement.slots[0] = slot(held, where);
  statement.slots[1] = slot(from, where);
  statement.slots[2] = slot(ids, where);
  statement.slot_count = 3;
  bool partial = false;
  const std::vector<std::string> picked = texts(node.attr.axis);
  for (const FactorPlace& place : frame_.places(node.args[0])) {
    if (!among(picked, place.text)) continue;
    if (place.kind == FactorPlace::Kind::row) throw Unsupported("a pick along rows");
    const auto axis = std::ranges::find(from.axes, place.text, &HeldAxis::factor);
    const std::int64_t count = frame_.held(place, width_);
    statement.digits.push_back({place.extent,
                                place.kind == FactorPlace::Kind::column ? place.place : Place{},
                                count, axis == from.axes.end() ? 0 : axis->stride});
    partial = partial || count != place.extent;
  }
  // Kept axes: the loops of the result over the operand.
  std::int64_t kept = 1;
  for (const HeldAxis& axis : order) kept *= axis.extent;
  if (kept > 1) {
    for (const HeldAxis& axis : held.axes) {
      const auto own = std::ranges::find(from.axes, axis.factor, &HeldAxis::factor);
      const std::int64_t step = own == from.axes.end() ? 0 : own->stride;
      statement.extra.push_back({axis.extent, {axis.stride, step, axis.stride, 0}});
    }
  }
  if (partial) {
    if (kept > 1) throw NeedsFullWidth{};
    Held mask = make(where, real_, {});
    statement.slots[3] = slot(mask, where);
    statement.slot_count = 4;
    held.mask = mask.buffer;
  }
  emit(where, std::move(statement));
  return held;
}

}  // namespace coda::cpu
