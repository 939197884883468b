// coda/check/input_view.cpp: follows casts, splits and `as` back to a parameter.
#include "coda/check/input_view.h"

#include <algorithm>

namespace coda {
namespace {

using Axes = std::vector<SubAxis>;

// Divides a list of loops into factors of the given extents.
std::optional<std::vector<Axes>> divide(const Axes& axes,
                                        const std::vector<std::int64_t>& extents) {
  std::vector<Axes> divided(extents.size());
  Axes rest = axes;
  std::erase_if(rest, [](const SubAxis& axis) { return axis.extent == 1; });
  for (std::size_t f = extents.size(); f-- > 0;) {
    std::int64_t missing = extents[f];
    if (missing == 0 || std::ranges::any_of(rest, [](const SubAxis& a) { return a.extent == 0; })) {
      // No element: any loop of the right extent does.
      divided[f] = {SubAxis{missing, axes.empty() ? 0 : axes[0].factor, 1}};
      continue;
    }
    while (missing > 1) {
      if (rest.empty()) return std::nullopt;
      SubAxis& last = rest.back();
      if (missing % last.extent == 0) {
        missing /= last.extent;
        divided[f].insert(divided[f].begin(), last);
        rest.pop_back();
      } else if (last.extent % missing == 0) {
        divided[f].insert(divided[f].begin(), SubAxis{missing, last.factor, last.scale});
        last.extent /= missing;
        last.scale *= missing;
        missing = 1;
      } else {
        return std::nullopt;
      }
    }
  }
  return divided;
}

Axes concatenate(const std::vector<Axes>& factors, std::size_t first, std::size_t count) {
  Axes all;
  for (std::size_t f = first; f < first + count; ++f) {
    all.insert(all.end(), factors[f].begin(), factors[f].end());
  }
  return all;
}

std::vector<std::int64_t> extents_of(const std::vector<Factor>& factors, const Sizes& sizes) {
  std::vector<std::int64_t> extents;
  for (const Factor& factor : factors) extents.push_back(require_extent(factor, sizes));
  return extents;
}

// [start, start + count) of the loops' flat index.
bool take_range(Axes& axes, std::int64_t start, std::int64_t count,
                std::vector<InputView::Offset>& offsets) {
  std::erase_if(axes, [](const SubAxis& axis) { return axis.extent == 1; });
  if (count == 0) {
    axes.assign(1, SubAxis{0, axes.empty() ? 0 : axes[0].factor, 1});
    return true;
  }
  if (axes.empty()) return start == 0 && count == 1;
  std::int64_t inside = 1;
  for (std::size_t a = 1; a < axes.size(); ++a) inside *= axes[a].extent;
  if (inside == 0 || start % inside != 0 || count % inside != 0) return false;
  offsets.push_back({axes[0].factor, start / inside * axes[0].scale});
  axes[0].extent = count / inside;
  return true;
}

bool apply_split(const Program& program, const Node& node, std::int32_t slot, const Sizes& sizes,
                 InputView& view) {
  const std::vector<Factor> before = factors_of(program.type(node.args[0]));
  const std::vector<Factor>& axis = node.attr.axis.factors;
  const auto at =
      static_cast<std::size_t>(std::ranges::search(before, axis).begin() - before.begin());
  std::int64_t start = 0;
  for (std::int32_t p = 0; p < slot; ++p) {
    start += require_extent(node.attr.dims[static_cast<std::size_t>(p)], sizes);
  }
  const Dim& piece = node.attr.dims[static_cast<std::size_t>(slot)];
  Axes range = concatenate(view.factors, at, axis.size());
  if (!take_range(range, start, require_extent(piece, sizes), view.offsets)) return false;
  auto divided = divide(range, extents_of(piece.factors, sizes));
  if (!divided) return false;
  const auto first = view.factors.begin() + static_cast<std::ptrdiff_t>(at);
  const auto place = view.factors.erase(first, first + static_cast<std::ptrdiff_t>(axis.size()));
  view.factors.insert(place, divided->begin(), divided->end());
  return true;
}

bool apply_as(const Program& program, const Node& node, const Sizes& sizes, InputView& view) {
  const Type& from = program.type(node.args[0]);
  const Type& to = program.type(node.results[0]);
  std::vector<Axes> factors;
  std::size_t at = 0;
  for (std::size_t d = 0; d < to.dims.size(); ++d) {
    const std::size_t count = from.dims[d].factors.size();
    auto divided =
        divide(concatenate(view.factors, at, count), extents_of(to.dims[d].factors, sizes));
    if (!divided) return false;
    factors.insert(factors.end(), divided->begin(), divided->end());
    at += count;
  }
  view.factors = std::move(factors);
  return true;
}

}  // namespace

bool holds_all(DType wide, DType narrow) {
  if (wide == narrow || wide == DType::f64) return true;
  if (!is_float(wide)) return wide == DType::i64 || narrow == DType::boolean;
  if (!is_float(narrow)) return narrow == DType::boolean;
  if (wide == DType::f32) return narrow != DType::f64;
  const bool eight = narrow == DType::f8e4m3 || narrow == DType::f8e5m2;
  return (wide == DType::bf16 || wide == DType::f16) && eight;
}

std::optional<InputView> view_input(const Program& program, Value value, const Sizes& sizes) {
  if (program.is_param(value)) {
    InputView view;
    view.parameter = value.id;
    view.dtype = program.type(value).dtype;
    const std::vector<Factor> factors = factors_of(program.type(value));
    for (std::size_t f = 0; f < factors.size(); ++f) {
      view.factors.push_back({SubAxis{require_extent(factors[f], sizes), static_cast<int>(f), 1}});
    }
    return view;
  }
  const Node& node = program.node(value);
  const bool cast = node.op == Op::cast || node.op == Op::pin;
  if (!cast && node.op != Op::split && node.op != Op::as) return std::nullopt;
  std::optional<InputView> view = view_input(program, node.args[0], sizes);
  if (!view) return std::nullopt;
  if (cast) {
    if (holds_all(node.attr.dtype, view->dtype)) return view;
    view->casts.push_back(node.attr.dtype);
    view->dtype = node.attr.dtype;
    return view;
  }
  const bool seen = node.op == Op::split
                        ? apply_split(program, node, program.value(value).slot, sizes, *view)
                        : apply_as(program, node, sizes, *view);
  return seen ? view : std::nullopt;
}

}  // namespace coda
