// coda/cuda/tile_heads.cpp: heads: whose halves meet, and what is known of one as a whole.
//
// A reduction over a head takes a pass of its own over the accumulators of the head's units, before
// the first of them is finished; so a tile holds whole heads. Block sums that are spread over their
// blocks again are the same, of a unit.
#include <algorithm>

#include "coda/check/bind.h"
#include "coda/core/error.h"
#include "coda/cuda/tile_text.h"
#include "coda/program/text.h"

namespace coda::cuda {
namespace {

bool stands_on(const Program& program, Value value, Value wanted) {
  if (value == wanted) return true;
  return !program.is_param(value) && std::ranges::any_of(program.node(value).args, [&](Value arg) {
    return stands_on(program, arg, wanted);
  });
}

// The reductions of a space that its elements need again.
std::vector<const Node*> group_reductions(const Region& places) {
  const Program& program = places.program();
  std::vector<const Node*> found;
  for (const int n : places.nodes()) {
    const Node& node = program.nodes()[static_cast<std::size_t>(n)];
    const OpClass kind = class_of(node.op);
    if (kind != OpClass::reduce && kind != OpClass::block_reduce) continue;
    if (places.role_of(node.args[0], node.attr.axis) != Role::column) continue;
    const bool spread = std::ranges::any_of(places.nodes(), [&](int other) {
      const Node& each = program.nodes()[static_cast<std::size_t>(other)];
      return each.op == Op::spread && stands_on(program, each.args[0], node.results[0]);
    });
    if (kind == OpClass::reduce || spread) found.push_back(&node);
  }
  return found;
}

}  // namespace

bool is_pair_of_columns(const Region& places, const Node& node) {
  if (node.op != Op::split && node.op != Op::join) return false;
  const std::optional<Place> place = places.column_place(node.attr.axis);
  return node.attr.dims.size() == 2 && place && place->inner == 1 && place->extent == 2 &&
         places.columns() > 2;
}

std::int64_t head_of(const Region& places) {
  std::int64_t head = 0;
  for (const int n : places.nodes()) {
    const Node& node = places.program().nodes()[static_cast<std::size_t>(n)];
    if (node.op != Op::split && node.op != Op::join) continue;
    if (places.cuts(node) || places.joins(node) || is_pair_of_columns(places, node)) continue;
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

std::int64_t group_of(const Region& places) {
  std::int64_t group = 0;
  for (const Node* node : group_reductions(places)) {
    const std::optional<Place> place = places.column_place(node->attr.axis);
    const std::int64_t own = class_of(node->op) == OpClass::block_reduce ? node->attr.block
                             : place                                     ? place->extent
                                                                         : 0;
    if (!place || place->inner != 1 || own % 64 != 0 || own == 0) {
      throw Refusal{"a reduction over " + std::to_string(own) + " columns, no multiple of 64"};
    }
    if (group != 0 && group != own) throw Refusal{"reductions over heads of several sizes"};
    group = own;
  }
  return group;
}

void TileText::find_groups() {
  for (const Node* node : group_reductions(places_)) in_groups_.insert(node->results[0].id);
}

// Units of a group: of a head that is reduced.
int TileText::group_units() const {
  return static_cast<int>(shape_.group / 64);
}

void TileText::need_whole_head(Value value) const {
  if (shape_.across && passes_ > 0) {
    refuse(value, "is summed over a head, and a tile holds a part of it");
  }
}

std::string TileText::unit_of_tile() const {
  return passes_ > 0 && group_units() > 1 && !shape_.across ? "(h + part)" : "h";
}

TileText::Held TileText::lower_group_reduce(Value value) {
  const Node& node = node_of(value);
  const bool sums = node.op == Op::sum || node.op == Op::block_sum;
  if (!sums && node.op != Op::reduce_max && node.op != Op::block_max) {
    refuse(value, "is no sum or maximum");
  }
  // A pass of its own: values of chunks are computed again.
  const std::map<std::int32_t, Held> known = memo_;
  std::string loads, chunk;
  std::set<std::string> loaded;
  const auto exchange = [&] {
    std::swap(out_.loads, loads);
    std::swap(out_.chunk, chunk);
    std::swap(loaded_, loaded);
    std::erase_if(memo_, [](const auto& each) { return each.second.where == Where::chunk; });
  };
  exchange();
  ++passes_;
  const Held operand = coerce(lower(node.args[0]), Lane::f32);
  if (operand.where != Where::chunk) refuse(value, "reduces what has no columns");
  const std::string name = fresh_name(value_name(value));
  if (shape_.across && (!sums || !out_.head_sum.empty())) {
    refuse(value, "is more than one sum of a head, and a tile holds a part of it");
  }
  for (const std::string& part : operand.parts) {
    const bool blocks = node.attr.block != 0;
    const std::string element = blocks ? masked(part, sums ? "0.0f" : "-infinity()", false) : part;
    out_.chunk += "        " + name + "_all.take(" + element + ");\n";
  }
  --passes_;
  exchange();
  memo_.insert(known.begin(), known.end());
  // A unit's sum, then the units' sums: the same bits wherever a tile ends.
  const bool several = group_units() > 1 && !shape_.across;
  const std::string all = std::string("        ") + (sums ? "GroupSum " : "GroupMax ") + name +
                          "_all;\n" + "#pragma unroll\n        for (int j = 0; j < " +
                          std::to_string(chunks_of(shape_)) + "; j++) {\n" + loads +
                          "#pragma unroll\n        for (int g = 0; g < 2; g++) {\n"
                          "        [[maybe_unused]] const int column = " +
                          chunk_column(shape_, several ? "(unit + part)" : "unit") + ";\n" + chunk +
                          "        }\n        }\n";
  const std::string finished = name + "_all.finish()";
  const std::string both = sums ? "add(" : "maximum(";
  if (shape_.across) {
    out_.head_sum = comment(value) + all + "        sum = " + finished + ";\n";
    group_code_ += comment(value) + "        const Row " + name + " = head_sum;\n";
  } else if (several) {
    group_code_ += comment(value) + "        Row " + name + ";\n" +
                   "#pragma unroll\n        for (int part = 0; part < " +
                   std::to_string(group_units()) + "; part++) {\n" + all + "        " + name +
                   " = part == 0 ? " + finished + " : " + both + name + ", " + finished +
                   ");\n        }\n";
  } else {
    group_code_ += comment(value) + all + "        const Row " + name + " = " + finished + ";\n";
  }
  // Of two passes over one unit the compiler keeps what it can.
  if (!shape_.across) pressure_.hold((sums ? 4 : 2) + (group_units() == 1 ? 16 : 0));
  return {Where::group, Lane::f32, {name}};
}

// A value of a group where the units of that group can read it.
TileText::Held TileText::kept(const Held& held) {
  if (held.where != Where::group || group_units() <= 1 || passes_ > 0 || shape_.across) return held;
  const std::string& name = held.parts[0];
  const auto [entry, fresh] = kept_.emplace(name, "");
  if (fresh) {
    entry->second = fresh_name(name + "_kept");
    const std::string type = held.lane == Lane::truth ? "bool" : std::string(type_of(held.lane));
    out_.state_fields += "      RowOf<" + type + "> " + entry->second + "[2];\n";
    group_code_ += "        state." + entry->second + "[i] = rows_of(" + name + ");\n";
  }
  return {Where::group, held.lane, {"state." + entry->second + "[i]"}};
}

void TileText::begin_groups() {
  if (group_code_.empty()) return;
  if (shape_.across) {
    if (!leave_code_.empty()) out_.leave_head = group_code_ + leave_code_;
    out_.before = group_code_ + out_.before;
    return;
  }
  out_.passes = true;
  if (group_units() > 1) {
    group_code_ = "        if (h % " + std::to_string(group_units()) +
                  " == 0) {  // a head begins\n" + group_code_ + "        }\n";
  }
  out_.before = group_code_ + out_.before;
}

// A result with one element for each row and head: it leaves after the tile's last unit.
void TileText::store_groups(std::size_t index, const Held& held) {
  const Result& result = program_.results()[index];
  const int tensor = static_cast<int>(program_.params().size() + index);
  if (!is_float(result.type.dtype) || size_of(result.type.dtype) > 4 ||
      result.store == Store::accumulate || !has_rows(result.value)) {
    refuse(result.value, "is stored in another way");
  }
  std::vector<PlacedFactor> rows, heads;
  const std::vector<FactorPlace> all = places_.places(result.value);
  const std::vector<std::int64_t> strides = result_strides(index);
  for (std::size_t f = 0; f < all.size(); ++f) {
    Place place = all[f].place;
    if (all[f].kind == FactorPlace::Kind::row) rows.push_back({place, strides[f]});
    if (all[f].kind != FactorPlace::Kind::column) continue;
    if (place.block > 1) {
      place = {1, (place.extent + place.block - 1) / place.block, 1};
    } else {
      place.inner /= shape_.group;
    }
    heads.push_back({place, strides[f]});
  }
  const std::optional<Line> row = line_of(rows), head = line_of(heads);
  const std::int64_t count = (places_.columns() + shape_.group - 1) / shape_.group;
  if (!row || !head || row->period != places_.rows() || head->period != count) {
    refuse(result.value, "is no matrix in memory");
  }
  if (shape_.across) {
    leave_code_ += "        // store " + result.name + "\n        store_head(" +
                   arguments_.pointer(tensor) + ", " +
                   arguments_.number(result.name + "_row", row->stride) + ", " +
                   arguments_.number(result.name + "_head", head->stride) +
                   ", first_row, unit / 2, P::row_count(args, s), rows_of(" +
                   coerce(held, Lane::f32).parts[0] + "), lane_id);\n";
    return;
  }
  const auto [keeps, store] = keep_blocks(
      result.name, static_cast<int>(shape_.result_columns() / shape_.group), shape_.group,
      "h / " + std::to_string(group_units()), "rows_of(" + coerce(held, Lane::f32).parts[0] + ")");
  group_code_ += "        // store " + result.name + "\n        " + keeps;
  const std::string group = std::to_string(shape_.group);
  out_.finish_once += store + arguments_.pointer(tensor) + ", " +
                      arguments_.number(result.name + "_row", row->stride) + ", " +
                      arguments_.number(result.name + "_head", head->stride) +
                      ", row, first_column / " + group + ", row_count, column_count, lane_id);\n";
}

}  // namespace coda::cuda
