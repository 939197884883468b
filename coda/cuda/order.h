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
  std::int64_t depth = 1;   // k steps of a tile
  std::int64_t shortest = 0;  // k steps of a part, if workers may share tiles; 0: they may not
  // Of the operands of a k step, for a tile row and for a tile column.
  std::int64_t row_bytes = 0, column_bytes = 0;
};

// One piece of work, as device/sm90_gemm.cuh reads it.
struct Piece {
  std::uint32_t tile = 0;             // space << 28 | row << 14 | column; kNoTile: none
  std::uint32_t first = 0, last = 0;  // k steps
  std::uint32_t fix = 0;              // parts << 16 | area; of a part 0xffff << 16 | area
  bool operator==(const Piece&) const = default;
};
inline constexpr std::uint32_t kNoTile = ~std::uint32_t{0};
inline constexpr std::int64_t kMaxTiles = 1 << 14;  // along rows and along columns

// Piece i·workers + w is worker w's i-th, or none after its last. Tiles go in groups of rows,
// column by column, so that concurrent ones share operands in L2; in each wave the narrow ones go
// to the workers with most behind them. What does not fill a last wave is shared out along k, or
// goes to those with least. Where its operands fit into L2, every worker gets what it lacks
// (stream-K); where they do not, all tiles are cut at the same places, so that those who work at
// the same time read the same.
struct Order {
  std::vector<Piece> pieces;
  std::int64_t longest = 0;                  // columns x k steps of the busiest worker
  std::int64_t areas = 0;                    // fix-up areas: parts that are not owners
  bool beyond_l2 = false;                    // the operands of a wave exceed it
  std::vector<std::uint32_t> table() const;  // four words a piece
};
Order tile_order(const std::vector<TileGrid>& spaces, const OrderOptions& options);

}  // namespace coda::cuda
