// coda/cuda/tile_blocks.cpp: what a tile leaves for each block of its columns or rows, and picked
// elements.
#include <algorithm>

#include "coda/check/bind.h"
#include "coda/core/error.h"
#include "coda/cuda/tile_text.h"

namespace coda::cuda {

bool has_lone_units(const Region& places) {
  return std::ranges::none_of(places.nodes(), [&](int n) {
    const Node& node = places.program().nodes()[static_cast<std::size_t>(n)];
    const OpClass kind = class_of(node.op);
    const bool reduces = kind == OpClass::reduce || kind == OpClass::block_reduce;
    return node.op == Op::pick ||
           (reduces && places.role_of(node.args[0], node.attr.axis) == Role::column);
  });
}

bool has_row_blocks(const Region& places) {
  return std::ranges::any_of(places.nodes(), [&](int n) {
    const Node& node = places.program().nodes()[static_cast<std::size_t>(n)];
    return class_of(node.op) == OpClass::block_reduce &&
           places.role_of(node.args[0], node.attr.axis) == Role::column;
  });
}

// A chunk's value with what lies past the last column (and row) replaced by `identity`.
std::string TileText::keep(int bytes) {
  const std::string at = "kKept + " + std::to_string(out_.kept_bytes);
  out_.kept_bytes += bytes;
  return at;
}

// Statements that keep one block's value, and the call that stores all of a tile, up to its result.
std::pair<std::string, std::string> TileText::keep_blocks(const std::string& name, int blocks,
                                                          std::int64_t size,
                                                          const std::string& block,
                                                          const std::string& value) {
  const std::string comment = "      // store " + name + "\n      ";
  if (budget_ == Registers::few) {
    const std::string at = "(rows_at + " + keep(4 * blocks) + ", ";
    return {"keep_block<kRowBytes>" + at + block + ", " + value + ", lane_id);\n",
            comment + "store_blocks<" + std::to_string(blocks) + ", " + std::to_string(size) +
                ", kRowBytes>" + at};
  }
  const std::string object = fresh_name(name + "_kept");
  out_.state_fields += "      RowBlocks<" + std::to_string(2 * blocks) + ", " +
                       std::to_string(size) + "> " + object + ";\n";
  pressure_.hold((2 * blocks + 3) / 4 * 2);
  return {"state." + object + ".keep(" + block + " * 2 + i, " + value + ", lane_id);\n",
          comment + "state." + object + ".store("};
}

std::string TileText::masked(const std::string& part, const char* identity, bool rows) {
  std::string text = whole_units()
                         ? "tile_of(" + part + ")"
                         : "inside_columns(" + part + ", column, column_count, " + identity + ")";
  if (rows) text = "inside_rows(" + text + ", first_row, row_count, " + identity + ")";
  return text;
}

TileText::Held TileText::lower_block_reduce(Value value) {
  const Node& node = node_of(value);
  const Held operand = coerce(lower(node.args[0]), Lane::f32);
  if (operand.where != Where::chunk || operand.parts.size() != 1) {
    refuse(value, "reduces blocks of heads");
  }
  const std::optional<Place> place = places_.column_place(node.attr.axis);
  const bool along_rows = places_.role_of(node.args[0], node.attr.axis) == Role::row;
  if (node.attr.block != 64) refuse(value, "has blocks of another size than 64");
  const std::string name = fresh_name(value_name(value));
  if (along_rows) {
    const bool all = require_extent(node.attr.axis, places_.sizes()) == places_.rows();
    if (!all || node.op != Op::block_sum) refuse(value, "is no sum over blocks of all rows");
    out_.before += "        float " + name + "[" + std::to_string(shape_.unit / 16) + "];\n";
    out_.loads += "        ColumnChunk " + name + "_chunk;\n";
    pressure_.hold(4 + 1);  // two columns of each half, and the sum
    out_.chunk += comment(value);
    out_.chunk +=
        "        " + name + "_chunk.put(g, " + masked(operand.parts[0], "0.0f", true) + ");\n";
    out_.stores += "        " + name + "[j] = column_sum(" + name + "_chunk, lane_id);\n";
    return {Where::block, Lane::f32, {name}};
  }
  if (!place || place->inner != 1 || place->extent != places_.columns()) {
    refuse(value, "reduces blocks of a part of the columns");
  }
  const std::string kind = node.op == Op::block_sum   ? "BlockSum"
                           : node.op == Op::block_max ? "BlockMax"
                                                      : "BlockLogsumexp";
  const char* identity = node.op == Op::block_sum ? "0.0f" : "-infinity()";
  std::string object = name;
  if (shape_.unit == 64) {
    out_.before += "        " + kind + " " + name + "_block;\n";
    object = name + "_block";
  } else {
    out_.state_fields += "      " + kind + " " + name + "_block[2];\n";
    object = "state." + name + "_block[i]";
    out_.before +=
        "        if (h * " + std::to_string(shape_.unit) + " % 64 == 0) " + object + " = {};\n";
  }
  out_.chunk += comment(value);
  const std::string element = masked(operand.parts[0], identity, false);
  if (node.op == Op::block_logsumexp) {
    out_.loads += "        Chunk " + name + "_chunk;\n";
    // And with as much again it leaves no room for what waits.
    pressure_.hold(8 + 6 + (budget_ == Registers::plenty ? 16 : 0));
    out_.chunk += "        " + name + "_chunk.put(g, " + element + ");\n";
    out_.stores += "        " + object + ".take(" + name + "_chunk);\n";
  } else {
    out_.chunk += "        " + object + ".take(" + element + ");\n";
    pressure_.hold(2);
  }
  out_.after += "        const Row " + name + " = " + object + ".finish();\n";
  return {Where::block, Lane::f32, {name}};
}

TileText::Held TileText::lower_pick(Value value) {
  const Node& node = node_of(value);
  const Held operand = coerce(lower(node.args[0]), Lane::f32);
  const Held ids = coerce(lower(node.args[1]), Lane::i64);
  if (operand.where != Where::chunk || operand.parts.size() != 1 || ids.where != Where::row) {
    refuse(value, "picks from heads");
  }
  if (!places_.is_whole()) {
    refuse(value, "picks from a piece of the columns");
  }
  const std::string name = fresh_name(value_name(value));
  out_.state_fields += "      Picked " + name + "_picked;\n";
  out_.chunk += comment(value);
  const std::string at = keep(4);
  pressure_.hold(1);
  out_.chunk += "        state." + name + "_picked.take<kRowBytes>(rows_at + " + at + ", i, " +
                operand.parts[0] + ", " + ids.parts[0] + ", column, column_count);\n";
  std::string row_ids = ids.parts[0];
  out_.finish += "        const bool " + name + "_here[2] = {state." + name +
                 "_picked.here(i, 0, " + row_ids + ", first, column_count, lane_id), state." +
                 name + "_picked.here(i, 1, " + row_ids + ", first, column_count, lane_id)};\n";
  out_.finish += "        const Row " + name + " = state." + name +
                 "_picked.value<kRowBytes>(rows_at + i * 64 * kRowBytes + " + at + ", i);\n";
  picked_ = name + "_here";
  return {Where::picked, Lane::f32, {name}};
}

// ---- results ----

void TileText::store_row_blocks(std::size_t index, const Held& held, Value value) {
  const Result& result = program_.results()[index];
  const int tensor = static_cast<int>(program_.params().size() + index);
  if (result.type.dtype != DType::f32 || result.store == Store::accumulate) {
    refuse(value, "is stored as no f32");
  }
  std::vector<PlacedFactor> rows;
  std::int64_t block_stride = 0;
  const std::vector<FactorPlace> all = places_.places(value);
  const std::vector<std::int64_t> strides = result_strides(index);
  for (std::size_t f = 0; f < all.size(); ++f) {
    if (all[f].kind == FactorPlace::Kind::row) rows.push_back({all[f].place, strides[f]});
    if (all[f].kind == FactorPlace::Kind::column) block_stride = strides[f];
  }
  const std::optional<Line> line = line_of(rows);
  if (!line || line->period != places_.rows()) refuse(value, "is no matrix in memory");
  const int per_row = shape_.result_columns() / 64;
  if (shape_.result_columns() % 64 != 0) refuse(value, "needs tiles of whole blocks");
  const auto [keeps, store] =
      keep_blocks(result.name, per_row, 64, shape_.unit == 64 ? "h" : "h / 2",
                  coerce(held, Lane::f32).parts[0]);
  if (shape_.unit == 64) {
    out_.after += "        " + keeps;
  } else {
    out_.after += "        if (h % 2 == 1 || (unit + 1) * 32 >= column_count) " + keeps;
  }
  out_.finish_once += store + arguments_.pointer(tensor) + ", " +
                      arguments_.number(result.name + "_row", line->stride) + ", " +
                      arguments_.number(result.name + "_block", block_stride) +
                      ", row, first_column / 64, row_count, column_count, lane_id);\n";
}

void TileText::store_column_blocks(std::size_t index, Value value) {
  const Result& result = program_.results()[index];
  const int tensor = static_cast<int>(program_.params().size() + index);
  if (result.type.dtype != DType::f32 || result.store == Store::accumulate || shape_.head != 0) {
    refuse(value, "is stored as no f32");
  }
  std::vector<PlacedFactor> columns;
  std::int64_t block_stride = 0;
  const std::vector<FactorPlace> all = places_.places(value);
  const std::vector<std::int64_t> strides = result_strides(index);
  for (std::size_t f = 0; f < all.size(); ++f) {
    if (all[f].kind == FactorPlace::Kind::column) columns.push_back({all[f].place, strides[f]});
    if (all[f].kind == FactorPlace::Kind::row) block_stride = strides[f];
  }
  const std::optional<Line> line = line_of(columns);
  if (!line || line->period != places_.columns()) refuse(value, "is no matrix in memory");
  const std::string sums = lower(value).parts[0];
  // Several sums share a slot, and go there at once; the only one goes after the last chunk, where
  // a slot may have been read.
  const bool several = std::ranges::count_if(places_.nodes(), [&](int n) {
                         const Node& node = program_.nodes()[static_cast<std::size_t>(n)];
                         return node.op == Op::block_sum &&
                                places_.role_of(node.args[0], node.attr.axis) == Role::row;
                       }) > 1;
  int slot = several ? sums_slot_ : -1;
  for (std::size_t s = 0; !several && s < out_.slots.size() && slot < 0; ++s) {
    if (out_.slots[s].store.empty() && out_.slots[s].drain.empty()) slot = static_cast<int>(s);
  }
  if (slot < 0) {
    slot = static_cast<int>(out_.slots.size());
    out_.slots.push_back({});
    if (several) sums_slot_ = slot;
  }
  const int bytes = shape_.unit * 4;  // of a warp's sums
  if (several && (sums_ + 1) * bytes > (shape_.unit == 64 ? 2048 : 1024))
    refuse(value, "is one sum too many");
  const std::string offset = std::to_string(several ? sums_++ * bytes : 0);
  SlotUse& use = out_.slots[static_cast<std::size_t>(slot)];
  use.drain +=
      "      drain_columns<" + std::to_string(shape_.unit) + ", P::kSlotBytes / 4>(from + " +
      offset + ", " + pointer_of(tensor, result.value, strides, result.name) + ", " +
      arguments_.number(result.name + "_block", block_stride) + ", " +
      arguments_.number(result.name + "_column", line->stride) + ", row, unit * " +
      std::to_string(shape_.unit) + ", P::row_count(args, s), P::columns(args, s), lane_id);\n";
  const std::string to =
      "(slot[" + std::to_string(slot) + "] + warp * (P::kSlotBytes / 4) + " + offset + ", ";
  if (several) {
    out_.stores += "        put_column_sum" + to + "j, " + sums + "[j], lane_id);\n";
  } else {
    out_.after += "        // store " + result.name + "\n        put_column_sums" + to + sums +
                  ", lane_id);\n";
  }
}

void TileText::store_picked(std::size_t index, const Held& held) {
  const Result& result = program_.results()[index];
  const int tensor = static_cast<int>(program_.params().size() + index);
  if (result.store == Store::accumulate) refuse(result.value, "accumulates");
  std::vector<PlacedFactor> rows;
  const std::vector<FactorPlace> all = places_.places(result.value);
  const std::vector<std::int64_t> strides = result_strides(index);
  for (std::size_t f = 0; f < all.size(); ++f) {
    if (all[f].kind == FactorPlace::Kind::row) rows.push_back({all[f].place, strides[f]});
  }
  const std::optional<Line> line = line_of(rows);
  if (!line || line->period != places_.rows()) refuse(result.value, "is no line in memory");
  out_.finish += "        // store " + result.name + "\n        store_rows<" +
                 std::string(element_of(result.type.dtype)) + ">(" + arguments_.pointer(tensor) +
                 ", " + arguments_.number(result.name + "_row", line->stride) +
                 ", row + i * 64, row_count, " + held.parts[0] + ", " + picked_ + ");\n";
}

}  // namespace coda::cuda
