// coda/rewrite/ties.h: values that are compared with their own maximum.
#pragma once

#include <vector>

#include "coda/rewrite/working.h"

namespace coda {

// The gradient of a maximum compares each element with it. That finds the largest one only if the
// compared elements are those that the maximum was taken of: both unrounded, on chip, or both as
// stored in fewer bits.
class Ties {
 public:
  explicit Ties(const Working& working);

  // Whether a kernel of these nodes (sorted), may be: where it computes the elements it has both
  // the maximum and all that compares with it, or neither.
  bool allow(const std::vector<int>& nodes) const;

 private:
  struct Tie {
    int elements = -1, maximum = -1;  // nodes
    std::vector<int> compared;
  };
  std::vector<Tie> ties_;
};

}  // namespace coda
