// cli/devices.h: where a command runs programs: a backend by name, or the reference.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "coda/backend/backend.h"
#include "coda/reference/verify.h"

namespace coda {

std::vector<std::string> device_names();

// The backend of that name; throws ProgramError where there is none ("exact" is not one).
std::unique_ptr<Backend> device_backend(const std::string& name);

// Runs on that device: programs are checked and run as one kernel, blocks are rewritten first. What
// was compiled for the last program and sizes is kept.
Executor device_executor(const std::string& device);

}  // namespace coda
