// tests/cuda_order_test.cpp: which worker computes which output tile: every k step of each tile
// once, loads even, and no one waits for someone who waits.
#include "coda/cuda/order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <set>

namespace coda::cuda {
namespace {

constexpr std::uint32_t kPart = 0xffff;  // the upper half of `fix`

struct Tile {
  std::size_t space;
  std::int64_t row, column;
  auto operator<=>(const Tile&) const = default;
};

Tile tile_of(const Piece& piece) {
  return {piece.tile >> 28, piece.tile >> 14 & 0x3fff, piece.tile & 0x3fff};
}

std::int64_t column_tiles(const TileGrid& grid, const OrderOptions& options) {
  return (grid.columns + options.tile_columns - 1) / options.tile_columns;
}

// Columns x k steps.
std::int64_t cost_of(const Piece& piece, const std::vector<TileGrid>& spaces,
                     const OrderOptions& options) {
  const Tile tile = tile_of(piece);
  const std::int64_t left = spaces[tile.space].columns - tile.column * options.tile_columns;
  const bool narrow = options.narrow > 0 && left <= options.narrow;
  return (narrow ? options.narrow : options.tile_columns) * (piece.last - piece.first);
}

std::vector<std::vector<Piece>> lists_of(const Order& order, int workers) {
  std::vector<std::vector<Piece>> lists(static_cast<std::size_t>(workers));
  for (std::size_t i = 0; i < order.pieces.size(); ++i) {
    if (order.pieces[i].tile == kNoTile) continue;
    lists[i % static_cast<std::size_t>(workers)].push_back(order.pieces[i]);
  }
  return lists;
}

std::vector<std::int64_t> loads_of(const Order& order, const std::vector<TileGrid>& spaces,
                                   const OrderOptions& options) {
  std::vector<std::int64_t> loads;
  for (const auto& list : lists_of(order, options.workers)) {
    loads.push_back(0);
    for (const Piece& piece : list) loads.back() += cost_of(piece, spaces, options);
  }
  return loads;
}

std::string text_of(const std::vector<TileGrid>& spaces, const OrderOptions& options) {
  std::string text =
      std::to_string(options.workers) + " workers, tiles of " +
      std::to_string(options.tile_columns) + ", narrow " + std::to_string(options.narrow) +
      ", groups of " + std::to_string(options.group) + ", depth " + std::to_string(options.depth) +
      ", shortest " + std::to_string(options.shortest) + (options.stacked ? ", stacked:" : ":");
  for (const TileGrid& grid : spaces) {
    text += " " + std::to_string(grid.rows) + " x " + std::to_string(grid.columns);
  }
  return text;
}

// Workers that take their pieces one by one, an owner when all its parts have been left.
bool everyone_finishes(const Order& order, int workers) {
  const auto lists = lists_of(order, workers);
  std::vector<std::size_t> next(lists.size(), 0);
  std::set<std::uint32_t> left;
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t w = 0; w < lists.size(); ++w) {
      while (next[w] < lists[w].size()) {
        const Piece& piece = lists[w][next[w]];
        const std::uint32_t parts = piece.fix >> 16, area = piece.fix & 0xffff;
        if (parts == kPart) {
          left.insert(area);
        } else {
          bool ready = true;
          for (std::uint32_t p = 0; p < parts; ++p) ready = ready && left.contains(area + p);
          if (!ready) break;
        }
        ++next[w], moved = true;
      }
    }
  }
  for (std::size_t w = 0; w < lists.size(); ++w) {
    if (next[w] < lists[w].size()) return false;
  }
  return true;
}

