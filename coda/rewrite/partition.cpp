// coda/rewrite/partition.cpp: the greedy cut, improved; the cheapest of all cuts where the block is
// small.
#include "coda/rewrite/partition.h"

#include "coda/rewrite/arrange.h"
#include "coda/rewrite/exact.h"
#include "coda/rewrite/greedy.h"
#include "coda/rewrite/improve.h"

namespace coda {
namespace {

// The step that stores what a node of the block makes, else the first that computes it; -1: none
// does. `step_of` each part.
std::vector<int> steps_of_nodes(const Working& working, const std::vector<Part>& parts,
                                const std::vector<int>& step_of) {
  std::vector<int> steps(working.block().nodes().size(), -1);
  std::vector<bool> stored(steps.size());
  const auto place = [&](int n, int step, bool stores) {
    const auto at = static_cast<std::size_t>(working.origin(n));
    if (stored[at] && !stores) return;
    if (steps[at] >= 0 && stored[at] == stores && steps[at] <= step) return;
    steps[at] = step;
    stored[at] = stores;
  };
  for (std::size_t p = 0; p < parts.size(); ++p) {
    for (const int n : parts[p].nodes) place(n, step_of[p], false);
    for (const auto* stores : {&parts[p].results, &parts[p].crossing}) {
      for (const Value v : *stores) {
        if (!working.work().is_param(v)) place(working.producer(v), step_of[p], true);
      }
    }
  }
  return steps;
}

// Numbers of steps in place of `kernel #k#`; -1: a kernel that is no more.
std::string name_kernels(const std::string& text, const std::vector<int>& steps) {
  std::string named;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t mark = text.find("kernel #", at);
    named += text.substr(at, mark - at);
    if (mark == std::string::npos) break;
    const std::size_t number = mark + 8, end = text.find('#', number);
    const auto k = static_cast<std::size_t>(std::stoul(text.substr(number, end - number)));
    const int step = k < steps.size() ? steps[k] : -1;
    named += step < 0 ? "a kernel" : "kernel " + std::to_string(step + 1);
    at = end + 1;
  }
  return named;
}

std::vector<int> inverse(const std::vector<int>& order) {
  std::vector<int> places(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    places[static_cast<std::size_t>(order[i])] = static_cast<int>(i);
  }
  return places;
}

}  // namespace

Partition partition(const Program& block, const Sizes& sizes) {
  const Program arranged = arrange(block);
  Greedy greedy(arranged);
  const Costs costs(greedy.kernels, sizes);
  std::vector<int> numbers;  // of kernels, for each part
  std::vector<Part> first = greedy.kernels.parts(numbers);
  Improved improved = improve(greedy.kernels, greedy.kernels.verdicts(), costs, std::move(first));
  const std::optional<ExactCut> cheapest =
      exact(arranged, sizes, improved.cost, greedy.kernels, greedy.kernels.verdicts());
  const Working& working = cheapest ? *cheapest->working : greedy.kernels;
  const std::vector<Part>& parts = cheapest ? cheapest->parts : improved.parts;

  const std::vector<int> order = working.run_order(parts), step_of = inverse(order);
  std::vector<int> of_kernels(static_cast<std::size_t>(greedy.kernels.count()), -1);
  for (std::size_t p = 0; !cheapest && p < numbers.size(); ++p) {
    const int now = improved.now_in[p];
    if (now < 0 || numbers[p] == Kernels::kNone) continue;
    of_kernels[static_cast<std::size_t>(numbers[p])] = step_of[static_cast<std::size_t>(now)];
  }
  for (const Improved::Change& change : improved.changes) {
    std::set<int> origins;
    for (const int n : change.nodes) origins.insert(greedy.kernels.origin(n));
    for (const int n : origins) greedy.reasons[static_cast<std::size_t>(n)] += "; " + change.what;
  }
  Partition partition{.block = arranged,
                      .schedule = working.schedule(parts, order),
                      .placements = {},
                      .seconds = cheapest ? cheapest->cost : improved.cost,
                      .greedy = improved.before};
  const std::vector<int> steps = steps_of_nodes(working, parts, step_of);
  for (std::size_t n = 0; n < steps.size(); ++n) {
    std::string reason = name_kernels(greedy.reasons[n], of_kernels);
    if (cheapest) reason += "; then where the cheapest of all cuts has it";
    partition.placements.push_back({steps[n], std::move(reason)});
  }
  return partition;
}

}  // namespace coda
