// cli/pieces.cpp: from a command line to programs that each are one kernel, and their plans.
#include "cli/pieces.h"

#include <algorithm>
#include <optional>

#include "coda/backend/execute.h"
#include "coda/check/bind.h"
#include "coda/check/check.h"
#include "coda/core/error.h"
#include "coda/cuda/driver.h"
#include "coda/cuda/tuning.h"
#include "coda/program/rename.h"
#include "coda/rewrite/ledger.h"
#include "coda/rewrite/rewrite.h"

namespace coda {

namespace {

// Writes down what a schedule's kernels will be asked for, and runs nothing.
class Recorder final : public Backend {
 public:
  std::string_view name() const override { return "cuda"; }
  std::optional<std::string> refusal(const Checked&, const Sizes&) const override {
    return std::nullopt;
  }
  Kernel compile(const Checked&, const Sizes&) const override {
    const Kernel::Run nothing = [](auto&&...) {
    };
    return {nothing, 0, ""};
  }
  std::vector<Kernel> compile_all(std::span<const Request> asked) const override {
    requests.assign(asked.begin(), asked.end());
    return Backend::compile_all(asked);
  }
  std::int64_t row_pitch(std::int64_t bytes) const override { return cuda::aligned_pitch(bytes); }

  mutable std::vector<Request> requests;
};

std::vector<Tensor> dense_tensors(const auto& declared, const Sizes& sizes) {
  std::vector<Tensor> tensors;
  for (const auto& each : declared) {
    tensors.push_back(dense(nullptr, each.type.dtype, shape_of(each.type, sizes)));
  }
  return tensors;
}

}  // namespace

std::vector<Piece> pieces_of(const Schedule& schedule, const Sizes& sizes) {
  const Recorder recorder;
  const Executable planned(schedule, recorder, sizes);
  std::vector<Program> asked;
  for (const Backend::Request& each : recorder.requests) {
    asked.push_back(nameless(each.program.program()));
  }
  std::vector<Piece> pieces;
  for (const Step& step : schedule.steps) {
    Sizes chunk = sizes;
    if (step.loop >= 0) {
      const Loop& loop = schedule.loops[static_cast<std::size_t>(step.loop)];
      chunk[loop.dim] = std::min(loop.size, sizes.at(loop.dim));
    }
    Piece piece{.program = step.program, .sizes = bind_sizes(step.program, chunk)};
    piece.params = dense_tensors(step.program.params(), piece.sizes);
    piece.results = dense_tensors(step.program.results(), piece.sizes);
    // Steps that compute the same share a kernel, which goes by the name of the first.
    const Program same = nameless(step.program);
    for (std::size_t i = 0; i < asked.size(); ++i) {
      const Backend::Request& request = recorder.requests[i];
      if (request.sizes != piece.sizes || !(asked[i] == same)) continue;
      if (!request.params.empty()) piece.params = request.params;
      if (!request.results.empty()) piece.results = request.results;
      break;
    }
    piece.layouts = cuda::canonical_layouts(
        piece.program, piece.sizes,
        cuda::layouts_of(piece.program, piece.sizes, piece.params, piece.results));
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

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

cuda::Target machine_target() {
  if (cuda::Driver::problem()) return {};
  return cuda::Driver::get().device().target;
}

cuda::Plan machine_plan(const Piece& piece, const std::string& tile) {
  return cuda::choose_plan(check(piece.program), piece.sizes, piece.layouts, machine_target(),
                           {.tile = tile, .tuning = cuda::Tuning::process()});
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
