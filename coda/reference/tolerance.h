// coda/reference/tolerance.h: what one result's errors are, and what the naive sequence earns it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "coda/reference/reference.h"
#include "coda/reference/verify.h"

namespace coda {

// "y[3, 0]": a result's element, by the coordinates of its factors.
std::string place(const Result& result, const reference::Array& array, std::size_t index);

// The errors of one result over all seeds. Floats: by norm, and by worst element, both relative to
// the truth; where a dtype underflows, its least number counts for nothing, nor does what it adds
// up to in a sum whose terms underflow. A result that mostly overflows: how many elements are NaN
// or infinite and should not be, or the other way round. Integers and bools: the share of elements
// that differ.
class Errors {
 public:
  Errors(const Program& program, const Sizes& sizes, const Result& result);

  // One more seed: `got` holds the result's elements row-major, as they lie in memory.
  void add(const reference::Array& exact, const reference::Array& naive,
           std::span<const std::byte> got);
  // A failure that needs no numbers. The first one is reported.
  void fail(const std::string& why);

  // Fills in all but what names the verdict.
  Verdict verdict() const;

 private:
  void add_floats(const reference::Array& exact, const reference::Array& naive,
                  std::span<const double> got);
  void add_discrete(const reference::Array& exact, const reference::Array& naive,
                    std::span<const double> got);

  const Result& result_;
  double slack_ = 0;                    // relative: the unit roundoff of on-chip sums
  double roundoff_ = 0;                 // relative: of the declared dtype
  double least_ = 0;                    // absolute, an element
  double compared_ = 0;                 // elements, over all seeds
  double kinds_ = 0, naive_kinds_ = 0;  // of a wrong kind, where most overflows
  std::string misfit_;                  // the first of them
  bool from_floats_ = false;
  std::vector<double> errors_, naive_errors_;  // one a seed
  double worst_ = 0, naive_worst_ = 0;         // relative to the largest element of the truth
  std::string worst_place_;
  std::string why_;
};

}  // namespace coda
