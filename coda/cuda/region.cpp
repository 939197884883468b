// coda/cuda/region.cpp: pieces of a split of all columns as spaces of their own.
#include "coda/cuda/region.h"

#include <algorithm>

#include "coda/check/bind.h"

namespace coda::cuda {
namespace {

std::vector<Factor> column_factors(const Space& space) {
  std::vector<Factor> factors;
  for (const Dim& dim : space.columns) {
    factors.insert(factors.end(), dim.factors.begin(), dim.factors.end());
  }
  return factors;
}

bool stands_on(const Program& program, Value value, Value wanted) {
  if (value == wanted) return true;
  return !program.is_param(value) && std::ranges::any_of(program.node(value).args, [&](Value arg) {
    return stands_on(program, arg, wanted);
  });
}

}  // namespace

Region::Region(std::shared_ptr<const Places> places, std::size_t number)
    : places_(std::move(places)), number_(number), columns_(places_->columns()) {
  nodes_ = space().nodes;
  results_ = space().results;
}

Region::Region(std::shared_ptr<const Places> places, std::size_t number, int node,
               std::size_t piece)
    : places_(std::move(places)), number_(number), node_(node), piece_(piece) {
  const Node& split = program().nodes()[static_cast<std::size_t>(node)];
  for (std::size_t p = 0; p < piece; ++p) first_ += require_extent(split.attr.dims[p], sizes());
  const std::vector<Factor>& factors = split.attr.dims[piece].factors;
  for (std::size_t f = factors.size(); f-- > 0;) {
    const std::int64_t extent = require_extent(factors[f], sizes());
    own_[factors[f].text()] = Place{columns_, extent, 1};
    columns_ *= extent;
  }
  for (const int n : space().nodes) {
    const Node& each = program().nodes()[static_cast<std::size_t>(n)];
    if (n == node || holds(each.results[0])) nodes_.push_back(n);
  }
  for (const int result : space().results) {
    const Value value = program().results()[static_cast<std::size_t>(result)].value;
    // What has no columns is stored once.
    const bool columns = is_cut(value) || stands_on(program(), value, split.results[piece]);
    if (holds(value) && (columns || piece == 0)) results_.push_back(result);
  }
}

bool Region::holds(Value value) const {
  const Node& split = program().nodes()[static_cast<std::size_t>(node_)];
  for (std::size_t p = 0; p < split.results.size(); ++p) {
    if (p != piece_ && stands_on(program(), value, split.results[p])) return false;
  }
  return true;
}

bool Region::is_cut(Value value) const {
  if (is_whole()) return false;
  const std::vector<Role>& roles = checked().roles(space_index(), value);
  const std::vector<Factor> factors = factors_of(program().type(value)),
                            whole = column_factors(space());
  for (std::size_t f = 0; f < roles.size(); ++f) {
    if (roles[f] == Role::column && std::ranges::find(whole, factors[f]) != whole.end())
      return true;
  }
  return false;
}

std::int64_t Region::offset(Value value, const std::vector<std::int64_t>& strides) const {
  if (!is_cut(value)) return 0;
  const std::vector<Factor> factors = factors_of(program().type(value)),
                            whole = column_factors(space());
  for (std::size_t f = 0; f < factors.size(); ++f) {
    if (factors[f] == whole.back()) return first_ * strides[f];
  }
  return 0;
}

std::vector<FactorPlace> Region::places(Value value) const {
  std::vector<FactorPlace> all = places_->places(value);
  if (is_whole()) return all;
  const std::vector<Role>& roles = checked().roles(space_index(), value);
  const bool cut = is_cut(value);
  for (std::size_t f = 0; f < all.size(); ++f) {
    if (roles[f] != Role::column) continue;
    const auto own = own_.find(all[f].text);
    if (cut) {
      // The columns of the space are one factor: see regions_of.
      all[f].place.extent = columns_;
    } else if (own != own_.end()) {
      all[f].kind = FactorPlace::Kind::column;
      all[f].place = own->second;
    }
  }
  return all;
}

std::optional<Place> Region::column_place(const Dim& dim) const {
  if (is_whole()) return places_->column_place(dim);
  Place whole;
  bool first = true;
  for (std::size_t f = dim.factors.size(); f-- > 0;) {
    const auto found = own_.find(dim.factors[f].text());
    if (found == own_.end()) return std::nullopt;
    if (first) {
      whole = found->second;
    } else if (found->second.inner == whole.inner * whole.extent) {
      whole.extent *= found->second.extent;
    } else {
      return std::nullopt;
    }
    first = false;
  }
  if (first) return std::nullopt;
  return whole;
}

bool Region::cuts(const Node& node) const {
  return !is_whole() && &node == &program().nodes()[static_cast<std::size_t>(node_)];
}

bool Region::joins(const Node& node) const {
  return node.op == Op::join && !column_place(node.attr.axis) &&
         role_of(node.results[0], node.attr.axis) == Role::column;
}

std::vector<Region> regions_of(const Checked& checked, const Sizes& sizes) {
  std::vector<Region> regions;
  for (std::size_t s = 0; s < checked.spaces().size(); ++s) {
    const auto places = std::make_shared<const Places>(checked, s, sizes);
    const Space& space = checked.spaces()[s];
    const std::vector<Factor> columns = column_factors(space);
    int cut = -1;
    for (const int n : space.nodes) {
      const Node& node = checked.program().nodes()[static_cast<std::size_t>(n)];
      if (node.op == Op::split && columns.size() == 1 && node.attr.axis.factors == columns) cut = n;
    }
    if (cut < 0) {
      regions.emplace_back(places, regions.size());
      continue;
    }
    const Node& node = checked.program().nodes()[static_cast<std::size_t>(cut)];
    for (std::size_t p = 0; p < node.attr.dims.size(); ++p) {
      if (require_extent(node.attr.dims[p], sizes) == 0) continue;
      regions.emplace_back(places, regions.size(), cut, p);
    }
  }
  return regions;
}

}  // namespace coda::cuda
