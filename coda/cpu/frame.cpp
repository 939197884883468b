// coda/cpu/frame.cpp: the choice of tiles.
#include "coda/cpu/frame.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "coda/core/error.h"

namespace coda::cpu {

Frame::Frame(const Checked& checked, std::size_t space, const Sizes& sizes)
    : Places(checked, space, sizes) {
  if (!conflict().empty()) full_ = conflict() + " has two places among the columns";
  collect_needs();
}

std::int64_t Frame::held(const FactorPlace& place, std::int64_t width) const {
  if (place.kind != FactorPlace::Kind::column || width == columns()) return place.extent;
  const std::int64_t span = std::clamp<std::int64_t>(
      width / place.place.inner, std::min<std::int64_t>(1, place.place.extent), place.place.extent);
  return (span + place.place.block - 1) / place.place.block;
}

void Frame::need(const Dim& axis, Value value, std::int64_t block, const char* why) {
  const std::vector<Role>& roles = checked().roles(space_index(), value);
  for (const int at : positions(program().type(value), axis)) {
    if (at < 0 || static_cast<std::size_t>(at) >= roles.size() ||
        roles[static_cast<std::size_t>(at)] != Role::column) {
      return;
    }
  }
  if (const auto place = column_place(axis)) {
    needs_.push_back({*place, block, why});
    return;
  }
  for (const Factor& factor : axis.factors) {
    if (const auto place = column_place(dim_of(factor))) needs_.push_back({*place, 0, why});
  }
}

void Frame::collect_needs() {
  for (const int n : space().nodes) {
    const Node& node = program().nodes()[static_cast<std::size_t>(n)];
    const Attr& attr = node.attr;
    switch (class_of(node.op)) {
      case OpClass::reduce:
        need(attr.axis, node.args[0], 0, "a reduction");
        continue;
      case OpClass::block_reduce: {
        const Factor blocks = Factor::blocks(attr.axis, attr.block);
        if (column_place(attr.axis)) {
          need(attr.axis, node.args[0], attr.block, "blocks");
        } else {
          need(dim_of(blocks), node.results[0], 0, "blocks");
        }
        const std::vector<Role>& roles = checked().roles(space_index(), node.results[0]);
        const int at = positions(program().type(node.results[0]), dim_of(blocks))[0];
        if (at >= 0 && static_cast<std::size_t>(at) < roles.size() &&
            roles[static_cast<std::size_t>(at)] == Role::row &&
            role_of(node.args[0], attr.axis) == Role::row) {
          row_blocks_.push_back({attr.block, require_extent(attr.axis, sizes())});
        }
        continue;
      }
      case OpClass::layout:
        break;
      default:
        if (node.op == Op::pick && space().accumulators.empty()) {
          need(attr.axis, node.args[0], 0, "a pick");
        }
        continue;
    }
    if (node.op == Op::split) {
      need(attr.axis, node.args[0], 0, "a split");
      for (std::size_t p = 0; p < attr.dims.size(); ++p) {
        for (const Factor& factor : attr.dims[p].factors) {
          need(dim_of(factor), node.results[p], 0, "a split");
        }
      }
    } else if (node.op == Op::join) {
      need(attr.axis, node.results[0], 0, "a join");
      for (std::size_t p = 0; p < attr.dims.size(); ++p) {
        for (const Factor& factor : attr.dims[p].factors) {
          need(dim_of(factor), node.args[p], 0, "a join");
        }
      }
    } else if (node.op == Op::spread && attr.block > 0) {
      if (column_place(attr.axis)) {
        need(attr.axis, node.results[0], attr.block, "blocks");
      } else {
        need(dim_of(Factor::blocks(attr.axis, attr.block)), node.args[0], 0, "blocks");
      }
    }
  }
}

// Is every factor whole, a range or one coordinate in the tiles of [0, period) by `width`?
bool Frame::valid(std::int64_t width, std::int64_t period) const {
  const std::int64_t tail = period % width;
  const auto whole = [&](const Place& place) {
    const std::int64_t size = place.inner * place.extent;
    return size <= 1 || (width % size == 0 && period % size == 0);
  };
  const auto range = [&](const Place& place) {
    return width % place.inner == 0 && tail % place.inner == 0 &&
           (place.inner * place.extent) % period == 0;
  };
  for (const auto& [text, place] : column_places()) {
    const bool one = place.inner % period == 0;
    if (!whole(place) && !range(place) && !one) return false;
  }
  for (const Need& each : needs_) {
    if (whole(each.place)) continue;
    if (each.block == 0 || !range(each.place)) return false;
    const std::int64_t unit = each.place.inner * each.block;
    const bool restarts = period == each.place.inner * each.place.extent;
    if (width % unit != 0 || (!restarts && period % unit != 0)) return false;
  }
  return true;
}

Cut Frame::cut_columns(std::int64_t wanted, std::vector<std::string>& notes) const {
  const std::int64_t all = columns();
  Cut best{all, all, std::max<std::int64_t>(all, 1)};
  if (all <= wanted) return best;
  if (!full_.empty()) {
    notes.push_back("full width: " + full_);
    return best;
  }
  const auto score = [&](std::int64_t width) {
    return std::abs(std::log2(static_cast<double>(width) / static_cast<double>(wanted)));
  };
  for (const auto& [text, place] : column_places()) {
    const std::int64_t period = place.inner * place.extent;
    if (period == 0 || all % period != 0) continue;
    std::int64_t unit = place.inner;
    for (const Need& each : needs_) {
      if (each.block > 0) unit = std::lcm(unit, each.place.inner * each.block);
    }
    // Without blocks to respect, tiles of one long factor still start at 64.
    if (unit == 1 && period > wanted) unit = 16;
    for (const std::int64_t width : {std::max<std::int64_t>(unit, wanted / unit * unit),
                                     (wanted + unit - 1) / unit * unit, period}) {
      if (width > period || !valid(width, period)) continue;
      // Of equals the larger period: fewer tails.
      const double better = score(best.size) - score(width);
      if (better > 1e-9 || (better > -1e-9 && period > best.period)) best = {all, period, width};
    }
  }
  if (best.size > 2 * wanted) {
    std::string why = "no cut respects its factors";
    for (const Need& each : needs_) {
      if (each.block == 0) why = "for " + each.why;
    }
    notes.push_back("columns in tiles of " + std::to_string(best.size) + ": " + why);
  }
  return best;
}

Cut Frame::cut_rows(std::int64_t wanted) const {
  // Tiles start where a block does: at multiples of `unit` in the flat rows, or of `blocks` in each
  // period of blocks that restart.
  std::int64_t unit = 64, blocks = 64, period = rows();
  for (const RowBlock& each : row_blocks_) {
    const bool restarts = each.period % each.block != 0 && each.period < rows();
    unit = std::lcm(unit, restarts ? each.period : each.block);
    blocks = std::lcm(blocks, each.block);
    if (restarts) period = std::min(period, each.period);
  }
  const auto fits = [&](const RowBlock& each) {
    return each.period == period || (each.period % each.block == 0 && period % each.block == 0);
  };
  Cut cut{rows(), rows(), std::max<std::int64_t>(rows(), 1)};
  if (unit <= 4 * wanted || period == rows()) {
    cut.size = std::max(unit, wanted / unit * unit);
  } else if (std::ranges::all_of(row_blocks_, fits)) {
    cut.period = period;
    cut.size = std::max(blocks, wanted / blocks * blocks);
  }
  cut.size = std::clamp<std::int64_t>(cut.size, 1, std::max<std::int64_t>(cut.period, 1));
  return cut;
}

}  // namespace coda::cpu
