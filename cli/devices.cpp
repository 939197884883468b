// cli/devices.cpp: runs programs and blocks on a backend, or by the reference.
#include "cli/devices.h"

#include <optional>

#include "coda/backend/execute.h"
#include "coda/backend/guarded.h"
#include "coda/cpu/cpu.h"
#include "coda/cuda/cuda.h"
#include "coda/cuda/driver.h"
#include "coda/cuda/memory.h"
#include "coda/reference/reference.h"
#include "coda/rewrite/ledger.h"
#include "coda/rewrite/rewrite.h"

namespace coda {

std::vector<std::string> device_names() {
  return {"cpu", "cuda", "reference", "exact"};
}

namespace {

// Memory that kernels take beside the caller's is poisoned, as the caller's is.
std::unique_ptr<Backend> gpu_backend(const cuda::PlanOptions& plan) {
  return cuda::backend({.plan = plan, .allocator = cuda::poisoned_allocator()});
}

}  // namespace

std::unique_ptr<Backend> device_backend(const std::string& name, const cuda::PlanOptions& plan) {
  if (!plan.tile.empty() && name != "cuda") {
    throw ProgramError(
        "--tile " + plan.tile + " pins a kernel of the GPU, but the device is " + name,
        "give --device cuda too, or leave out --tile");
  }
  if (name == "cpu") return cpu::backend();
  if (name == "cuda") {
    if (const auto problem = cuda::Driver::problem()) {
      throw Unsupported("skipped: no GPU: " + *problem, "");
    }
    return gpu_backend(plan);
  }
  if (name == "reference") return reference::backend();
  throw ProgramError("`" + name + "` is not a backend",
                     "give --device cpu, --device cuda or --device reference");
}

Executor device_executor(const std::string& device, std::optional<Schedule> schedule,
                         const std::string& tile) {
  if (!tile.empty() && device != "cuda") device_backend(device, {tile});  // says why not
  if (device == "exact" || (device == "reference" && !schedule)) {
    const auto mode = device == "exact" ? reference::Mode::exact : reference::Mode::rounded;
    return [mode](const Program& program, const Sizes& sizes, std::span<const Tensor> params,
                  std::span<const Tensor> results) {
      const auto arrays = reference::evaluate(program, sizes, params, mode, results);
      for (std::size_t i = 0; i < arrays.size(); ++i) {
        reference::store(arrays[i], results[i], sizes);
      }
    };
  }
  struct Last {
    std::unique_ptr<Backend> backend;
    std::optional<Schedule> given;
    Program program;
    Sizes sizes;
    std::optional<Executable> executable;
    OwnedTensor scratch;  // on the host
    std::string tile;
  };
  auto last = std::make_shared<Last>();
  last->backend = device_backend(device, {tile});
  last->tile = tile;
  last->given = std::move(schedule);
  return [last, on_host = device != "cuda"](const Program& program, const Sizes& sizes,
                                            std::span<const Tensor> params,
                                            std::span<const Tensor> results) {
    if (!last->executable || last->sizes != sizes || !(last->program == program)) {
      const bool is_block = program.kind() == Program::Kind::block;
      const Schedule schedule = last->given ? *last->given
                                : is_block  ? rewrite(program).forward.schedule
                                            : as_schedule(program);
      if (!last->tile.empty() && (is_block || last->given)) {
        last->backend =
            gpu_backend({.tile = last->tile, .elsewhere = cuda::PlanOptions::Elsewhere::choose});
      }
      last->executable.emplace(schedule, *last->backend, sizes);
      last->program = program;
      last->sizes = sizes;
      const auto bytes = static_cast<std::int64_t>(last->executable->scratch_bytes());
      if (on_host) last->scratch = OwnedTensor(DType::u8, {bytes});
    }
    const Executable& executable = *last->executable;
    if (on_host) {
      executable.run(params, results, {last->scratch.as<std::byte>(), last->scratch.bytes()});
      return;
    }
    run_guarded(last->backend->memory(), program.name(), params, results,
                executable.scratch_bytes(),
                [&](auto inside_params, auto inside_results, auto scratch) {
                  executable.run(inside_params, inside_results, scratch);
                });
  };
}

Executor bundle_executor(std::shared_ptr<const cuda::Bundle> bundle) {
  struct Opened {
    std::unique_ptr<Backend> backend;
    std::optional<Executable> executable;
  };
  auto opened = std::make_shared<Opened>();
  opened->backend = cuda::bundle_backend(bundle);
  opened->executable.emplace(bundle->schedule, *opened->backend, bundle->sizes);
  return [opened](const Program& program, const Sizes&, std::span<const Tensor> params,
                  std::span<const Tensor> results) {
    run_guarded(opened->backend->memory(), program.name(), params, results,
                opened->executable->scratch_bytes(),
                [&](auto inside_params, auto inside_results, auto scratch) {
                  opened->executable->run(inside_params, inside_results, scratch);
                });
  };
}

}  // namespace coda
