// coda/cuda/tile_text.h: the class behind tile.h: values of a space to statements.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coda/cuda/pressure.h"
#include "coda/cuda/tile.h"

namespace coda::cuda {

class TileText {
 public:
  TileText(const Region& places, std::span<const Layout> layouts, Arguments& arguments,
           const TileShape& shape, Registers budget, RowsText& rows);
  SpaceText run();

 private:
  // Where a value is known: once a row (or scalar), once a row and head, in a chunk, or after a
  // block's last chunk.
  enum class Where : std::uint8_t { row, group, chunk, block, picked };
  // A value as C expressions: one, or with heads one for the low and one for the high half.
  struct Held {
    Where where = Where::row;
    Lane lane = Lane::f32;
    std::vector<std::string> parts;
  };
  // Which columns a value has.
  enum class Columns : std::uint8_t { none, all, half, pairs, groups };

  // Does no unit reach past the last column?
  bool whole_units() const {
    return places_.columns() % (shape_.head != 0 ? shape_.head : shape_.unit) == 0;
  }
  const Node& node_of(Value value) const { return program_.node(value); }
  bool has_rows(Value value) const;
  bool on_tile(Value value) const;
  // A split or join of adjacent columns?
  bool is_pair(const Node& node) const { return is_pair_of_columns(places_, node); }
  Columns columns_of(Value value) const;
  [[noreturn]] void refuse(Value value, const std::string& why) const;

  Held lower(Value value);
  Held lower_node(Value value);
  Held lower_accumulator(std::size_t index, Value value);
  Held lower_parameter(Value value);
  Held lower_column_vector(Value value);
  Held lower_index(Value value);
  Held lower_uniform(Value value);
  Held lower_map(const Node& node);
  Held lower_block_reduce(Value value);
  Held lower_pick(Value value);

  // ---- heads as a whole (tile_heads.cpp)
  void find_groups();
  int group_units() const;
  // Throws Refusal in a pass over a part of a head, which reads products and what rows need.
  void need_whole_head(Value value) const;
  std::string unit_of_tile() const;
  Held lower_group_reduce(Value value);
  Held kept(const Held& held);
  void begin_groups();
  void store_groups(std::size_t result, const Held& held);

  Held coerce(const Held& value, Lane lane) const;
  // `expression` of each part under a name; comment: the statement's text.
  Held name_parts(Value value, Where where, Lane lane, const std::vector<std::string>& expressions);
  std::string fresh_name(const std::string& wanted);
  std::string value_name(Value value);

  void store_result(std::size_t result);
  // A value of the tile into the result's tensor, whose strides of the value's factors are given,
  // from element `offset` on.
  void store_tile(std::size_t result, Value value, const std::vector<std::int64_t>& strides,
                  std::int64_t offset);
  void store_joined(std::size_t result);
  bool joins_columns(Value value) const;
  // Bytes of a row that wait until its tile's end, as an expression of their place.
  std::string keep(int bytes);
  std::pair<std::string, std::string> keep_blocks(const std::string& name, int blocks,
                                                  std::int64_t size, const std::string& block,
                                                  const std::string& value);
  void store_row_blocks(std::size_t result, const Held& held, Value reduction);
  void store_column_blocks(std::size_t result, Value reduction);
  void store_picked(std::size_t result, const Held& held);

  // ---- memory
  struct Lines {
    Line rows, columns;
    std::int64_t head_stride = 0;
  };
  // How a tensor with the factors of `value` lies: `strides` of each, or a refusal.
  Lines lines_of(Value value, const std::vector<std::int64_t>& strides, const std::string& name);
  // Slots that hold a unit of it, filled and stored under the number of a new map.
  std::vector<int> slots_for(const std::string& name, int tensor, DType dtype, const Lines& lines,
                             std::int64_t offset, Columns columns, bool load, bool store);
  // Part `part` of half g of a chunk, as an expression; and what puts one there.
  std::string read_slots(const std::vector<int>& slots, DType dtype, int part);
  void write_slots(const std::vector<int>& slots, DType dtype, int part, const std::string& value);
  std::vector<std::int64_t> strides_of(int tensor) const;
  std::vector<std::int64_t> result_strides(std::size_t result) const;

  // ---- values without columns (tile_rows.cpp)
  std::string row_field(Value value, Lane lane);

  std::string comment(Value value) const;
  // A tensor's first element of the region, as an expression.
  std::string pointer_of(int tensor, Value value, const std::vector<std::int64_t>& strides,
                         const std::string& name);
  std::string tag() const;  // of names of numbers that the region's columns change
  std::string masked(const std::string& part, const char* identity, bool rows);

  const Region& places_;
  const Program& program_;
  std::span<const Layout> layouts_;
  Arguments& arguments_;
  TileShape shape_;
  Registers budget_;
  RowsText& rows_;
  Lane real_ = Lane::f32;
  SpaceText out_;
  std::map<std::int32_t, Held> memo_;
  std::set<std::string> taken_;
  std::set<std::string> loaded_;                              // of the slots: what a chunk has read
  std::map<std::int32_t, std::vector<int>> slots_;            // of parameters
  std::map<std::int32_t, std::vector<std::string>> columns_;  // fields of struct Columns
  int temporaries_ = 0;
  bool paired_ = false;               // adjacent columns are split
  std::set<std::int32_t> in_groups_;  // reductions that elements need again
  int passes_ = 0;                    // more than 0: in a pass over a head
  std::string group_code_;            // before the chunks of a head
  std::string leave_code_;            // what a head leaves, where it lies across tiles
  std::map<std::string, std::string> kept_;
  int sums_slot_ = -1, sums_ = 0;  // where sums of columns wait
  std::string picked_;             // the flags of the rows that a pick has found
  Pressure pressure_;
};

}  // namespace coda::cuda