// What device/sm90_gemm.cuh relies on, whatever the order.
void expect_sound(const std::vector<TileGrid>& spaces, const OrderOptions& options) {
  SCOPED_TRACE(text_of(spaces, options));
  const Order order = tile_order(spaces, options);
  const auto workers = static_cast<std::size_t>(options.workers);
  ASSERT_EQ(order.pieces.size() % workers, 0u);
  // A worker stops at its first missing piece.
  for (std::size_t w = 0; w < workers; ++w) {
    bool ended = false;
    for (std::size_t i = w; i < order.pieces.size(); i += workers) {
      const bool none = order.pieces[i].tile == kNoTile;
      ASSERT_FALSE(ended && !none) << "worker " << w << " never sees a piece";
      ended = none;
    }
  }
  std::map<Tile, std::vector<Piece>> tiles;
  for (const Piece& piece : order.pieces) {
    if (piece.tile != kNoTile) tiles[tile_of(piece)].push_back(piece);
  }
  std::size_t count = 0;
  for (std::size_t s = 0; s < spaces.size(); ++s) {
    for (std::int64_t m = 0; m < spaces[s].rows; ++m) {
      for (std::int64_t n = 0; n < column_tiles(spaces[s], options); ++n, ++count) {
        ASSERT_TRUE(tiles.contains({s, m, n})) << "space " << s << ", tile " << m << ", " << n;
      }
    }
  }
  ASSERT_EQ(tiles.size(), count) << "a tile that there is not";
  std::set<std::uint32_t> areas;
  for (auto& [tile, pieces] : tiles) {
    SCOPED_TRACE("space " + std::to_string(tile.space) + ", tile " + std::to_string(tile.row) +
                 ", " + std::to_string(tile.column));
    std::ranges::sort(pieces, {}, &Piece::first);
    std::int64_t step = 0;
    for (const Piece& piece : pieces) {
      ASSERT_EQ(piece.first, step) << "a k step twice, or never";
      ASSERT_LT(piece.first, piece.last);
      step = piece.last;
    }
    ASSERT_EQ(step, options.depth);
    // The first one adds what the others leave, in the order of k.
    const std::uint32_t parts = pieces[0].fix >> 16, area = pieces[0].fix & 0xffff;
    ASSERT_EQ(parts, pieces.size() - 1);
    for (std::uint32_t p = 0; p < parts; ++p) {
      ASSERT_EQ(pieces[p + 1].fix, kPart << 16 | (area + p));
      ASSERT_TRUE(areas.insert(area + p).second) << "two parts in area " << area + p;
      ASSERT_LT(area + p, order.areas);
    }
    if (parts > 0) {
      for (const Piece& piece : pieces) EXPECT_GE(piece.last - piece.first, options.shortest);
    }
  }
  EXPECT_EQ(static_cast<std::int64_t>(areas.size()), order.areas);
  if (options.shortest == 0) {
    EXPECT_EQ(order.areas, 0);
  }
  EXPECT_TRUE(everyone_finishes(order, options.workers));

  const std::vector<std::int64_t> loads = loads_of(order, spaces, options);
  // What sharing costs beside the products is counted in.
  EXPECT_GE(order.longest, std::ranges::max(loads));
  if (order.areas == 0) {
    EXPECT_EQ(order.longest, std::ranges::max(loads));
  }
  // No worker has more than a tile beyond the mean.
  const std::int64_t all = std::accumulate(loads.begin(), loads.end(), std::int64_t{0});
  EXPECT_LE(order.longest, all / options.workers + options.tile_columns * options.depth);

  const std::vector<std::uint32_t> table = order.table();
  ASSERT_EQ(table.size(), order.pieces.size() * 4);
  for (std::size_t i = 0; i < order.pieces.size(); ++i) {
    const Piece& piece = order.pieces[i];
    ASSERT_EQ((Piece{table[4 * i], table[4 * i + 1], table[4 * i + 2], table[4 * i + 3]}), piece);
  }
}

TEST(TileOrder, HasEveryStepOfEveryTileOnce) {
  std::mt19937_64 random(1);
  const auto draw = [&](std::int64_t from, std::int64_t to) {
    return std::uniform_int_distribution<std::int64_t>(from, to)(random);
  };
  constexpr std::int64_t kColumns[] = {32, 64, 96, 128, 192};
  for (int i = 0; i < 600; ++i) {
    OrderOptions options;
    options.workers = static_cast<int>(draw(1, i % 2 == 0 ? 132 : 9));
    options.tile_columns = kColumns[draw(0, 4)];
    options.narrow = draw(0, 2) * 64;
    if (options.narrow >= options.tile_columns) options.narrow = 0;
    options.group = draw(1, 20);
    options.stacked = draw(0, 1) == 1;
    options.depth = draw(1, i % 3 == 0 ? 256 : 24);
    options.shortest = draw(0, 2) * 4;
    options.row_bytes = draw(0, 1) << 24;  // too much for L2
    // Side by side the rows are shared, stacked the columns.
    std::vector<TileGrid> spaces(static_cast<std::size_t>(draw(1, 4)),
                                 {draw(1, 40), draw(1, 2000)});
    for (TileGrid& grid : spaces) {
      if (options.stacked) {
        grid.rows = draw(1, 40);
      } else {
        grid.columns = draw(1, 900);
      }
    }
    expect_sound(spaces, options);
    if (HasFailure()) return;
  }
}

