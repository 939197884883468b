// coda/rewrite/improve.h: a cut made cheaper by small changes, each of them accepted by check().
#pragma once

#include <string>
#include <vector>

#include "coda/rewrite/cost.h"
#include "coda/rewrite/verdict.h"
#include "coda/rewrite/working.h"

namespace coda {

struct Improved {
  std::vector<Part> parts;
  double before = 0, cost = 0;  // seconds
  std::vector<int> now_in;  // of each part that was given, the one that holds its work; -1: none
  // Changes that were made: the nodes that each concerns, and what it did.
  struct Change {
    std::vector<int> nodes;
    std::string what;
  };
  std::vector<Change> changes;
};

// Local search: never makes the cut dearer, and ends. It tries to
//   merge   two kernels;
//   hoist   what a kernel computes first into one that it waits for anyway, which stores it;
//   repeat  in a reader what another kernel stores for it;
//   narrow  what is stored to something smaller that it comes from;
//   move    a store to another kernel.
// A sweep tries each of them once for each kernel, value and neighbour, and makes what saves time
// at once. There are at most kSweeps sweeps, and at most kNeighbours neighbours a kernel or value.
inline constexpr int kSweeps = 6;
inline constexpr std::size_t kNeighbours = 32;
Improved improve(const Working& working, Verdicts& verdicts, const Costs& costs,
                 std::vector<Part> parts);

}  // namespace coda
