// coda/cuda/stream_space.h: a space of a streaming program, seen as rows of vectors.
//
// Rows stand alone; everything else of a value lies along the row. Factors that splits and joins
// cut are seen as their pieces, so that all values of one loop have the same axes: rotate-half runs
// over heads × half a head, and a head is two pieces of that. Which piece is a Path.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "coda/check/check.h"
#include "coda/cuda/plan.h"

namespace coda::cuda::streaming {

// Why the fast path does not take a program.
struct Refused {
  std::string why;
};

struct Axis {
  Factor factor;
  std::int64_t extent = 1;
};

// Of each factor that is cut: the piece.
using Path = std::map<std::string, int>;

// One piece of a value: what a loop over `axes` computes.
struct Atom {
  Path path;
  std::vector<Axis> axes;
};

// A tensor in memory, its factors as the program names them there.
struct View {
  int tensor = 0;  // results follow the parameters
  std::vector<Factor> factors;
  std::vector<std::int64_t> strides;
};

inline constexpr int kAfterRows = 1000;  // the level of what spans rows

enum class Place : std::uint8_t {
  single,  // no factors
  row,     // one for each row
  inner,   // along a row; with or without rows
  group,   // one for each block of rows; perhaps along a row
};

// How rows are seen.
enum class Rows : std::uint8_t {
  own,    // the space's
  none,   // one row: what the program has as rows lies along it
  outer,  // the outermost factor that is summed away: the sums are finished after the last row
};

class Space {
 public:
  Space(const Checked& checked, std::size_t space, const Sizes& sizes,
        std::span<const Layout> layouts);

  const Program& program() const { return checked_->program(); }
  const Sizes& sizes() const { return *sizes_; }
  const coda::Space& space() const { return checked_->spaces()[index_]; }
  const Node& node(Value v) const { return program().node(v); }
  const Layout& layout(int tensor) const { return layouts_[static_cast<std::size_t>(tensor)]; }

  Rows seen() const { return seen_; }
  const std::vector<Axis>& rows() const { return rows_; }
  std::int64_t row_count() const { return row_count_; }
  bool is_row(const Factor& factor) const { return row_names_.contains(factor.text()); }
  // Rows of one block of a block reduction along rows, and after how many rows blocks restart;
  // 0: there is none.
  std::int64_t group() const { return group_; }
  std::int64_t period() const { return period_; }

  Place place(Value v) const;
  std::vector<Factor> inner_factors(const std::vector<Factor>& factors) const;
  std::vector<Factor> inner_factors(Value v) const;
  // The pieces of a list of inner factors.
  std::vector<Atom> atoms(const std::vector<Factor>& inner) const;
  // What of `path` concerns these factors.
  Path restricted(const Path& path, const std::vector<Factor>& inner) const;
  const std::vector<Dim>* pieces(const Factor& factor) const;

  // After how many whole-row reductions the value is known.
  int level(Value v) const { return levels_[static_cast<std::size_t>(v.id)]; }
  // A reduction that needs all threads of a row, one inside a row, one that spans rows.
  bool reduces_row(const Node& node) const;
  bool reduces_inside(const Node& node) const;
  bool reduces_rows(const Node& node) const;

  // The memory that a value is, where it is a parameter under other names.
  std::optional<View> view(Value v) const;
  // Where result `r` goes, with the factors of `value`, which is what is evaluated for it.
  View target(int r, Value& value) const;

  std::int64_t extent(const Factor& factor) const { return require_extent(factor, *sizes_); }
  std::int64_t extent(const Dim& dim) const { return require_extent(dim, *sizes_); }
  bool uses(Value v) const { return used_.contains(v.id); }
  // The first value of the space that is computed as this one is.
  Value first_like(Value v) const { return {first_like_[static_cast<std::size_t>(v.id)]}; }
  // How many nodes and results of the space read it.
  int uses_of(Value v) const { return uses_[static_cast<std::size_t>(v.id)]; }

 private:
  void take_rows();
  void cut();
  void check_nodes();
  void find_levels();
  void find_likes();
  void set_rows(std::vector<Factor> factors);
  std::optional<std::vector<Factor>> outer_axis() const;
  bool has_inner() const;
  bool gathers() const;
  bool maps_of_one_shape() const;
  View renamed(View view, const Type& from, const Type& to) const;

  const Checked* checked_;
  std::size_t index_;
  const Sizes* sizes_;
  std::span<const Layout> layouts_;
  Rows seen_ = Rows::own;
  std::vector<Axis> rows_;
  std::set<std::string> row_names_;
  std::int64_t row_count_ = 1, group_ = 0, period_ = 0;
  std::map<std::string, std::vector<Dim>> pieces_;
  std::vector<int> levels_;
  std::vector<int> uses_;
  std::vector<std::int32_t> first_like_;
  std::set<std::int32_t> used_;
};

}  // namespace coda::cuda::streaming
