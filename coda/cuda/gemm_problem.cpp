// coda/cuda/gemm_problem.cpp: operands of all spaces, and what they have to have in common.
#include "coda/cuda/gemm_problem.h"

#include <algorithm>

#include "coda/check/bind.h"
#include "coda/cuda/order.h"
#include "coda/cuda/tile.h"
#include "coda/program/text.h"

namespace coda::cuda {
namespace {

constexpr std::size_t kMaxSpaces = 15;

bool same_matrix(const OperandMatrix& a, const OperandMatrix& b) {
  return a.tensor == b.tensor && a.offset == b.offset && a.outer == b.outer && a.inner == b.inner &&
         a.inner_first == b.inner_first;
}

SpaceOperands operands_of(const Region& places, std::span<const Layout> layouts) {
  const Space& space = places.space();
  SpaceOperands out;
  const auto matrix = [&](const Operand& operand, const Dim& contracted) {
    const OperandResult result =
        operand_matrix(places.program(), operand, contracted, places.sizes(), layouts);
    if (!result.matrix) throw Refusal{result.refusal};
    return *result.matrix;
  };
  for (std::size_t a = 0; a < space.accumulators.size(); ++a) {
    const Accumulator& accumulator = space.accumulators[a];
    if (a > 0 && accumulator.terms.size() != out.terms.size()) {
      throw Refusal{"paired products are sums of different lengths"};
    }
    for (std::size_t t = 0; t < accumulator.terms.size(); ++t) {
      const Accumulator::Term& term = accumulator.terms[t];
      const Dim& contracted =
          places.program().nodes()[static_cast<std::size_t>(term.node)].attr.axis;
      const OperandMatrix left = matrix(term.left, contracted);
      OperandMatrix right = matrix(term.right, contracted);
      if (left.outer != places.rows() || right.outer != places.all_columns()) {
        throw Refusal{"an operand's rows are not the tile's"};
      }
      right.outer = places.columns();
      right.offset += places.first() * right.outer_stride;
      if (right.offset * static_cast<std::int64_t>(size_of(right.dtype)) % 16 != 0) {
        throw Refusal{"a piece of a packed weight is not aligned to 16 bytes"};
      }
      if (a == 0) {
        out.terms.push_back({left, {right}});
      } else if (!same_matrix(left, out.terms[t].left)) {
        throw Refusal{"paired products have different left operands"};
      } else {
        out.terms[t].right.push_back(right);
      }
    }
  }
  return out;
}

}  // namespace

Problem problem_of(const Checked& checked, const Sizes& sizes, std::span<const Layout> layouts) {
  Problem problem;
  if (checked.kind() != KernelKind::gemm) throw Refusal{"no product"};
  problem.places = regions_of(checked, sizes);
  const std::size_t spaces = problem.places.size();
  if (spaces > kMaxSpaces) throw Refusal{"more than 15 spaces"};
  for (const Region& places : problem.places) {
    if (places.rows() == 0 || places.columns() == 0) throw Refusal{"there are no results"};
    if (places.rows() / kTileRows >= kMaxTiles || places.columns() / 32 >= kMaxTiles) {
      throw Refusal{"more than 2^14 tiles along a side"};
    }
    if (!places.conflict().empty()) throw Refusal{places.conflict() + " has two places"};
    if (places.space().accumulators.empty()) throw Refusal{"a space has no product"};
  }
  for (std::size_t s = 0; s < spaces; ++s) {
    problem.operands.push_back(operands_of(problem.places[s], layouts));
    const std::int64_t head = head_of(problem.places[s]);
    if (head != 0 && problem.head != 0 && head != problem.head) {
      throw Refusal{"heads of several sizes"};
    }
    problem.head = std::max(problem.head, head);
    const std::int64_t group = group_of(problem.places[s]);
    if (group != 0 && problem.group != 0 && group != problem.group) {
      throw Refusal{"reductions over heads of several sizes"};
    }
    problem.group = std::max(problem.group, group);
    problem.row_blocks = problem.row_blocks || has_row_blocks(problem.places[s]);
  }
  const SpaceOperands& first = problem.operands[0];
  problem.pairs = static_cast<int>(first.terms[0].right.size());
  for (const Term& term : first.terms) problem.depths.push_back(term.left.inner);
  bool side_by_side = true, stacked = spaces > 1;
  for (std::size_t s = 0; s < spaces; ++s) {
    const SpaceOperands& own = problem.operands[s];
    if (own.terms.size() != first.terms.size())
      throw Refusal{"spaces with sums of different lengths"};
    for (std::size_t t = 0; t < own.terms.size(); ++t) {
      const Term& term = own.terms[t];
      if (term.right.size() != first.terms[0].right.size()) {
        throw Refusal{"spaces with different numbers of paired products"};
      }
      if (term.left.inner != problem.depths[t]) throw Refusal{"spaces with different depths"};
      side_by_side = side_by_side && same_matrix(term.left, first.terms[t].left);
      for (std::size_t p = 0; p < term.right.size(); ++p) {
        const OperandMatrix& right = term.right[p];
        stacked = stacked && same_matrix(right, first.terms[t].right[p]);
        if (right.inner_first != problem.right().inner_first) {
          throw Refusal{"right operands in different majorness"};
        }
        if (right.dtype != problem.left().dtype) throw Refusal{"operands of different dtypes"};
      }
      if (term.left.inner_first != problem.left().inner_first) {
        throw Refusal{"left operands in different majorness"};
      }
      if (term.left.dtype != problem.left().dtype) throw Refusal{"operands of different dtypes"};
    }
  }
  problem.stacked = stacked && !side_by_side;
  std::int64_t all_columns = 0;
  for (const Region& places : problem.places) all_columns += places.columns();
  problem.mixes_units = side_by_side && problem.pairs == 1 && all_columns / 64 < kMaxTiles &&
                        std::ranges::all_of(problem.places, [](const Region& places) {
                          return places.columns() % 64 == 0;
                        });
  problem.joined =
      spaces > 1 && problem.mixes_units && std::ranges::all_of(problem.places, has_lone_units);
  if (problem.head != 0 && (problem.pairs > 1 || !problem.right().inner_first)) {
    throw Refusal{"heads of a paired or transposed product"};
  }
  return problem;
}

}  // namespace coda::cuda
