// coda/cuda/backend.cpp: a program compiled for dense tensors, and again for the layouts that come.
//
// A run that was seen before (same addresses, same strides) is a look into a table and the launch.
// Else the tensors' layouts choose a variant, made at the first run that needs it.
#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "coda/check/bind.h"
#include "coda/core/error.h"
#include "coda/core/pool.h"
#include "coda/cuda/cuda.h"
#include "coda/cuda/driver.h"
#include "coda/cuda/launch.h"
#include "coda/cuda/memory.h"

namespace coda::cuda {
namespace {

// What all kernels of a backend share. They outlive the backend.
struct Shared {
  Options options;
  Target target;
  Memory memory;
  Pages pages;
};

class CompiledProgram {
 public:
  CompiledProgram(std::shared_ptr<Shared> shared, const Checked& checked, const Sizes& sizes)
      : shared_(std::move(shared)),
        checked_(checked),
        sizes_(sizes),
        dense_(
            canonical_layouts(checked.program(), sizes, dense_layouts(checked.program(), sizes))) {
    for (const Param& param : program().params()) dtypes_.push_back(param.type.dtype);
    for (const auto& result : program().results()) dtypes_.push_back(result.type.dtype);
    const auto dense = variant(dense_);
    const Plan& plan = dense->plan();
    note_ = plan.path;
    for (const std::string& note : plan.notes) note_ += "; " + note;
    scratch_bytes_ = std::max(plan.workspace, general_workspace());
  }

  const Program& program() const { return checked_.program(); }
  std::size_t scratch_bytes() const { return static_cast<std::size_t>(*scratch_bytes_); }
  const std::string& note() const { return note_; }

  void run(std::span<const Tensor> params, std::span<const Tensor> results,
           std::span<std::byte> scratch, coda::Stream stream) {
    thread_local CallKey key;
    set_key(key, params, results, scratch.data());
    std::shared_ptr<const Prepared> call = calls_.find(key);
    if (!call) {
      call = prepare(params, results, scratch);
      calls_.insert(key, call);
    }
    call->launcher->launch(call->arguments, stream);
  }

 private:
  // What the predicated path needs, in which strided tensors may end.
  std::int64_t general_workspace() const {
    try {
      return choose_plan(checked_, sizes_, dense_, shared_->target, {.tile = "general"}).workspace;
    } catch (const Unsupported&) {
      return 0;
    }
  }

  std::shared_ptr<const Prepared> prepare(std::span<const Tensor> params,
                                          std::span<const Tensor> results,
                                          std::span<std::byte> scratch) {
    auto call = std::make_shared<Prepared>();
    call->launcher = launcher_for(params, results);
    if (static_cast<std::int64_t>(scratch.size()) < call->launcher->plan().workspace) {
      throw InternalError("program " + program().name() + " was given " +
                          std::to_string(scratch.size()) + " bytes of scratch and needs " +
                          std::to_string(call->launcher->plan().workspace));
    }
    std::vector<void*> addresses;
    for (const Tensor& tensor : params) addresses.push_back(tensor.data);
    for (const Tensor& tensor : results) addresses.push_back(tensor.data);
    call->arguments = call->launcher->bind(addresses, scratch.data());
    return call;
  }

  std::shared_ptr<const Launcher> launcher_for(std::span<const Tensor> params,
                                               std::span<const Tensor> results) {
    thread_local CallKey key;
    set_layout_key(key, params, results);
    {
      const std::lock_guard lock(seen_mutex_);
      const auto found = std::ranges::find(seen_, key, &Seen::key);
      if (found != seen_.end()) return found->launcher;
    }
    auto launcher = variant(
        canonical_layouts(program(), sizes_, layouts_of(program(), sizes_, params, results)));
    const std::lock_guard lock(seen_mutex_);
    if (seen_.size() == kMostSeen) seen_.erase(seen_.begin());
    seen_.push_back({key, launcher});
    return launcher;
  }

  std::shared_ptr<const Launcher> variant(const std::vector<Layout>& layouts) {
    // NOTE: held while it compiles: who needs the same variant waits for it, and nobody compiles
    // twice. Runs that were prepared before do not come here.
    const std::lock_guard lock(mutex_);
    for (const auto& [known, launcher] : variants_) {
      if (known == layouts) return launcher;
    }
    Plan plan = choose_plan(checked_, sizes_, layouts, shared_->target, shared_->options.plan);
    if (scratch_bytes_ && plan.workspace > *scratch_bytes_) {
      std::string why = plan.path + " needs more scratch for these strides than for dense tensors";
      plan = choose_plan(checked_, sizes_, layouts, shared_->target, {.tile = "general"});
      plan.notes.push_back(std::move(why));
    }
    variants_.emplace_back(
        layouts, std::make_shared<const Launcher>(std::move(plan), dtypes_, shared_->target,
                                                  shared_->pages, shared_->memory));
    return variants_.back().second;
  }

  std::shared_ptr<Shared> shared_;
  Checked checked_;
  Sizes sizes_;
  std::vector<Layout> dense_;
  std::vector<DType> dtypes_;
  std::string note_;
  std::optional<std::int64_t> scratch_bytes_;  // set once the dense variant is there
  std::mutex mutex_;
  std::vector<std::pair<std::vector<Layout>, std::shared_ptr<const Launcher>>> variants_;
  struct Seen {
    CallKey key;  // of the layouts as they came
    std::shared_ptr<const Launcher> launcher;
  };
  static constexpr std::size_t kMostSeen = 64;
  std::mutex seen_mutex_;
  std::vector<Seen> seen_;
  PreparedCalls calls_;
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
    const Sizes sizes = bind_sizes(checked.program(), given);
    auto compiled = std::make_shared<CompiledProgram>(shared_, checked, sizes);
    const std::size_t bytes = compiled->scratch_bytes();
    std::string note = compiled->note();
    return Kernel([compiled = std::move(compiled)](
                      auto params, auto results, auto scratch,
                      coda::Stream stream) { compiled->run(params, results, scratch, stream); },
                  bytes, std::move(note));
  }

  std::vector<Kernel> compile_all(std::span<const Request> requests) const override {
    std::vector<std::optional<Kernel>> made(requests.size());
    parallel_for(static_cast<std::int64_t>(requests.size()), 0, [&](std::int64_t i, int) {
      const Request& request = requests[static_cast<std::size_t>(i)];
      made[static_cast<std::size_t>(i)].emplace(compile(request.program, request.sizes));
    });
    std::vector<Kernel> kernels;
    for (std::optional<Kernel>& each : made) kernels.push_back(*std::move(each));
    return kernels;
  }

  Memory memory() const override { return shared_->memory; }

 private:
  std::shared_ptr<Shared> shared_;
};

}  // namespace

std::unique_ptr<Backend> backend(const Options& options) {
  auto shared = std::make_shared<Shared>();
  shared->options = options;
  shared->target = Driver::get().device().target;
  shared->memory = device_memory(options.allocator);
  return std::make_unique<Cuda>(std::move(shared));
}

}  // namespace coda::cuda
