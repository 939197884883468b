// coda/cpu/frame.h: where the factors of a space's values lie, and the tiles that respect them.
//
// Rows and columns are flat indices; a factor's coordinate is a Place in one of them, or the factor
// is held whole. A column tile is a range of one factor with everything inside it whole and
// everything outside it fixed, so that in a tile each factor is whole, a range, or one coordinate.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "coda/check/check.h"
#include "coda/cpu/cpu.h"
#include "coda/cpu/tile_program.h"

namespace coda::cpu {

// The flat axis cut into tiles: [0, period) by `size`, again in each of `extent / period` periods.
struct Cut {
  std::int64_t extent = 1;
  std::int64_t period = 1;
  std::int64_t size = 1;

  std::int64_t per_period() const { return period == 0 ? 1 : (period + size - 1) / size; }
  std::int64_t tiles() const { return period == 0 ? 1 : extent / period * per_period(); }
  std::int64_t first(std::int64_t tile) const {
    return tile / per_period() * period + tile % per_period() * size;
  }
  std::int64_t count(std::int64_t tile) const {
    return std::min(size, period - tile % per_period() * size);
  }
  std::int64_t tail() const { return period == 0 ? 0 : period - (per_period() - 1) * size; }
};

// One factor of a value.
struct FactorPlace {
  enum class Kind : std::uint8_t { row, column, whole };
  Kind kind = Kind::whole;
  std::string text;
  std::int64_t extent = 1;  // of the factor itself
  Place place;              // row, column
};

class Frame {
 public:
  Frame(const Checked& checked, std::size_t space, const Sizes& sizes);

  const Checked& checked() const { return *checked_; }
  const Program& program() const { return checked_->program(); }
  const Space& space() const { return checked_->spaces()[space_index_]; }
  std::size_t space_index() const { return space_index_; }
  const Sizes& sizes() const { return *sizes_; }
  std::int64_t rows() const { return rows_; }
  std::int64_t columns() const { return columns_; }

  // In factors_of order.
  std::vector<FactorPlace> places(Value value) const;
  // Of a factor that stands in the role `role` in some value of this space.
  FactorPlace place_of(const Factor& factor, Role role, const Dim& row_inner) const;
  // The role of the first factor of `axis` in a value; none where the space does not evaluate it.
  std::optional<Role> role_of(Value value, const Dim& axis) const;
  // Coordinates of a factor in a tile of `width` columns; all of them where it is no column.
  std::int64_t held(const FactorPlace& place, std::int64_t width) const;

  // Column and row tiles. `notes` says why a tile is wider than wanted.
  Cut cut_columns(std::int64_t wanted, std::vector<std::string>& notes) const;
  Cut cut_rows(std::int64_t wanted) const;

 private:
  struct Need {
    Place place;
    std::int64_t block = 0;  // 0: whole
    std::string why;
  };
  void place_columns();
  bool assign(const Dim& known, const Dim& dim);
  void collect_needs();
  std::optional<Place> column_place(const Dim& dim) const;
  bool valid(std::int64_t width, std::int64_t period) const;
  void need(const Dim& axis, Value value, std::int64_t block, const char* why);

  const Checked* checked_;
  std::size_t space_index_;
  const Sizes* sizes_;
  std::int64_t rows_ = 1, columns_ = 1;
  std::map<std::string, Place> column_places_;
  std::vector<Need> needs_;
  struct RowBlock {
    std::int64_t block, period;
  };
  std::vector<RowBlock> row_blocks_;
  std::string full_;  // why tiles have the full width, if they must
};

}  // namespace coda::cpu
