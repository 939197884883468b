// coda/cuda/tile.cpp: the values of a unit: accumulators, maps, heads, blocks.
#include "coda/cuda/tile.h"

#include <algorithm>

#include "coda/core/error.h"
#include "coda/cuda/tile_text.h"
#include "coda/program/text.h"

namespace coda::cuda {
namespace {

// Of the generator of random numbers, and of what has no instruction.
constexpr int kRandomRegisters = 38, kPolynomialRegisters = 16;

bool is_accumulator(const Space& space, Value value) {
  return std::ranges::any_of(space.accumulators,
                             [&](const Accumulator& each) { return each.value == value; });
}

}  // namespace

int chunks_of(const TileShape& shape) {
  return shape.head != 0 ? 2 : shape.unit / 16;
}

std::string chunk_column(const TileShape& shape, const std::string& unit) {
  const std::string inside = "j * 16 + g * 8 + (lane_id % 4) * 2";
  if (shape.head == 0) return unit + " * " + std::to_string(shape.unit) + " + " + inside;
  const std::string sub = std::to_string(shape.head / 64);
  return unit + " / " + sub + " * " + std::to_string(shape.head) + " + " + unit + " % " + sub +
         " * 32 + " + inside;
}

SpaceText emit_space(const Region& places, std::span<const Layout> layouts, Arguments& arguments,
                     const TileShape& shape, Registers budget, RowsText& rows) {
  return TileText(places, layouts, arguments, shape, budget, rows).run();
}

TileText::TileText(const Region& places, std::span<const Layout> layouts, Arguments& arguments,
                   const TileShape& shape, Registers budget, RowsText& rows)
    : places_(places),
      program_(places.program()),
      layouts_(layouts),
      arguments_(arguments),
      shape_(shape),
      budget_(budget),
      rows_(rows) {
  if (real_lane(program_) != Lane::f32) throw Refusal{"f64"};
  find_groups();
  paired_ = std::ranges::any_of(places_.nodes(), [&](int n) {
    return is_pair(program_.nodes()[static_cast<std::size_t>(n)]);
  });
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
                           "even_columns",
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
                           "load_column_of",
                           "load_column_pair",
                           "load_halves",
                           "load_pairs",
                           "load_singles",
                           "matrices",
                           "odd_columns",
                           "pair_columns",
                           "pairs",
                           "part",
                           "quad_sum",
                           "round_to",
                           "row",
                           "row0",
                           "row_count",
                           "rows",
                           "rows_of",
                           "s",
                           "scalar",
                           "slot",
                           "state",
                           "unpacked",
                           "uniform_tile",
                           "unit",
                           "warp"}) {
    taken_.insert(name);
  }
}

SpaceText TileText::run() {
  // What is known of a row on the way is stored from there; so results without a tile come last.
  std::vector<std::size_t> rest;
  for (const int result : places_.results()) {
    const auto index = static_cast<std::size_t>(result);
    const Value value = program_.results()[index].value;
    if (joins_columns(value)) {
      store_joined(index);
      continue;
    }
    const bool whole = has_rows(value) && columns_of(value) != Columns::none;
    if (whole || on_tile(value)) {
      store_result(index);
    } else {
      if (!places_.is_whole() && !has_rows(value)) refuse(value, "is no part of any tile");
      rest.push_back(index);
    }
  }
  for (const std::size_t index : rest) {
    rows_.store(places_, index, static_cast<int>(program_.params().size() + index));
  }
  begin_groups();
  if (shape_.across && (!out_.state_fields.empty() || !out_.finish.empty() ||
                        !out_.finish_once.empty() || out_.kept_bytes > 0)) {
    throw Refusal{"something is kept until a tile's end, and tiles hold parts of heads"};
  }
  for (const auto& [value, fields] : columns_) {
    pressure_.hold(2 * chunks_of(shape_) * static_cast<int>(fields.size()));
  }
  out_.registers = pressure_.held() + pressure_.peak() * 2 / 3;
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
  bool any = false, half = false, each = false;
  std::int64_t innermost = 0;
  const std::vector<Role>& roles = places_.checked().roles(places_.space_index(), value);
  const std::vector<FactorPlace> all = places_.places(value);
  for (std::size_t f = 0; f < all.size(); ++f) {
    if (roles[f] != Role::column) continue;
    any = true;
    if (all[f].kind == FactorPlace::Kind::whole && all[f].extent > 1) {
      if (shape_.head == 0 || all[f].extent * 2 != shape_.head) refuse(value, "has other columns");
      half = true;
    } else if (all[f].kind == FactorPlace::Kind::column && all[f].place.extent > 1) {
      const Place place = all[f].place;
      if (innermost == 0 || place.inner < innermost) innermost = place.inner;
      each = each || shape_.group == 0 || place.inner * place.block % shape_.group != 0;
    }
  }
  if (half) return Columns::half;
  if (paired_ && innermost % 2 == 0) {
    const bool even = std::ranges::all_of(all, [](const FactorPlace& one) {
      return one.kind != FactorPlace::Kind::column || one.place.extent == 1 ||
             one.place.inner % 2 == 0;
    });
    if (even && innermost == 2) return Columns::pairs;
  }
  if (any && !each && shape_.group != 0) return Columns::groups;
  return any ? Columns::all : Columns::none;
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
  return name.empty() ? "t" + std::to_string(++temporaries_) : name;
}

