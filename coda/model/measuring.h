// coda/model/measuring.h: after which steps a training run looks at itself, and what that may cost.
#pragma once

#include <cstdint>
#include <set>

namespace coda {

// The part of the time of training that measuring on the way may take.
inline constexpr double kMeasuringShare = 0.04;

// Seconds that each takes.
struct MeasuringCosts {
  double step = 0;      // of training
  double held_out = 0;  // a held-out loss
  double sample = 0;    // a sample of the model's text
};

// Numbers of steps, each above `done` and below `steps`.
struct MeasuringPlan {
  std::set<std::int64_t> held_out, samples;
};

// Samples after 1, 2, 5, 10, 25 and 50 % of the steps, held-out losses more evenly. What of them
// does not fit into kMeasuringShare of the time left is left out, the least telling first.
MeasuringPlan measuring_plan(std::int64_t done, std::int64_t steps, const MeasuringCosts& costs);

}  // namespace coda
