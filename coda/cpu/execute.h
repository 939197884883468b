// coda/cpu/execute.h: runs a TileProgram over one tile.
//
// NOTE: values go from statement to statement through the worker's scratch; two workers share
// nothing but the tensors.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "coda/cpu/bound_access.h"
#include "coda/cpu/tile_program.h"

namespace coda::cpu {

// A TileProgram with the tensors of one run. Shared by all workers.
struct BoundProgram {
  BoundProgram(const TileProgram& program, std::span<const BoundTensor> tensors, std::int64_t rows);

  const TileProgram* program;
  std::vector<BoundAccess> accesses;
};

// One worker's state for one BoundProgram.
class TileWorker {
 public:
  TileWorker(const BoundProgram& bound, std::byte* scratch);

  // Memory of an accumulator: [rows][width].
  std::byte* accumulator(std::size_t index) const;
  // Rows [row, row + rows) × columns [column, column + width). Accumulators hold their products.
  void run(std::int64_t row, std::int64_t rows, std::int64_t column);

 private:
  struct TileAccess {
    std::int64_t column = 0;  // offset of the tile's columns
    bool owns = true;         // of a store: is it for this tile to write?
  };
  void start_tile(std::int64_t column);
  void run_rows(std::int64_t row, std::int64_t rows);
  void run_blocks(const TileProgram::Blocks& blocks, std::int64_t row, std::int64_t rows);
  void direct_stores(std::int64_t row, std::int64_t rows);
  void execute(const Statement& statement, std::int64_t row, std::int64_t rows);

  Arg arg(const Slot& slot) const;
  void map(const Statement& statement, std::int64_t rows);
  void reduce(const Statement& statement, std::int64_t rows);
  void copy(const Statement& statement, std::int64_t rows);
  void load(const Statement& statement, std::int64_t row, std::int64_t rows);
  void load_join(const Statement& statement, std::int64_t row, std::int64_t rows);
  void load_block(const Statement& statement, std::int64_t row, std::int64_t rows);
  void store(const Statement& statement, std::int64_t row, std::int64_t rows);
  void position(const Statement& statement, std::int64_t row, std::int64_t rows);
  void uniform(const Statement& statement, std::int64_t row, std::int64_t rows);
  void gather(const Statement& statement, std::int64_t row, std::int64_t rows);
  void pick(const Statement& statement, std::int64_t rows);
  void row_reduce(const Statement& statement, std::int64_t row, std::int64_t rows);
  void block_reduce_rows(const Statement& statement, std::int64_t row);

  std::byte* data(const Slot& slot) const;
  const BoundAccess& bound(int access) const {
    return bound_->accesses[static_cast<std::size_t>(access)];
  }

  const BoundProgram* bound_;
  const TileProgram* program_;
  std::byte* scratch_;
  std::vector<std::byte*> pointers_;     // of buffers, at the row in work
  std::vector<std::int64_t> row_steps_;  // elements from row to row
  std::vector<TileAccess> accesses_;
  std::int64_t first_row_ = 0, last_row_ = 0, column_ = 0;
};

}  // namespace coda::cpu
