// coda/cuda/pieces.cpp: a schedule's steps as its kernels will be asked for, and their plans.
#include "coda/cuda/pieces.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "coda/backend/execute.h"
#include "coda/check/bind.h"
#include "coda/check/check.h"
#include "coda/cuda/driver.h"
#include "coda/cuda/tuning.h"
#include "coda/program/rename.h"

namespace coda::cuda {
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
  std::int64_t row_pitch(std::int64_t bytes) const override { return aligned_pitch(bytes); }

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

std::vector<KernelPiece> pieces_of(const Schedule& schedule, const Sizes& sizes) {
  const Recorder recorder;
  const Executable planned(schedule, recorder, sizes);
  std::vector<Program> asked;
  for (const Backend::Request& each : recorder.requests) {
    asked.push_back(nameless(each.program.program()));
  }
  std::vector<KernelPiece> pieces;
  for (const Step& step : schedule.steps) {
    Sizes chunk = sizes;
    if (step.loop >= 0) {
      const Loop& loop = schedule.loops[static_cast<std::size_t>(step.loop)];
      chunk[loop.dim] = std::min(loop.size, sizes.at(loop.dim));
    }
    KernelPiece piece{.program = step.program, .sizes = bind_sizes(step.program, chunk)};
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
    piece.layouts =
        canonical_layouts(piece.program, piece.sizes,
                          layouts_of(piece.program, piece.sizes, piece.params, piece.results));
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

Target machine_target() {
  if (Driver::problem()) return {};
  return Driver::get().device().target;
}

Plan machine_plan(const KernelPiece& piece, const std::string& tile) {
  return choose_plan(check(piece.program), piece.sizes, piece.layouts, machine_target(),
                     {.tile = tile, .tuning = Tuning::process()});
}

}  // namespace coda::cuda
