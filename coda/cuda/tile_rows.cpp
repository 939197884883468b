// coda/cuda/tile_rows.cpp: values without columns, once a row of a tile; results without a tile.
#include <algorithm>

#include "coda/core/error.h"
#include "coda/cuda/tile.h"
#include "coda/cuda/tile_text.h"

namespace coda::cuda {
namespace {

// Four neighbouring lanes have one row: a sum over what is neither row nor column is shared by
// them.
std::optional<Emitted> shared_sum(ElementEmitter& emitter, Arguments& arguments, Value value,
                                  const Coordinates& coordinates) {
  const Program& program = emitter.program();
  if (program.is_param(value) || program.node(value).op != Op::sum) return std::nullopt;
  if (emitter.depth() != 1) return std::nullopt;
  const Node& node = program.node(value);
  const std::string name = emitter.fresh(
      program.value(value).name.empty() ? std::string("sum") : program.value(value).name);
  const std::string k = emitter.fresh("k");
  ElementEmitter::Named here = emitter.named(value, coordinates);
  emitter.line("float " + name + " = 0.0f;");
  emitter.open("#pragma unroll 8\n      for (long long " + k + " = lane_id % 4; " + k + " < " +
               arguments.extent(node.attr.axis) + "; " + k + " += 4)");
  ElementEmitter::Named all = here;
  all.add(node.attr.axis.factors, emitter.divide({k, emitter.depth()}, node.attr.axis));
  const Emitted term = emitter.value(node.args[0], emitter.by_name(node.args[0], all), Lane::f32);
  emitter.line(name + " += " + term.text + ";");
  emitter.close();
  emitter.line(name + " = quad_sum(" + name + ");");
  return Emitted{name, Lane::f32, emitter.depth()};
}

}  // namespace

RowsText::RowsText(const Checked& checked, Arguments& arguments, Tiles tiles)
    : checked_(checked),
      arguments_(arguments),
      emitter_(checked.program(), arguments, Precision::exact,
               [&arguments](ElementEmitter& emitter, Value value, const Coordinates& at) {
                 return shared_sum(emitter, arguments, value, at);
               }),
      tiles_(tiles) {
  emitter_.open("#pragma unroll\n    for (int h = 0; h < 2; h++)");
  // Rows past the last one repeat it.
  emitter_.line("const long long row = exact::minimum(first_row + h * 8LL, count - 1);");
}

std::string RowsText::field(std::size_t space, Value value, Lane lane) {
  // Truth values wait as numbers.
  const Lane kept = lane == Lane::truth ? Lane::f32 : lane;
  const auto [entry, fresh] = names_.emplace(std::pair(value.id, kept), "");
  if (fresh) {
    const Coordinates at = emitter_.in_space(checked_, space, value, {"row", 1}, {"0LL", 0});
    const Emitted held = emitter_.value(value, at, kept);
    const std::string& wanted = checked_.program().value(value).name;
    entry->second = emitter_.fresh("row_" + (wanted.empty() ? "value" : identifier(wanted)));
    const int size = kept == Lane::i64 ? 8 : 4;
    bytes_ = (bytes_ + size - 1) / size * size;
    const std::string offset = std::to_string(bytes_);
    fields_ += "    RowOf<" + std::string(type_of(kept)) + "> " + entry->second + ";\n";
    emitter_.line("if (lane_id % 4 == 0) put_shared(to + h * 8 * kRowBytes + " + offset + ", " +
                  held.text + ");");
    reads_ += "      get_shared(from + h * 8 * kRowBytes + " + offset + ", out." + entry->second +
              ".x[h][0]);\n";
    bytes_ += size;
  }
  return convert("rows." + entry->second, kept, lane);
}

bool RowsText::holds(Value wanted) const {
  const Program& program = checked_.program();
  const auto stands_on = [&](auto&& self, Value value) -> bool {
    if (value == wanted) return true;
    return !program.is_param(value) &&
           std::ranges::any_of(program.node(value).args,
                               [&](Value arg) { return self(self, arg); });
  };
  return std::ranges::any_of(
      names_, [&](const auto& each) { return stands_on(stands_on, Value{each.first.first}); });
}

void RowsText::store(std::size_t space, std::size_t index, int tensor) {
  const Program& program = checked_.program();
  const Result& result = program.results()[index];
  const std::string element(element_of(result.type.dtype));
  const std::vector<Role>& roles = checked_.roles(space, result.value);
  const bool by_row = std::ranges::find(roles, Role::row) != roles.end();
  const Lane lane = lane_of(result.type.dtype, Lane::f32);
  const auto put = [&](ElementEmitter& emitter, const std::string& value, const Coordinate& row,
                       const Coordinate& column, const std::string& condition) {
    const Coordinates at = emitter.in_space(checked_, space, result.value, row, column);
    ElementEmitter::Named named = emitter.named(result.value, at);
    Coordinates declared;
    for (const Factor& factor : factors_of(result.type)) {
      const auto found = std::ranges::find(named.factors, factor) - named.factors.begin();
      declared.push_back(named.coordinates[static_cast<std::size_t>(found)]);
    }
    const std::string place =
        arguments_.pointer(tensor) + "[" + emitter.offset(tensor, declared) + "]";
    const std::string old = result.store == Store::accumulate
                                ? "Element<" + element + ">::value(" + place + ") + "
                                : "";
    emitter.line(condition + place + " = Element<" + element + ">::rounded(" + old + value + ");");
  };
  if (by_row && holds(result.value)) {
    const Coordinates at = emitter_.in_space(checked_, space, result.value, {"row", 1}, {"0LL", 0});
    put(emitter_, emitter_.value(result.value, at, lane).text, {"row", 1}, {"0LL", 0},
        std::string("if (") +
            (tiles_ == Tiles::of_all ? "" : "s == " + std::to_string(space) + " && ") +
            "first && lane_id % 4 == 0 && first_row + h * 8 < count) ");
    return;
  }
  // Not a part of the tiles: the store warps compute it before the first tile.
  ElementEmitter emitter(program, arguments_, Precision::exact);
  emitter.open("for (long long at = thread; at < " + std::string(by_row ? "row_count" : "columns") +
               "(args, " + std::to_string(space) + "); at += threads)");
  const Coordinate here{"at", 1}, none{"0LL", 0};
  const Coordinate& row = by_row ? here : none;
  const Coordinate& column = by_row ? none : here;
  const Coordinates at = emitter.in_space(checked_, space, result.value, row, column);
  put(emitter, emitter.value(result.value, at, lane).text, row, column, "");
  emitter.close();
  side_ += "{\n" + emitter.text() + "}\n";
}

std::string RowsText::code() {
  emitter_.close();
  return emitter_.text();
}

std::string TileText::row_field(Value value, Lane lane) {
  return rows_.field(places_.space_index(), value, lane);
}

}  // namespace coda::cuda
