// coda/cuda/gemm_page.h: the page of a Hopper GEMM: its Config, its epilogue, its kernel.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "coda/cuda/tile.h"

namespace coda::cuda {

// What the page says beside its epilogues.
struct GemmPage {
  std::string name;  // of the program and the kernel
  std::string text;  // of the program, for the head comment
  TileShape shape;
  int stages = 4, slots = 8, slot_bytes = 8192;
  int row_bytes = 0;  // of shared memory, for what a row needs and what it keeps
  int narrow = 0;     // the width of a narrower last column tile; 0: none
  int terms = 1;
  DType operands = DType::bf16;
  bool mn_major_a = false, mn_major_b = false;
  Precision precision = Precision::exact;
  std::vector<SpaceText> spaces;
  int maps = 0;                  // of each space, at most
  bool joined = false;           // tiles hold units of several spaces
  bool split = false;            // workers share tiles along k
  bool drawn = false;            // workers draw their tiles
  bool paced = false;            // epilogues wait for the next tile's main loop
  int consumer_registers = 232;  // of a thread; two consumers and the producers share 504
};

// The expressions by which the page reads its argument, in the order of the spaces (or terms).
struct GemmFields {
  std::string maps;  // the first tensor map
  std::vector<std::string> rows, columns, k_tiles;
  std::vector<std::string> first_units;  // of each space, where they are joined; and the end
};

std::string gemm_page(const GemmPage& page, const GemmFields& fields, RowsText& rows,
                      const Arguments& arguments);

}  // namespace coda::cuda
