// coda/cuda/variants.cpp: from the tensors of a call to a launcher with its arguments filled in.
#include "coda/cuda/variants.h"

#include <algorithm>
#include <future>
#include <semaphore>

#include "coda/core/error.h"
#include "coda/core/flags.h"
#include "coda/cuda/choose.h"
#include "coda/cuda/nvtx.h"

namespace coda::cuda {

void* Workspaces::get(coda::Stream stream, std::int64_t bytes, const std::string& program) {
  const std::lock_guard lock(mutex_);
  std::vector<Block>& blocks = blocks_[stream.handle];
  if (blocks.empty() || blocks.back().bytes < bytes) {
    blocks.push_back({allocate_block(memory_, bytes, program), bytes});
  }
  return blocks.back().memory.get();
}

Variants::Variants(Program program, Sizes sizes, std::vector<Layout> expected, Make make,
                   std::shared_ptr<Workspaces> workspaces)
    : program_(std::move(program)),
      sizes_(std::move(sizes)),
      make_(std::move(make)),
      workspaces_(std::move(workspaces)),
      expected_(variant(expected)) {}

void Variants::run(std::span<const Tensor> params, std::span<const Tensor> results,
                   std::span<std::byte> scratch, coda::Stream stream) {
  const ProfilerRange step(program_.name().c_str());
  thread_local CallKey key;
  set_key(key, params, results, scratch.data());
  key.push_back(reinterpret_cast<std::int64_t>(stream.handle));
  std::shared_ptr<const Prepared> call = calls_.find(key);
  if (!call) {
    call = prepare(params, results, scratch, stream);
    calls_.insert(key, call);
  }
  call->launcher->launch(call->arguments, stream);
}

std::shared_ptr<const Prepared> Variants::prepare(std::span<const Tensor> params,
                                                  std::span<const Tensor> results,
                                                  std::span<std::byte> scratch,
                                                  coda::Stream stream) {
  auto call = std::make_shared<Prepared>();
  call->launcher = launcher_for(params, results);
  const auto given = static_cast<std::int64_t>(scratch.size());
  if (given < plan().workspace) {
    throw InternalError("program " + program_.name() + " was given " + std::to_string(given) +
                        " bytes of scratch and needs " + std::to_string(plan().workspace));
  }
  const std::int64_t needed = call->launcher->plan().workspace;
  void* workspace = scratch.data();
  if (needed > given) workspace = workspaces_->get(stream, needed, program_.name());
  std::vector<void*> addresses;
  for (const Tensor& tensor : params) addresses.push_back(tensor.data);
  for (const Tensor& tensor : results) addresses.push_back(tensor.data);
  call->arguments = call->launcher->bind(addresses, workspace);
  return call;
}

std::shared_ptr<const Launcher> Variants::launcher_for(std::span<const Tensor> params,
                                                       std::span<const Tensor> results) {
  thread_local CallKey key;
  set_layout_key(key, params, results);
  {
    const std::lock_guard lock(seen_mutex_);
    const auto found = std::ranges::find(seen_, key, &Seen::key);
    if (found != seen_.end()) return found->launcher;
  }
  auto launcher =
      variant(canonical_layouts(program_, sizes_, layouts_of(program_, sizes_, params, results)));
  const std::lock_guard lock(seen_mutex_);
  if (seen_.size() == kMostSeen) seen_.erase(seen_.begin());
  seen_.push_back({key, launcher});
  return launcher;
}

std::shared_ptr<const Launcher> Variants::variant(const std::vector<Layout>& layouts) {
  // NOTE: held while it compiles: who needs the same variant waits for it, and nobody compiles
  // twice. Runs that were prepared before do not come here.
  const std::lock_guard lock(mutex_);
  for (const auto& [known, launcher] : variants_) {
    if (known == layouts) return launcher;
  }
  variants_.emplace_back(layouts, make_(layouts));
  return variants_.back().second;
}

std::vector<Layout> expected_layouts(const Backend::Request& request, const Sizes& sizes) {
  const Program& program = request.program.program();
  std::vector<Layout> layouts = dense_layouts(program, sizes);
  if (request.params.size() + request.results.size() > 0) {
    // Nowhere is aligned to everything.
    layouts = layouts_of(program, sizes, request.params, request.results);
  }
  return canonical_layouts(program, sizes, std::move(layouts));
}

std::vector<Kernel> compile_beside(std::span<const Backend::Request> requests,
                                   const std::function<Kernel(const Backend::Request&)>& compile) {
  // NOTE: not the process's pool: it serves one call at a time, and schedules that are compiled by
  // two threads would wait for one another.
  static std::counting_semaphore<> processors(flags::threads());
  std::vector<std::future<Kernel>> made;
  for (const Backend::Request& request : requests) {
    made.push_back(std::async(std::launch::async, [&] {
      processors.acquire();
      struct Release {
        ~Release() { processors.release(); }
      } release;
      return compile(request);
    }));
  }
  std::vector<Kernel> kernels;
  for (std::future<Kernel>& each : made) kernels.push_back(each.get());
  return kernels;
}

Kernel kernel_of(std::shared_ptr<Variants> variants) {
  const Plan& plan = variants->plan();
  std::string note = plan.path;
  for (const std::string& each : plan.notes) note += "; " + each;
  const auto bytes = static_cast<std::size_t>(plan.workspace);
  return Kernel([variants = std::move(variants)](
                    auto params, auto results, auto scratch,
                    coda::Stream stream) { variants->run(params, results, scratch, stream); },
                bytes, std::move(note));
}

std::vector<DType> dtypes_of(const Program& program) {
  std::vector<DType> dtypes;
  for (const Param& param : program.params()) dtypes.push_back(param.type.dtype);
  for (const coda::Result& result : program.results()) dtypes.push_back(result.type.dtype);
  return dtypes;
}

}  // namespace coda::cuda
