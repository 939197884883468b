// coda/rewrite/excerpt.cpp: which steps belong, and what passes between them and the rest.
#include "coda/rewrite/excerpt.h"

#include <algorithm>
#include <map>
#include <set>

namespace coda {
namespace {

template <class Named>
const Named* find(const std::vector<Named>& all, const std::string& name) {
  const auto found = std::ranges::find(all, name, &Named::name);
  return found == all.end() ? nullptr : &*found;
}

std::vector<bool> steps_of(const Schedule& schedule, std::span<const Param> params, int layer) {
  std::vector<bool> keep;
  for (const std::optional<int>& each : layers_of(schedule, params)) keep.push_back(each == layer);
  return keep;
}

}  // namespace

Schedule excerpt(const Schedule& schedule, const std::vector<bool>& keep, const std::string& name) {
  Schedule part{.name = name};
  std::map<std::string, Type> stored;     // by any step
  std::set<std::string> made, elsewhere;  // by the steps kept; what others read
  for (std::size_t i = 0; i < schedule.steps.size(); ++i) {
    const Step& step = schedule.steps[i];
    for (std::size_t k = 0; k < step.outputs.size(); ++k) {
      stored[step.outputs[k]] = step.program.results()[k].type;
    }
    if (!keep[i] || step.loop >= 0) {
      elsewhere.insert(step.inputs.begin(), step.inputs.end());
      continue;
    }
    for (std::size_t k = 0; k < step.inputs.size(); ++k) {
      const std::string& input = step.inputs[k];
      if (made.contains(input) || find(part.params, input) != nullptr) continue;
      const Param* param = find(schedule.params, input);
      const auto from = stored.find(input);
      const Type& type = param != nullptr       ? param->type
                         : from != stored.end() ? from->second
                                                : step.program.params()[k].type;
      part.params.push_back({input, type});
    }
    made.insert(step.outputs.begin(), step.outputs.end());
    part.steps.push_back(step);
  }
  for (const Step& step : part.steps) {
    for (std::size_t k = 0; k < step.outputs.size(); ++k) {
      const std::string& output = step.outputs[k];
      if (const Result* result = find(schedule.results, output)) {
        part.results.push_back(*result);
      } else if (elsewhere.contains(output)) {
        part.results.push_back(step.program.results()[k]);
        part.results.back().name = output;
      }
    }
  }
  return part;
}

Report excerpt(const Report& whole, int layer) {
  std::vector<Phase> phases;
  const std::span<const Param> params = whole.block.params();
  for (const Half& half : whole.halves) {
    const Schedule& fused = half.partition.schedule;
    const std::string name = half.phase == "forward" ? "layer" : "layer_grad";
    phases.push_back({.name = half.phase,
                      .fused = excerpt(fused, steps_of(fused, params, layer), name),
                      .unfused = excerpt(half.plain, steps_of(half.plain, params, layer), name)});
  }
  return report(std::move(phases), whole.sizes);
}

}  // namespace coda
