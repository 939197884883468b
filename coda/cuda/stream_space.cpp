// coda/cuda/stream_space.cpp: what lies along rows, what is cut, and what is known when.
#include "coda/cuda/stream_space.h"

#include <algorithm>
#include <utility>

#include "coda/program/text.h"

namespace coda::cuda::streaming {
namespace {

bool is_reduction(const Node& node) {
  return class_of(node.op) == OpClass::reduce || class_of(node.op) == OpClass::block_reduce;
}

}  // namespace

Space::Space(const Checked& checked, std::size_t space, const Sizes& sizes,
             std::span<const Layout> layouts)
    : checked_(&checked),
      index_(space),
      sizes_(&sizes),
      layouts_(layouts),
      uses_(checked.program().values().size(), 0) {
  for (const int n : this->space().nodes) {
    const Node& each = program().nodes()[static_cast<std::size_t>(n)];
    for (const Value v : each.args) {
      used_.insert(v.id);
      ++uses_[static_cast<std::size_t>(v.id)];
    }
    for (const Value v : each.results) used_.insert(v.id);
  }
  for (const int r : this->space().results) {
    const Value v = program().results()[static_cast<std::size_t>(r)].value;
    used_.insert(v.id);
    ++uses_[static_cast<std::size_t>(v.id)];
  }
  find_likes();
  take_rows();
  cut();
  check_nodes();
  find_levels();
}

void Space::find_likes() {
  first_like_.resize(program().values().size());
  for (std::size_t v = 0; v < first_like_.size(); ++v) first_like_[v] = static_cast<int>(v);
  const auto same = [&](Value a, Value b) {
    return first_like(a) == first_like(b);
  };
  for (const int n : space().nodes) {
    const Node& each = program().nodes()[static_cast<std::size_t>(n)];
    for (const int m : space().nodes) {
      if (m == n) break;
      const Node& before = program().nodes()[static_cast<std::size_t>(m)];
      if (before.op != each.op || before.attr != each.attr ||
          !std::ranges::equal(before.args, each.args, same))
        continue;
      for (std::size_t k = 0; k < each.results.size(); ++k)
        first_like_[static_cast<std::size_t>(each.results[k].id)] =
            first_like(before.results[k]).id;
      break;
    }
  }
}

void Space::set_rows(std::vector<Factor> factors) {
  rows_.clear();
  row_names_.clear();
  row_count_ = 1;
  for (const Factor& factor : factors) {
    rows_.push_back({factor, extent(factor)});
    row_names_.insert(factor.text());
    row_count_ *= rows_.back().extent;
  }
}

// The axis of sums that leave what lies inside it.
std::optional<std::vector<Factor>> Space::outer_axis() const {
  std::optional<std::vector<Factor>> axis;
  for (const int n : space().nodes) {
    const Node& each = program().nodes()[static_cast<std::size_t>(n)];
    if (class_of(each.op) != OpClass::reduce) continue;
    const std::vector<Factor>& reduced = each.attr.axis.factors;
    const std::vector<Factor> all = factors_of(program().type(each.args[0]));
    if (all.size() == reduced.size() || !std::equal(reduced.begin(), reduced.end(), all.begin()))
      continue;
    if (std::ranges::any_of(reduced, [&](const Factor& f) { return is_row(f); })) continue;
    if (axis && *axis != reduced) throw Refused{"sums along two outer dimensions"};
    axis = reduced;
  }
  return axis;
}

bool Space::has_inner() const {
  for (const std::int32_t id : used_)
    if (!inner_factors(Value{id}).empty()) return true;
  return false;
}

bool Space::gathers() const {
  return std::ranges::any_of(space().nodes, [&](int n) {
    const Op op = program().nodes()[static_cast<std::size_t>(n)].op;
    return op == Op::gather || op == Op::pick;
  });
}

bool Space::maps_of_one_shape() const {
  for (const int n : space().nodes) {
    const Op op = program().nodes()[static_cast<std::size_t>(n)].op;
    if (!is_map(op) && class_of(op) != OpClass::leaf) return false;
  }
  std::set<std::string> shape;
  for (const std::int32_t id : used_) {
    std::set<std::string> names;
    for (const Factor& factor : factors_of(program().type(Value{id}))) names.insert(factor.text());
    if (names.empty()) continue;
    if (!shape.empty() && shape != names) return false;
    shape = names;
  }
  return true;
}

void Space::take_rows() {
  std::vector<Factor> factors;
  for (const Dim& dim : space().rows)
    factors.insert(factors.end(), dim.factors.begin(), dim.factors.end());
  set_rows(factors);
  if (const auto axis = outer_axis()) {
    set_rows(*axis);
    seen_ = Rows::outer;
    group_ = period_ = row_count_;
    return;
  }
  // Elements of a tensor, or of rows alone, are one long row.
  if (has_inner() ? maps_of_one_shape() : !gathers()) {
    set_rows({});
    seen_ = Rows::none;
    return;
  }
  for (const int n : space().nodes) {
    const Node& each = program().nodes()[static_cast<std::size_t>(n)];
    if (!reduces_rows(each)) continue;
    const std::int64_t along = extent(each.attr.axis);
    if (group_ != 0 && (group_ != each.attr.block || period_ != along))
      throw Refused{"two kinds of blocks of rows"};
    group_ = each.attr.block;
    period_ = along;
  }
}

const std::vector<Dim>* Space::pieces(const Factor& factor) const {
  const auto found = pieces_.find(factor.text());
  return found == pieces_.end() ? nullptr : &found->second;
}

void Space::cut() {
  for (const int n : space().nodes) {
    const Node& each = program().nodes()[static_cast<std::size_t>(n)];
    if (each.op != Op::split && each.op != Op::join) continue;
    if (each.attr.axis.factors.size() != 1)
      throw Refused{"`" + each.attr.axis.text() + "` is cut as a whole"};
    const Factor& factor = each.attr.axis.factors[0];
    if (is_row(factor)) throw Refused{"rows are cut"};
    const auto [entry, fresh] = pieces_.try_emplace(factor.text(), each.attr.dims);
    if (!fresh && entry->second != each.attr.dims)
      throw Refused{"`" + factor.text() + "` is cut in two ways"};
  }
}

bool Space::reduces_rows(const Node& node) const {
  if (!is_reduction(node)) return false;
  return std::ranges::any_of(node.attr.axis.factors, [&](const Factor& f) { return is_row(f); });
}

bool Space::reduces_row(const Node& node) const {
  return class_of(node.op) == OpClass::reduce && !reduces_rows(node) &&
         inner_factors(node.results[0]).empty();
}

bool Space::reduces_inside(const Node& node) const {
  return is_reduction(node) && !reduces_rows(node) && !inner_factors(node.results[0]).empty();
}

Place Space::place(Value v) const {
  bool row = false, inner = false;
  for (const Factor& factor : factors_of(program().type(v))) {
    if (is_row(factor)) {
      row = true;
    } else if (factor.kind() == Factor::Kind::blocks && !factor.dim().factors.empty() &&
               is_row(factor.dim().factors.back())) {
      return Place::group;
    } else {
      inner = true;
    }
  }
  if (seen_ == Rows::outer && !row && !program().is_param(v) && level(v) == kAfterRows)
    return Place::group;
  return inner ? Place::inner : row ? Place::row : Place::single;
}

std::vector<Factor> Space::inner_factors(const std::vector<Factor>& factors) const {
  std::vector<Factor> inner;
  for (const Factor& factor : factors) {
    const bool group = factor.kind() == Factor::Kind::blocks && !factor.dim().factors.empty() &&
                       is_row(factor.dim().factors.back());
    if (!group && !is_row(factor)) inner.push_back(factor);
  }
  return inner;
}

std::vector<Factor> Space::inner_factors(Value v) const {
  return inner_factors(factors_of(program().type(v)));
}

std::vector<Atom> Space::atoms(const std::vector<Factor>& inner) const {
  std::vector<Atom> all = {{}};
  for (const Factor& factor : inner) {
    std::vector<Atom> longer;
    const std::vector<Dim>* cut = pieces(factor);
    for (const Atom& before : all) {
      if (cut == nullptr) {
        longer.push_back(before);
        longer.back().axes.push_back({factor, extent(factor)});
        continue;
      }
      for (std::size_t p = 0; p < cut->size(); ++p) {
        for (const Atom& piece : atoms((*cut)[p].factors)) {
          longer.push_back(before);
          Atom& atom = longer.back();
          atom.path[factor.text()] = static_cast<int>(p);
          atom.path.insert(piece.path.begin(), piece.path.end());
          atom.axes.insert(atom.axes.end(), piece.axes.begin(), piece.axes.end());
        }
      }
    }
    all = std::move(longer);
  }
  return all;
}

Path Space::restricted(const Path& path, const std::vector<Factor>& inner) const {
  Path own;
  for (const Factor& factor : inner) {
    const std::vector<Dim>* cut = pieces(factor);
    if (cut == nullptr) continue;
    const auto at = path.find(factor.text());
    if (at == path.end()) throw Refused{"pieces of `" + factor.text() + "` meet the whole"};
    own.insert(*at);
    const Path deeper = restricted(path, (*cut)[static_cast<std::size_t>(at->second)].factors);
    own.insert(deeper.begin(), deeper.end());
  }
  return own;
}

void Space::check_nodes() {
  for (const std::int32_t id : used_) {
    const DType dtype = program().type(Value{id}).dtype;
    if (dtype == DType::f64 || dtype == DType::f8e4m3 || dtype == DType::f8e5m2)
      throw Refused{std::string(name_of(dtype)) + " values"};
  }
  for (const int n : space().nodes) {
    const Node& each = program().nodes()[static_cast<std::size_t>(n)];
    const std::string text = "`" + print_node(program(), static_cast<std::size_t>(n)) + "`";
    switch (each.op) {
      case Op::scatter_sum:
        throw Refused{text + " is no work of rows"};
      case Op::as:
        if (!view(each.results[0]) && uses_of(each.results[0]) != 1)
          throw Refused{text + " renames what is computed"};
        break;
      case Op::gather:
        if (!view(each.args[0]) || !inner_factors(each.args[1]).empty())
          throw Refused{text + " has ids along rows"};
        break;
      case Op::pick:
        if (each.attr.axis.factors.size() != 1 || !inner_factors(each.args[1]).empty() ||
            is_row(each.attr.axis.factors[0]) || inner_factors(each.args[0]).size() != 1 ||
            pieces(each.attr.axis.factors[0]) != nullptr)
          throw Refused{text + " picks along several dimensions"};
        break;
      default:
        break;
    }
    if (reduces_row(each)) {
      bool rows = false;
      for (const Factor& f : factors_of(program().type(each.args[0]))) rows = rows || is_row(f);
      if (!rows && row_count_ > 1) throw Refused{text + " is the same in every row"};
    }
    if (reduces_rows(each) && each.op != Op::block_sum && each.op != Op::sum &&
        each.op != Op::block_max && each.op != Op::reduce_max)
      throw Refused{text + " spans rows"};
  }
}

void Space::find_levels() {
  levels_.assign(program().values().size(), 0);
  for (const int n : space().nodes) {
    const Node& each = program().nodes()[static_cast<std::size_t>(n)];
    int level = 0;
    for (const Value v : each.args) level = std::max(level, this->level(v));
    if (reduces_rows(each)) {
      if (level == kAfterRows) throw Refused{"sums of sums over rows"};
      level = kAfterRows;
    } else if (reduces_row(each)) {
      if (level == kAfterRows) throw Refused{"sums of sums over rows"};
      ++level;
    }
    for (const Value v : each.results) levels_[static_cast<std::size_t>(v.id)] = level;
  }
}

// The factors of each dimension under other names, or factored otherwise.
View Space::renamed(View view, const Type& from, const Type& to) const {
  View out = {view.tensor, {}, {}};
  std::size_t at = 0;
  for (std::size_t d = 0; d < from.dims.size(); ++d) {
    const std::vector<Factor>&a = from.dims[d].factors, &b = to.dims[d].factors;
    bool same = a.size() == b.size();
    for (std::size_t f = 0; same && f < a.size(); ++f) same = extent(a[f]) == extent(b[f]);
    if (same) {
      for (std::size_t f = 0; f < a.size(); ++f) out.strides.push_back(view.strides[at + f]);
    } else {
      // The innermost neighbours that lie densely are one axis, which is then cut anew.
      std::vector<std::pair<std::int64_t, std::int64_t>> runs;  // extent, stride; innermost first
      for (std::size_t f = a.size(); f-- > 0;) {
        const std::int64_t size = extent(a[f]), stride = view.strides[at + f];
        if (!runs.empty() && runs.back().first * runs.back().second == stride) {
          runs.back().first *= size;
        } else {
          runs.emplace_back(size, stride);
        }
      }
      std::vector<std::int64_t> strides;
      std::size_t run = 0;
      std::int64_t inside = 1;
      for (std::size_t f = b.size(); f-- > 0;) {
        while (run < runs.size() && inside == runs[run].first) ++run, inside = 1;
        if (run == runs.size() || runs[run].first % (inside * extent(b[f])) != 0)
          throw Refused{"`as` factors what lies apart in memory"};
        strides.push_back(runs[run].second * inside);
        inside *= extent(b[f]);
      }
      out.strides.insert(out.strides.end(), strides.rbegin(), strides.rend());
    }
    at += a.size();
    out.factors.insert(out.factors.end(), b.begin(), b.end());
  }
  return out;
}

std::optional<View> Space::view(Value v) const {
  const Type& type = program().type(v);
  if (program().is_param(v)) return View{v.id, factors_of(type), layout(v.id).strides};
  const Node& made = node(v);
  if (made.op != Op::as) return std::nullopt;
  const auto before = view(made.args[0]);
  if (!before) return std::nullopt;
  return renamed(*before, program().type(made.args[0]), type);
}

View Space::target(int r, Value& value) const {
  const Result& result = program().results()[static_cast<std::size_t>(r)];
  const int tensor = static_cast<int>(program().params().size()) + r;
  View view = {tensor, factors_of(result.type), layout(tensor).strides};
  value = result.value;
  // A result may have its value's factors in another order: put them back before renaming.
  while (!program().is_param(value) && node(value).op == Op::as && !this->view(value)) {
    const Type& to = program().type(value);
    View ordered = {tensor, factors_of(to), {}};
    for (const Factor& factor : ordered.factors) {
      const auto at = std::ranges::find(view.factors, factor) - view.factors.begin();
      ordered.strides.push_back(view.strides[static_cast<std::size_t>(at)]);
    }
    view = renamed(ordered, to, program().type(node(value).args[0]));
    value = node(value).args[0];
  }
  return view;
}

}  // namespace coda::cuda::streaming
