// cli/devices.h: where a command runs programs: a backend by name, or the reference.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coda/backend/backend.h"
#include "coda/program/schedule.h"
#include "coda/reference/verify.h"

namespace coda {

std::vector<std::string> device_names();

// The backend of that name; throws ProgramError where there is none ("exact" is not one).
std::unique_ptr<Backend> device_backend(const std::string& name);

// Runs on that device: programs are checked and run as one kernel, blocks are rewritten first. What
// was compiled for the last program and sizes is kept. With a schedule the executor runs that, step
// by step, in place of the program, which is the schedule as one block (on `exact` that itself).
Executor device_executor(const std::string& device, std::optional<Schedule> schedule = {});

}  // namespace coda
