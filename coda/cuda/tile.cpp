// coda/cuda/tile.cpp: the values of a unit: accumulators, maps, heads, blocks.
#include "coda/cuda/tile.h"

#include <algorithm>

#include "coda/check/bind.h"
#include "coda/core/error.h"
#include "coda/cuda/tile_text.h"
#include "coda/program/text.h"

namespace coda::cuda {
namespace {

constexpr std::int64_t kUnitRows = 64;

bool is_accumulator(const Space& space, Value value) {
  return std::ranges::any_of(space.accumulators,
                             [&](const Accumulator& each) { return each.value == value; });
}

}  // namespace

bool SpaceText::operator==(const SpaceText& other) const {
  const auto same = [](const SlotUse& a, const SlotUse& b) {
    return a.bytes == b.bytes && a.load == b.load && a.store == b.store && a.drain == b.drain;
  };
  return std::ranges::equal(slots, other.slots, same) && column_fields == other.column_fields &&
         column_code == other.column_code && state_fields == other.state_fields &&
         loads == other.loads && stores == other.stores && before == other.before &&
         chunk == other.chunk && after == other.after && finish == other.finish &&
         maps == other.maps;
}

std::int64_t head_of(const Places& places) {
  std::int64_t head = 0;
  for (const int n : places.space().nodes) {
    const Node& node = places.program().nodes()[static_cast<std::size_t>(n)];
    if (node.op != Op::split && node.op != Op::join) continue;
    const Value whole = node.op == Op::split ? node.args[0] : node.results[0];
    if (places.role_of(whole, node.attr.axis) != Role::column) {
      throw Refusal{"`" + print_node(places.program(), static_cast<std::size_t>(n)) +
                    "` cuts rows"};
    }
    const std::optional<Place> place = places.column_place(node.attr.axis);
    const bool halves = node.attr.dims.size() == 2 && place && place->inner == 1 &&
                        require_extent(node.attr.dims[0], places.sizes()) * 2 == place->extent &&
                        require_extent(node.attr.dims[1], places.sizes()) * 2 == place->extent;
    if (!halves || place->extent % 64 != 0 || (head != 0 && head != place->extent)) {
      throw Refusal{"`" + print_node(places.program(), static_cast<std::size_t>(n)) +
                    "` is no split of heads of a multiple of 64 into halves"};
    }
    head = place->extent;
  }
  return head;
}

bool has_row_blocks(const Places& places) {
  return std::ranges::any_of(places.space().nodes, [&](int n) {
    const Node& node = places.program().nodes()[static_cast<std::size_t>(n)];
    return class_of(node.op) == OpClass::block_reduce &&
           places.role_of(node.args[0], node.attr.axis) == Role::column;
  });
}

SpaceText emit_space(const Places& places, std::span<const Layout> layouts, Arguments& arguments,
                     const TileShape& shape, RowsText& rows, std::size_t space_index) {
  return TileText(places, layouts, arguments, shape, rows, space_index).run();
}

TileText::TileText(const Places& places, std::span<const Layout> layouts, Arguments& arguments,
                   const TileShape& shape, RowsText& rows, std::size_t space_index)
    : places_(places),
      program_(places.program()),
      layouts_(layouts),
      arguments_(arguments),
      shape_(shape),
      rows_(rows),
      space_(space_index),
      precision_(precision_of(places.program())) {
  if (real_lane(program_) != Lane::f32) throw Refusal{"f64"};
  // The names that the page has already.
  for (const Op op : all_ops()) taken_.insert(std::string(coda::name_of(op)));
  for (const char* name : {"acc",
                           "accumulator",
                           "args",
                           "column",
                           "column_count",
                           "column_index",
                           "column_of",
                           "column_sum",
                           "columns",
                           "exact",
                           "fast",
                           "first",
                           "first_column",
                           "first_row",
                           "g",
                           "h",
                           "i",
                           "inside_columns",
                           "inside_rows",
                           "j",
                           "lane",
                           "lane_id",
                           "load_column",
                           "load_pairs",
                           "matrices",
                           "pairs",
                           "quad_sum",
                           "round_to",
                           "row",
                           "row0",
                           "row_count",
                           "rows",
                           "s",
                           "scalar",
                           "slot",
                           "state",
                           "unpacked",
                           "unit",
                           "warp"}) {
    taken_.insert(name);
  }
}

SpaceText TileText::run() {
  // What is known of a row on the way is stored from there; so results without a tile come last.
  std::vector<std::size_t> rest;
  for (const int result : places_.space().results) {
    const auto index = static_cast<std::size_t>(result);
    const Value value = program_.results()[index].value;
    const bool whole = has_rows(value) && columns_of(value) != Columns::none;
    if (whole || on_tile(value)) {
      store_result(index);
    } else {
      rest.push_back(index);
    }
  }
  for (const std::size_t index : rest) {
    rows_.store(places_.space_index(), index, static_cast<int>(program_.params().size() + index));
  }
  return std::move(out_);
}

void TileText::refuse(Value value, const std::string& why) const {
  const int node = program_.value(value).node;
  throw Refusal{"`" +
                (node < 0 ? describe(program_, value)
                          : print_node(program_, static_cast<std::size_t>(node))) +
                "` " + why};
}

bool TileText::has_rows(Value value) const {
  const std::vector<Role>& roles = places_.checked().roles(places_.space_index(), value);
  return std::ranges::find(roles, Role::row) != roles.end();
}

// Does it stand on an accumulator?
bool TileText::on_tile(Value value) const {
  if (is_accumulator(places_.space(), value)) return true;
  if (program_.is_param(value)) return false;
  return std::ranges::any_of(node_of(value).args, [&](Value arg) { return on_tile(arg); });
}

TileText::Columns TileText::columns_of(Value value) const {
  bool any = false, half = false;
  const std::vector<Role>& roles = places_.checked().roles(places_.space_index(), value);
  const std::vector<FactorPlace> all = places_.places(value);
  for (std::size_t f = 0; f < all.size(); ++f) {
    if (roles[f] != Role::column) continue;
    any = true;
    if (all[f].kind == FactorPlace::Kind::whole && all[f].extent > 1) {
      if (shape_.head == 0 || all[f].extent * 2 != shape_.head) refuse(value, "has other columns");
      half = true;
    }
  }
  return half ? Columns::half : any ? Columns::all : Columns::none;
}

std::string TileText::comment(Value value) const {
  const int node = program_.value(value).node;
  if (node < 0) return "";
  return "        // " + print_node(program_, static_cast<std::size_t>(node)) + "\n";
}

std::string TileText::fresh_name(const std::string& wanted) {
  std::string name = identifier(wanted);
  for (int i = 2; !taken_.insert(name).second; ++i) name = identifier(wanted) + std::to_string(i);
  return name;
}

std::string TileText::value_name(Value value) {
  const std::string& name = program_.value(value).name;
  return name.empty() ? "t" + std::to_string(value.id) : name;
}

TileText::Held TileText::name_parts(Value value, Where where, Lane lane,
                                    const std::vector<std::string>& expressions) {
  Held held{where, lane, {}};
  std::string& code = where == Where::chunk   ? out_.chunk
                      : where == Where::block ? out_.after
                                              : out_.finish;
  code += comment(value);
  const std::string base = fresh_name(value_name(value));
  for (std::size_t p = 0; p < expressions.size(); ++p) {
    const std::string name =
        expressions.size() == 1 ? base : fresh_name(base + (p == 0 ? "_low" : "_high"));
    code += "        const auto " + name + " = " + expressions[p] + ";\n";
    held.parts.push_back(name);
  }
  return held;
}

TileText::Held TileText::coerce(const Held& value, Lane lane) const {
  if (value.lane == lane) return value;
  Held held = value;
  for (std::string& part : held.parts) part = convert(part, value.lane, lane);
  held.lane = lane;
  return held;
}

// ---- values ----

TileText::Held TileText::lower(Value value) {
  if (const auto found = memo_.find(value.id); found != memo_.end()) return found->second;
  Held held = lower_node(value);
  memo_.emplace(value.id, held);
  return held;
}

TileText::Held TileText::lower_node(Value value) {
  const Space& space = places_.space();
  for (std::size_t a = 0; a < space.accumulators.size(); ++a) {
    if (space.accumulators[a].value == value) return lower_accumulator(a, value);
  }
  const bool columns = columns_of(value) != Columns::none;
  if (program_.is_param(value)) {
    if (!columns)
      return {Where::row,
              lane_of(program_, value, real_),
              {row_field(value, lane_of(program_, value, real_))}};
    return has_rows(value) ? lower_parameter(value) : lower_column_vector(value);
  }
  const Node& node = node_of(value);
  if (node.op == Op::constant) {
    const Lane lane = lane_of(program_, value, real_);
    return {Where::row, lane, {"scalar(" + literal(node.attr.number, lane) + ")"}};
  }
  // What stands on no accumulator and has no columns is known once a row.
  if (!columns && !on_tile(value)) {
    const Lane lane = lane_of(program_, value, real_);
    return {Where::row, lane, {row_field(value, lane)}};
  }
  switch (node.op) {
    case Op::index:
      return lower_index(value);
    case Op::split: {
      const Held whole = lower(node.args[0]);
      for (std::size_t p = 0; p < node.results.size(); ++p) {
        memo_[node.results[p].id] = {whole.where, whole.lane, {whole.parts[p]}};
      }
      return memo_[value.id];
    }
    case Op::join: {
      const Held low = lower(node.args[0]), high = lower(node.args[1]);
      const Lane lane = lane_of(program_, value, real_);
      return {Where::chunk, lane, {coerce(low, lane).parts[0], coerce(high, lane).parts[0]}};
    }
    case Op::as:
    case Op::detach:
    case Op::save:
    case Op::recompute:
      return lower(node.args[0]);
    case Op::spread:
      if (node.attr.block != 0) refuse(value, "spreads blocks");
      return lower(node.args[0]);
    case Op::pick:
      return lower_pick(value);
    default:
      break;
  }
  if (class_of(node.op) == OpClass::block_reduce) return lower_block_reduce(value);
  if (is_map(node.op)) return lower_map(node);
  refuse(value, "has no place in the fast kernel");
}

TileText::Held TileText::lower_accumulator(std::size_t index, Value value) {
  const int first = static_cast<int>(index) * shape_.result_columns() / 2;
  const std::string at =
      std::to_string(first) + " + h * " + std::to_string(shape_.unit / 2) + " + ";
  if (shape_.head == 0) {
    return name_parts(value, Where::chunk, Lane::f32,
                      {"accumulator(acc, " + at + "j * 8 + g * 4)"});
  }
  return name_parts(value, Where::chunk, Lane::f32,
                    {"accumulator(acc, " + at + "j * 8 + g * 4)",
                     "accumulator(acc, " + at + "16 + j * 8 + g * 4)"});
}

TileText::Held TileText::lower_parameter(Value value) {
  const DType dtype = program_.type(value).dtype;
  const std::string name = program_.value(value).name;
  const Columns columns = columns_of(value);
  const Lines lines = lines_of(value, strides_of(value.id), name);
  // A result that accumulates into memory of its own has loaded it already.
  const std::vector<int> slots = slots_for(name, value.id, dtype, lines, columns, true, false);
  std::vector<std::string> reads;
  const int parts = shape_.head != 0 && columns == Columns::all ? 2 : 1;
  for (int p = 0; p < parts; ++p) reads.push_back(read_slots(slots, dtype, p));
  return name_parts(value, Where::chunk, Lane::f32, reads);
}

TileText::Held TileText::lower_column_vector(Value value) {
  const DType dtype = program_.type(value).dtype;
  std::vector<PlacedFactor> factors;
  const std::vector<FactorPlace> all = places_.places(value);
  const std::vector<std::int64_t> strides = strides_of(value.id);
  const Columns columns = columns_of(value);
  for (std::size_t f = 0; f < all.size(); ++f) {
    if (all[f].kind == FactorPlace::Kind::row) refuse(value, "varies with rows and columns");
    if (all[f].kind == FactorPlace::Kind::column) factors.push_back({all[f].place, strides[f]});
    if (all[f].kind == FactorPlace::Kind::whole && all[f].extent > 1) {
      factors.push_back({{1, all[f].extent, 1}, strides[f]});
    }
  }
  const std::optional<Line> line = line_of(factors);
  if (!line) refuse(value, "is no line in memory");
  const Lane lane = lane_of(dtype, real_);
  const std::string pointer = arguments_.pointer(value.id);
  const std::string name = program_.value(value).name;
  const std::string element = std::string(element_of(dtype));
  const bool whole = line->period == places_.columns();
  const std::string period = arguments_.number(name + "_period", line->period);
  if (columns == Columns::all && whole && line->stride == 1 && size_of(dtype) == 2 &&
      shape_.head == 0 && line->period % 2 == 0 &&
      layouts_[static_cast<std::size_t>(value.id)].alignment >= 4) {
    const std::string field = fresh_name(name + "_pairs");
    const std::string chunks = std::to_string(shape_.unit / 16);
    out_.column_fields += "      ColumnPairs<" + chunks + "> " + field + ";\n";
    out_.column_code += "      out." + field + " = load_columns<" + chunks + ">(" + pointer +
                        ", unit * " + std::to_string(shape_.unit) + " + (lane_id % 4) * 2, " +
                        period + ");\n";
    return name_parts(value, Where::chunk, lane,
                      {"column_of<" + std::string(dtype == DType::bf16 ? "Bf16Pair" : "F16Pair") +
                       ">(columns." + field + ", j, g)"});
  }
  const std::string stride = arguments_.number(name + "_step", line->stride);
  std::vector<std::string> reads;
  const int parts = shape_.head != 0 && columns == Columns::all ? 2 : 1;
  for (int p = 0; p < parts; ++p) {
    const std::string at = columns == Columns::half ? "column % " + std::to_string(shape_.head / 2)
                           : p == 0                 ? "column"
                                                    : "column + " + std::to_string(shape_.head / 2);
    reads.push_back("load_column<" + element + ">(" + pointer + ", " + at + ", " + period + ", " +
                    stride + ", column_count)");
  }
  return name_parts(value, Where::chunk, lane, reads);
}

TileText::Held TileText::lower_index(Value value) {
  const std::vector<FactorPlace> all = places_.places(value);
  if (shape_.head != 0 || all.size() != 1 || all[0].kind != FactorPlace::Kind::column) {
    refuse(value, "is no index of the columns");
  }
  const Place place = all[0].place;
  if (place.inner != 1 || place.extent != places_.columns()) refuse(value, "is an index of heads");
  return name_parts(value, Where::chunk, Lane::i64, {"column_index(column)"});
}

TileText::Held TileText::lower_map(const Node& node) {
  const Value value = node.results[0];
  std::vector<Held> operands;
  Where where = Where::row;
  for (const Value arg : node.args) {
    operands.push_back(lower(arg));
    if (operands.back().where == Where::row) continue;
    if (where != Where::row && where != operands.back().where) {
      refuse(value, "joins values of a block with values of its elements");
    }
    where = operands.back().where;
  }
  const Lane wanted = lane_of(program_, value, real_);
  std::size_t parts = 1;
  for (const Held& each : operands) parts = std::max(parts, each.parts.size());
  std::vector<std::string> expressions;
  Lane lane = wanted;
  for (std::size_t p = 0; p < parts; ++p) {
    const auto part = [&](std::size_t a, Lane to) {
      const Held held = coerce(operands[a], to);
      return held.parts[held.parts.size() == 1 ? 0 : p];
    };
    if (class_of(node.op) == OpClass::cast) {
      const Cast done = cast(part(0, operands[0].lane), operands[0].lane, node.attr.dtype, real_);
      expressions.push_back(done.text);
      lane = done.lane;
      continue;
    }
    std::string text = std::string(name_of(node.op)) + "(";
    for (std::size_t a = 0; a < node.args.size(); ++a) {
      text += (a == 0 ? "" : ", ") + part(a, operand_lane(program_, node, a, real_, wanted));
    }
    lane = result_lane(program_, node, real_, wanted);
    expressions.push_back(text + ")");
  }
  return name_parts(value, where, lane, expressions);
}

// A chunk's value with what lies past the last column (and row) replaced by `identity`.
std::string TileText::masked(const std::string& part, Value value, const char* identity,
                             bool rows) {
  (void)value;
  std::string text = "inside_columns(" + part + ", column, column_count, " + identity + ")";
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
    out_.loads += "        Chunk " + name + "_chunk;\n";
    out_.chunk += comment(value);
    out_.chunk += "        " + name + "_chunk.put(g, " +
                  masked(operand.parts[0], value, "0.0f", true) + ");\n";
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
  const std::string element = masked(operand.parts[0], value, identity, false);
  if (node.op == Op::block_logsumexp) {
    out_.loads += "        Chunk " + name + "_chunk;\n";
    out_.chunk += "        " + name + "_chunk.put(g, " + element + ");\n";
    out_.stores += "        " + object + ".take(" + name + "_chunk);\n";
  } else {
    out_.chunk += "        " + object + ".take(" + element + ");\n";
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
  const std::string name = fresh_name(value_name(value));
  out_.state_fields += "      Picked " + name + "_picked;\n";
  out_.chunk += comment(value);
  out_.chunk += "        state." + name + "_picked.take(i, " + operand.parts[0] + ", " +
                ids.parts[0] + ", column, column_count);\n";
  std::string row_ids = ids.parts[0];
  out_.finish += "        const bool " + name + "_here[2] = {state." + name +
                 "_picked.here(i, 0, " + row_ids + ", first, column_count, lane_id), state." +
                 name + "_picked.here(i, 1, " + row_ids + ", first, column_count, lane_id)};\n";
  out_.finish += "        const Row " + name + " = state." + name + "_picked.value(i);\n";
  picked_ = name + "_here";
  return {Where::picked, Lane::f32, {name}};
}

// ---- results ----

void TileText::store_result(std::size_t index) {
  const Result& result = program_.results()[index];
  const Value value = result.value;
  const Held held = lower(value);
  if (held.where == Where::picked) return store_picked(index, held);
  if (held.where == Where::chunk) return store_tile(index, held);
  if (held.where == Where::block) {
    for (const FactorPlace& each : places_.places(value)) {
      if (each.place.block == 1) continue;
      return each.kind == FactorPlace::Kind::row ? store_column_blocks(index, value)
                                                 : store_row_blocks(index, held, value);
    }
  }
  refuse(value, "is a result of another kind");
}

void TileText::store_tile(std::size_t index, const Held& held) {
  const Result& result = program_.results()[index];
  const int tensor = static_cast<int>(program_.params().size() + index);
  const DType dtype = result.type.dtype;
  if (dtype != DType::bf16 && dtype != DType::f16 && dtype != DType::f32) {
    refuse(result.value, "is stored as " + std::string(coda::name_of(dtype)));
  }
  const bool adds = result.store == Store::accumulate;
  const Lines lines = lines_of(result.value, result_strides(index), result.name);
  const std::vector<int> slots =
      slots_for(result.name, tensor, dtype, lines, columns_of(result.value), adds, true);
  const Held value = coerce(held, Lane::f32);
  out_.chunk += "        // store " + result.name + "\n";
  const bool two = shape_.head != 0 && columns_of(result.value) == Columns::all;
  if (has_rows(result.value) == false) refuse(result.value, "is a result without rows");
  for (int p = 0; p < (two ? 2 : 1); ++p) {
    std::string text = value.parts[value.parts.size() == 1 ? 0 : static_cast<std::size_t>(p)];
    if (adds) text = "add(" + read_slots(slots, dtype, p) + ", " + text + ")";
    write_slots(slots, dtype, p, text);
  }
}

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
  const std::string count = std::to_string(per_row * 2), name = fresh_name(result.name + "_kept");
  out_.state_fields += "      RowBlocks<" + count + "> " + name + ";\n";
  const std::string keep = "state." + name + ".keep(" +
                           (shape_.unit == 64 ? "h * 2 + i" : "h / 2 * 2 + i") + ", " +
                           coerce(held, Lane::f32).parts[0] + ", lane_id);\n";
  if (shape_.unit == 64) {
    out_.after += "        " + keep;
  } else {
    out_.after += "        if (h % 2 == 1 || (unit + 1) * 32 >= column_count) " + keep;
  }
  out_.finish_once += "      // store " + result.name + "\n      state." + name + ".store(" +
                      arguments_.pointer(tensor) + ", " +
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
  // A slot of its own, or one whose contents have been read.
  int slot = -1;
  for (std::size_t s = 0; s < out_.slots.size() && slot < 0; ++s) {
    if (out_.slots[s].store.empty() && out_.slots[s].drain.empty()) slot = static_cast<int>(s);
  }
  if (slot < 0) {
    slot = static_cast<int>(out_.slots.size());
    out_.slots.push_back({});
  }
  SlotUse& use = out_.slots[static_cast<std::size_t>(slot)];
  use.drain =
      "      drain_columns<" + std::to_string(shape_.unit) + ", P::kSlotBytes / 4>(from, " +
      arguments_.pointer(tensor) + ", " + arguments_.number(result.name + "_block", block_stride) +
      ", " + arguments_.number(result.name + "_column", line->stride) + ", row, unit * " +
      std::to_string(shape_.unit) + ", P::row_count(args, s), P::columns(args, s), lane_id);\n";
  out_.after += "        // store " + result.name + "\n        put_column_sums(slot[" +
                std::to_string(slot) + "] + warp * (P::kSlotBytes / 4), " + sums + ", lane_id);\n";
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
