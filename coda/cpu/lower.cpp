// coda/cpu/lower.cpp: values to statements: parameters, constants, maps, casts, results.
#include "coda/cpu/lower.h"

#include <algorithm>
#include <cmath>

#include "coda/core/error.h"
#include "coda/cpu/lowering.h"

namespace coda::cpu {

std::vector<std::string> texts(const Dim& dim) {
  std::vector<std::string> texts;
  for (const Factor& factor : dim.factors) texts.push_back(factor.text());
  return texts;
}

Lane real_lane(const Program& program) {
  for (const ValueInfo& value : program.values()) {
    if (value.type.dtype == DType::f64) return Lane::f64;
  }
  for (const Result& result : program.results()) {
    if (result.type.dtype == DType::f64) return Lane::f64;
  }
  return Lane::f32;
}

TileProgram lower(const Frame& frame, std::int64_t width, std::int64_t tile_rows, Lane real) {
  return Lowering(frame, width, tile_rows, real).run();
}

Lowering::Lowering(const Frame& frame, std::int64_t width, std::int64_t tile_rows, Lane real)
    : frame_(frame),
      program_(frame.program()),
      sizes_(frame.sizes()),
      width_(width),
      tile_rows_(std::max<std::int64_t>(tile_rows, 1)),
      real_(real) {
  find_equal_values();
}

TileProgram Lowering::run() {
  out_.width = width_;
  for (std::size_t a = 0; a < frame_.space().accumulators.size(); ++a) {
    out_.accumulators.push_back(static_cast<int>(out_.buffers.size()));
    out_.buffers.push_back(
        {Buffer::Kind::indexed, real_, std::max<std::int64_t>(width_, 1), tile_rows_, 0});
  }
  for (const int result : frame_.space().results) store_result(static_cast<std::size_t>(result));
  // Stores come last, so that a result may share its memory with a parameter of the same element.
  for (Statement& store : stores_[0]) out_.row_statements.push_back(std::move(store));
  for (Statement& store : stores_[1]) out_.tile_statements.push_back(std::move(store));
  allocate();
  return std::move(out_);
}

// ---- facts ----

void Lowering::find_equal_values() {
  for (std::size_t v = 0; v < program_.values().size(); ++v) {
    equal_.push_back(Value{static_cast<std::int32_t>(v)});
  }
  const auto same = [&](const Node& a, const Node& b) {
    if (a.op != b.op || a.args.size() != b.args.size() || !(a.attr == b.attr)) return false;
    for (std::size_t i = 0; i < a.args.size(); ++i) {
      if (!(equal_[static_cast<std::size_t>(a.args[i].id)] ==
            equal_[static_cast<std::size_t>(b.args[i].id)])) {
        return false;
      }
    }
    return std::ranges::equal(a.results, b.results, [&](Value x, Value y) {
      const std::size_t s = frame_.space_index();
      return frame_.checked().roles(s, x) == frame_.checked().roles(s, y) &&
             frame_.checked().row_inner(s, x) == frame_.checked().row_inner(s, y);
    });
  };
  const std::vector<int>& nodes = frame_.space().nodes;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const Node& node = program_.nodes()[static_cast<std::size_t>(nodes[i])];
    if (node.op == Op::product) continue;
    for (std::size_t j = 0; j < i; ++j) {
      const Node& earlier = program_.nodes()[static_cast<std::size_t>(nodes[j])];
      if (!same(node, earlier)) continue;
      for (std::size_t r = 0; r < node.results.size(); ++r) {
        equal_[static_cast<std::size_t>(node.results[r].id)] =
            equal_[static_cast<std::size_t>(earlier.results[r].id)];
      }
      break;
    }
  }
}

Lane Lowering::lane_of(Value value) const {
  return lane_of(program_.type(value).dtype);
}

std::vector<HeldAxis> Lowering::axes_of(Value value) const {
  std::vector<HeldAxis> axes;
  for (const FactorPlace& place : frame_.places(value)) {
    if (place.kind != FactorPlace::Kind::row) {
      axes.push_back({place.text, frame_.held(place, width_), 0});
    }
  }
  return axes;
}

