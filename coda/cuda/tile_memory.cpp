// coda/cuda/tile_memory.cpp: tiles of inputs and results in slots.
#include <algorithm>

#include "coda/check/bind.h"
#include "coda/core/error.h"
#include "coda/cuda/tile_text.h"

namespace coda::cuda {
namespace {

constexpr int kHalfColumns = 32;  // of a unit with heads

std::string pair_of(DType dtype) {
  return dtype == DType::bf16 ? "Bf16Pair" : "F16Pair";
}

}  // namespace

std::vector<std::int64_t> TileText::strides_of(int tensor) const {
  return layouts_[static_cast<std::size_t>(tensor)].strides;
}

// Strides of a result in the order of its value's factors.
std::vector<std::int64_t> TileText::result_strides(std::size_t index) const {
  const Result& result = program_.results()[index];
  const std::vector<Factor> declared = factors_of(result.type);
  const std::vector<std::int64_t>& own = layouts_[program_.params().size() + index].strides;
  std::vector<std::int64_t> strides;
  for (const Factor& factor : factors_of(program_.type(result.value))) {
    const auto at = std::ranges::find(declared, factor) - declared.begin();
    strides.push_back(own[static_cast<std::size_t>(at)]);
  }
  return strides;
}

TileText::Held TileText::lower_parameter(Value value) {
  const DType dtype = program_.type(value).dtype;
  const std::string name = program_.value(value).name;
  const Columns columns = columns_of(value);
  if (columns == Columns::pairs && (shape_.head != 0 || shape_.unit != 64)) {
    refuse(value, "is an input of pairs");
  }
  if (passes_ > 0 && group_units() > 1) refuse(value, "is not at hand before its unit");
  const auto [entry, fresh] = slots_.try_emplace(value.id);
  if (fresh) {
    const Lines lines = lines_of(value, strides_of(value.id), name);
    const std::int64_t offset = places_.offset(value, strides_of(value.id));
    entry->second = slots_for(name, value.id, dtype, lines, offset, columns, true, false);
  }
  std::vector<std::string> reads;
  const int parts = shape_.head != 0 && columns == Columns::all ? 2 : 1;
  for (int p = 0; p < parts; ++p) reads.push_back(read_slots(entry->second, dtype, p));
  if (columns == Columns::pairs) {
    // One element for two columns.
    const std::string slot = "slot[" + std::to_string(entry->second[0]) + "]";
    reads = {size_of(dtype) == 4
                 ? "load_singles(" + slot + ", pairs, j, g, lane_id)"
                 : "load_halves<" + pair_of(dtype) + ">(" + slot + ", pairs, j, g, lane_id)"};
  }
  return name_parts(value, Where::chunk, Lane::f32, reads);
}

TileText::Held TileText::lower_column_vector(Value value) {
  const DType dtype = program_.type(value).dtype;
  std::vector<PlacedFactor> factors;
  const std::vector<FactorPlace> all = places_.places(value);
  const std::vector<std::int64_t> strides = strides_of(value.id);
  const Columns columns = columns_of(value);
  for (std::size_t f = 0; f < all.size(); ++f) {
    if (all[f].kind == FactorPlace::Kind::row || columns == Columns::pairs) {
      refuse(value, "varies with rows and columns");
    }
    if (all[f].kind == FactorPlace::Kind::column) factors.push_back({all[f].place, strides[f]});
    if (all[f].kind == FactorPlace::Kind::whole && all[f].extent > 1) {
      factors.push_back({{1, all[f].extent, 1}, strides[f]});
    }
  }
  const std::optional<Line> line = line_of(factors);
  if (!line) refuse(value, "is no line in memory");
  const Lane lane = lane_of(dtype, real_);
  const std::string name = program_.value(value).name;
  const std::string pointer = pointer_of(value.id, value, strides, name);
  const std::string period = arguments_.number(name + "_period" + tag(), line->period);
  const std::int64_t half = shape_.head / 2;
  const int parts = shape_.head != 0 && columns == Columns::all ? 2 : 1;
  // Where a unit begins in the vector.
  const bool whole = line->period == places_.columns();
  const bool of_head =
      shape_.head != 0 && (columns == Columns::half || line->period == shape_.head);
  const bool of_units = whole || of_head || (shape_.head == 0 && line->period % shape_.unit == 0);
  std::string first = chunk_column(shape_, "unit");
  first = first.substr(0, first.find("j * 16")) + "(lane_id % 4) * 2";
  if (of_head) {
    first = "unit % " + std::to_string(shape_.head / 64) + " * 32 + (lane_id % 4) * 2";
  } else if (!whole) {
    first = "unit * " + std::to_string(shape_.unit) + " % static_cast<int>(" + period +
            ") + (lane_id % 4) * 2";
  }
  // Up to where it may be read.
  const bool inside = of_head || (whole ? whole_units() : of_units);
  const std::string count = inside ? "Whole()" : period;
  const std::string all_columns = whole_units() ? "Whole()" : "column_count";
  std::vector<std::string> reads;
  if (line->stride == 1 && size_of(dtype) == 2 && is_float(dtype) && of_units &&
      line->period % 2 == 0 && layouts_[static_cast<std::size_t>(value.id)].alignment >= 4 &&
      places_.offset(value, strides) % 2 == 0 && (passes_ == 0 || group_units() == 1)) {
    // NOTE: the registers of one such vector are there for a whole unit, those of two are not.
    if (budget_ == Registers::few || passes_ > 0 ||
        (!columns_.empty() && !columns_.contains(value.id))) {
      out_.late = out_.late || passes_ == 0;
      for (int p = 0; p < parts; ++p) {
        reads.push_back("load_column_of<" + pair_of(dtype) + ">(" + pointer + ", " + first +
                        (p == 0 ? "" : " + " + std::to_string(half)) + ", j * 16 + g * 8, " +
                        count + ")");
      }
      return name_parts(value, Where::chunk, lane, reads);
    }
    const auto [entry, fresh] = columns_.try_emplace(value.id);
    const std::string chunks = std::to_string(chunks_of(shape_));
    for (int p = 0; p < parts && fresh; ++p) {
      const std::string field = fresh_name(name + (p == 0 ? "_pairs" : "_high_pairs"));
      out_.column_fields += "      ColumnPairs<" + chunks + "> " + field + ";\n";
      out_.column_code += "      out." + field + " = load_columns<" + chunks + ">(" + pointer +
                          ", " + first + (p == 0 ? "" : " + " + std::to_string(half)) + ", " +
                          count + ");\n";
      entry->second.push_back(field);
    }
    for (const std::string& field : entry->second) {
      reads.push_back("column_of<" + pair_of(dtype) + ">(columns." + field + ", j, g)");
    }
    return name_parts(value, Where::chunk, lane, reads);
  }
  // Two neighbours at once, one by one, or around the end of what repeats.
  const bool two = line->stride == 1 && dtype == DType::f32 && line->period % 2 == 0 &&
                   (whole || of_head) && places_.offset(value, strides) % 2 == 0 &&
                   layouts_[static_cast<std::size_t>(value.id)].alignment >= 8;
  const std::string element = std::string(element_of(dtype));
  for (int p = 0; p < parts; ++p) {
    const std::string at = (columns == Columns::half ? "column % " + std::to_string(half)
                            : of_head                ? "column % " + std::to_string(shape_.head)
                                                     : "column") +
                           (p == 0 ? "" : " + " + std::to_string(half));
    if (two) {
      reads.push_back("load_column_pair(" + pointer + ", " + first +
                      (p == 0 ? "" : " + " + std::to_string(half)) + ", j * 16 + g * 8, " + count +
                      ")");
      continue;
    }
    reads.push_back("load_column<" + element + ">(" + pointer + ", " + at + ", " +
                    (whole || of_head ? "" : period + ", ") +
                    arguments_.number(name + "_step", line->stride) + ", " + all_columns + ")");
  }
  return name_parts(value, Where::chunk, lane, reads);
}

TileText::Lines TileText::lines_of(Value value, const std::vector<std::int64_t>& strides,
                                   const std::string& name) {
  const auto no = [&](const std::string& why) {
    throw Refusal{"`" + name + "` " + why};
  };
  std::vector<PlacedFactor> rows, columns, heads;
  const bool of_pairs = columns_of(value) == Columns::pairs;
  const std::vector<FactorPlace> all = places_.places(value);
  const std::vector<Role>& roles = places_.checked().roles(places_.space_index(), value);
  for (std::size_t f = 0; f < all.size(); ++f) {
    if (roles[f] == Role::local && all[f].extent > 1) no("has dimensions outside of the tile");
    if (roles[f] == Role::row) rows.push_back({all[f].place, strides[f]});
    if (roles[f] != Role::column) continue;
    if (of_pairs && all[f].kind == FactorPlace::Kind::column) {
      Place place = all[f].place;
      place.inner = std::max<std::int64_t>(1, place.inner / 2);
      columns.push_back({place, strides[f]});
    } else if (all[f].kind == FactorPlace::Kind::whole) {
      columns.push_back({{1, all[f].extent, 1}, strides[f]});
    } else if (shape_.head != 0 && all[f].place.inner == 1 && all[f].place.extent > shape_.head &&
               all[f].place.extent % shape_.head == 0) {
      columns.push_back({{1, shape_.head, 1}, strides[f]});
      heads.push_back({{1, all[f].place.extent / shape_.head, 1}, strides[f] * shape_.head});
    } else if (shape_.head != 0 && all[f].place.inner >= shape_.head) {
      Place place = all[f].place;
      place.inner /= shape_.head;
      heads.push_back({place, strides[f]});
    } else {
      columns.push_back({all[f].place, strides[f]});
    }
  }
  const std::optional<Line> row = line_of(rows), column = line_of(columns), head = line_of(heads);
  if (!row || !column || !head) no("is no matrix in memory");
  if (column->stride != 1) no("has columns " + std::to_string(column->stride) + " elements apart");
  const std::int64_t wide = columns_of(value) == Columns::half ? shape_.head / 2
                            : shape_.head != 0                 ? shape_.head
                                                               : places_.columns();
  if (of_pairs) {
    if (column->period % kHalfColumns != 0 || places_.columns() / 2 % column->period != 0) {
      no("has heads of " + std::to_string(column->period) + " pairs, no multiple of 32");
    }
  } else if (column->period != wide) {
    no("repeats along the columns");
  }
  if (row->period != places_.rows() &&
      (row->period % 64 != 0 || places_.rows() % row->period != 0)) {
    no("repeats after " + std::to_string(row->period) + " rows, no multiple of 64");
  }
  if (shape_.head != 0 && columns_of(value) == Columns::all &&
      head->period * shape_.head != places_.columns()) {
    no("repeats along the heads");
  }
  if (columns_of(value) == Columns::half && head->period > 1) no("has halves of several heads");
  return {*row, *column, head->stride};
}

std::vector<int> TileText::slots_for(const std::string& name, int tensor, DType dtype,
                                     const Lines& lines, std::int64_t offset, Columns columns,
                                     bool load, bool store) {
  const Layout& layout = layouts_[static_cast<std::size_t>(tensor)];
  const int bytes = static_cast<int>(size_of(dtype));
  if (bytes != 2 && bytes != 4) {
    throw Refusal{"`" + name + "` is " + std::string(coda::name_of(dtype))};
  }
  if (!is_float(dtype)) throw Refusal{"`" + name + "` is " + std::string(coda::name_of(dtype))};
  const std::int64_t row_stride = lines.rows.period == 1 ? 16 / bytes * 8 : lines.rows.stride;
  if (const auto why = alignment_refusal(layout, offset, row_stride, dtype)) {
    throw Refusal{"`" + name + "` " + *why};
  }
  const bool heads = shape_.head != 0;
  const bool whole_heads = heads && columns == Columns::all;
  if (whole_heads && bytes == 4) throw Refusal{"`" + name + "` has heads in f32"};
  if (whole_heads) {
    if (const auto why = alignment_refusal(
            layout, offset, lines.head_stride == 0 ? 64 : lines.head_stride, dtype)) {
      throw Refusal{"`" + name + "` " + *why};
    }
  }
  // The map.
  MapSpec map{tensor, offset, dtype, {}, 128, store ? 256 : 128};
  std::string coordinates, call = "";
  const std::string row =
      lines.rows.period == places_.rows()
          ? "row"
          : "row % static_cast<int>(" + arguments_.number(name + "_rows", lines.rows.period) + ")";
  const std::string sub = std::to_string(heads ? shape_.head / 64 : 1);
  const bool of_pairs = columns == Columns::pairs;
  const int width = heads || of_pairs ? kHalfColumns : bytes == 2 ? shape_.unit : 32;
  map.swizzle = width * bytes;
  if (whole_heads) {
    const std::int64_t head_count = places_.columns() / shape_.head;
    map.axes = {{kHalfColumns, 0, kHalfColumns},
                {lines.rows.period, row_stride, 64},
                {2, shape_.head / 2, 2},
                {shape_.head / 64, kHalfColumns, 1},
                {head_count, head_count == 1 ? shape_.head : lines.head_stride, 1}};
  } else {
    const std::int64_t wide = columns == Columns::half ? shape_.head / 2
                              : of_pairs               ? lines.columns.period
                                                       : places_.columns();
    map.axes = {{wide, 0, width}, {lines.rows.period, row_stride, 64}};
  }
  const std::string number = "P::map(args, s, " + std::to_string(out_.maps++) + ")";
  out_.map_specs.push_back(std::move(map));
  const std::string policy =
      lines.rows.period == places_.rows() ? "args.policy_in" : "args.policy_b";
  std::vector<int> slots;
  const int count = heads || of_pairs || bytes == 2 ? 1 : shape_.unit / 32;
  for (int part = 0; part < count; ++part) {
    const std::string x = columns == Columns::half ? "unit % " + sub + " * 32"
                          : of_pairs
                              ? "unit * 32 % static_cast<int>(" +
                                    arguments_.number(name + "_pairs", lines.columns.period) + ")"
                              : "unit * " + std::to_string(shape_.unit) +
                                    (part > 0 ? " + " + std::to_string(part * 32) : "");
    SlotUse use;
    use.table = lines.rows.period != places_.rows();
    use.kind = std::to_string(bytes) +
               (whole_heads                ? " heads"
                : columns == Columns::half ? " half"
                : of_pairs                 ? " pairs"
                                           : " ") +
               std::to_string(part);
    const int box = (whole_heads ? 2 : 1) * width * bytes * 64;
    if (load) {
      use.bytes = box;
      use.load = whole_heads ? "tma_load_unit(to, " + number + ", barrier, " + row + ", unit % " +
                                   sub + ", unit / " + sub + ", " + policy + ");"
                             : "tma_load(to, " + number + ", barrier, " + x + ", " + row + ", " +
                                   policy + ");";
    }
    if (store) {
      use.store = whole_heads ? "tma_store_unit(" + number + ", from, row, unit % " + sub +
                                    ", unit / " + sub + ", args.policy_out);"
                              : "tma_store(" + number + ", from, " + x + ", row, args.policy_out);";
      if (lines.rows.period != places_.rows()) throw Refusal{"`" + name + "` repeats"};
    }
    int slot = -1;
    for (std::size_t s = 0; store && !load && s < out_.slots.size() && slot < 0; ++s) {
      const SlotUse& other = out_.slots[s];
      if (other.bytes > 0 && other.store.empty() && other.drain.empty() && other.kind == use.kind) {
        slot = static_cast<int>(s);
        out_.slots[s].store = use.store;
      }
    }
    if (slot < 0) {
      slot = static_cast<int>(out_.slots.size());
      out_.slots.push_back(use);
    }
    slots.push_back(slot);
  }
  return slots;
}

std::string TileText::tag() const {
  return places_.is_whole() ? "" : "_" + std::to_string(places_.number());
}

std::string TileText::pointer_of(int tensor, Value value, const std::vector<std::int64_t>& strides,
                                 const std::string& name) {
  const std::string pointer = arguments_.pointer(tensor);
  if (!places_.is_cut(value)) return pointer;
  return pointer + " + " +
         arguments_.number(name + "_first" + tag(), places_.offset(value, strides));
}

std::string TileText::read_slots(const std::vector<int>& slots, DType dtype, int part) {
  const std::string first = "slot[" + std::to_string(slots[0]) + "]";
  if (size_of(dtype) == 4) {
    const std::string from =
        slots.size() == 2 ? "(j < 2 ? " + first + " : slot[" + std::to_string(slots[1]) + "])"
                          : first;
    return "load_pairs(" + from + ", pairs, j, g)";
  }
  const std::string words = "loaded_" + std::to_string(slots[0]) + (part > 0 ? "_high" : "");
  if (loaded_.insert(words).second) {
    pressure_.hold(4);
    out_.loads += "        u32 " + words + "[4];\n        load_matrix(" + words + ", " + first +
                  (part > 0 ? " + 4096" : "") + " + matrices.at(j));\n";
  }
  return "unpacked<" + pair_of(dtype) + ">(" + words + ", g)";
}

void TileText::write_slots(const std::vector<int>& slots, DType dtype, int part,
                           const std::string& value) {
  const std::string first = "slot[" + std::to_string(slots[0]) + "]";
  if (size_of(dtype) == 4) {
    const std::string to = slots.size() == 2
                               ? "(j < 2 ? " + first + " : slot[" + std::to_string(slots[1]) + "])"
                               : first;
    out_.chunk += "        store_pairs(" + to + ", pairs, j, g, " + value + ");\n";
    return;
  }
  const std::string words = "stored_" + std::to_string(slots[0]) + (part > 0 ? "_high" : "");
  out_.loads += "        u32 " + words + "[4];\n";
  pressure_.hold(4);
  out_.chunk += "        pack<" + pair_of(dtype) + ">(" + words + ", g, " + value + ");\n";
  out_.stores += "        store_matrix(" + first + (part > 0 ? " + 4096" : "") +
                 " + matrices.at(j), " + words + ");\n";
}

}  // namespace coda::cuda
