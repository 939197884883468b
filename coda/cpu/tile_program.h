// coda/cpu/tile_program.h: a space as a flat list of statements over tiles: what the executor runs.
//
// A tile is a range of rows × a range of columns. On chip a value is a block of memory: for each
// row that is in work, its axes (the factors that are no rows) in some order. Tile statements run
// once for a tile; row statements run for groups of rows, so that buffers stay in L1; block
// statements run for groups of row blocks, after all rows. Strides of tensors are unknown until a
// run: Access says which coordinate goes with which stride.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coda/check/input_view.h"
#include "coda/check/places.h"
#include "coda/cpu/vector_ops.h"

namespace coda::cpu {

// The elements of a tensor that a tile needs, as loops over a dense buffer [row][axes…].
//   address = Σ offsets · stride + Σ rows.at(row) · stride + Σ columns.at(first column) · stride
//           + Σ (index along axis) · stride,
// where stride is strides[factor] * scale. A virtual tensor (positions) has strides of its own.
struct Access {
  struct Term {
    Place place;
    int factor = 0;
    std::int64_t scale = 1;
  };
  struct Axis {
    std::int64_t extent = 1;
    int factor = -1;  // -1: stride 0
    std::int64_t scale = 1;
  };
  int tensor = -1;  // a parameter; results follow the parameters; -1: virtual
  DType dtype = DType::f32;
  std::vector<std::int64_t> strides;  // virtual only
  std::vector<InputView::Offset> offsets;
  std::vector<Term> rows, columns;
  std::vector<Axis> axes;  // outermost first
  // A coordinate that statements give themselves: the id of a gather, the place in a joined piece
  // or in a block. Terms divide it into factors.
  std::vector<Term> along;
  std::int64_t along_extent = 1;
  std::int64_t elements() const {
    std::int64_t n = 1;
    for (const Axis& axis : axes) n *= axis.extent;
    return n;
  }
};

struct Buffer {
  enum class Kind : std::uint8_t {
    tile,     // one block of axes for the tile
    group,    // a block of axes for each row in work
    indexed,  // a block of axes for each row, or row block, of the tile
  };
  Kind kind = Kind::tile;
  Lane lane = Lane::f32;
  std::int64_t elements = 1;  // of one block of axes
  std::int64_t count = 1;     // indexed: rows or row blocks at most
  std::int64_t offset = 0;    // bytes in the worker's scratch
};

// An operand of a statement's loops.
struct Slot {
  int buffer = -1;
  std::int64_t offset = 0;  // elements
  bool by_row = false;      // advances with the row
  std::int64_t step[2] = {0, 0};
};

struct Statement {
  enum class Kind : std::uint8_t {
    map,        // map(slots…)
    reduce,     // slots[0][rows, extra, inner] of slots[1][rows, extra, n, inner]
    copy,       // any strides
    constant,   // slots[0] = number, one element
    load,       // access → slots[0]
    load_join,  // rows of several accesses → slots[0]
    store,      // slots[0] → access
    position,   // i64 positions of a virtual access → slots[0]
    uniform,    // random numbers by position; slots[1]: the seed
    gather,     // access by ids in slots[1] → slots[0]
    pick,  // slots[1] by ids in slots[2] → slots[0]; slots[3] where set: 1 in the tile that stores
    row_reduce,         // rows of slots[1] into the blocks of slots[0]
    spill,              // rows of slots[1] into slots[0], which has all rows of the tile
    block_reduce_rows,  // a block of rows of slots[1] (all rows of the tile) → slots[0]
    load_block,  // the block of an input that a row names, reduced → slots[0]; slots[1] holds it
  };
  // A loop around the inner two.
  struct Extra {
    std::int64_t n = 1;
    std::int64_t step[4] = {0, 0, 0, 0};
  };
  Kind kind = Kind::map;
  bool per_row = false;
  Map map = nullptr;
  Reduce reduce = nullptr;
  Lane lane = Lane::f32;  // of what is copied, positioned, picked …
  Slot slots[4];
  int slot_count = 0;
  std::int64_t n[2] = {1, 1};
  std::vector<Extra> extra;
  // map: rows may join the inner loop where every buffer's row is dense.
  bool may_flatten = false;

  double number = 0;  // constant
  std::int64_t integer = 0;
  int access = -1;            // load, store, position, uniform, gather
  bool may_alias = false;     // load, store: the buffer may be the tensor's own memory
  bool reads_follow = false;  // a store that may alias: parameters are read after its value is made
  Store store = Store::overwrite;
  int mask = -1;            // store: the buffer of 0 / 1 that says which rows this tile stores
  std::vector<Map> rounds;  // load: explicit casts of the element
  std::int64_t block = 0;   // row reductions
  std::int64_t period = 0;

  // pick: the picked axes, by their place in the operand.
  struct Digit {
    std::int64_t extent = 1;  // of the factor
    Place column;             // of the tile's first coordinate
    std::int64_t held = 1;    // coordinates in this tile
    std::int64_t step = 0;    // in the operand's buffer
  };
  std::vector<Digit> digits;
  std::int64_t ids = 1;  // gather: ids in a row; their axes come first in slots[0]

  // load_join: row r is row (index - first) of a piece, index = joined.at(r); load_block: row r is
  // the block joined.at(r).
  struct Piece {
    int access = -1;
    std::int64_t first = 0, count = 0;
    std::vector<Map> rounds;
  };
  Place joined;
  std::vector<Piece> pieces;
};

// One space lowered for one width of column tile.
struct TileProgram {
  std::int64_t width = 0;  // columns of a tile
  std::vector<Buffer> buffers;
  std::vector<Access> accesses;
  std::vector<int> accumulators;  // buffers, f32 or f64 [rows][width]
  std::vector<Statement> tile_statements, row_statements;
  std::vector<int> streamed;  // accesses of row_statements that read or write each row once
  struct Blocks {
    std::int64_t block = 0, period = 0;
    std::vector<Statement> statements;
  };
  std::vector<Blocks> blocks;
  std::int64_t group = 1;    // rows in work at once
  std::int64_t scratch = 0;  // bytes for a worker
};

}  // namespace coda::cpu
