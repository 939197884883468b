// coda/cuda/order.h: which worker computes which output tile, and when.
#pragma once

#include <cstdint>
#include <vector>

namespace coda::cuda {

// The tiles of one space: `rows` of 128 rows; the columns of results and of a tile.
struct TileGrid {
  std::int64_t rows = 0;
  std::int64_t columns = 0;  // of results
};

struct OrderOptions {
  int workers = 132;
  std::int64_t tile_columns = 192;  // of results
  std::int64_t narrow = 0;  // a last column tile of at most so many columns costs as much; 0: none
  std::int64_t group = 12;  // tile rows that concurrent tiles share
  bool stacked = false;     // spaces are above one another; else side by side
};

// A tile as device/sm90_gemm.cuh reads it: space << 28 | row << 14 | column.
inline constexpr std::uint32_t kNoTile = ~std::uint32_t{0};
inline constexpr std::int64_t kMaxTiles = 1 << 14;  // along rows and along columns

// Entry i·workers + w is worker w's i-th tile, or kNoTile after its last. Tiles go in groups of
// rows, column by column, so that concurrent ones share operands in L2; in each wave the narrow
// ones go to the workers with most behind them, and the last ones to those with least.
struct Order {
  std::vector<std::uint32_t> table;
  std::int64_t longest = 0;  // columns of the busiest worker
};
Order tile_order(const std::vector<TileGrid>& spaces, const OrderOptions& options);

}  // namespace coda::cuda
