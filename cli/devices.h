// cli/devices.h: where a command runs programs: a backend by name, or the reference.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coda/backend/backend.h"
#include "coda/cuda/bundle.h"
#include "coda/program/schedule.h"
#include "coda/reference/verify.h"

namespace coda {

std::vector<std::string> device_names();

// The backend of that name; throws ProgramError where there is none ("exact" is not one), and
// Unsupported where this machine lacks the device. `plan` is for the GPU.
std::unique_ptr<Backend> device_backend(const std::string& name,
                                        const cuda::PlanOptions& plan = {});

// Runs the bundle's schedule on the GPU that it was built for, tensors between guard zones.
Executor bundle_executor(std::shared_ptr<const cuda::Bundle> bundle);

// Runs on that device: programs are checked and run as one kernel, blocks are rewritten first. What
// was compiled for the last program and sizes is kept. With a schedule the executor runs that, step
// by step, in place of the program, which is the schedule as one block (on `exact` that itself).
// `tile` is a GPU's PlanOptions::tile; of a block's steps it is for those that have such a
// candidate. On a GPU every tensor lies between guard zones, as it lay on the host, and stray
// writes are errors.
Executor device_executor(const std::string& device, std::optional<Schedule> schedule = {},
                         const std::string& tile = {});

}  // namespace coda
