// coda/rewrite/partition.h: a block cut into kernels.
#pragma once

#include <string>
#include <vector>

#include "coda/program/schedule.h"

namespace coda {

// Why a node is in the kernel that it is in.
struct Placement {
  int step = -1;  // index into schedule.steps; several steps may recompute a cheap node: the first
  std::string reason;  // "joins the kernel of its product" or why it could not join the one before
};

struct Partition {
  Program block;  // what was cut: after the passes that went before
  Schedule schedule;
  std::vector<Placement> placements;  // one for each node of the block
  double seconds = 0;                 // by the model of cost.h; never more than
  double greedy = 0;                  // those of the cut that the search started from
};

// Total: any block becomes steps that check() accepts. Every value joins the kernel of the product
// that feeds it while it stays tile-local, else a streaming kernel; then kernels merge and values
// move where that takes less time (cost.h) at `sizes`, or at nominal sizes of names that are not
// given. Values that cross are stored in their storage_dtype. Pure: any thread may call it.
Partition partition(const Program& block, const Sizes& sizes = {});

// The unfused sequence: one step for each node that does work, as a library would call them. The
// rival of the ledger.
Schedule unfused(const Program& block);

}  // namespace coda
