// coda/model/measuring.cpp: the most telling points first, while there is time for them.
#include "coda/model/measuring.h"

#include <algorithm>
#include <cmath>
#include <span>

namespace coda {
namespace {

// Parts of all steps, the most telling first.
constexpr double kSamples[] = {0.10, 0.50, 0.25, 0.02, 0.05, 0.01};
constexpr double kHeldOut[] = {0.50, 0.25, 0.10, 0.75, 0.05, 0.38, 0.62, 0.88, 0.17, 0.02, 0.31};

// Seconds that the points chosen take.
double choose(std::span<const double> parts, double cost, double budget, std::int64_t done,
              std::int64_t steps, std::set<std::int64_t>& into) {
  double spent = 0;
  for (const double part : parts) {
    const std::int64_t at = std::llround(part * static_cast<double>(steps));
    if (at <= done || at >= steps || into.contains(at)) continue;
    if (spent + cost > budget) break;
    spent += cost;
    into.insert(at);
  }
  return spent;
}

}  // namespace

MeasuringPlan measuring_plan(std::int64_t done, std::int64_t steps, const MeasuringCosts& costs) {
  const double budget = kMeasuringShare * costs.step * static_cast<double>(steps - done);
  MeasuringPlan plan;
  const double spent = choose(kSamples, costs.sample, budget / 2, done, steps, plan.samples);
  choose(kHeldOut, costs.held_out, budget - spent, done, steps, plan.held_out);
  return plan;
}

}  // namespace coda
