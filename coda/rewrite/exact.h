// coda/rewrite/exact.h: the cheapest of all cuts of a small block.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "coda/rewrite/cost.h"
#include "coda/rewrite/verdict.h"
#include "coda/rewrite/working.h"

namespace coda {

inline constexpr std::size_t kExactNodes = 10;  // of the working program
inline constexpr std::size_t kExactStores = 16;
inline constexpr int kExactQuestions = 6000;

struct ExactCut {
  std::unique_ptr<Working> working;
  std::vector<Part> parts;
  double cost = 0;
};

// The cheapest cut by the model of cost.h, if it is cheaper than `incumbent` seconds. A cut is a
// sequence of kernels that check() accepts; each computes some nodes from parameters and what was
// stored before it, again where need be, and stores some values. Whole sums may be finished from
// block sums. nullopt where there is none, or the block is not small: more than kExactNodes nodes
// or kExactStores values that could be stored.
//
// A shortest path over sets of stored values: at most 2^kExactStores sets, at most 2^kExactStores
// kernels from each. It gives up where it would ask check() of more than kExactQuestions kernels,
// which takes about half a second. `known` is what a search for the incumbent, in `like`, has asked
// check().
std::optional<ExactCut> exact(const Program& block, const Sizes& sizes, double incumbent,
                              const Working& like, const Verdicts& known);

}  // namespace coda
