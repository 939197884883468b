// coda/cuda/planned.cpp: plans as kernels' notes.
#include "coda/cuda/planned.h"

#include "coda/check/bind.h"
#include "coda/core/error.h"
#include "coda/cuda/variants.h"

namespace coda::cuda {
namespace {

class Planned final : public Backend {
 public:
  Planned(Target target, PlanOptions options)
      : target_(std::move(target)), options_(std::move(options)) {}

  std::string_view name() const override { return "cuda"; }
  std::optional<std::string> refusal(const Checked& program, const Sizes& sizes) const override {
    try {
      compile(program, sizes);
    } catch (const Unsupported& error) {
      return error.what();
    }
    return std::nullopt;
  }
  Kernel compile(const Checked& program, const Sizes& sizes) const override {
    return compile_one({.program = program, .sizes = sizes});
  }
  std::vector<Kernel> compile_all(std::span<const Request> requests) const override {
    std::vector<Kernel> kernels;
    for (const Request& request : requests) kernels.push_back(compile_one(request));
    return kernels;
  }
  std::int64_t row_pitch(std::int64_t bytes) const override { return aligned_pitch(bytes); }

 private:
  Kernel compile_one(const Request& request) const {
    const Sizes sizes = bind_sizes(request.program.program(), request.sizes);
    const Plan plan =
        choose_plan(request.program, sizes, expected_layouts(request, sizes), target_, options_);
    const Kernel::Run nothing = [](auto&&...) -> void {
      throw InternalError("a kernel that was only planned was run");
    };
    return {nothing, static_cast<std::size_t>(plan.workspace), note_of(plan)};
  }

  Target target_;
  PlanOptions options_;
};

}  // namespace

std::unique_ptr<Backend> planned_backend(const Target& target, const PlanOptions& options) {
  return std::make_unique<Planned>(target, options);
}

}  // namespace coda::cuda
