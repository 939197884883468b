// coda/cuda/plan_json.h: plans as JSON, and back.
#pragma once

#include <nlohmann/json.hpp>

#include "coda/cuda/plan.h"

namespace coda::cuda {

// All of it: what is read back is what was written.
nlohmann::json plan_json(const Plan& plan);
// Throws nlohmann::json::exception where a part is missing or of another kind, and ProgramError
// where a name, an index or an extent makes no sense: of a plan for `tensors` tensors.
Plan plan_from_json(const nlohmann::json& from, std::size_t tensors);

nlohmann::json target_json(const Target& target);
Target target_from_json(const nlohmann::json& from);

}  // namespace coda::cuda
