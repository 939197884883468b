// coda/cuda/stream_shape.cpp: how wide vectors are, and how many threads take a row.
#include <algorithm>
#include <bit>

#include "coda/cuda/stream_kernel.h"

namespace coda::cuda::streaming {
namespace {

constexpr int kThreads = 256;
constexpr int kMostThreads = 512;
constexpr std::int64_t kKeptWords = 48;   // of a thread, what is loaded before anything is computed
constexpr std::int64_t kGroupWords = 112;  // the same with sums along rows
constexpr std::int64_t kMostSlots = 8;
constexpr std::int64_t kAtOnce = 16;      // bytes of a memory access

std::int64_t divide_up(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

std::int64_t power_of_two(std::int64_t x) {
  return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(std::max<std::int64_t>(x, 1))));
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

void Kernel::choose_width(Loop& loop) {
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
      const auto divides = [&](std::int64_t stride) { return stride * size % bytes == 0; };
      bool rows = false;
      for (std::size_t f = 0; f < access.view.factors.size(); ++f) {
        if (!space_.is_row(access.view.factors[f])) continue;
        rows = true;
        aligned = aligned && divides(access.view.strides[f]);
      }
      if (access.ids >= 0) {
        aligned = aligned && divides(space_.view(space_.node(Value{access.value}).args[0])
                                         ->strides[0]);
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
  while (width > 1 && !fits()) width /= 2;
  if (width == 1) fits();
  loop.width = width;
  loop.vectors = loop.axes.back().extent / width;
  loop.padded = loop.vectors;
  if (loop.lanes_together != 0) {
    const std::int64_t together = loop.lanes_together == extent
                                      ? power_of_two(loop.vectors)
                                      : loop.lanes_together / width;
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
    choose_width(loop);
  }
}

std::int64_t Kernel::words(const Loop& loop) const {
  std::int64_t words = 0;
  for (const auto& [key, access] : loop.reads) {
    if (access.view.tensor < 0) continue;
    const auto size = static_cast<std::int64_t>(size_of(dtype_of(access.view.tensor)));
    words += access.lanes ? std::max<std::int64_t>(1, size * loop.width / 4) : 1;
  }
  return words;
}

std::int64_t Kernel::accumulator_words(const Loop& loop) const {
  std::int64_t words = 0;
  for (const auto& [level, works] : loop.works)
    for (const Work& work : works)
      if (work.kind == Work::Kind::accumulate) words += loop.width;
  return words;
}

void Kernel::choose_shape() {
  bool reduces = false, row_sums = false;
  for (const int n : space_.space().nodes) {
    const Node& node = space_.program().nodes()[static_cast<std::size_t>(n)];
    reduces = reduces || space_.reduces_row(node);
    row_sums = row_sums || (space_.reduces_rows(node) &&
                            space_.place(node.args[0]) != Place::inner);
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
    const std::int64_t each = std::max<std::int64_t>(1, words(loops_[0]));
    shape_ = {.kind = Shape::Kind::columns, .team = 32, .teams = kThreads / 32, .keeps = false};
    if (space_.seen() == Rows::outer) shape_.teams = kMostThreads / 32;
    shape_.unroll = static_cast<int>(std::clamp<std::int64_t>(32 / each, 1, 8));
    set_slots();
    return;
  }
  if (loops_.empty()) {
    shape_ = {.team = groups ? 32 : 1, .teams = groups ? kThreads / 32 : kThreads};
    return;
  }
  if (groups && space_.seen() == Rows::outer && space_.row_count() > 4096)
    throw Refused{"sums along many rows beside other work"};
  if (!groups && !reduces && loops_.size() == 1) {
    const Loop& loop = loops_[0];
    const std::int64_t slots =
        std::clamp<std::int64_t>(24 / std::max<std::int64_t>(1, words(loop)), 1, 4);
    const std::int64_t team =
        std::clamp(power_of_two(divide_up(loop.items, slots)), least, std::int64_t{kThreads});
    shape_ = {.team = static_cast<int>(team), .teams = static_cast<int>(kThreads / team)};
    shape_.unroll = static_cast<int>(slots);
    shape_.chunks = std::max<std::int64_t>(1, divide_up(loop.items, team * slots));
    set_slots();
    return;
  }
  const std::int64_t limit = groups ? kGroupWords : kKeptWords;
  for (std::int64_t team = groups ? std::max<std::int64_t>(least, 32) : least; team <= kMostThreads;
       team *= 2) {
    if (space_.row_count() == 1 && team < kMostThreads) continue;
    std::int64_t all = 0, most = 1;
    for (const Loop& loop : loops_) {
      const std::int64_t slots = std::max<std::int64_t>(1, divide_up(loop.items, team));
      all += slots * (words(loop) + accumulator_words(loop));
      most = std::max(most, slots);
    }
    if (all > limit || most > kMostSlots) continue;
    shape_ = {.team = static_cast<int>(team),
              .teams = static_cast<int>(team > 32 ? 1 : kThreads / team)};
    set_slots();
    return;
  }
  if (groups) throw Refused{"sums along rows of rows too wide for registers"};
  std::int64_t each = 1;
  for (const Loop& loop : loops_) each = std::max(each, words(loop));
  shape_ = {.team = kMostThreads, .teams = 1, .keeps = false};
  shape_.unroll = static_cast<int>(std::clamp<std::int64_t>(24 / each, 1, 4));
  set_slots();
}

void Kernel::set_slots() {
  for (Loop& loop : loops_) {
    const bool whole = shape_.kind == Shape::Kind::rows && shape_.keeps && shape_.chunks == 1;
    loop.slots = whole ? static_cast<int>(std::max<std::int64_t>(
                             1, divide_up(loop.items, shape_.team)))
                       : shape_.unroll;
  }
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

std::int64_t Kernel::blocks() const {
  const std::int64_t rows = space_.row_count();
  if (rows == 0) return 0;
  const std::int64_t groups =
      space_.group() == 0 ? 0
                          : rows / space_.period() * divide_up(space_.period(), space_.group());
  if (shape_.kind == Shape::Kind::columns)
    return groups * divide_up(loops_[0].items, shape_.team);
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
  if (shape_.kind == Shape::Kind::rows && !shape_.keeps) text += ", rows read once a pass";
  return text;
}

}  // namespace coda::cuda::streaming