bool Lowering::by_row(Value value) const {
  const std::vector<Role>& roles = frame_.checked().roles(frame_.space_index(), value);
  return std::ranges::find(roles, Role::row) != roles.end();
}

int Lowering::row_reduction(Value value) {
  if (program_.is_param(value)) return -1;
  const auto [entry, fresh] = row_reductions_.emplace(value.id, -1);
  if (!fresh) return entry->second;
  const Node& node = program_.node(value);
  int found = -1;
  for (const Accumulator& accumulator : frame_.space().accumulators) {
    if (accumulator.value == value) return -1;
  }
  if (class_of(node.op) == OpClass::block_reduce &&
      frame_.role_of(node.args[0], node.attr.axis) == Role::row) {
    found = program_.value(value).node;
  }
  for (const Value arg : node.args) {
    if (found < 0) found = row_reduction(arg);
  }
  row_reductions_[value.id] = found;
  return found;
}

Where Lowering::blocks_of(int node) {
  const Attr& attr = program_.nodes()[static_cast<std::size_t>(node)].attr;
  const std::int64_t period = require_extent(attr.axis, sizes_);
  for (std::size_t b = 0; b < out_.blocks.size(); ++b) {
    if (out_.blocks[b].block == attr.block && out_.blocks[b].period == period) {
      return static_cast<Where>(b);
    }
  }
  out_.blocks.push_back({attr.block, period, {}});
  return static_cast<Where>(out_.blocks.size()) - 1;
}

Access Lowering::access_of(Value value, int tensor, DType dtype) const {
  Access access;
  access.tensor = tensor;
  access.dtype = dtype;
  int factor = 0;
  for (const FactorPlace& place : frame_.places(value)) {
    if (place.kind == FactorPlace::Kind::row) {
      access.rows.push_back({place.place, factor, 1});
    } else {
      if (place.kind == FactorPlace::Kind::column)
        access.columns.push_back({place.place, factor, 1});
      access.axes.push_back({frame_.held(place, width_), factor, 1});
    }
    ++factor;
  }
  return access;
}

// ---- values ----

Held Lowering::lower(Value value, Where context, Lane lane, const Held* into) {
  value = equal_[static_cast<std::size_t>(value.id)];
  const Where where = where_of(value, context);
  const auto key = std::tuple(value.id, where, lane);
  if (const auto found = memo_.find(key); found != memo_.end()) return found->second;
  Held held = lower_node(value, context, lane, into);
  held = coerce(held, lane);
  memo_.emplace(key, held);
  return held;
}

Held Lowering::lower_node(Value value, Where context, Lane lane, const Held* into) {
  const Where where = where_of(value, context);
  for (std::size_t a = 0; a < frame_.space().accumulators.size(); ++a) {
    if (frame_.space().accumulators[a].value == value) return lower_accumulator(a, value);
  }
  if (program_.is_param(value)) return lower_parameter(value, where);
  const Node& node = program_.node(value);
  switch (node.op) {
    case Op::constant:
      return lower_constant(node.attr.number, static_cast<std::int64_t>(node.attr.number), lane);
    case Op::size: {
      const std::int64_t extent = require_extent(node.attr.axis, sizes_);
      return lower_constant(static_cast<double>(extent), extent, lane);
    }
    case Op::index:
      return lower_position(value, where);
    case Op::uniform:
      return lower_uniform(value, context);
    case Op::split:
      return lower_split(value, context);
    case Op::join:
      return lower_join(value, context);
    case Op::as:
      return lower_as(value, context);
    case Op::spread:
      return lower_spread(value, context);
    case Op::gather:
      return lower_gather(value, context);
    case Op::pick:
      return lower_pick(value, context);
    case Op::product:
    case Op::scatter_sum:
    case Op::attention:
    case Op::attention_grad:
      throw InternalError("`" + std::string(name_of(node.op)) + "` is no value of a tile");
    default:
      break;
  }
  switch (class_of(node.op)) {
    case OpClass::cast:
      return lower_cast(node, context);
    case OpClass::reduce:
      return lower_reduce(value, context);
    case OpClass::block_reduce:
      return row_reduction(value) == program_.value(value).node
                 ? lower_row_reduce(value, context)
                 : lower_block_reduce(value, context);
    default:
      return lower_map(node, context, lane, into);
  }
}

