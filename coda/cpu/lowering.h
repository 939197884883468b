// coda/cpu/lowering.h: one space and one tile width → a TileProgram. The class behind lower.h.
//
// Values are lowered on demand from the results. A value lives where it varies: in the tile (no row
// factor), in the rows, or in the row blocks (what follows a block reduction along rows). Layout
// ops give views of memory wherever strides can say them.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "coda/check/input_view.h"
#include "coda/cpu/frame.h"
#include "coda/cpu/tile_program.h"

namespace coda::cpu {

// Where a value is evaluated: -2 the tile, -1 each row, else the index into TileProgram::blocks.
using Where = int;
inline constexpr Where kTile = -2;
inline constexpr Where kRows = -1;

struct HeldAxis {
  std::string factor;
  std::int64_t extent = 1;
  std::int64_t stride = 0;
};

// A value on chip: (row, indices along axes) is at buffer + offset + row · (the buffer's row) + Σ.
struct Held {
  int buffer = -1;
  std::int64_t offset = 0;
  std::vector<HeldAxis> axes;
  Lane lane = Lane::f32;
  Where where = kTile;
  int mask = -1;  // a buffer of one real for each row: 1 where this tile has the value
  std::int64_t elements() const {
    std::int64_t n = 1;
    for (const HeldAxis& axis : axes) n *= axis.extent;
    return n;
  }
};

// Thrown where picks of different ids meet in a tile that does not have all columns.
struct NeedsFullWidth {};

class Lowering {
 public:
  Lowering(const Frame& frame, std::int64_t width, std::int64_t tile_rows, Lane real);
  TileProgram run();

 private:
  // ---- lower.cpp: values ----
  Held lower(Value value, Where context) { return lower(value, context, lane_of(value)); }
  Held lower(Value value, Where context, Lane lane, const Held* into = nullptr);
  Held lower_node(Value value, Where context, Lane lane, const Held* into);
  Held lower_parameter(Value value, Where where);
  Held lower_constant(double number, std::int64_t integer, Lane lane);
  Held lower_map(const Node& node, Where context, Lane lane, const Held* into);
  Held lower_cast(const Node& node, Where context);
  Held lower_accumulator(std::size_t index, Value value);
  Held coerce(const Held& value, Lane lane);
  Held truth(const Held& value);
  void store_result(std::size_t result);
  void allocate();

  // ---- lower_layout.cpp ----
  Held lower_split(Value value, Where context);
  Held lower_join(Value value, Where context);
  Held lower_row_join(Value value, Where where);
  Held lower_as(Value value, Where context);
  Held lower_spread(Value value, Where context);
  Held lower_view(const InputView& view, Value value, Where where);

  // ---- lower_reduce.cpp: reductions and index ops ----
  Held lower_reduce(Value value, Where context);
  Held lower_block_reduce(Value value, Where context);
  Held lower_named_block(Value value, Where where);
  Held lower_row_reduce(Value value, Where context);
  Held lower_position(Value value, Where where);
  Held lower_uniform(Value value, Where context);
  Held lower_gather(Value value, Where context);
  Held lower_pick(Value value, Where context);

  // ---- emit.cpp: buffers and statements ----
  Held make(Where where, Lane lane, std::vector<HeldAxis> axes, Buffer::Kind kind,
            std::int64_t count);
  Held make(Where where, Lane lane, std::vector<HeldAxis> axes);
  Statement& emit(Where where, Statement statement);
  void emit_map(Map map, const Held& out, const std::vector<Held>& operands);
  void emit_copy(const Held& out, const Held& from);  // out's axes; absent ones repeat
  void emit_reduce(Op op, const Held& out, const Held& in, const HeldAxis& reduced);
  void emit_round(Held& value, DType dtype);
  Held dense(const Held& value, const std::vector<HeldAxis>& order);
  Held dense(const Held& value) { return dense(value, value.axes); }
  // The axes of `factors` as one flat axis of `value`, which may be copied for it.
  HeldAxis flat_axis(Held& value, const std::vector<std::string>& factors);
  Slot slot(const Held& value, Where where) const;
  int add_access(Access access);

  // ---- facts ----
  Lane lane_of(Value value) const;
  Lane lane_of(DType dtype) const { return is_integer(dtype) ? Lane::i64 : real_; }
  std::vector<HeldAxis> axes_of(Value value) const;  // dense, in type order
  bool by_row(Value value) const;
  Where where_of(Value value, Where context) const { return by_row(value) ? context : kTile; }
  // The row block reduction that a value stands on, or -1: the index of its node.
  int row_reduction(Value value);
  Where blocks_of(int node);
  Access access_of(Value value, int tensor, DType dtype) const;
  // Equal expressions are one value: the first of them.
  void find_equal_values();

  const Frame& frame_;
  const Program& program_;
  const Sizes& sizes_;
  std::int64_t width_;
  std::int64_t tile_rows_;
  Lane real_;
  TileProgram out_;
  std::vector<Value> equal_;  // of each value
  std::map<std::tuple<std::int32_t, Where, Lane>, Held> memo_;
  std::map<std::int32_t, int> row_reductions_;
  std::vector<Statement> stores_[3];  // of rows, of the tile; of blocks they follow at once
};

// The factors' texts.
std::vector<std::string> texts(const Dim& dim);

}  // namespace coda::cpu
