// coda/cpu/emit.cpp: buffers, and statements with their loops.
//
// An elementwise statement runs over its result's axes. Neighbouring axes that all operands step
// through evenly become one loop; the innermost loop runs along memory, so an operand that does not
// is copied first.
#include <algorithm>

#include "coda/core/error.h"
#include "coda/cpu/lowering.h"

namespace coda::cpu {
namespace {

struct Loop {
  std::int64_t n = 1;
  std::vector<std::int64_t> steps;
};

std::int64_t stride_of(const Held& value, const std::string& factor) {
  for (const HeldAxis& axis : value.axes) {
    if (axis.factor == factor) return axis.extent == 1 ? 0 : axis.stride;
  }
  return 0;
}

// The loops over `axes` of values, neighbours merged, outermost first.
std::vector<Loop> loops_over(const std::vector<HeldAxis>& axes,
                             const std::vector<const Held*>& values) {
  std::vector<Loop> loops;
  for (const HeldAxis& axis : axes) {
    if (axis.extent == 1) continue;
    Loop loop{axis.extent, {}};
    for (const Held* value : values) loop.steps.push_back(stride_of(*value, axis.factor));
    bool merges = !loops.empty();
    for (std::size_t v = 0; merges && v < values.size(); ++v) {
      merges = loops.back().steps[v] == loop.steps[v] * loop.n;
    }
    if (merges) {
      loops.back().n *= loop.n;
      loops.back().steps = loop.steps;
    } else {
      loops.push_back(std::move(loop));
    }
  }
  return loops;
}

// The last two loops become n and step, the others extra.
void set_loops(Statement& statement, const std::vector<Loop>& loops) {
  for (std::size_t l = 0; l < loops.size(); ++l) {
    const std::size_t from_end = loops.size() - 1 - l;
    if (from_end >= 2) {
      Statement::Extra extra{loops[l].n, {}};
      std::ranges::copy(loops[l].steps, extra.step);
      statement.extra.push_back(extra);
      continue;
    }
    const std::size_t level = 1 - from_end;
    statement.n[level] = loops[l].n;
    for (std::size_t v = 0; v < loops[l].steps.size(); ++v) {
      statement.slots[v].step[level] = loops[l].steps[v];
    }
  }
}

}  // namespace

Held Lowering::make(Where where, Lane lane, std::vector<HeldAxis> axes, Buffer::Kind kind,
                    std::int64_t count) {
  std::int64_t stride = 1;
  for (std::size_t a = axes.size(); a-- > 0;) {
    axes[a].stride = stride;
    stride *= axes[a].extent;
  }
  Held held;
  held.buffer = static_cast<int>(out_.buffers.size());
  held.axes = std::move(axes);
  held.lane = lane;
  held.where = where;
  out_.buffers.push_back({kind, lane, stride, count, 0});
  return held;
}

Held Lowering::make(Where where, Lane lane, std::vector<HeldAxis> axes) {
  return make(where, lane, std::move(axes),
              where == kTile ? Buffer::Kind::tile : Buffer::Kind::group, 1);
}

Statement& Lowering::emit(Where where, Statement statement) {
  statement.per_row = where != kTile;
  std::vector<Statement>& to = where == kTile ? out_.tile_statements
                               : where == kRows
                                   ? out_.row_statements
                                   : out_.blocks[static_cast<std::size_t>(where)].statements;
  to.push_back(std::move(statement));
  return to.back();
}

Slot Lowering::slot(const Held& value, Where where) const {
  if (value.where != kTile && value.where != where) {
    throw InternalError("a value of the rows is used outside them");
  }
  Slot slot;
  slot.buffer = value.buffer;
  slot.offset = value.offset;
  slot.by_row = value.where != kTile;
  return slot;
}

void Lowering::emit_map(Map map, const Held& out, const std::vector<Held>& operands) {
  if (map == nullptr) throw InternalError("an op has no loops for its operands' lanes");
  std::vector<Held> values = {out};
  for (const Held& operand : operands) {
    // An operand must run along memory, or stand still, in the innermost loop.
    std::vector<const Held*> pair = {&out, &operand};
    const std::vector<Loop> alone = loops_over(out.axes, pair);
    const bool runs = alone.empty() || alone.back().steps[1] == 0 || alone.back().steps[1] == 1;
    values.push_back(runs ? operand : dense(operand, out.axes));
  }
  std::vector<const Held*> pointers;
  for (const Held& value : values) pointers.push_back(&value);
  std::vector<Loop> loops = loops_over(out.axes, pointers);
  if (!loops.empty() && loops.back().steps[0] != 1) {
    const Held temporary = make(out.where, out.lane, out.axes);
    emit_map(map, temporary, operands);
    emit_copy(out, temporary);
    return;
  }
  Statement statement;
  statement.kind = Statement::Kind::map;
  statement.map = map;
  statement.slot_count = static_cast<int>(values.size());
  for (std::size_t v = 0; v < values.size(); ++v) statement.slots[v] = slot(values[v], out.where);
  set_loops(statement, loops);
  if (loops.empty()) {
    for (Slot& each : statement.slots) each.step[1] = each.by_row ? 1 : 0;
    statement.slots[0].step[1] = 1;
  }
  // One loop, in which each operand runs or has a single element: rows may join it.
  statement.may_flatten = out.where != kTile && loops.size() <= 1;
  for (std::size_t v = 0; v < values.size(); ++v) {
    const Slot& each = statement.slots[v];
    if (each.step[1] != (each.by_row ? 1 : 0)) statement.may_flatten = false;
  }
  emit(out.where, std::move(statement));
}

void Lowering::emit_copy(const Held& out, const Held& from) {
  const std::vector<Loop> loops = loops_over(out.axes, {&out, &from});
  Statement statement;
  statement.kind = Statement::Kind::copy;
  statement.lane = out.lane;
  statement.slot_count = 2;
  statement.slots[0] = slot(out, out.where);
  statement.slots[1] = slot(from, out.where);
  set_loops(statement, loops);
  emit(out.where, std::move(statement));
}

Held Lowering::dense(const Held& value, const std::vector<HeldAxis>& order) {
  std::vector<HeldAxis> axes;
  for (const HeldAxis& axis : order) {
    for (const HeldAxis& own : value.axes) {
      if (own.factor == axis.factor) axes.push_back(own);
    }
  }
  Held copy = make(value.where, value.lane, std::move(axes));
  copy.mask = value.mask;
  emit_copy(copy, value);
  return copy;
}

HeldAxis Lowering::flat_axis(Held& value, const std::vector<std::string>& factors) {
  for (int attempt = 0; attempt < 2; ++attempt) {
    HeldAxis flat{"", 1, 0};
    bool even = true;
    for (const std::string& factor : factors) {
      for (const HeldAxis& axis : value.axes) {
        if (axis.factor != factor || axis.extent == 1) continue;
        if (flat.extent != 1 && flat.stride != axis.stride * axis.extent) even = false;
        flat.extent *= axis.extent;
        flat.stride = axis.stride;
      }
    }
    if (even) return flat;
    // The others first, then these side by side.
    std::vector<HeldAxis> order;
    for (const HeldAxis& axis : value.axes) {
      if (std::ranges::find(factors, axis.factor) == factors.end()) order.push_back(axis);
    }
    for (const std::string& factor : factors) {
      for (const HeldAxis& axis : value.axes) {
        if (axis.factor == factor) order.push_back(axis);
      }
    }
    value = dense(value, order);
  }
  throw InternalError("the factors of an axis do not lie side by side");
}

void Lowering::emit_reduce(Op op, const Held& out, const Held& in, const HeldAxis& reduced) {
  const std::vector<Loop> kept = loops_over(out.axes, {&out, &in});
  // The reduced loop runs along memory, or the innermost kept one does.
  const bool along = reduced.stride == 1 || reduced.extent == 1;
  const bool across = !kept.empty() && kept.back().steps[1] == 1 && kept.back().steps[0] == 1;
  Statement statement;
  statement.kind = Statement::Kind::reduce;
  statement.reduce = reduce_loops(op, in.lane);
  statement.lane = in.lane;
  statement.slot_count = 2;
  statement.slots[0] = slot(out, out.where);
  statement.slots[1] = slot(in, out.where);
  std::size_t outer = kept.size();
  statement.n[0] = reduced.extent;
  statement.slots[1].step[0] = reduced.stride;
  if (across && !(along && reduced.extent > 1)) {
    outer -= 1;
    statement.n[1] = kept.back().n;
    statement.slots[0].step[1] = 1;
    statement.slots[1].step[1] = 1;
  } else if (!along) {
    // Neither: bring the reduced axis to memory order first.
    std::vector<HeldAxis> order = out.axes;
    HeldAxis last = reduced;
    last.factor = "(reduced)";
    Held source = in;
    source.axes.push_back(last);
    order.push_back(last);
    Held copy = dense(source, order);
    last = copy.axes.back();
    copy.axes.pop_back();
    emit_reduce(op, out, copy, last);
    return;
  }
  for (std::size_t l = 0; l < outer; ++l) {
    statement.extra.push_back({kept[l].n, {kept[l].steps[0], kept[l].steps[1], 0, 0}});
  }
  emit(out.where, std::move(statement));
}

void Lowering::emit_round(Held& value, DType dtype) {
  const Held rounded = make(value.where, value.lane, value.axes);
  emit_map(round_loops(dtype, value.lane), rounded, {value});
  const int mask = value.mask;
  value = rounded;
  value.mask = mask;
}

int Lowering::add_access(Access access) {
  out_.accesses.push_back(std::move(access));
  return static_cast<int>(out_.accesses.size()) - 1;
}

}  // namespace coda::cpu
