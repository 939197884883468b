// coda/cuda/tile_rows.cpp: values without columns, once a row of a tile; results without a tile.
#include <algorithm>
#include <ranges>
#include <sstream>

#include "coda/check/bind.h"
#include "coda/core/error.h"
#include "coda/cuda/tile.h"
#include "coda/cuda/tile_text.h"

namespace coda::cuda {
namespace {

constexpr int kDeepLoop = 6;       // blanks before the third of nested loops
constexpr int kVeryDeepLoop = 10;  // and before the fifth

// NOTE: the store warps have few registers: only innermost loops are unrolled, for the latency of
// what they load, and not where they stand deep.
std::string with_unrolled_loops(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  const auto loop_at = [&](std::size_t i) {  // its indentation
    const std::size_t first = lines[i].find_first_not_of(' ');
    return first != std::string::npos && lines[i].compare(first, 4, "for ") == 0
               ? static_cast<int>(first)
               : -1;
  };
  std::string out;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (const int depth = loop_at(i); depth >= 0) {
      std::size_t next = i + 1;
      while (next < lines.size() && loop_at(next) < 0) ++next;
      const bool inner = next == lines.size() || loop_at(next) <= depth;
      out += inner && depth <= kDeepLoop ? "#pragma unroll 4\n" : "#pragma unroll 1\n";
    }
    out += lines[i] + "\n";
  }
  return out;
}

}  // namespace

RowsText::RowsText(const Checked& checked, std::span<const Layout> layouts, Arguments& arguments,
                   Tiles tiles)
    : checked_(checked),
      arguments_(arguments),
      layouts_(layouts),
      emitter_(checked.program(), arguments, Precision::exact,
               [this](ElementEmitter& emitter, Value value, const Coordinates& at) {
                 return supply(emitter, value, at);
               }),
      tiles_(tiles) {
  emitter_.open("");
  // Rows past the last one repeat it.
  emitter_.line(
      "const long long row = exact::minimum(static_cast<long long>(this_row), count - 1);");
}

std::string RowsText::row_step(int tensor, Value value, std::span<const std::int64_t> strides,
                               const std::string& name) {
  std::vector<PlacedFactor> rows;
  const std::vector<FactorPlace> all = places_->places(value);
  for (std::size_t f = 0; f < all.size(); ++f) {
    if (all[f].kind == FactorPlace::Kind::row) rows.push_back({all[f].place, strides[f]});
  }
  const std::optional<Line> line = line_of(rows);
  if (!line || line->period != places_->rows() || !arguments_.has_whole_elements(tensor)) return "";
  return arguments_.number(name + "_row", line->stride);
}

// Parameters by their rows, and sums.
std::optional<Emitted> RowsText::supply(ElementEmitter& emitter, Value value,
                                        const Coordinates& at) {
  const Program& program = emitter.program();
  if (emitter.depth() != 1) return std::nullopt;
  if (!program.is_param(value)) {
    if (program.node(value).op != Op::sum) return std::nullopt;
    return shared_sum(emitter, value, at);
  }
  const std::vector<Role>& roles = checked_.roles(places_->space_index(), value);
  if (roles.empty() || std::ranges::any_of(roles, [](Role role) { return role != Role::row; })) {
    return std::nullopt;
  }
  const std::string& name = program.value(value).name;
  const std::string step =
      row_step(value.id, value, layouts_[static_cast<std::size_t>(value.id)].strides, name);
  if (step.empty()) return std::nullopt;
  const DType dtype = program.type(value).dtype;
  const Lane lane = lane_of(dtype, Lane::f32);
  const std::string text = "Element<" + std::string(element_of(dtype)) + ">::value(" +
                           arguments_.pointer(value.id) + "[row * " + step + "])";
  return Emitted{emitter.define(type_of(lane), name, text, 1), lane, 1};
}

// A sum over what is neither row nor column.
Emitted RowsText::shared_sum(ElementEmitter& emitter, Value value, const Coordinates& at) {
  const Program& program = emitter.program();
  const Node& node = program.node(value);
  const std::string name = emitter.fresh(
      program.value(value).name.empty() ? std::string("sum") : program.value(value).name);
  // Of a matrix whose rows are contiguous.
  const Value matrix = node.args[0];
  if (program.is_param(matrix) && program.type(matrix).dtype == DType::f32 &&
      node.attr.axis.factors.size() == 1) {
    const Layout& layout = layouts_[static_cast<std::size_t>(matrix.id)];
    const std::vector<Factor> factors = factors_of(program.type(matrix));
    const std::vector<Role>& roles = checked_.roles(places_->space_index(), matrix);
    std::int64_t stride = 0;
    bool plain = roles.size() == factors.size();
    for (std::size_t f = 0; plain && f < factors.size(); ++f) {
      const bool summed = factors[f] == node.attr.axis.factors[0];
      if (summed) stride = layout.strides[f];
      plain = summed || roles[f] == Role::row;
    }
    const std::string step = plain && stride == 1 ? row_step(matrix.id, matrix, layout.strides,
                                                             program.value(matrix).name)
                                                  : "";
    if (!step.empty()) {
      const std::int64_t count = require_extent(node.attr.axis, places_->sizes());
      const bool wide =
          layout.alignment >= 16 && count % 4 == 0 &&
          std::ranges::all_of(std::views::iota(std::size_t{0}, factors.size()), [&](std::size_t f) {
            return layout.strides[f] % 4 == 0 || factors[f] == node.attr.axis.factors[0];
          });
      emitter.line("const float " + name + " = " + (wide ? "row_sum_wide(" : "row_sum(") +
                   arguments_.pointer(matrix.id) + " + row * " + step + ", " +
                   arguments_.extent(node.attr.axis) + ");");
      return Emitted{name, Lane::f32, emitter.depth()};
    }
  }
  const std::string k = emitter.fresh("k");
  const ElementEmitter::Named here = emitter.named(value, at);
  emitter.line("float " + name + " = 0.0f;");
  emitter.open("#pragma unroll 8\n      for (long long " + k + " = 0; " + k + " < " +
               arguments_.extent(node.attr.axis) + "; " + k + "++)");
  ElementEmitter::Named all = here;
  all.add(node.attr.axis.factors, emitter.divide({k, emitter.depth()}, node.attr.axis));
  const Emitted term = emitter.value(node.args[0], emitter.by_name(node.args[0], all), Lane::f32);
  emitter.line(name + " += " + term.text + ";");
  emitter.close();
  return Emitted{name, Lane::f32, emitter.depth()};
}

