// coda/cuda/backend.cpp: programs planned for the device of this process, compiled and loaded.
#include <optional>
#include <utility>
#include <vector>

#include "coda/check/bind.h"
#include "coda/core/error.h"
#include "coda/cuda/cuda.h"
#include "coda/cuda/driver.h"
#include "coda/cuda/memory.h"
#include "coda/cuda/tuning.h"
#include "coda/cuda/variants.h"

namespace coda::cuda {
namespace {

// What all kernels of a backend share. They outlive the backend.
struct Shared {
  Options options;
  Target target;
  Memory memory;
  Pages pages;
  std::shared_ptr<Workspaces> workspaces;
};

class Cuda final : public Backend {
 public:
  explicit Cuda(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}

  std::string_view name() const override { return "cuda"; }

  std::optional<std::string> refusal(const Checked& program, const Sizes& sizes) const override {
    try {
      choose_plan(program, bind_sizes(program.program(), sizes),
                  dense_layouts(program.program(), sizes), shared_->target, shared_->options.plan);
      return std::nullopt;
    } catch (const Unsupported& error) {
      return error.what();
    }
  }

  Kernel compile(const Checked& checked, const Sizes& given) const override {
    return compile({.program = checked, .sizes = given});
  }

  std::vector<Kernel> compile_all(std::span<const Request> requests) const override {
    return compile_beside(requests, [&](const Request& request) { return compile(request); });
  }

  std::int64_t row_pitch(std::int64_t bytes) const override { return aligned_pitch(bytes); }

  Memory memory() const override { return shared_->memory; }

 private:
  Kernel compile(const Request& request) const {
    const Program& program = request.program.program();
    const Sizes sizes = bind_sizes(program, request.sizes);
    Variants::Make make = [shared = shared_, checked = request.program,
                           sizes](const std::vector<Layout>& layouts) {
      Plan plan = choose_plan(checked, sizes, layouts, shared->target, shared->options.plan);
      auto page = shared->pages.load(plan, shared->target, plan.notes);
      return std::make_shared<const Launcher>(std::move(plan), dtypes_of(checked.program()),
                                              std::move(page), shared->memory);
    };
    return kernel_of(std::make_shared<Variants>(program, sizes, expected_layouts(request, sizes),
                                                std::move(make), shared_->workspaces));
  }

  std::shared_ptr<Shared> shared_;
};

}  // namespace

std::unique_ptr<Backend> backend(const Options& options) {
  auto shared = std::make_shared<Shared>();
  shared->options = options;
  shared->target = Driver::get().device().target;
  shared->target.exclusive = options.exclusive;
  shared->memory = device_memory(options.allocator);
  shared->workspaces = std::make_shared<Workspaces>(shared->memory);
  if (!options.plan.tuning) shared->options.plan.tuning = Tuning::process();
  return std::make_unique<Cuda>(std::move(shared));
}

}  // namespace coda::cuda