TileText::Held TileText::name_parts(Value value, Where where, Lane lane,
                                    const std::vector<std::string>& expressions) {
  Held held{where, lane, {}};
  std::string& code = where == Where::chunk   ? out_.chunk
                      : where == Where::group ? group_code_
                      : where == Where::block ? out_.after
                                              : out_.finish;
  code += comment(value);
  const std::string base = fresh_name(value_name(value));
  // Accumulators are there in any case.
  const Columns columns = columns_of(value);
  const bool two = columns == Columns::all || columns == Columns::half;
  const int registers =
      is_accumulator(places_.space(), value)
          ? 0
          : (has_rows(value) ? 2 : 1) * (two ? 2 : 1) * (lane == Lane::i64 ? 2 : 1);
  for (std::size_t p = 0; p < expressions.size(); ++p) {
    const std::string name =
        expressions.size() == 1 ? base : fresh_name(base + (p == 0 ? "_low" : "_high"));
    code += "        const auto " + name + " = " + expressions[p] + ";\n";
    held.parts.push_back(name);
    if (where == Where::chunk) pressure_.define(name, registers);
  }
  if (where == Where::chunk) pressure_.end_statement();
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
  auto found = memo_.find(value.id);
  if (found == memo_.end()) found = memo_.emplace(value.id, lower_node(value)).first;
  for (const std::string& part : found->second.parts) pressure_.use(part);
  return found->second;
}