Held Lowering::lower_accumulator(std::size_t index, Value value) {
  Held held;
  held.buffer = out_.accumulators[index];
  held.lane = real_;
  held.where = kRows;
  for (const FactorPlace& place : frame_.places(value)) {
    if (place.kind == FactorPlace::Kind::row) continue;
    const std::int64_t stride = place.kind == FactorPlace::Kind::column ? place.place.inner : 1;
    held.axes.push_back({place.text, frame_.held(place, width_), stride});
  }
  return held;
}

Held Lowering::lower_parameter(Value value, Where where) {
  const DType dtype = program_.type(value).dtype;
  Held held = make(where, lane_of(dtype), axes_of(value));
  Statement statement;
  statement.kind = Statement::Kind::load;
  statement.access = add_access(access_of(value, value.id, dtype));
  statement.lane = held.lane;
  statement.slots[0] = slot(held, where);
  statement.slot_count = 1;
  // Small rows are copied, so that statements can run over many at once.
  const bool same = (dtype == DType::f32 && held.lane == Lane::f32) ||
                    (dtype == DType::f64 && held.lane == Lane::f64) || dtype == DType::i64;
  statement.may_alias = same && held.elements() >= 16;
  emit(where, std::move(statement));
  return held;
}

Held Lowering::lower_constant(double number, std::int64_t integer, Lane lane) {
  Held held = make(kTile, lane, {});
  Statement statement;
  statement.kind = Statement::Kind::constant;
  statement.lane = lane;
  statement.number = number;
  statement.integer = integer;
  statement.slots[0] = slot(held, kTile);
  statement.slot_count = 1;
  emit(kTile, std::move(statement));
  return held;
}

Held Lowering::coerce(const Held& value, Lane lane) {
  if (value.lane == lane) return value;
  Held held = make(value.where, lane, value.axes);
  held.mask = value.mask;
  emit_map(convert_loops(value.lane, lane), held, {value});
  return held;
}

Held Lowering::truth(const Held& value) {
  Held held = make(value.where, real_, value.axes);
  held.mask = value.mask;
  emit_map(truth_loops(value.lane, real_), held, {value});
  return held;
}

Held Lowering::lower_map(const Node& node, Where context, Lane lane, const Held* into) {
  const Value value = node.results[0];
  Lane operand_lane = lane_of(value);
  if (class_of(node.op) == OpClass::compare) {
    operand_lane = real_;
    bool integers = true, any = false;
    for (const Value arg : node.args) {
      const DType dtype = program_.type(arg).dtype;
      any = any || is_integer(dtype);
      integers = integers && !is_float(dtype);
    }
    if (integers && any) operand_lane = Lane::i64;
  } else if (node.op == Op::where && lane == real_) {
    operand_lane = real_;  // integers that are only read as reals are chosen as reals
  }
  std::vector<Held> operands;
  for (std::size_t a = 0; a < node.args.size(); ++a) {
    if (node.op == Op::where && a == 0) {
      const Held condition = lower(node.args[0], context);
      operands.push_back(condition.lane == Lane::i64 ? truth(condition) : condition);
    } else {
      operands.push_back(lower(node.args[a], context, operand_lane));
    }
  }
  const Lane result_lane = class_of(node.op) == OpClass::compare ? real_ : operand_lane;
  const Where where = where_of(value, context);
  Held held = into != nullptr && into->lane == result_lane && into->where == where
                  ? *into
                  : make(where, result_lane, axes_of(value));
  for (const Held& operand : operands) {
    if (operand.mask < 0) continue;
    if (held.mask >= 0 && held.mask != operand.mask) throw NeedsFullWidth{};
    held.mask = operand.mask;
  }
  emit_map(map_loops(node.op, operand_lane, real_), held, operands);
  return held;
}

