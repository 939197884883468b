// cli/pieces.cpp: from a command line to programs that each are one kernel, and their plans.
#include "cli/pieces.h"

#include "coda/core/error.h"
#include "coda/cuda/driver.h"
#include "coda/rewrite/ledger.h"
#include "coda/rewrite/rewrite.h"

namespace coda {

Pieces load_pieces(const std::string& file, const std::string& name,
                   const std::vector<std::string>& assignments) {
  constexpr std::int64_t kDefaultSize = 128;
  const Runnable runnable = load_runnable(file, name);
  Pieces made{.schedule = {},
              .sizes = complete_sizes(runnable.program, sizes_from(assignments), kDefaultSize),
              .pieces = {}};
  if (runnable.schedule) {
    made.schedule = *runnable.schedule;
  } else if (runnable.program.kind() == Program::Kind::block) {
    made.schedule = rewrite(runnable.program).forward.schedule;
  } else {
    made.schedule = as_schedule(runnable.program);
  }
  made.pieces = pieces_of(made.schedule, made.sizes);
  return made;
}

nlohmann::json device_json(const Schedule& schedule, const Sizes& sizes) {
  nlohmann::json kernels = nlohmann::json::array();
  const Ledger counted = ledger(schedule, sizes);
  const std::vector<Piece> pieces = pieces_of(schedule, sizes);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    nlohmann::json kernel = {{"kernel", pieces[i].program.name()},
                             {"bytes", bytes_moved(counted.steps[i])},
                             {"flops", counted.steps[i].flops},
                             {"launches", nlohmann::json::array()},
                             {"notes", nlohmann::json::array()}};
    try {
      const cuda::Plan plan = machine_plan(pieces[i]);
      kernel["path"] = plan.path;
      kernel["notes"] = plan.notes;
      kernel["workspace"] = plan.workspace;
      for (const cuda::Launch& launch : plan.launches) {
        kernel["launches"].push_back(launch_text(launch));
      }
    } catch (const Unsupported& error) {
      kernel["refused"] = error.what();
    }
    kernels.push_back(std::move(kernel));
  }
  return kernels;
}

std::string device_text(const Schedule& schedule, const Sizes& sizes) {
  const cuda::Target target = machine_target();
  std::string text = schedule.name + " on a GPU (" + target.architecture + ", " +
                     std::to_string(target.processors) + " processors):\n";
  for (const nlohmann::json& kernel : device_json(schedule, sizes)) {
    const auto count = [&](const char* key, const char* unit) {
      return amount(kernel[key].get<std::int64_t>(), unit);
    };
    const bool runs = kernel.contains("path");
    text += "  " + kernel["kernel"].get<std::string>() + ": " +
            (runs ? kernel["path"] : kernel["refused"]).get<std::string>() + "; " +
            count("bytes", "B") + ", " + count("flops", "FLOP");
    if (runs && kernel["workspace"] > 0) text += ", workspace " + count("workspace", "B");
    text += "\n";
    for (const char* key : {"launches", "notes"}) {
      for (const auto& line : kernel[key]) text += "    " + line.get<std::string>() + "\n";
    }
  }
  return text;
}

std::string launch_text(const cuda::Launch& launch) {
  std::string text = launch.entry + ": ";
  for (std::size_t i = 0; i < 3; ++i) {
    text += (i == 0 ? "" : " × ") + std::to_string(launch.grid[i]);
  }
  text += " blocks of " + std::to_string(launch.block) + " threads";
  if (launch.cluster > 1) text += ", clusters of " + std::to_string(launch.cluster);
  if (launch.shared > 0) text += ", " + cuda::readable_bytes(launch.shared) + " of shared memory";
  return text;
}

}  // namespace coda
