// coda/check/draft.h: one space in the making, and what gemm and stream spaces have in common.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "coda/check/check.h"
#include "coda/check/graph.h"
#include "coda/check/products.h"
#include "coda/check/report.h"
#include "coda/check/rows.h"

namespace coda {

// A space with the roles of every value that it evaluates; valid where the report is empty.
struct Draft {
  explicit Draft(const Program& program, Wording wording = Wording::full)
      : report(program, wording) {}
  Space space;
  std::vector<std::vector<Role>> roles;     // [value][factor]; empty: not of this space
  std::vector<std::vector<Dim>> row_inner;  // the same
  Mistakes report;
};

// The part of a program that some results need, with its links.
class ProgramPart {
 public:
  // `untied` nodes have no link between X and blocks(X).
  ProgramPart(const Program& program, std::span<const int> results,
              const std::function<bool(Value)>& stop, const std::set<int>& untied = {});

  const std::vector<int>& nodes() const { return nodes_; }
  const std::vector<Link>& links() const { return links_; }
  // Values that the part reads, makes or stores, without products and what is behind them.
  const std::vector<Value>& values() const { return values_; }
  bool has(Value value) const { return present_[static_cast<std::size_t>(value.id)]; }
  PlaceSets& places() { return places_; }

 private:
  std::vector<int> nodes_;
  std::vector<Link> links_;
  std::vector<Value> values_;
  std::vector<char> present_;
  PlaceSets places_;
};

// Fills roles of every value of the part from the roles of sets of places; sets without one are
// local.
void assign_roles(const Program& program, ProgramPart& part,
                  const std::map<std::size_t, Role>& of_set, Draft& draft);
// Fills row_inner from seeds, by links and then by names. Refuses rows in two orders, rows that
// nothing orders, and values that have both X and blocks(X) as rows.
void assign_rows(const Program& program, const ProgramPart& part, const EqualExtents& extents,
                 std::span<const FactorRange> seeds, Draft& draft);

// The factors of a value that have a role, in order.
std::vector<std::size_t> factors_with(const Draft& draft, Value value, Role role);
// One role for all factors of a range; nullopt where they differ.
std::optional<Role> role_of(const Draft& draft, const FactorRange& range);
// Does the value have every row of the space, as X or as blocks(X)?
bool has_all_rows(const Program& program, const Draft& draft, const EqualExtents& extents,
                  Value value);

// A gemm space: the tile of some accumulators and all that `results` compute from it.
Draft tile_space(const Program& program, std::span<const char> inputs, const Products& products,
                 std::span<const int> members, std::span<const int> results, Wording wording);
// A stream's space, for some results.
Draft stream_space(const Program& program, std::span<const char> inputs,
                   std::span<const int> results, Wording wording);

}  // namespace coda
