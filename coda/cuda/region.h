// coda/cuda/region.h: the columns of a space that one epilogue finishes: all of them, or one piece
// where a packed weight's product is split (q, k, v).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coda/check/places.h"

namespace coda::cuda {

// Of one space: its places, as flat indices of the region's own columns.
class Region {
 public:
  // `number`: of the region among those of the program.
  Region(std::shared_ptr<const Places> places, std::size_t number);
  // Piece `piece` of the split `node` of all columns.
  Region(std::shared_ptr<const Places> places, std::size_t number, int node, std::size_t piece);

  const Checked& checked() const { return places_->checked(); }
  const Program& program() const { return places_->program(); }
  const Space& space() const { return places_->space(); }
  std::size_t space_index() const { return places_->space_index(); }
  const Sizes& sizes() const { return places_->sizes(); }
  std::size_t number() const { return number_; }
  bool is_whole() const { return node_ < 0; }
  std::int64_t rows() const { return places_->rows(); }
  std::int64_t columns() const { return columns_; }
  std::int64_t all_columns() const { return places_->columns(); }  // of the space
  const std::string& conflict() const { return places_->conflict(); }
  std::int64_t first() const { return first_; }  // of its columns among the space's

  std::vector<FactorPlace> places(Value value) const;
  std::optional<Place> column_place(const Dim& dim) const;
  std::optional<Role> role_of(Value value, const Dim& axis) const {
    return places_->role_of(value, axis);
  }
  // Does a value have the columns of the whole space, and where do the region's begin in a tensor
  // with these strides of its factors? In elements.
  bool is_cut(Value value) const;
  std::int64_t offset(Value value, const std::vector<std::int64_t>& strides) const;

  // Is the node the split that the regions come from, or a join of whole columns?
  bool cuts(const Node& node) const;
  bool joins(const Node& node) const;
  // The nodes that this region computes, and the results that it stores.
  const std::vector<int>& nodes() const { return nodes_; }
  const std::vector<int>& results() const { return results_; }

 private:
  bool holds(Value value) const;  // no other piece is needed for it

  std::shared_ptr<const Places> places_;
  std::size_t number_ = 0;
  int node_ = -1;
  std::size_t piece_ = 0;
  std::int64_t first_ = 0, columns_ = 1;
  std::map<std::string, Place> own_;  // of the piece's factors
  std::vector<int> nodes_, results_;
};

// Of every space, one or one a piece.
std::vector<Region> regions_of(const Checked& checked, const Sizes& sizes);

}  // namespace coda::cuda