TileText::Held TileText::lower_node(Value value) {
  const Space& space = places_.space();
  for (std::size_t a = 0; a < space.accumulators.size(); ++a) {
    if (space.accumulators[a].value == value) return lower_accumulator(a, value);
  }
  const bool columns = columns_of(value) != Columns::none;
  if (program_.is_param(value)) {
    if (columns_of(value) == Columns::groups) refuse(value, "has an element for each head");
    const DType dtype = program_.type(value).dtype;
    // Shared memory is short where heads lie across tiles.
    if (!columns && !has_rows(value) && shape_.across && is_float(dtype)) {
      return {Where::row,
              Lane::f32,
              {"scalar(Element<" + std::string(element_of(dtype)) + ">::value(" +
               arguments_.pointer(value.id) + "[0]))"}};
    }
    if (columns) need_whole_head(value);
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
  if (node.op == Op::size) {
    return {Where::row, Lane::i64, {"scalar(" + arguments_.extent(node.attr.axis) + ")"}};
  }
  // What stands on no accumulator and has no columns is known once a row.
  if (!columns && !on_tile(value)) {
    const Lane lane = lane_of(program_, value, real_);
    return {Where::row, lane, {row_field(value, lane)}};
  }
  switch (node.op) {
    case Op::index:
      return lower_index(value);
    case Op::uniform:
      return lower_uniform(value);
    case Op::split: {
      const Held whole = lower(node.args[0]);
      // The region's piece.
      if (places_.cuts(node)) return whole;
      if (is_pair(node)) {
        for (std::size_t p = 0; p < 2; ++p) {
          memo_[node.results[p].id] =
              name_parts(node.results[p], whole.where, whole.lane,
                         {(p == 0 ? "even_columns(" : "odd_columns(") + whole.parts[0] + ")"});
        }
        return memo_[value.id];
      }
      for (std::size_t p = 0; p < node.results.size(); ++p) {
        memo_[node.results[p].id] = {whole.where, whole.lane, {whole.parts[p]}};
      }
      return memo_[value.id];
    }
    case Op::join: {
      const Held low = lower(node.args[0]), high = lower(node.args[1]);
      const Lane lane = lane_of(program_, value, real_);
      if (is_pair(node)) {
        return name_parts(value, Where::chunk, lane,
                          {"pair_columns(" + coerce(low, lane).parts[0] + ", " +
                           coerce(high, lane).parts[0] + ")"});
      }
      return {Where::chunk, lane, {coerce(low, lane).parts[0], coerce(high, lane).parts[0]}};
    }
    case Op::as:
    case Op::detach:
    case Op::save:
    case Op::recompute:
      return lower(node.args[0]);
    case Op::spread: {
      const Held blocks = lower(node.args[0]);
      if (blocks.where == Where::block) refuse(value, "spreads blocks");
      return blocks;
    }
    case Op::pick:
      return lower_pick(value);
    default:
      break;
  }
  if (in_groups_.contains(value.id)) return lower_group_reduce(value);
  if (class_of(node.op) == OpClass::block_reduce) return lower_block_reduce(value);
  if (is_map(node.op)) return lower_map(node);
  refuse(value, "has no place in the fast kernel");
}

TileText::Held TileText::lower_accumulator(std::size_t index, Value value) {
  const int first = static_cast<int>(index) * shape_.result_columns() / 2;
  const std::string at = std::to_string(first) + " + " + unit_of_tile() + " * " +
                         std::to_string(shape_.unit / 2) + " + ";
  if (shape_.head == 0) {
    return name_parts(value, Where::chunk, Lane::f32,
                      {"accumulator(acc, " + at + "j * 8 + g * 4)"});
  }
  return name_parts(value, Where::chunk, Lane::f32,
                    {"accumulator(acc, " + at + "j * 8 + g * 4)",
                     "accumulator(acc, " + at + "16 + j * 8 + g * 4)"});
}

TileText::Held TileText::lower_index(Value value) {
  const std::vector<FactorPlace> all = places_.places(value);
  if (all.size() != 1 || all[0].kind != FactorPlace::Kind::column) {
    refuse(value, "is no index of the columns");
  }
  if (!places_.is_whole()) refuse(value, "is an index of a piece of the columns");
  const Place place = all[0].place;
  if (columns_of(value) == Columns::groups && place.inner * place.extent == places_.columns()) {
    const std::string units = std::to_string(shape_.group / 64);
    return name_parts(value, Where::group, Lane::i64,
                      {"scalar(static_cast<long long>(unit / " + units + "))"});
  }
  if (shape_.head != 0 || place.inner != 1 || place.block != 1 ||
      place.extent != places_.columns()) {
    refuse(value, "is an index of heads");
  }
  return name_parts(value, Where::chunk, Lane::i64, {"column_index(column)"});
}

// By position: the row-major index of the whole value.
TileText::Held TileText::lower_uniform(Value value) {
  std::vector<PlacedFactor> rows, columns;
  const std::vector<FactorPlace> all = places_.places(value);
  std::int64_t stride = 1;
  for (std::size_t f = all.size(); f-- > 0;) {
    if (all[f].kind == FactorPlace::Kind::row) rows.push_back({all[f].place, stride});
    if (all[f].kind == FactorPlace::Kind::column) columns.push_back({all[f].place, stride});
    if (all[f].kind == FactorPlace::Kind::whole && all[f].extent > 1) {
      refuse(value, "has other dimensions");
    }
    stride *= all[f].extent;
  }
  const std::optional<Line> row = line_of(rows), column = line_of(columns);
  if (!row || !column || row->period != places_.rows() || column->period != places_.columns() ||
      !places_.is_whole()) {
    refuse(value, "has its positions in another order");
  }
  const Held seed = coerce(lower(node_of(value).args[0]), Lane::i64);
  if (seed.where != Where::row) refuse(value, "has a seed for each element");
  pressure_.borrow(kRandomRegisters);
  const std::string name = "uniform_" + std::to_string(value.id);
  const std::string steps = arguments_.number(name + "_row_step", row->stride) + ", " +
                            arguments_.number(name + "_column_step", column->stride);
  std::vector<std::string> parts;
  for (int p = 0; p < (shape_.head != 0 ? 2 : 1); ++p) {
    parts.push_back("uniform_tile(" + seed.parts[0] + ", first_row, column" +
                    (p == 0 ? "" : " + " + std::to_string(shape_.head / 2)) + ", " + steps + ")");
  }
  return name_parts(value, Where::chunk, Lane::f32, parts);
}

TileText::Held TileText::lower_map(const Node& node) {
  const Value value = node.results[0];
  std::vector<Held> operands;
  Where where = Where::row;
  for (const Value arg : node.args) {
    operands.push_back(lower(arg));
    const Where own = operands.back().where;
    if (own == Where::row || own == where) continue;
    if (where != Where::row && where != Where::group && own != Where::group) {
      refuse(value, "joins values of a block with values of its elements");
    }
    if (where == Where::row || where == Where::group) where = own;
  }
  if (where != Where::group) {
    for (Held& each : operands) each = kept(each);
  }
  if (node.op == Op::erf || node.op == Op::tanh) pressure_.borrow(kPolynomialRegisters);
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

}  // namespace coda::cuda
