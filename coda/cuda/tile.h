// coda/cuda/tile.h: what a space computes on an output tile, as straight-line CUDA over fragments.
//
// A unit of a tile is 64 rows x `unit` columns; each consumer warp holds 16 of the rows and runs
// the chunk code once for every 8 columns (device/fragment.cuh). With heads, a unit is 32 columns
// of the low half of a head and the 32 of its high half that belong to them, so that what RoPE
// mixes meets in one thread. A value without columns is computed once a tile and row, one without
// rows once a unit.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "coda/cuda/arguments.h"
#include "coda/cuda/element.h"
#include "coda/cuda/maps.h"
#include "coda/cuda/matrix.h"
#include "coda/cuda/region.h"

namespace coda::cuda {

// How the columns of a tile are cut.
struct TileShape {
  int columns = 192;       // of the accumulators of a tile: all products that are paired together
  int pairs = 1;           // products that share the left operand
  int unit = 64;           // columns of results in a unit
  std::int64_t head = 0;   // elements of a head whose halves meet; 0: units are plain
  std::int64_t group = 0;  // elements of a head that is reduced, which a tile holds whole; 0: none
  int cluster = 1;         // 2: pairs of blocks, one above the other, share the right operand;
  bool across = false;     // or, side by side, the left one, and the middle one of three heads

  int result_columns() const { return columns / pairs; }
  int units() const { return result_columns() / unit; }
  int share_right() const { return across ? 1 : cluster; }  // blocks
  bool operator==(const TileShape&) const = default;
};

// A slot of the ring: what fills it before the unit, what becomes of it after.
struct SlotUse {
  int bytes = 0;       // that the copy engine brings; 0: nothing
  std::string load;    // statements: to, barrier, row, unit
  std::string store;   // statements of one lane: from, row, unit
  std::string drain;   // statements of a warp: from, row, unit, lane
  std::string kind;    // how elements lie in it: a store may take the slot of a load of its kind
  bool table = false;  // it repeats along the rows: what it loads stays in L2
};

// The parts of one space's struct, each a list of indented lines.
struct SpaceText {
  std::vector<SlotUse> slots;
  std::string column_fields, column_code;  // struct Columns, filled once a unit
  std::string state_fields;                // struct State, of a tile
  std::string loads, stores;               // of a chunk: before and after its two halves
  std::string before, chunk, after;        // of unit(): around the loop over chunks
  std::string finish;                      // of finish(), for each half of the rows
  std::string finish_once;           // of finish(), after what is done for each half of the rows
  std::string head_sum, leave_head;  // where heads lie across tiles
  int kept_bytes = 0;                // of a row, until its tile's end
  bool late = false;                 // chunks read vectors along columns
  bool passes = false;               // `before` goes over the accumulators too
  int maps = 0;                      // of the space, in order of their numbers
  int registers = 0;                 // beside the accumulators and what rows need, about
  std::vector<MapSpec> map_specs;
};

// Thrown by the emitters where the fast path does not fit.
struct Refusal {
  std::string reason;
};

// What the rows of a tile need, and what is no part of any tile: fields of struct Rows and the code
// that fills them, shared by the spaces of a page.
class RowsText {
 public:
  // Whose units a tile holds.
  enum class Tiles : std::uint8_t { of_one_space, of_all };
  // The arguments must outlive it.
  RowsText(const Checked& checked, std::span<const Layout> layouts, Arguments& arguments,
           Tiles tiles);

  // The field of struct Rows that holds a value without columns, as an expression.
  std::string field(const Region& places, Value value, Lane lane);
  // A result without columns or without rows.
  void store(const Region& places, std::size_t result, int tensor);

  std::string fields() const { return fields_; }
  std::string reads() const { return reads_; }  // of the fields, of row h
  // Of a row, with `more` that it keeps.
  int bytes(int more = 0) const { return aligned(aligned(bytes_) + more); }
  int registers() const { return registers_; }  // of a thread that reads them
  std::string code();                           // the body of put_rows(); nothing may follow
  std::string side() const { return side_; }
  bool has_deep_side() const { return deep_side_; }  // it computes elements of a tile again

 private:
  const Checked& checked_;
  Arguments& arguments_;
  std::span<const Layout> layouts_;
  const Region* places_ = nullptr;  // of the space that asks
  ElementEmitter emitter_;
  Tiles tiles_;
  std::map<std::pair<std::int32_t, Lane>, std::string> names_;
  std::string fields_, reads_, side_;
  int bytes_ = 0, align_ = 4, registers_ = 0;
  bool deep_side_ = false;

  int aligned(int bytes) const { return (bytes + align_ - 1) / align_ * align_; }
  std::optional<Emitted> supply(ElementEmitter& emitter, Value value, const Coordinates& at);
  Emitted shared_sum(ElementEmitter& emitter, Value value, const Coordinates& at);
  // The step from row to row of a tensor, along the factors that are rows, as an expression; empty:
  // it is no line.
  std::string row_step(int tensor, Value value, std::span<const std::int64_t> strides,
                       const std::string& name);
  bool holds(Value wanted) const;  // is it computed on the way to a field?
};

// The elements of a head whose halves a space splits or joins; 0: none. Throws Refusal where the
// split is another one.
std::int64_t head_of(const Region& places);
// Does a node split or join adjacent columns?
bool is_pair_of_columns(const Region& places, const Node& node);
// The elements of a head that a space reduces for its elements; 0: none. Throws Refusal where they
// are no multiple of 64.
std::int64_t group_of(const Region& places);
// Does a unit of the space leave nothing behind for the tile's later ones?
bool has_lone_units(const Region& places);
// Does the space reduce blocks of 64 columns?
bool has_row_blocks(const Region& places);
// Chunks of a unit, of 16 columns (or of 16 low and 16 high ones).
int chunks_of(const TileShape& shape);
// This lane's first column in half g of chunk j of a unit, as an expression.
std::string chunk_column(const TileShape& shape, const std::string& unit);

// `plenty`: a unit reads a vector along its columns once, into registers, and what leaves with the
// tile waits there; `few`: each chunk reads its part, and that waits in shared memory, which costs
// slots of the ring.
enum class Registers : std::uint8_t { plenty, few };

SpaceText emit_space(const Region& places, std::span<const Layout> layouts, Arguments& arguments,
                     const TileShape& shape, Registers budget, RowsText& rows);

}  // namespace coda::cuda