Held Lowering::lower_cast(const Node& node, Where context) {
  const Value arg = node.args[0];
  Held held = lower(arg, context);
  const DType from = program_.type(arg).dtype;
  const DType to = node.attr.dtype;
  if (to == DType::boolean) return from == DType::boolean ? held : truth(held);
  const Lane lane = lane_of(to);
  const bool widened = held.lane != lane;
  held = coerce(held, lane);
  // What is on chip may hold more than its type says (f32 sums in f64 lanes), but a parameter's
  // element or a rounded value does not.
  const bool stored = program_.is_param(arg) || class_of(program_.node(arg).op) == OpClass::cast;
  const bool native = (lane == Lane::f32 && to == DType::f32) ||
                      (lane == Lane::f64 && to == DType::f64) || to == DType::i64;
  if (native || (stored && !widened && holds_all(to, from))) return held;
  emit_round(held, to);
  return held;
}

void Lowering::store_result(std::size_t index) {
  const Result& result = program_.results()[index];
  const int reduction = row_reduction(result.value);
  const Where context = reduction < 0 ? kRows : blocks_of(reduction);
  const Lane lane = lane_of(result.type.dtype);
  Held held = result.type.dtype == DType::boolean && lane_of(result.value) == Lane::i64
                  ? truth(lower(result.value, context))
                  : lower(result.value, context, lane);
  if (held.where == kTile && by_row(result.value)) {
    Held rows = make(context, held.lane, held.axes);
    emit_copy(rows, held);
    held = rows;
  }
  // The access has the factors of the value in its order, and the strides of the result's.
  const std::vector<Factor> declared = factors_of(result.type);
  const std::vector<Factor> own = factors_of(program_.type(result.value));
  Access access = access_of(result.value, static_cast<int>(program_.params().size() + index),
                            result.type.dtype);
  const auto in_result = [&](int factor) {
    const auto at = std::ranges::find(declared, own[static_cast<std::size_t>(factor)]);
    return static_cast<int>(at - declared.begin());
  };
  for (Access::Term& term : access.rows) term.factor = in_result(term.factor);
  for (Access::Term& term : access.columns) term.factor = in_result(term.factor);
  for (Access::Axis& axis : access.axes) axis.factor = in_result(axis.factor);

  std::vector<HeldAxis> order;
  for (const FactorPlace& place : frame_.places(result.value)) {
    if (place.kind != FactorPlace::Kind::row) order.push_back({place.text, 1, 0});
  }
  // Stores read dense blocks of axes in the access's order.
  bool as_stored = held.offset == 0 && held.axes.size() == order.size();
  std::int64_t stride = 1;
  for (std::size_t a = order.size(); as_stored && a-- > 0;) {
    const HeldAxis& axis = held.axes[a];
    as_stored = axis.factor == order[a].factor && (axis.extent == 1 || axis.stride == stride);
    stride *= axis.extent;
  }
  const bool whole_buffer =
      held.buffer >= 0 &&
      out_.buffers[static_cast<std::size_t>(held.buffer)].elements == held.elements();
  if (!as_stored) held = dense(held, order);
  Statement statement;
  statement.kind = Statement::Kind::store;
  statement.lane = held.lane;
  statement.store = result.store;
  statement.mask = held.mask;
  statement.slots[0] = slot(held, held.where);
  statement.slot_count = 1;
  statement.access = add_access(std::move(access));
  statement.may_alias = as_stored && whole_buffer;  // see allocate()
  statement.per_row = held.where != kTile;
  if (held.where == kRows) {
    stores_[0].push_back(std::move(statement));
  } else if (held.where == kTile) {
    stores_[1].push_back(std::move(statement));
  } else {
    emit(held.where, std::move(statement));
  }
}

}  // namespace coda::cpu
