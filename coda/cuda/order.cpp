// coda/cuda/order.cpp: waves of tiles, balanced.
#include "coda/cuda/order.h"

#include <algorithm>
#include <numeric>

namespace coda::cuda {
namespace {

struct Entry {
  std::uint32_t tile = 0;
  std::int64_t cost = 0;
};

std::uint32_t tile_word(std::size_t space, std::int64_t row, std::int64_t column) {
  return static_cast<std::uint32_t>(space) << 28 | static_cast<std::uint32_t>(row) << 14 |
         static_cast<std::uint32_t>(column);
}

}  // namespace

Order tile_order(const std::vector<TileGrid>& spaces, const OrderOptions& options) {
  const auto count_columns = [&](const TileGrid& grid) {
    return (grid.columns + options.tile_columns - 1) / options.tile_columns;
  };
  const auto cost = [&](const TileGrid& grid, std::int64_t column) {
    const std::int64_t left = grid.columns - column * options.tile_columns;
    // What a narrow tile costs beside its width: filling the pipeline, the turn.
    if (options.narrow > 0 && left <= options.narrow) return options.narrow;
    return options.tile_columns;
  };
  // Tiles in groups of rows.
  std::vector<Entry> tiles;
  const auto add_group = [&](const std::vector<std::pair<std::size_t, std::int64_t>>& rows,
                             std::size_t first, std::size_t last) {
    const std::size_t spaces_across = options.stacked ? 1 : spaces.size();
    for (std::size_t across = 0; across < spaces_across; ++across) {
      for (std::int64_t n = 0; n < count_columns(spaces[options.stacked ? 0 : across]); ++n) {
        for (std::size_t r = first; r < last; ++r) {
          const std::size_t space = options.stacked ? rows[r].first : across;
          if (rows[r].second >= spaces[space].rows) continue;
          tiles.push_back({tile_word(space, rows[r].second, n), cost(spaces[space], n)});
        }
      }
    }
  };
  std::vector<std::pair<std::size_t, std::int64_t>> rows;
  for (std::size_t s = 0;
       s < (options.stacked ? spaces.size() : std::min<std::size_t>(1, spaces.size())); ++s) {
    for (std::int64_t m = 0; m < spaces[s].rows; ++m) rows.emplace_back(s, m);
  }
  const auto group = static_cast<std::size_t>(std::max<std::int64_t>(1, options.group));
  for (std::size_t first = 0; first < rows.size(); first += group) {
    add_group(rows, first, std::min(rows.size(), first + group));
  }

  const auto workers = static_cast<std::size_t>(options.workers);
  std::vector<std::vector<std::uint32_t>> lists(workers);
  std::vector<std::int64_t> load(workers, 0);
  const auto put = [&](std::size_t worker, const Entry& entry) {
    lists[worker].push_back(entry.tile);
    load[worker] += entry.cost;
  };
  const std::size_t whole = tiles.size() / workers * workers;
  std::vector<std::size_t> busy(workers);
  for (std::size_t first = 0; first < whole; first += workers) {
    std::iota(busy.begin(), busy.end(), 0);
    std::stable_sort(busy.begin(), busy.end(),
                     [&](std::size_t a, std::size_t b) { return load[a] > load[b]; });
    std::vector<Entry> narrow, wide;
    for (std::size_t i = first; i < first + workers; ++i) {
      (tiles[i].cost < options.tile_columns ? narrow : wide).push_back(tiles[i]);
    }
    for (std::size_t i = 0; i < narrow.size(); ++i) put(busy[i], narrow[i]);
    std::vector<std::size_t> rest(busy.begin() + static_cast<std::ptrdiff_t>(narrow.size()),
                                  busy.end());
    std::ranges::sort(rest);
    for (std::size_t i = 0; i < wide.size(); ++i) put(rest[i], wide[i]);
  }
  std::vector<Entry> last(tiles.begin() + static_cast<std::ptrdiff_t>(whole), tiles.end());
  std::stable_sort(last.begin(), last.end(),
                   [](const Entry& a, const Entry& b) { return a.cost > b.cost; });
  for (const Entry& entry : last) {
    put(static_cast<std::size_t>(std::ranges::min_element(load) - load.begin()), entry);
  }

  Order order;
  std::size_t depth = 0;
  for (const auto& list : lists) depth = std::max(depth, list.size());
  order.longest = workers == 0 ? 0 : *std::ranges::max_element(load);
  for (std::size_t i = 0; i < depth; ++i) {
    for (const auto& list : lists) order.table.push_back(i < list.size() ? list[i] : kNoTile);
  }
  return order;
}

}  // namespace coda::cuda
