// coda/check/rows.h: the place of every row factor inside the flat row index of a space.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "coda/check/graph.h"

namespace coda {

// Names that `as` makes equal to products of others, so that extents written differently compare as
// equal.
class EqualExtents {
 public:
  EqualExtents(const Program& program, std::span<const int> nodes);
  bool equal(const Dim& a, const Dim& b) const;

 private:
  Dim written_out(Dim dim) const;
  Substitution names_;
};

// The product of factors [first, first + count) of a list.
Dim product_of(const std::vector<Factor>& factors, std::size_t first, std::size_t count);

// Propagates "what stands inside" along links, in both directions.
class RowIndex {
 public:
  RowIndex(const Program& program, const EqualExtents& extents);

  // Sets the inner extents of a value's factors [range], whose last one has `inside` inside it.
  void seed(const FactorRange& range, const Dim& inside);
  // Until nothing moves. Links of places that are no rows must not be among them.
  void propagate(const std::vector<Link>& links);
  const std::optional<Dim>& inner(Value value, std::size_t factor) const;
  // A value in which two orders of the rows meet.
  std::optional<Value> conflict() const { return conflict_; }

 private:
  bool set(Value value, std::size_t factor, const Dim& inner);
  bool fill(const FactorRange& range, const Dim& inside);
  bool follow(const FactorRange& from, const FactorRange& to);

  const Program& program_;
  const EqualExtents& extents_;
  std::vector<std::vector<std::optional<Dim>>> inner_;
  std::optional<Value> conflict_;
};

}  // namespace coda
