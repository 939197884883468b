// cli/devices.h: where a command runs programs: a backend by name, or the reference.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "coda/backend/backend.h"

namespace coda {

std::vector<std::string> device_names();

// The backend of that name; throws ProgramError where there is none ("exact" is not one).
std::unique_ptr<Backend> device_backend(const std::string& name);

// Programs are checked and run as one kernel, blocks are rewritten first.
void run_on(const std::string& device, const Program& program, const Sizes& sizes,
            std::span<const Tensor> params, std::span<const Tensor> results);

}  // namespace coda
