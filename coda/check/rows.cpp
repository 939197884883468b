// coda/check/rows.cpp: coordinates of row factors, from one value that spells the rows out to all
// others.
//
// The same flat row has one index, so a factor's coordinate in it is (row / inner) % extent
// whatever value it is seen in. Two different `inner` for one factor mean that two values run
// through the rows in different orders: no tile could hold both.

#include "coda/check/rows.h"

#include <deque>
#include <utility>

namespace coda {

Dim product_of(const std::vector<Factor>& factors, std::size_t first, std::size_t count) {
  Dim product;
  for (std::size_t f = first; f < first + count; ++f) product.factors.push_back(factors[f]);
  return product;
}

EqualExtents::EqualExtents(const Program& program, std::span<const int> nodes) {
  const auto is_name = [](const Dim& dim) {
    return dim.factors.size() == 1 && dim.factors[0].kind() == Factor::Kind::name;
  };
  for (int i : nodes) {
    const Node& node = program.nodes()[static_cast<std::size_t>(i)];
    if (node.op != Op::as) continue;
    for (const Link& link : links_of(program, i)) {
      if (link.kind != Link::Kind::regroup) continue;
      Dim from =
          product_of(factors_of(program.type(link.from.value)), link.from.first, link.from.count);
      Dim to = product_of(factors_of(program.type(link.to.value)), link.to.first, link.to.count);
      from = written_out(std::move(from));
      to = written_out(std::move(to));
      // Never a name by itself: written_out would not end.
      if (!is_name(from)) std::swap(from, to);
      std::set<std::string> inside;
      collect_names(to, inside);
      if (is_name(from) && !inside.contains(from.text())) names_.try_emplace(from.text(), to);
    }
  }
}

Dim EqualExtents::written_out(Dim dim) const {
  for (std::size_t round = 0; round <= names_.size(); ++round) dim = substitute(dim, names_);
  return dim;
}

bool EqualExtents::equal(const Dim& a, const Dim& b) const {
  return a == b || same_extent(written_out(a), written_out(b)) == std::optional(true);
}

RowIndex::RowIndex(const Program& program, const EqualExtents& extents)
    : program_(program), extents_(extents) {
  for (const ValueInfo& value : program.values())
    inner_.emplace_back(factors_of(value.type).size());
}

const std::optional<Dim>& RowIndex::inner(Value value, std::size_t factor) const {
  return inner_[static_cast<std::size_t>(value.id)][factor];
}

bool RowIndex::set(Value value, std::size_t factor, const Dim& inner) {
  std::optional<Dim>& known = inner_[static_cast<std::size_t>(value.id)][factor];
  if (known) {
    if (!conflict_ && !extents_.equal(*known, inner)) conflict_ = value;
    return false;
  }
  known = inner;
  return true;
}

bool RowIndex::fill(const FactorRange& range, const Dim& inside) {
  const std::vector<Factor> factors = factors_of(program_.type(range.value));
  bool moved = false;
  Dim inner = inside;
  for (std::size_t f = range.count; f-- > 0;) {
    moved |= set(range.value, range.first + f, inner);
    inner = dim_of(factors[range.first + f]) * inner;
  }
  return moved;
}

void RowIndex::seed(const FactorRange& range, const Dim& inside) {
  fill(range, inside);
}

// All kinds of links alike: a range of rows, a regrouping and a block count have the same factors
// inside.
bool RowIndex::follow(const FactorRange& from, const FactorRange& to) {
  if (from.count == 0 || to.count == 0) return false;
  const std::optional<Dim> inside = inner(from.value, from.first + from.count - 1);
  if (!inside) return false;
  return fill(to, *inside);
}

void RowIndex::propagate(const std::vector<Link>& links) {
  std::vector<std::vector<std::size_t>> of_value(inner_.size());
  std::vector<char> waits(links.size(), 1);
  std::deque<std::size_t> todo;
  for (std::size_t l = 0; l < links.size(); ++l) {
    for (const FactorRange& side : {links[l].from, links[l].to})
      of_value[static_cast<std::size_t>(side.value.id)].push_back(l);
    todo.push_back(l);
  }
  while (!todo.empty() && !conflict_) {
    const Link& link = links[todo.front()];
    waits[todo.front()] = 0;
    todo.pop_front();
    for (const bool back : {false, true}) {
      const FactorRange& to = back ? link.from : link.to;
      if (!follow(back ? link.to : link.from, to)) continue;
      for (const std::size_t l : of_value[static_cast<std::size_t>(to.value.id)])
        if (!std::exchange(waits[l], 1)) todo.push_back(l);
    }
  }
}

}  // namespace coda
