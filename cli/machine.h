// cli/machine.h: what a run's report says of the machine and of the build.
#pragma once

#include <nlohmann/json.hpp>

namespace coda {

// {"cpu", "cores", "memory", "system"}: nothing that names the machine or its user.
nlohmann::json machine_facts();

// {"coda", "compiler", "onednn", "simd"}
nlohmann::json version_facts();

}  // namespace coda