TEST(TileOrder, HoldsTheLargestGridOfAWord) {
  expect_sound({{kMaxTiles - 1, 3}, {1, 3}}, {.tile_columns = 64, .stacked = true});
  expect_sound({{1, (kMaxTiles - 1) * 64}}, {.tile_columns = 64});
  expect_sound(std::vector<TileGrid>(15, {2, 64}), {.tile_columns = 64});
}

// What does not fit into L2 is cut at the same places, and read by all at the same time.
TEST(TileOrder, LongTilesAreCutAlike) {
  const OrderOptions options = {
      .narrow = 64, .depth = 2004, .shortest = 16, .row_bytes = 16384, .column_bytes = 24576};
  const Order order = tile_order({{32, 4096}}, options);
  std::set<std::uint32_t> cuts;
  for (const Piece& piece : order.pieces) {
    if (piece.tile != kNoTile && piece.fix != 0) cuts.insert({piece.first, piece.last});
  }
  EXPECT_GT(order.areas, 0);
  EXPECT_LE(cuts.size(), 9u);
  // Each worker's share ends no later than a sixth wave of whole tiles would.
  EXPECT_LT(order.longest, 6 * 192 * 2004);
}

TEST(TileOrder, OfNothingIsEmpty) {
  EXPECT_TRUE(tile_order({{0, 512}}, {}).pieces.empty());
  EXPECT_TRUE(tile_order({{4, 0}}, {}).pieces.empty());
  EXPECT_TRUE(tile_order({}, {}).pieces.empty());
}

// Concurrent tiles share operands: a wave reads few rows and columns.
TEST(TileOrder, AWaveStaysInItsGroupsOfRows) {
  const Order order = tile_order({{128, 2048}}, {.narrow = 128, .group = 12});
  for (std::size_t wave = 0; wave + 132 <= order.pieces.size(); wave += 132) {
    std::set<std::int64_t> rows, columns;
    for (std::size_t i = wave; i < wave + 132; ++i) {
      if (order.pieces[i].tile == kNoTile) continue;
      rows.insert(tile_of(order.pieces[i]).row), columns.insert(tile_of(order.pieces[i]).column);
    }
    EXPECT_LE(rows.size(), 24u) << "wave " << wave / 132;
    EXPECT_LE(columns.size(), 11u) << "wave " << wave / 132;
  }
}

// 11 columns of tiles, the last of 128 columns: the narrow ones go where most is behind.
TEST(TileOrder, NarrowTilesEvenOutTheWorkers) {
  const OrderOptions options = {.narrow = 128, .group = 12};
  const std::vector<TileGrid> spaces = {{128, 2048}};
  const Order order = tile_order(spaces, options);
  const std::vector<std::int64_t> loads = loads_of(order, spaces, options);
  const auto [least, most] = std::ranges::minmax(loads);
  EXPECT_EQ(std::accumulate(loads.begin(), loads.end(), std::int64_t{0}), 128 * 2048);
  EXPECT_LE(most - least, 192 + 64);
}

// A weight gradient of few tiles: what does not fill a wave is shared along k, where it pays.
TEST(TileOrder, SharedTilesEvenOutTheWorkers) {
  OrderOptions options = {.narrow = 128, .depth = 256, .shortest = 4};
  for (const std::vector<TileGrid>& spaces :
       {std::vector<TileGrid>{{16, 8192}}, {{16, 2048}}, {{1, 4096}}, {{44, 2048}, {44, 2048}}}) {
    SCOPED_TRACE(text_of(spaces, options));
    options.shortest = 0;
    const Order whole = tile_order(spaces, options);
    options.shortest = 4;
    const Order order = tile_order(spaces, options);
    const std::vector<std::int64_t> loads = loads_of(order, spaces, options);
    const std::int64_t all = std::accumulate(loads.begin(), loads.end(), std::int64_t{0});
    EXPECT_GT(order.areas, 0);
    EXPECT_LT(order.longest, whole.longest);
    EXPECT_LE(
        static_cast<double>(std::ranges::max(loads)),
        std::max(1.08 * static_cast<double>(all) / 132, 0.3 * static_cast<double>(whole.longest)));
  }
}

// Bits depend on it where tiles are shared.
TEST(TileOrder, IsAFunctionOfItsArguments) {
  const std::vector<TileGrid> spaces = {{33, 2048}, {33, 512}, {33, 512}};
  const OrderOptions options = {.narrow = 128, .depth = 32, .shortest = 4};
  EXPECT_EQ(tile_order(spaces, options).table(), tile_order(spaces, options).table());
}

}  // namespace
}  // namespace coda::cuda
