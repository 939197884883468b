// coda/cuda/stream_shape.cpp: how wide vectors are, and how many threads take a row.
#include <algorithm>
#include <bit>

#include "coda/cuda/stream_kernel.h"

namespace coda::cuda::streaming {
namespace {

constexpr int kThreads = 256;
constexpr int kMostThreads = 512;
constexpr std::int64_t kKeptWords = 48;   // of a thread, what is loaded before anything is computed
constexpr std::int64_t kAgainWords = 32;  // the same where later passes read it again: as floats
constexpr std::int64_t kMostWords = 112;  // of a thread, with sums along rows
constexpr std::int64_t kSumWords = 48;    // sums alone
constexpr std::int64_t kMostSlots = 8;
constexpr std::int64_t kPartRows = 128;  // of a sum along many rows: what a block adds up
constexpr std::int64_t kManyRows = 1024;
constexpr std::int64_t kWarps = 132 * 32;  // that are resident at once
constexpr std::int64_t kLittleWords = 24;
constexpr int kRegisters = 65536;     // of a processor
constexpr std::int64_t kAtOnce = 16;  // bytes of a memory access

std::int64_t divide_up(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

std::int64_t power_of_two(std::int64_t x) {
  return static_cast<std::int64_t>(
      std::bit_ceil(static_cast<std::uint64_t>(std::max<std::int64_t>(x, 1))));
}

template <class Each>
void each_access(Loop& loop, Each each) {
  for (auto& [key, access] : loop.reads) each(access);
  for (auto& [key, access] : loop.writes) each(access);
}

}  // namespace

// Neighbouring axes that every access passes through as one.
void Kernel::merge_axes(Loop& loop) {
  if (loop.fixed) return;
  for (std::size_t a = loop.axes.size(); a-- > 1;) {
    const std::int64_t inside = loop.axes[a].extent;
    bool one = true;
    each_access(loop, [&](Access& access) {
      const std::int64_t outer = access.strides[a - 1], inner = access.strides[a];
      const bool flat = loop.axes[a - 1].extent == 1 || inside == 1 || outer == inner * inside;
      one = one && flat && access.block == 0;
    });
    if (!one) continue;
    each_access(loop, [&](Access& access) {
      if (inside == 1) access.strides[a] = access.strides[a - 1];
      access.strides.erase(access.strides.begin() + static_cast<std::ptrdiff_t>(a) - 1);
      access.lanes = access.lanes || access.strides[a - 1] != 0;
    });
    loop.axes[a].extent *= loop.axes[a - 1].extent;
    loop.axes.erase(loop.axes.begin() + static_cast<std::ptrdiff_t>(a) - 1);
  }
}

void Kernel::choose_width(Loop& loop, int forced) {
  const std::int64_t extent = loop.axes.back().extent;
  int small = 0, large = 0;
  each_access(loop, [&](Access& access) {
    if (access.view.tensor < 0 || !access.lanes) return;
    (size_of(dtype_of(access.view.tensor)) <= 2 ? small : large) += 1;
    // Pieces that alternate in memory.
    if (access.strides.back() > 1 && access.base < access.strides.back() && !access.path.empty()) {
      access.parts = static_cast<int>(access.strides.back());
      access.part = static_cast<int>(access.base);
    }
  });
  int width = small > 0 && 3 * small >= large ? 8 : 4;
  loop.natural = width;
  const auto fits = [&] {
    if (extent % width != 0) return false;
    if (loop.lanes_together % width != 0) return false;
    bool all = true;
    each_access(loop, [&](Access& access) {
      const int tensor = access.view.tensor;
      if (tensor < 0 || !access.lanes) return;
      const auto size = static_cast<std::int64_t>(size_of(dtype_of(tensor)));
      const std::int64_t bytes = std::min(kAtOnce, size * width * access.parts);
      bool aligned = space_.layout(tensor).alignment % bytes == 0;
      const auto divides = [&](std::int64_t stride) {
        return stride * size % bytes == 0;
      };
      bool rows = false;
      for (std::size_t f = 0; f < access.view.factors.size(); ++f) {
        if (!space_.is_row(access.view.factors[f])) continue;
        rows = true;
        aligned = aligned && divides(access.view.strides[f]);
      }
      if (access.ids >= 0) {
        aligned =
            aligned && divides(space_.view(space_.node(Value{access.value}).args[0])->strides[0]);
        rows = true;
      }
      for (std::size_t a = 0; a + 1 < loop.axes.size(); ++a)
        aligned = aligned && (loop.axes[a].extent == 1 || divides(access.strides[a]));
      aligned = aligned && divides(access.base - access.part);
      access.vector = access.strides.back() == access.parts && aligned;
      const bool matters = rows || tensor >= static_cast<int>(space_.program().params().size()) ||
                           space_.row_count() == 1;
      all = all && (access.vector || !matters);
    });
    return all;
  };
  if (forced != 0) {
    width = forced;
    fits();
  } else {
    while (width > 1 && !fits()) width /= 2;
    if (width == 1) fits();
  }
  loop.width = width;
  loop.vectors = loop.axes.back().extent / width;
  loop.padded = loop.vectors;
  if (loop.lanes_together != 0) {
    const std::int64_t together =
        loop.lanes_together == extent ? power_of_two(loop.vectors) : loop.lanes_together / width;
    if (together > 32 || !std::has_single_bit(static_cast<std::uint64_t>(together)))
      throw Refused{"reductions inside a row of " + std::to_string(together) + " vectors"};
    loop.padded = divide_up(loop.vectors, together) * together;
  }
  loop.items = loop.padded;
  for (std::size_t a = 0; a + 1 < loop.axes.size(); ++a) loop.items *= loop.axes[a].extent;
}

void Kernel::choose_widths() {
  for (Loop& loop : loops_) {
    if (loop.axes.empty()) throw Refused{"a loop without axes"};
    merge_axes(loop);
    choose_width(loop, 0);
  }
  for (std::size_t l = 0, all = loops_.size(); l < all; ++l) choose_lead(loops_[l]);
  // What sums over heads leave has the vectors of the heads.
  for (const Loop& loop : loops_) {
    for (const auto& [level, works] : loop.works) {
      for (const Work& work : works) {
        if (work.kind != Work::Kind::accumulate) continue;
        const Value made{work.node};
        if (work.value == space_.node(made).args[0]) continue;
        for (Loop& sums : loops_) {
          const auto after = sums.works.find(kAfterRows);
          if (&sums == &loop || after == sums.works.end()) continue;
          if (sums.axes.size() == 1 && sums.axes[0].factor == loop.axes.back().factor)
            choose_width(sums, loop.width);
        }
      }
    }
  }
}

std::int64_t Kernel::words(const Loop& loop) const {
  std::int64_t words = 0;
  for (const auto& [key, access] : loop.reads) {
    if (access.view.tensor < 0) {
      // Random numbers are much code: few of them a thread.
      if (space_.node(Value{key.first}).op == Op::uniform) words += 2 * loop.width;
      continue;
    }
    const auto size = static_cast<std::int64_t>(size_of(dtype_of(access.view.tensor)));
    words += access.lanes ? std::max<std::int64_t>(1, size * loop.width / 4) : 1;
  }
  return words;
}

// Registers of sums along rows: of those that each slot has, or of one for all slots.
std::int64_t Kernel::sum_words(const Loop& loop, bool of_slots) const {
  std::set<std::pair<std::int32_t, Path>> seen;
  for (const auto& [level, works] : loop.works) {
    for (const Work& work : works) {
      if (work.kind != Work::Kind::accumulate) continue;
      const bool own = work.value == space_.node(Value{work.node}).args[0];
      if (own == of_slots) seen.insert({work.node, collapsed_path(work)});
    }
  }
  return static_cast<std::int64_t>(seen.size()) * loop.width;
}

// Does a later pass read what an earlier one has read?
bool Kernel::rereads() const {
  for (const Loop& loop : loops_)
    for (const auto& [key, access] : loop.reads)
      if (access.view.tensor >= 0 && access.lanes && access.levels.size() > 1) return true;
  return false;
}

void Kernel::choose_shape() {
  bool reduces = false, row_sums = false;
  for (const int n : space_.space().nodes) {
    const Node& node = space_.program().nodes()[static_cast<std::size_t>(n)];
    reduces = reduces || space_.reduces_row(node);
    row_sums =
        row_sums || (space_.reduces_rows(node) && space_.place(node.args[0]) != Place::inner);
  }
  std::int64_t least = 1;
  for (const Loop& loop : loops_) {
    if (loop.lanes_together == 0) continue;
    least = std::max(least, loop.lanes_together == loop.axes.back().extent
                                ? power_of_two(loop.vectors)
                                : loop.lanes_together / loop.width);
  }
  const bool groups = space_.group() != 0;
  bool fixed = false;
  for (const Loop& loop : loops_) fixed = fixed || loop.fixed;
  if (groups && !reduces && !row_sums && !fixed && loops_.size() == 1) {
    return choose_columns();
  }
  if (loops_.empty()) {
    shape_ = {.team = groups ? 32 : 1, .teams = groups ? kThreads / 32 : kThreads};
    return;
  }
  if (groups && space_.seen() == Rows::outer && space_.row_count() > 4096)
    throw Refused{"sums along many rows beside other work"};
  const auto full = std::ranges::count_if(loops_, [](const Loop& loop) { return !loop.edges; });
  if (!groups && !reduces && full == 1) {
    const Loop& loop = loops_[0];
    const std::int64_t slots =
        std::clamp<std::int64_t>(24 / std::max<std::int64_t>(1, words(loop)), 1, 4);
    const std::int64_t team =
        std::clamp(power_of_two(divide_up(loop.items, slots)), least, std::int64_t{kThreads});
    shape_ = {.team = static_cast<int>(team), .teams = static_cast<int>(kThreads / team)};
    shape_.unroll = static_cast<int>(slots);
    shape_.chunks = std::max<std::int64_t>(1, divide_up(loop.items, team * slots));
    chunked_ = true;
    set_slots();
    return;
  }
  choose_rows(least, groups);
  set_slots();
}

// Sums of columns alone: warps that stay for many rows, so that loads never stop together; but as
// many as a GPU holds.
void Kernel::choose_columns() {
  const std::int64_t each = std::max<std::int64_t>(1, words(loops_[0]));
  shape_ = {.kind = Shape::Kind::columns, .team = 32, .teams = 1, .keeps = false, .whole = false};
  parts_ = space_.seen() == Rows::outer && space_.row_count() > kManyRows;
  const std::int64_t tiles = std::max<std::int64_t>(1, groups() * divide_up(loops_[0].items, 32));
  const int most = space_.seen() == Rows::outer && !parts_ ? kMostThreads / 32 : kThreads / 32;
  while (shape_.teams < most && 2 * shape_.teams * tiles <= kWarps) shape_.teams *= 2;
  shape_.unroll = static_cast<int>(std::clamp<std::int64_t>(32 / each, 1, 8));
  set_slots();
}

// Threads of a row: few, so that many rows are in flight, but enough for what a row keeps.
void Kernel::choose_rows(std::int64_t least, bool groups) {
  struct Need {
    std::int64_t all = 0, pass = 0, one = 0, slots = 1, sums = 0;
  };
  const auto need = [&](std::int64_t team) {
    Need out;
    for (const Loop& loop : loops_) {
      const std::int64_t slots = std::max<std::int64_t>(1, divide_up(loop.items, team));
      out.all += slots * words(loop);
      out.pass = std::max(out.pass, slots * words(loop));
      out.one = std::max(out.one, words(loop));
      out.slots = std::max(out.slots, slots);
      out.sums += slots * sum_words(loop, true) + sum_words(loop, false);
    }
    return out;
  };
  std::int64_t total = 0, slot_sums = 0;
  for (const Loop& loop : loops_) {
    total += loop.items * words(loop);
    slot_sums += sum_words(loop, true);
  }
  const auto take = [&](std::int64_t team, int threads) {
    shape_ = {.team = static_cast<int>(team),
              .teams = static_cast<int>(team > 32 ? 1 : threads / team)};
  };
  const bool again = rereads();
  if (groups) least = std::max<std::int64_t>(least, 32);
  if (slot_sums > 0) {
    // Few threads first; if nothing fits, more registers, so fewer rows in flight.
    constexpr int kTries = 3;
    for (std::int64_t team = least, attempt = 0;; team *= 2) {
      if (team > kMostThreads) team = least, ++attempt;
      if (attempt == kTries) break;
      const Need at = need(team);
      const std::int64_t most = team > kThreads ? kMostWords * 5 / 8 : kMostWords + 35 * attempt;
      if (at.slots > kMostSlots || at.sums > kSumWords * (attempt == 2 ? 2 : 1)) continue;
      const bool by_slot = !again && at.pass > kKeptWords;
      if ((again ? at.all : by_slot ? at.one : at.pass) + at.sums > most) continue;
      take(team, kThreads);
      shape_.keeps = again;
      shape_.by_slot = by_slot;
      return;
    }
    throw Refused{"sums along rows of rows too wide for registers"};
  }
  if (groups) {
    // Rows of a block side by side: a barrier for each row would cost more than the row.
    const std::int64_t team =
        total / std::max<std::int64_t>(1, need(1).one) > 4096 ? kMostThreads : 32;
    const Need at = need(team);
    const bool keeps = at.slots <= 2 * kMostSlots && at.all <= kKeptWords;
    take(std::max(team, least), keeps && again ? kThreads : kMostThreads);
    shape_.keeps = shape_.whole = keeps;
    // Few blocks: each has much on the way.
    shape_.unroll =
        static_cast<int>(std::clamp<std::int64_t>(48 / std::max<std::int64_t>(1, at.one), 1, 8));
    if (at.one > 32) shape_.teams = std::max(1, shape_.teams / 2);
    return;
  }
  for (std::int64_t team = least; team <= kMostThreads; team *= 2) {
    if (space_.row_count() == 1 && team < kMostThreads) continue;
    const Need at = need(team);
    const std::int64_t most = again && team <= kThreads ? kAgainWords : kKeptWords;
    if (at.all > most || at.slots > kMostSlots) continue;
    return take(team, kThreads);
  }
  std::int64_t narrowest = kMostThreads;
  for (const Loop& loop : loops_)
    if (8 * loop.items * words(loop) >= total) narrowest = std::min(narrowest, loop.items);
  std::int64_t team = power_of_two(narrowest + 1) / 2;
  if (again || space_.row_count() == 1) team = kMostThreads;
  take(std::clamp(team, std::max<std::int64_t>(least, 32), std::int64_t{kMostThreads}), kThreads);
  shape_.keeps = shape_.whole = false;
  shape_.unroll =
      static_cast<int>(std::clamp<std::int64_t>(32 / std::max<std::int64_t>(1, need(1).one), 1, 4));
}

void Kernel::set_slots() {
  for (Loop& loop : loops_) {
    const bool whole = shape_.kind == Shape::Kind::rows && shape_.whole && shape_.chunks == 1;
    if (loop.edges && !whole) {
      loop.slots = static_cast<int>(shape_.chunks > 1 ? divide_up(loop.items, shape_.team) : 1);
      continue;
    }
    loop.slots =
        whole ? static_cast<int>(std::max<std::int64_t>(1, divide_up(loop.items, shape_.team)))
              : shape_.unroll;
  }
}

void Kernel::take(const StreamTile& tile) {
  shape_.team = tile.team;
  shape_.teams = tile.teams;
  shape_.unroll = tile.unroll;
  if (shape_.kind == Shape::Kind::rows && !loops_.empty() && shape_.chunks > 0 && chunked_)
    shape_.chunks = std::max<std::int64_t>(
        1, divide_up(loops_[0].items, std::int64_t{tile.team} * tile.unroll));
  set_slots();
}

// Where a row keeps little, the compiler need not spend more.
int Kernel::least_blocks() const {
  if (shape_.kind != Shape::Kind::rows || !shape_.keeps || !shape_.whole || chunked_) return 0;
  if (space_.group() != 0 || loops_.empty()) return 0;
  std::int64_t kept = 0, late = 0;
  for (const Loop& loop : loops_) {
    kept += loop.slots * words(loop);
    for (const auto& [key, access] : loop.reads) {
      const bool rows = std::ranges::any_of(access.view.factors,
                                            [&](const Factor& f) { return space_.is_row(f); });
      if (!rows && access.lanes && access.view.tensor >= 0)
        late += loop.slots * static_cast<std::int64_t>(size_of(dtype_of(access.view.tensor))) *
                loop.width / 4;
    }
  }
  if (kept > kLittleWords) return 0;
  const std::int64_t own = kept - late;
  if (own > kLittleWords * 3 / 4) return 1;
  return kRegisters / ((own <= kLittleWords / 3 ? 40 : 48) * threads());
}

// Other ways to share the work, around the one that seems best.
std::vector<StreamTile> Kernel::candidates() const {
  std::vector<StreamTile> all = {tile()};
  const auto add = [&](int team, int teams, int unroll) {
    if (team < 1 || teams < 1 || team * teams > 1024 || unroll < 1 || unroll > 8) return;
    // NOTE: reductions of a row among warps have the block's shared memory for one team.
    const bool alone = shape_.kind == Shape::Kind::rows && !chunked_ && team > 32;
    if (alone && teams != 1) return;
    const StreamTile tile = {team, teams, unroll};
    if (std::ranges::find(all, tile) == all.end()) all.push_back(tile);
  };
  if (loops_.empty()) return all;
  const auto [team, teams, unroll] = tile();
  if (shape_.kind == Shape::Kind::columns) {
    for (const int t : {1, 2, 4, 8})
      for (const int u : {unroll / 2, unroll}) add(32, t, u);
    add(64, 1, unroll);
    add(256, 1, unroll);
  } else if (chunked_) {
    for (const int u : {unroll / 2, 2 * unroll}) add(team, teams, u);
    if (teams == 1) add(team / 2, 1, unroll), add(2 * team, 1, unroll);
  } else if (!shape_.whole) {
    for (const int u : {unroll / 2, unroll, 2 * unroll}) {
      add(team, teams, u);
      if (teams > 1) add(team, teams / 2, u), add(team, 2 * teams, u);
      if (team > 32) add(team / 2, teams, u), add(2 * team, teams, u);
    }
  } else if (space_.group() == 0) {
    if (team >= 64) add(team / 2, team / 2 > 32 ? 1 : 4, unroll);
    if (team >= 32) add(2 * team, 1, unroll);
    if (team >= 32) add(4 * team, 1, unroll);
  }
  return all;
}

bool Kernel::suits_any() const {
  return shape_.kind == Shape::Kind::columns ||
         (space_.row_count() == 1 && shape_.kind == Shape::Kind::rows);
}

void Kernel::set_threads(int threads) {
  if (threads == this->threads()) return;
  if (shape_.kind == Shape::Kind::rows && shape_.team > 32) {
    shape_.team = threads;
    if (shape_.chunks > 1)
      shape_.chunks = divide_up(loops_[0].items, std::int64_t{threads} * shape_.unroll);
  }
  shape_.teams = threads / shape_.team;
  set_slots();
}

std::int64_t Kernel::group() const {
  return parts_ ? kPartRows : space_.group();
}

std::int64_t Kernel::groups() const {
  if (group() == 0 || space_.row_count() == 0) return 0;
  return space_.row_count() / space_.period() * divide_up(space_.period(), group());
}

// Of all sums of all groups, 8 bytes each.
std::int64_t Kernel::workspace() const {
  if (!parts_) return 0;
  return 8 * groups() * loops_[0].items * sum_words(loops_[0], true);
}

std::int64_t Kernel::second_blocks() const {
  return parts_ ? divide_up(loops_[0].items, shape_.team) : 0;
}

std::int64_t Kernel::blocks() const {
  const std::int64_t rows = space_.row_count();
  if (rows == 0) return 0;
  const std::int64_t groups = this->groups();
  if (shape_.kind == Shape::Kind::columns) return groups * divide_up(loops_[0].items, shape_.team);
  if (groups != 0) return groups;
  return divide_up(rows, shape_.teams) * shape_.chunks;
}

std::string Kernel::summary() const {
  std::string text = shape_.kind == Shape::Kind::columns
                         ? "columns, " + std::to_string(shape_.team) + " x " +
                               std::to_string(shape_.teams) + " threads"
                         : "rows, " + std::to_string(shape_.team) + " threads a row";
  for (const Loop& loop : loops_) {
    text += ", " + std::to_string(loop.slots) + " x " + std::to_string(loop.width) + " of";
    for (const Axis& axis : loop.axes) text += " " + axis.factor.text();
  }
  if (shape_.kind == Shape::Kind::rows && !shape_.whole) text += ", looped";
  return text;
}

}  // namespace coda::cuda::streaming
