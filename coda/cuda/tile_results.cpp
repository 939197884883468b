// coda/cuda/tile_results.cpp: results that are tiles, by the way their values are known.
#include <algorithm>

#include "coda/check/bind.h"
#include "coda/core/error.h"
#include "coda/cuda/tile_text.h"

namespace coda::cuda {

void TileText::store_result(std::size_t index) {
  const Result& result = program_.results()[index];
  const Value value = result.value;
  const Held held = lower(value);
  if (held.where == Where::picked) return store_picked(index, held);
  if (held.where == Where::group && columns_of(value) == Columns::groups) {
    return store_groups(index, held);
  }
  if (held.where == Where::chunk || held.where == Where::group) {
    const std::vector<std::int64_t> strides = result_strides(index);
    return store_tile(index, value, strides, places_.offset(value, strides));
  }
  if (held.where == Where::block) {
    for (const FactorPlace& each : places_.places(value)) {
      if (each.place.block == 1) continue;
      return each.kind == FactorPlace::Kind::row ? store_column_blocks(index, value)
                                                 : store_row_blocks(index, held, value);
    }
  }
  refuse(value, "is a result of another kind");
}

void TileText::store_tile(std::size_t index, Value value, const std::vector<std::int64_t>& strides,
                          std::int64_t offset) {
  const Result& result = program_.results()[index];
  const int tensor = static_cast<int>(program_.params().size() + index);
  const DType dtype = result.type.dtype;
  if (dtype != DType::bf16 && dtype != DType::f16 && dtype != DType::f32) {
    refuse(value, "is stored as " + std::string(coda::name_of(dtype)));
  }
  if (!has_rows(value)) refuse(value, "is a result without rows");
  if (columns_of(value) == Columns::pairs) refuse(value, "is a result of pairs");
  const Held held = coerce(kept(lower(value)), Lane::f32);
  if (held.where != Where::chunk && held.where != Where::group) {
    refuse(value, "is a result of another kind");
  }
  const bool adds = result.store == Store::accumulate;
  const Lines lines = lines_of(value, strides, result.name);
  const std::vector<int> slots =
      slots_for(result.name, tensor, dtype, lines, offset, columns_of(value), adds, true);
  out_.chunk += "        // store " + result.name + "\n";
  const bool two = shape_.head != 0 && columns_of(value) == Columns::all;
  for (int p = 0; p < (two ? 2 : 1); ++p) {
    std::string text = held.parts[held.parts.size() == 1 ? 0 : static_cast<std::size_t>(p)];
    if (adds) text = "add(" + read_slots(slots, dtype, p) + ", " + text + ")";
    write_slots(slots, dtype, p, text);
  }
}

// Values that stand side by side in one tensor.
bool TileText::joins_columns(Value value) const {
  return !program_.is_param(value) && places_.joins(node_of(value));
}

void TileText::store_joined(std::size_t index) {
  const Value value = program_.results()[index].value;
  const Node& node = node_of(value);
  const std::vector<std::int64_t> own = result_strides(index);
  const std::vector<Factor> factors = factors_of(program_.type(value));
  if (node.attr.axis.factors.size() != 1) refuse(value, "joins several dimensions");
  const auto joined = std::ranges::find(factors, node.attr.axis.factors[0]) - factors.begin();
  const std::int64_t step = own[static_cast<std::size_t>(joined)];
  std::int64_t first = 0;
  for (std::size_t p = 0; p < node.args.size(); ++p) {
    const Value piece = node.args[p];
    if (columns_of(piece) != Columns::all) refuse(value, "joins what has other columns");
    const std::vector<Factor> pieces = factors_of(program_.type(piece));
    const std::vector<FactorPlace> all = places_.places(piece);
    std::vector<std::int64_t> strides;
    for (std::size_t f = 0; f < pieces.size(); ++f) {
      const auto at = std::ranges::find(factors, pieces[f]) - factors.begin();
      strides.push_back(all[f].kind == FactorPlace::Kind::column ? step * all[f].place.inner
                        : static_cast<std::size_t>(at) < own.size()
                            ? own[static_cast<std::size_t>(at)]
                            : 0);
    }
    store_tile(index, piece, strides, first * step);
    first += require_extent(node.attr.dims[p], places_.sizes());
  }
}

}  // namespace coda::cuda
