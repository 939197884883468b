// coda/cuda/stream_collect.cpp: from results and reductions down to what a loop reads.
#include <algorithm>

#include "coda/cuda/stream_kernel.h"

namespace coda::cuda::streaming {
namespace {

bool holds(const std::vector<Axis>& axes, const Factor& factor) {
  return std::ranges::any_of(axes, [&](const Axis& axis) { return axis.factor == factor; });
}

// Also blocks of an axis that is there.
bool includes(const std::vector<Axis>& all, const std::vector<Axis>& some) {
  return std::ranges::all_of(some, [&](const Axis& axis) {
    if (holds(all, axis.factor)) return true;
    if (axis.factor.kind() != Factor::Kind::blocks) return false;
    const std::vector<Factor>& blocked = axis.factor.dim().factors;
    return blocked.size() == 1 && holds(all, blocked[0]);
  });
}

std::vector<std::int64_t> dense_of(const std::vector<std::int64_t>& extents) {
  std::vector<std::int64_t> strides(extents.size(), 1);
  for (std::size_t f = extents.size(); f-- > 1;) strides[f - 1] = strides[f] * extents[f];
  return strides;
}

}  // namespace

// What an inner value's node reads along the row, and which piece of it.
std::vector<std::pair<Value, Path>> Kernel::operands(Value v, const Path& path) const {
  std::vector<std::pair<Value, Path>> out;
  if (space_.view(v)) return out;
  const Node& node = space_.node(v);
  const auto add = [&](Value arg, const Path& from) {
    const std::vector<Factor> inner = space_.inner_factors(arg);
    out.emplace_back(arg, space_.restricted(from, inner));
  };
  switch (node.op) {
    case Op::gather:
    case Op::pick:
    case Op::index:
    case Op::uniform:
    case Op::constant:
    case Op::size:
      return out;
    case Op::split: {
      Path whole = path;
      whole[node.attr.axis.factors[0].text()] = space_.program().value(v).slot;
      add(node.args[0], whole);
      return out;
    }
    case Op::join: {
      const int piece = path.at(node.attr.axis.factors[0].text());
      add(node.args[static_cast<std::size_t>(piece)], path);
      return out;
    }
    default:
      break;
  }
  if (space_.reduces_inside(node) || space_.reduces_row(node)) {
    // Every piece of what is reduced.
    const std::vector<Factor> inner = space_.inner_factors(node.args[0]);
    for (const Atom& atom : space_.atoms(inner)) {
      const bool ours = std::ranges::all_of(path, [&](const auto& choice) {
        const auto at = atom.path.find(choice.first);
        return at == atom.path.end() || at->second == choice.second;
      });
      if (ours) out.emplace_back(node.args[0], atom.path);
    }
    return out;
  }
  if (space_.reduces_rows(node)) return out;
  for (const Value arg : node.args) add(arg, path);
  return out;
}

// The axes of the loop in which a value is computed.
std::vector<Axis> Kernel::axes(Value v, const Path& path) {
  const auto known = axes_.find({v.id, path});
  if (known != axes_.end()) return known->second;
  std::vector<Axis> out;
  for (const Atom& atom : space_.atoms(space_.inner_factors(v)))
    if (atom.path == path) out = atom.axes;
  if (!space_.program().is_param(v) && space_.level(v) != kAfterRows) {
    for (const auto& [arg, piece] : operands(v, path)) {
      if (space_.reduces_row(space_.node(v))) continue;
      const std::vector<Axis> other = axes(arg, piece);
      if (includes(out, other)) continue;
      if (!includes(other, out))
        throw Refused{"values of " + describe(space_.program(), v) + " run along other axes"};
      out = other;
    }
  }
  axes_[{v.id, path}] = out;
  return out;
}

Loop& Kernel::loop_of(const std::vector<Axis>& axes) {
  for (Loop& loop : loops_) {
    if (loop.axes.size() == axes.size() && includes(loop.axes, axes) && includes(axes, loop.axes))
      return loop;
  }
  loops_.push_back({.axes = axes});
  return loops_.back();
}

void Kernel::place_factor(const Loop& loop, const Factor& factor, std::int64_t stride,
                          const Path& path, Access& out) const {
  if (const std::vector<Dim>* pieces = space_.pieces(factor)) {
    const auto piece = static_cast<std::size_t>(path.at(factor.text()));
    for (std::size_t p = 0; p < piece; ++p) out.base += stride * space_.extent((*pieces)[p]);
    const std::vector<Factor>& inside = (*pieces)[piece].factors;
    std::int64_t at = stride;
    for (std::size_t f = inside.size(); f-- > 0;) {
      place_factor(loop, inside[f], at, path, out);
      at *= space_.extent(inside[f]);
    }
    return;
  }
  for (std::size_t a = 0; a < loop.axes.size(); ++a) {
    if (loop.axes[a].factor == factor) {
      out.strides[a] = stride;
      if (a + 1 == loop.axes.size()) out.lanes = true;
      return;
    }
  }
  if (factor.kind() == Factor::Kind::blocks && factor.dim().factors.size() == 1 &&
      loop.axes.back().factor == factor.dim().factors[0]) {
    out.block = factor.number();
    out.block_stride = stride;
    return;
  }
  throw Refused{"`" + factor.text() + "` is no axis of the loop"};
}

Access Kernel::access(const Loop& loop, View view, const Path& path) const {
  Access out = {.view = std::move(view), .path = path};
  out.strides.assign(loop.axes.size(), 0);
  for (std::size_t f = 0; f < out.view.factors.size(); ++f) {
    const Factor& factor = out.view.factors[f];
    if (space_.is_row(factor)) continue;
    const bool group = space_.inner_factors(std::vector<Factor>{factor}).empty();
    if (!group) place_factor(loop, factor, out.view.strides[f], path, out);
  }
  return out;
}

void Kernel::read(Loop& loop, std::int32_t id, View view, const Path& path, int level, int ids) {
  auto entry = loop.reads.find({id, path});
  if (entry == loop.reads.end()) {
    Access made = access(loop, std::move(view), path);
    made.value = id;
    made.ids = ids;
    entry = loop.reads.emplace(std::pair{id, path}, std::move(made)).first;
  }
  entry->second.levels.insert(level);
}

void Kernel::visit(Loop& loop, Value v, const Path& path, int level) {
  const Place place = space_.place(v);
  if (place == Place::single || place == Place::row || level == kAfterRows) return;
  if (const auto view = space_.view(v)) return read(loop, v.id, *view, path, level, -1);
  const Node& node = space_.node(v);
  const auto dense = [&](const std::vector<Factor>& factors) {
    std::vector<std::int64_t> extents;
    for (const Factor& factor : factors) extents.push_back(space_.extent(factor));
    return View{-1, factors, dense_of(extents)};
  };
  if (node.op == Op::index || node.op == Op::uniform)
    return read(loop, v.id, dense(factors_of(space_.program().type(v))), path, level, -1);
  if (node.op == Op::gather) {
    View view = *space_.view(node.args[0]);
    view.factors.erase(view.factors.begin());
    view.strides.erase(view.strides.begin());
    return read(loop, v.id, view, path, level, node.args[1].id);
  }
  if (space_.reduces_inside(node)) {
    const std::vector<Factor>& reduced = node.attr.axis.factors;
    std::int64_t together = class_of(node.op) == OpClass::block_reduce ? node.attr.block : 0;
    const Axis& last = loop.axes.back();
    if (together == 0) together = last.extent;
    // What is reduced is the innermost axis, whole or in blocks.
    const std::vector<Atom> pieces = space_.atoms(reduced);
    for (const Atom& piece : pieces) {
      if (piece.axes.size() != 1 || !(piece.axes[0].factor == last.factor))
        throw Refused{"`" + print_of(v) + "` reduces more than the innermost axis"};
    }
    if (node.attr.block != 0 && pieces.size() != 1)
      throw Refused{"`" + print_of(v) + "` has blocks across pieces"};
    if (loop.lanes_together != 0 && loop.lanes_together != together)
      throw Refused{"reductions of two sizes inside a row"};
    loop.lanes_together = together;
    loop.fixed = true;
  }
  for (const auto& [arg, piece] : operands(v, path)) {
    visit(loop, arg, piece, level);
  }
}

void Kernel::collect_result(int r) {
  Value v;
  const View view = space_.target(r, v);
  const Place place = space_.place(v);
  const std::vector<Factor> inner = space_.inner_factors(v);
  const int level = space_.level(v);
  if (place == Place::inner && space_.row_count() != 1) {
    const std::vector<Factor> all = factors_of(space_.program().type(v));
    std::size_t rows = 0;
    for (const Factor& factor : all) rows += space_.is_row(factor) ? 1 : 0;
    if (rows != space_.rows().size())
      throw Refused{"result " + space_.program().results()[static_cast<std::size_t>(r)].name +
                    " lacks rows"};
  }
  if (inner.empty()) return;
  for (const Atom& atom : space_.atoms(inner)) {
    Loop& loop = loop_of(axes(v, atom.path));
    loop.works[level].push_back({.result = r, .value = v, .path = atom.path});
    visit(loop, v, atom.path, level);
    loop.writes.emplace(std::pair{r, atom.path}, access(loop, view, atom.path));
  }
}

void Kernel::collect_reduction(const Node& node) {
  const bool along_rows = space_.reduces_rows(node);
  if (!along_rows && space_.first_like(node.results[0]) != node.results[0]) return;
  Value operand = node.args[0];
  if (along_rows) {
    if (space_.place(operand) != Place::inner) return;
    if (!space_.view(operand) && space_.reduces_inside(space_.node(operand))) {
      // sum over heads, then over rows: one sum.
      const Node& inner = space_.node(operand);
      const std::vector<Factor> all = space_.inner_factors(inner.args[0]);
      const std::vector<Factor>& reduced = inner.attr.axis.factors;
      if (inner.op == Op::sum && node.op == Op::block_sum &&
          std::equal(reduced.begin(), reduced.end(), all.begin()) && all.size() > reduced.size())
        operand = inner.args[0];
    }
  }
  for (const Atom& atom : space_.atoms(space_.inner_factors(operand))) {
    Loop& loop = loop_of(axes(operand, atom.path));
    const int level = space_.level(operand);
    loop.works[level].push_back({.kind = along_rows ? Work::Kind::accumulate : Work::Kind::reduce,
                                 .value = operand,
                                 .node = node.results[0].id,
                                 .path = atom.path});
    if (operand != node.args[0]) loop.fixed = true;
    visit(loop, operand, atom.path, level);
  }
}

void Kernel::collect() {
  for (const int n : space_.space().nodes) {
    const Node& node = space_.program().nodes()[static_cast<std::size_t>(n)];
    if (space_.reduces_row(node) || space_.reduces_rows(node)) collect_reduction(node);
    const int level = space_.level(node.results[0]);
    if (level != kAfterRows) levels_ = std::max(levels_, level + 1);
  }
  for (const int r : space_.space().results) collect_result(r);
  for (Loop& loop : loops_) {
    loop.infinite = true;
    for (const auto& [level, works] : loop.works) {
      for (const Work& work : works) {
        loop.infinite = loop.infinite && work.kind != Work::Kind::store &&
                        operation(space_.node(Value{work.node}).op) != "Sum" &&
                        space_.view(work.value) &&
                        is_float(space_.program().type(work.value).dtype);
      }
    }
  }
}

}  // namespace coda::cuda::streaming