std::string RowsText::field(const Region& places, Value value, Lane lane) {
  places_ = &places;
  const std::size_t space = places.space_index();
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
    align_ = std::max(align_, size);
    const std::string offset = std::to_string(bytes_);
    // What is the same for all rows takes one register where it is read, not two.
    const bool by_row = held.depth > 0;
    fields_ += std::string(by_row ? "    RowOf<" : "    ScalarOf<") + std::string(type_of(kept)) +
               "> " + entry->second + ";\n";
    emitter_.line("put_shared(to + " + offset + ", " + held.text + ");");
    reads_ += by_row ? "      get_shared(from + h * 8 * kRowBytes + " + offset + ", out." +
                           entry->second + ".x[h][0]);\n"
                     : "      if (h == 0) get_shared(from + " + offset + ", out." + entry->second +
                           ".x[0][0]);\n";
    bytes_ += size;
    registers_ += size / 4 * (by_row ? 2 : 1);
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

void RowsText::store(const Region& places, std::size_t index, int tensor) {
  places_ = &places;
  const std::size_t space = places.space_index();
  const std::string number = std::to_string(places.number());
  const Program& program = checked_.program();
  const Result& result = program.results()[index];
  const std::string element(element_of(result.type.dtype));
  const std::vector<Role>& roles = checked_.roles(space, result.value);
  const bool by_row = std::ranges::find(roles, Role::row) != roles.end();
  const bool only_rows = std::ranges::all_of(roles, [](Role role) { return role == Role::row; });
  // Strides in the order of the value's factors.
  std::vector<std::int64_t> strides;
  const std::vector<Factor> stored = factors_of(result.type);
  for (const Factor& factor : factors_of(program.type(result.value))) {
    const auto found = std::ranges::find(stored, factor) - stored.begin();
    strides.push_back(
        layouts_[static_cast<std::size_t>(tensor)].strides[static_cast<std::size_t>(found)]);
  }
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
    std::string at_row;
    if (only_rows && row.text == "row") {
      const std::string step = row_step(tensor, result.value, strides, result.name);
      if (!step.empty()) at_row = "row * " + step;
    }
    const std::string place = arguments_.pointer(tensor) + "[" +
                              (at_row.empty() ? emitter.offset(tensor, declared) : at_row) + "]";
    const std::string old = result.store == Store::accumulate
                                ? "Element<" + element + ">::value(" + place + ") + "
                                : "";
    emitter.line(condition + place + " = Element<" + element + ">::rounded(" + old + value + ");");
  };
  if (by_row && holds(result.value)) {
    const Coordinates at = emitter_.in_space(checked_, space, result.value, {"row", 1}, {"0LL", 0});
    put(emitter_, emitter_.value(result.value, at, lane).text, {"row", 1}, {"0LL", 0},
        std::string("if (") + (tiles_ == Tiles::of_all ? "" : "s == " + number + " && ") +
            "first && this_row < count) ");
    return;
  }
  // Not a part of the tiles: the store warps compute it before the first tile.
  ElementEmitter emitter(program, arguments_, Precision::exact);
  emitter.open("for (long long at = thread; at < " + std::string(by_row ? "row_count" : "columns") +
               "(args, " + number + "); at += threads)");
  const Coordinate here{"at", 1}, none{"0LL", 0};
  const Coordinate& row = by_row ? here : none;
  const Coordinate& column = by_row ? none : here;
  const Coordinates at = emitter.in_space(checked_, space, result.value, row, column);
  put(emitter, emitter.value(result.value, at, lane).text, row, column, "");
  emitter.close();
  deep_side_ = deep_side_ || emitter.text().find("\n" + std::string(kVeryDeepLoop, ' ') + "for ") !=
                                 std::string::npos;
  side_ += "{\n" + with_unrolled_loops(emitter.text()) + "}\n";
}

std::string RowsText::code() {
  emitter_.close();
  return emitter_.text();
}

std::string TileText::row_field(Value value, Lane lane) {
  return rows_.field(places_, value, lane);
}

}  // namespace coda::cuda
