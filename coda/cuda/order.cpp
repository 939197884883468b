// coda/cuda/order.cpp: waves of tiles, balanced.
#include "coda/cuda/order.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <span>

namespace coda::cuda {
namespace {

constexpr std::uint32_t kPart = 0xffff;  // of Piece::fix: not the owner

// What a part costs in k steps, beside its own: the worker that leaves it, the owner that adds it.
constexpr std::int64_t kLeave = 4, kAdd = 9;

// Of operands that workers read at places of their own along k.
constexpr std::int64_t kMostInL2 = 40 << 20;
constexpr std::int64_t kMostCuts = 8;  // pieces of a tile, where all are cut alike

struct Entry {
  std::uint32_t tile = 0;
  std::int64_t cost = 0;
};

std::uint32_t tile_word(std::size_t space, std::int64_t row, std::int64_t column) {
  return static_cast<std::uint32_t>(space) << 28 | static_cast<std::uint32_t>(row) << 14 |
         static_cast<std::uint32_t>(column);
}

// What every worker has to do.
struct Lists {
  std::vector<std::vector<Piece>> pieces;
  std::vector<std::int64_t> load;  // columns x k steps
  std::int64_t areas = 0;

  std::int64_t longest() const { return *std::ranges::max_element(load); }
};

// Pieces of `tiles` along k for workers who have `load` behind them: each what it lacks to `limit`,
// those with least first. The last one takes what is left.
Lists shared(const std::vector<std::int64_t>& load, const std::vector<Entry>& tiles,
             std::int64_t limit, const OrderOptions& options) {
  const std::int64_t depth = options.depth;
  Lists lists{std::vector<std::vector<Piece>>(load.size()), load};
  std::vector<std::size_t> order(load.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return load[a] < load[b]; });
  std::size_t at = 0;
  std::vector<std::vector<Piece>> owners(lists.pieces.size());
  for (const Entry& tile : tiles) {
    std::int64_t first = 0, parts = 0;
    Piece* owner = nullptr;
    std::size_t owner_worker = 0;
    while (first < depth) {
      const auto room = [&] {
        return (limit - lists.load[order[at]]) / tile.cost;
      };
      while (at + 1 < order.size() && room() < options.shortest) ++at;
      std::int64_t steps = std::max(room(), options.shortest);
      if (at + 1 == order.size() || depth - first - steps < options.shortest) steps = depth - first;
      const std::size_t worker = order[at];
      Piece piece{tile.tile, static_cast<std::uint32_t>(first),
                  static_cast<std::uint32_t>(first + steps), 0};
      if (first == 0) {
        owners[worker].push_back(piece);
        owner = &owners[worker].back();
        owner_worker = worker;
      } else {
        piece.fix = kPart << 16 | static_cast<std::uint32_t>(lists.areas + parts);
        ++parts;
        lists.pieces[worker].push_back(piece);
      }
      lists.load[worker] += (steps + (first > 0 ? kLeave : 0)) * tile.cost;
      if (first > 0) lists.load[owner_worker] += kAdd * tile.cost;
      first += steps;
    }
    if (parts > 0) {
      owner->fix =
          static_cast<std::uint32_t>(parts) << 16 | static_cast<std::uint32_t>(lists.areas);
    }
    lists.areas += parts;
  }
  // Parts before owners, so that no part waits behind one who waits for parts.
  for (std::size_t w = 0; w < lists.pieces.size(); ++w) {
    lists.pieces[w].insert(lists.pieces[w].end(), owners[w].begin(), owners[w].end());
  }
  return lists;
}

// Every tile in so many equal pieces, those of the same k steps at the same time.
Lists cut_alike(const std::vector<std::int64_t>& load, const std::vector<Entry>& tiles,
                std::int64_t count, const OrderOptions& options) {
  Lists lists{std::vector<std::vector<Piece>>(load.size()), load};
  for (std::int64_t turn = 1; turn <= count; ++turn) {
    const std::int64_t at = turn % count;  // owners, who have the first steps, come last
    for (std::size_t t = 0; t < tiles.size(); ++t) {
      const std::int64_t first = options.depth * at / count;
      const std::int64_t last = options.depth * (at + 1) / count;
      const std::int64_t area =
          static_cast<std::int64_t>(t) * (count - 1) + std::max<std::int64_t>(at - 1, 0);
      const std::int64_t parts = at == 0 ? count - 1 : kPart;
      const auto worker =
          static_cast<std::size_t>(std::ranges::min_element(lists.load) - lists.load.begin());
      lists.pieces[worker].push_back({tiles[t].tile, static_cast<std::uint32_t>(first),
                                      static_cast<std::uint32_t>(last),
                                      static_cast<std::uint32_t>(parts << 16 | area)});
      const std::int64_t more = at == 0 ? kAdd * (count - 1) : kLeave;
      lists.load[worker] += (last - first + more) * tiles[t].cost;
    }
  }
  lists.areas = static_cast<std::int64_t>(tiles.size()) * (count - 1);
  return lists;
}

// Bytes of the operands of tiles, each row and column counted once.
std::int64_t operand_bytes(std::span<const Entry> tiles, const OrderOptions& options) {
  std::set<std::uint32_t> rows, columns;
  for (const Entry& each : tiles) {
    rows.insert(each.tile >> 14);
    columns.insert(each.tile >> 28 << 14 | (each.tile & 0x3fff));
  }
  return options.depth * (static_cast<std::int64_t>(rows.size()) * options.row_bytes +
                          static_cast<std::int64_t>(columns.size()) * options.column_bytes);
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
  const std::span first_wave(tiles.data(), std::min(workers, tiles.size()));
  const bool beyond_l2 = operand_bytes(first_wave, options) > kMostInL2;
  Lists lists{std::vector<std::vector<Piece>>(workers), std::vector<std::int64_t>(workers, 0)};
  const std::vector<std::int64_t>& load = lists.load;
  const auto put = [&](Lists& to, std::size_t worker, const Entry& entry) {
    to.pieces[worker].push_back({entry.tile, 0, static_cast<std::uint32_t>(options.depth), 0});
    to.load[worker] += entry.cost * options.depth;
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
    for (std::size_t i = 0; i < narrow.size(); ++i) put(lists, busy[i], narrow[i]);
    std::vector<std::size_t> idle(busy.begin() + static_cast<std::ptrdiff_t>(narrow.size()),
                                  busy.end());
    std::ranges::sort(idle);
    for (std::size_t i = 0; i < wide.size(); ++i) put(lists, idle[i], wide[i]);
  }
  std::vector<Entry> last(tiles.begin() + static_cast<std::ptrdiff_t>(whole), tiles.end());
  std::stable_sort(last.begin(), last.end(),
                   [](const Entry& a, const Entry& b) { return a.cost > b.cost; });
  // What does not fill a wave: whole, each to who has least behind it …
  Lists rest{std::vector<std::vector<Piece>>(workers), load};
  for (const Entry& entry : last) {
    put(rest, static_cast<std::size_t>(std::ranges::min_element(rest.load) - rest.load.begin()),
        entry);
  }
  // … or shared, where that ends sooner.
  if (options.shortest > 0 && !last.empty() && options.depth >= 2 * options.shortest) {
    // An equal share for all, and somewhat more where pieces of the shortest length do not fill it.
    const std::int64_t all = std::accumulate(rest.load.begin(), rest.load.end(), std::int64_t{0});
    const std::int64_t fair = (all + options.workers - 1) / options.workers;
    const bool fits = operand_bytes(last, options) <= kMostInL2;
    for (std::int64_t more = 0; fits && more < options.depth; ++more) {
      const std::int64_t limit = fair + more * options.tile_columns / 2;
      if (limit >= rest.longest()) break;  // someone gets as much
      Lists tried = shared(load, last, limit, options);
      if (tried.longest() < rest.longest()) rest = std::move(tried);
    }
    const std::int64_t most = std::min(kMostCuts, options.depth / options.shortest);
    for (std::int64_t count = 2; !fits && count <= most; ++count) {
      Lists tried = cut_alike(load, last, count, options);
      if (tried.longest() < rest.longest()) rest = std::move(tried);
    }
  }
  for (std::size_t w = 0; w < workers; ++w) {
    lists.pieces[w].insert(lists.pieces[w].end(), rest.pieces[w].begin(), rest.pieces[w].end());
  }

  Order order;
  order.longest = rest.longest();
  order.areas = rest.areas;
  order.beyond_l2 = beyond_l2;
  std::size_t most = 0;
  for (const auto& list : lists.pieces) most = std::max(most, list.size());
  for (std::size_t i = 0; i < most; ++i) {
    for (const auto& list : lists.pieces) {
      order.pieces.push_back(i < list.size() ? list[i] : Piece{kNoTile});
    }
  }
  return order;
}

std::vector<std::uint32_t> Order::table() const {
  std::vector<std::uint32_t> words;
  for (const Piece& piece : pieces) {
    words.insert(words.end(), {piece.tile, piece.first, piece.last, piece.fix});
  }
  return words;
}

}  // namespace coda::cuda
