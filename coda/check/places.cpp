// coda/check/places.cpp: columns from the space's dims and from `as`; rows from check.
#include "coda/check/places.h"

#include <algorithm>

#include "coda/core/error.h"

namespace coda {
namespace {

bool in_rows(const Space& space, const Factor& factor) {
  for (const Dim& dim : space.rows) {
    if (std::ranges::find(dim.factors, factor) != dim.factors.end()) return true;
  }
  return false;
}

}  // namespace

std::vector<int> positions(const Type& type, const Dim& axis) {
  const std::vector<Factor> factors = factors_of(type);
  std::vector<int> at;
  for (const Factor& factor : axis.factors) {
    const auto found = std::ranges::find(factors, factor);
    at.push_back(found == factors.end() ? -1 : static_cast<int>(found - factors.begin()));
  }
  return at;
}

Places::Places(const Checked& checked, std::size_t space, const Sizes& sizes)
    : checked_(&checked), space_index_(space), sizes_(&sizes) {
  for (const Dim& dim : this->space().rows) rows_ *= require_extent(dim, sizes);
  for (const Dim& dim : this->space().columns) columns_ *= require_extent(dim, sizes);
  place_columns();
}

// Gives the factors of `dim` the place that `known` has as a whole. False where they conflict.
bool Places::assign(const Dim& known, const Dim& dim) {
  const std::optional<Place> whole = column_place(known);
  if (!whole) return true;
  std::int64_t inner = whole->inner;
  for (std::size_t i = dim.factors.size(); i-- > 0;) {
    const std::int64_t extent = require_extent(dim.factors[i], *sizes_);
    const Place place{inner, extent, 1};
    const auto [entry, fresh] = column_places_.emplace(dim.factors[i].text(), place);
    if (!fresh && !(entry->second == place) && extent > 1) return false;
    inner *= extent;
  }
  return true;
}

void Places::place_columns() {
  std::int64_t inner = 1;
  for (std::size_t d = space().columns.size(); d-- > 0;) {
    const std::vector<Factor>& factors = space().columns[d].factors;
    for (std::size_t f = factors.size(); f-- > 0;) {
      const std::int64_t extent = require_extent(factors[f], *sizes_);
      column_places_[factors[f].text()] = Place{inner, extent, 1};
      inner *= extent;
    }
  }
  // `as` gives a place to the factors on either side; twice, for chains that run backwards.
  for (int pass = 0; pass < 2; ++pass) {
    for (const int n : space().nodes) {
      const Node& node = program().nodes()[static_cast<std::size_t>(n)];
      if (node.op != Op::as) continue;
      const Type& from = program().type(node.args[0]);
      const Type& to = program().type(node.results[0]);
      const std::vector<Role>& roles = checked_->roles(space_index_, node.results[0]);
      std::size_t at = 0;
      for (std::size_t d = 0; d < to.dims.size(); ++d) {
        const std::size_t count = to.dims[d].factors.size();
        const bool column = at + count <= roles.size() &&
                            std::all_of(roles.begin() + static_cast<std::ptrdiff_t>(at),
                                        roles.begin() + static_cast<std::ptrdiff_t>(at + count),
                                        [](Role role) { return role == Role::column; });
        at += count;
        if (!column || count == 0 || from.dims[d].factors.empty()) continue;
        if (!assign(from.dims[d], to.dims[d]) || !assign(to.dims[d], from.dims[d])) {
          conflict_ = "`" + to.dims[d].text() + "`";
        }
      }
    }
  }
}

// The place of neighbouring column factors as one.
std::optional<Place> Places::column_place(const Dim& dim) const {
  Place whole;
  bool first = true;
  for (std::size_t f = dim.factors.size(); f-- > 0;) {
    const auto found = column_places_.find(dim.factors[f].text());
    if (found == column_places_.end()) return std::nullopt;
    if (first) {
      whole = found->second;
    } else if (found->second.extent > 1 || whole.extent == 0) {
      if (found->second.inner != whole.inner * whole.extent) return std::nullopt;
      whole.extent *= found->second.extent;
    }
    first = false;
  }
  if (first) return std::nullopt;
  return whole;
}

FactorPlace Places::place_of(const Factor& factor, Role role, const Dim& row_inner) const {
  FactorPlace result{FactorPlace::Kind::whole, factor.text(), require_extent(factor, *sizes_), {}};
  const bool blocks = factor.kind() == Factor::Kind::blocks;
  if (role == Role::row) {
    result.kind = FactorPlace::Kind::row;
    const bool of_rows = blocks && !in_rows(space(), factor);
    result.place.inner = require_extent(row_inner, *sizes_);
    result.place.extent = of_rows ? require_extent(factor.dim(), *sizes_) : result.extent;
    result.place.block = of_rows ? factor.number() : 1;
  } else if (role == Role::column) {
    if (const auto place = column_place(dim_of(factor))) {
      result.kind = FactorPlace::Kind::column;
      result.place = *place;
    } else if (blocks) {
      if (const auto whole = column_place(factor.dim())) {
        result.kind = FactorPlace::Kind::column;
        result.place = *whole;
        result.place.block = factor.number();
      }
    }
  }
  return result;
}

std::vector<FactorPlace> Places::places(Value value) const {
  const std::vector<Factor> factors = factors_of(program().type(value));
  const std::vector<Role>& roles = checked_->roles(space_index_, value);
  const std::vector<Dim>& inner = checked_->row_inner(space_index_, value);
  if (roles.size() != factors.size()) {
    throw InternalError("the space does not evaluate " + describe(program(), value));
  }
  std::vector<FactorPlace> places;
  for (std::size_t f = 0; f < factors.size(); ++f) {
    places.push_back(place_of(factors[f], roles[f], f < inner.size() ? inner[f] : Dim{}));
  }
  return places;
}

std::optional<Role> Places::role_of(Value value, const Dim& axis) const {
  const std::vector<Role>& roles = checked_->roles(space_index_, value);
  for (const int at : positions(program().type(value), axis)) {
    if (at >= 0 && static_cast<std::size_t>(at) < roles.size()) {
      return roles[static_cast<std::size_t>(at)];
    }
  }
  return std::nullopt;
}

}  // namespace coda
