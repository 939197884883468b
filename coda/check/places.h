// coda/check/places.h: where in a space's rows and columns the factors of its values lie.
//
// Rows and columns are flat indices; a factor's coordinate is a Place in one of them, or the factor
// is held whole.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "coda/check/check.h"

namespace coda {

// A coordinate as a function of a flat position: ((p / inner) % extent) / block.
struct Place {
  std::int64_t inner = 1;
  std::int64_t extent = 1;
  std::int64_t block = 1;

  std::int64_t at(std::int64_t position) const {
    if (extent <= 1 || inner <= 0) return 0;
    return (position / inner) % extent / block;
  }
  bool operator==(const Place&) const = default;
};

// One factor of a value.
struct FactorPlace {
  enum class Kind : std::uint8_t { row, column, whole };
  Kind kind = Kind::whole;
  std::string text;
  std::int64_t extent = 1;  // of the factor itself
  Place place;              // row, column
};

// The places in one space of a program under given sizes. `checked` and `sizes` must outlive it.
class Places {
 public:
  Places(const Checked& checked, std::size_t space, const Sizes& sizes);

  const Checked& checked() const { return *checked_; }
  const Program& program() const { return checked_->program(); }
  const Space& space() const { return checked_->spaces()[space_index_]; }
  std::size_t space_index() const { return space_index_; }
  const Sizes& sizes() const { return *sizes_; }
  std::int64_t rows() const { return rows_; }
  std::int64_t columns() const { return columns_; }

  // In factors_of order.
  std::vector<FactorPlace> places(Value value) const;
  // Of a factor that stands in the role `role` in some value of this space.
  FactorPlace place_of(const Factor& factor, Role role, const Dim& row_inner) const;
  // The place of neighbouring column factors as one.
  std::optional<Place> column_place(const Dim& dim) const;
  // The role of the first factor of `axis` in a value; none where the space does not evaluate it.
  std::optional<Role> role_of(Value value, const Dim& axis) const;
  // Of every column factor, by its text.
  const std::map<std::string, Place>& column_places() const { return column_places_; }
  // A dim that has two places among the columns; empty: none has.
  const std::string& conflict() const { return conflict_; }

 private:
  void place_columns();
  bool assign(const Dim& known, const Dim& dim);

  const Checked* checked_;
  std::size_t space_index_;
  const Sizes* sizes_;
  std::int64_t rows_ = 1, columns_ = 1;
  std::map<std::string, Place> column_places_;
  std::string conflict_;
};

// Positions of the factors of `axis` in `type`, -1 where one is missing.
std::vector<int> positions(const Type& type, const Dim& axis);

}  // namespace coda
