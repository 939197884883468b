// coda/check/tile.h: one gemm space in the making: the tile of some accumulators and what follows
// them.
//
// A tile holds some rows and some leading columns with their heads. Every rule says: what this node
// reads is in the tile, or can be loaded for it. Values computed from accumulators ("tile values")
// have one more property, the frame: after a split of the leading factor, column j of one piece is
// not column j of the other, so only values of one frame may meet.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "coda/check/draft.h"
#include "coda/check/products.h"

namespace coda {

inline constexpr const char* kTileRule =
    "what follows a product is tile-local: elementwise, layout and reductions inside a head, block "
    "reductions, pick, gathers of inputs";
inline constexpr const char* kStore = "store what it reads here and compute it in the next program";

class Tile {
 public:
  Tile(const Program& program, std::span<const char> inputs, const Products& products,
       std::span<const int> members, std::span<const int> results, Wording wording);
  Draft run();

 private:
  const Node& node(int i) const { return program_.nodes()[static_cast<std::size_t>(i)]; }
  bool is_tile(Value value) const { return tile_[static_cast<std::size_t>(value.id)]; }
  bool is_input(Value value) const { return inputs_[static_cast<std::size_t>(value.id)]; }
  int& frame(Value value) { return frame_[static_cast<std::size_t>(value.id)]; }
  char& picked(Value value) { return picked_[static_cast<std::size_t>(value.id)]; }
  std::string text(int i) const { return draft_.report.text(i); }
  std::string text(Value value) const { return draft_.report.text(value); }

  void refuse(int i, std::string message, std::string fix = kStore, std::string rule = kTileRule);

  // The first column factor of a tile value.
  std::optional<std::size_t> leading(Value value) const;
  std::string leading_name(Value value) const;
  // Does the range hold a leading factor: of a tile value, or one that meets a tile value's?
  bool leads(const FactorRange& range);
  bool is_all_columns(const FactorRange& range) const;

  // tile_roles.cpp
  void mark_tile_values();
  void seed_accumulators();
  std::optional<bool> is_turned(const Product& product);
  void seed(const Product& product);
  void infer_roles();
  std::vector<FactorRange> row_seeds() const;
  void mark_leading();

  // tile_rules.cpp
  void check_node(int i);
  void check_map(int i);
  void check_reduce(int i);
  void check_block_reduce(int i);
  void check_split(int i);
  void check_join(int i);
  void check_spread(int i);
  void check_pick(int i);
  void check_gather(int i);
  void check_result(const Result& result);

  const Program& program_;
  std::span<const char> inputs_;
  ProgramPart part_;
  EqualExtents extents_;
  Draft draft_;
  std::vector<Product> members_;
  std::map<std::size_t, Role> role_of_set_;
  std::vector<int> frame_;  // 0: the space's own columns
  std::vector<char> tile_, picked_, leading_;
  std::set<std::string> leading_names_;
  int frames_ = 0;
};

}  // namespace coda
