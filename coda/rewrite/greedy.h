// coda/rewrite/greedy.h: a cut of any block, node by node.
#pragma once

#include <string>
#include <vector>

#include "coda/rewrite/kernels.h"

namespace coda {

// Total: every value joins the kernel of the product that feeds it while it stays tile-local, else
// a streaming kernel.
struct Greedy {
  explicit Greedy(const Program& block);

  Kernels kernels;
  // Of each node of the block: where it went and why. Kernel k is written `kernel #k#`.
  std::vector<std::string> reasons;
};

}  // namespace coda
