// coda/cuda/matrix.h: tensors as the copy engine (TMA) sees them: which strides it takes, and why
// not.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "coda/check/input_view.h"
#include "coda/check/places.h"
#include "coda/cuda/plan.h"

namespace coda::cuda {

// Loops over memory, neighbours merged, extents of 1 left out; strides in elements.
struct MemoryLoop {
  std::int64_t extent = 1;
  std::int64_t stride = 0;
};
// Appends an inner loop.
void merge(std::vector<MemoryLoop>& loops, MemoryLoop loop);

// An operand of a product: a matrix [outer, inner], inner contracted.
struct OperandMatrix {
  int tensor = 0;
  std::int64_t offset = 0;  // elements
  DType dtype = DType::bf16;
  std::int64_t outer = 1, inner = 1;
  std::int64_t outer_stride = 0, inner_stride = 0;
  bool inner_first = true;  // K-major: inner is contiguous; else MN-major: outer is
};

// The reason, or the matrix that TMA can read.
struct OperandResult {
  std::optional<OperandMatrix> matrix;
  std::string refusal;
};
OperandResult operand_matrix(const Program& program, const Operand& operand, const Dim& contracted,
                             const Sizes& sizes, std::span<const Layout> layouts);

// The stride of a flat index of `period` elements that factors of the given places form in memory:
// places of one kind, each with the stride of its factor. nullopt: the memory is not one line.
struct Line {
  std::int64_t period = 1;  // the flat index modulo this
  std::int64_t stride = 0;
};
struct PlacedFactor {
  Place place;
  std::int64_t stride = 0;
};
std::optional<Line> line_of(std::vector<PlacedFactor> factors);

// Whether an address and strides suit TMA: 16-byte aligned, strides multiples of 16 bytes.
std::optional<std::string> alignment_refusal(const Layout& layout, std::int64_t offset,
                                             std::int64_t stride, DType dtype);

}  // namespace coda::cuda
