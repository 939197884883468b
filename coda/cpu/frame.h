// coda/cpu/frame.h: the tiles of a space that respect the factors of its values.
//
// A column tile is a range of one factor with everything inside it whole and everything outside it
// fixed, so that in a tile each factor is whole, a range, or one coordinate.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "coda/check/places.h"
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

class Frame : public Places {
 public:
  Frame(const Checked& checked, std::size_t space, const Sizes& sizes);

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
  void collect_needs();
  bool valid(std::int64_t width, std::int64_t period) const;
  void need(const Dim& axis, Value value, std::int64_t block, const char* why);

  std::vector<Need> needs_;
  struct RowBlock {
    std::int64_t block, period;
  };
  std::vector<RowBlock> row_blocks_;
  std::string full_;  // why tiles have the full width, if they must
};

}  // namespace coda::cpu
