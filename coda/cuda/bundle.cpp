// coda/cuda/bundle.cpp: what a schedule needs is recorded by a backend that only plans; what was
// recorded runs on one that only looks up.
#include "coda/cuda/bundle.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "coda/backend/execute.h"
#include "coda/check/bind.h"
#include "coda/core/error.h"
#include "coda/core/file.h"
#include "coda/core/sha256.h"
#include "coda/cuda/cache.h"
#include "coda/cuda/driver.h"
#include "coda/cuda/memory.h"
#include "coda/cuda/plan_json.h"
#include "coda/cuda/variants.h"
#include "coda/program/rename.h"
#include "coda/program/text.h"

namespace coda::cuda {
namespace {

using nlohmann::json;

constexpr std::string_view kFamily = "coda bundle ";
constexpr std::string_view kMagic = "coda bundle 1\n";
constexpr std::size_t kDigest = 64;  // hexadecimal digits
constexpr std::size_t kLength = 16;  // decimal digits
constexpr const char* kAgain = "make it again with coda build";

std::string key_of(const Program& program, const Sizes& sizes) {
  std::string key = print(nameless(program));
  for (const auto& [name, size] : sizes) key += " " + name + "=" + std::to_string(size);
  return key;
}

std::string sizes_text(const Sizes& sizes) {
  std::string text;
  for (const auto& [name, size] : sizes) {
    text += (text.empty() ? "" : " ") + name + "=" + std::to_string(size);
  }
  return text;
}

std::size_t tensors_of(const Program& program) {
  return program.params().size() + program.results().size();
}

json layouts_json(const std::vector<Layout>& layouts) {
  json out = json::array();
  for (const Layout& layout : layouts) out.push_back({layout.strides, layout.alignment});
  return out;
}

// ---- building ----

// Plans and compiles what it is asked for, and runs nothing.
class Recorder final : public Backend {
 public:
  Recorder(Bundle& to, const PlanOptions& options) : to_(to), options_(options) {}

  std::string_view name() const override { return "cuda"; }
  std::optional<std::string> refusal(const Checked&, const Sizes&) const override {
    return std::nullopt;
  }

  Kernel compile(const Checked& checked, const Sizes& given) const override {
    return compile({.program = checked, .sizes = given});
  }
  std::vector<Kernel> compile_all(std::span<const Request> requests) const override {
    return compile_beside(requests, [&](const Request& request) { return compile(request); });
  }
  std::int64_t row_pitch(std::int64_t bytes) const override { return aligned_pitch(bytes); }

 private:
  Kernel compile(const Request& request) const {
    const Program& program = request.program.program();
    Bundle::Kernel kernel{.program = program, .sizes = bind_sizes(program, request.sizes)};
    kernel.layouts = expected_layouts(request, kernel.sizes);
    kernel.plan = choose_plan(request.program, kernel.sizes, kernel.layouts, to_.target, options_);
    std::string cubin;
    if (!kernel.plan.launches.empty()) {
      const Cached cached = Cache::process().get(kernel.plan.name, kernel.plan.page, device_files(),
                                                 {.architecture = to_.target.architecture});
      if (!cached.note.empty()) kernel.plan.notes.push_back(cached.note);
      cubin = cached.kernel->cubin;
    }
    kernel.plan.page.clear();
    const auto bytes = static_cast<std::size_t>(kernel.plan.workspace);
    const coda::Kernel::Run nothing = [](auto&&...) {
    };
    coda::Kernel stub(nothing, bytes, kernel.plan.path);
    const std::lock_guard lock(mutex_);
    const auto known = std::ranges::find(to_.cubins, cubin);
    kernel.cubin = static_cast<std::size_t>(known - to_.cubins.begin());
    if (known == to_.cubins.end()) to_.cubins.push_back(std::move(cubin));
    to_.kernels.push_back(std::move(kernel));
    return stub;
  }

  Bundle& to_;
  const PlanOptions& options_;
  mutable std::mutex mutex_;
};

// ---- running ----

class Bundled final : public Backend {
 public:
  Bundled(std::shared_ptr<const Bundle> bundle, const Allocator& allocator)
      : shared_(std::make_shared<Shared>()) {
    shared_->bundle = std::move(bundle);
    shared_->memory = device_memory(allocator);
    shared_->workspaces = std::make_shared<Workspaces>(shared_->memory);
    shared_->pages.resize(shared_->bundle->cubins.size());
    for (std::size_t i = 0; i < shared_->bundle->kernels.size(); ++i) {
      const Bundle::Kernel& kernel = shared_->bundle->kernels[i];
      shared_->places.emplace(key_of(kernel.program, kernel.sizes), i);
    }
  }

  std::string_view name() const override { return "cuda"; }

  std::optional<std::string> refusal(const Checked& checked, const Sizes& given) const override {
    const Request request{.program = checked, .sizes = given};
    const Program& program = checked.program();
    const Sizes sizes = bind_sizes(program, given);
    if (find(request, sizes) != nullptr) return std::nullopt;
    return "the bundle of " + shared_->bundle->schedule.name + " holds no kernel for " +
           program.name() + " at " + sizes_text(sizes) + "; it was built for " +
           sizes_text(shared_->bundle->sizes);
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
  static constexpr const char* kBuild = "build one for it: coda build FILE --size … -o BUNDLE";

  // Null: there is none.
  const Bundle::Kernel* find(const Request& request, const Sizes& sizes) const {
    const Program& program = request.program.program();
    const auto [first, last] = shared_->places.equal_range(key_of(program, sizes));
    if (first == last) return nullptr;
    const std::vector<Layout> layouts = expected_layouts(request, sizes);
    const auto found = std::find_if(first, last, [&](const auto& place) {
      return shared_->bundle->kernels[place.second].layouts == layouts;
    });
    return found == last ? nullptr : &shared_->bundle->kernels[found->second];
  }

  Kernel compile(const Request& request) const {
    const Program& program = request.program.program();
    const Sizes sizes = bind_sizes(program, request.sizes);
    const Bundle::Kernel* kernel = find(request, sizes);
    if (kernel == nullptr) {
      const auto why = refusal(request.program, sizes);
      throw Unsupported(why ? *why : "the bundle was built for other strides", kBuild);
    }
    Variants::Make make = [shared = shared_, kernel](const std::vector<Layout>& layouts) {
      if (layouts != kernel->layouts) {
        throw Unsupported("kernel " + kernel->plan.name + " of the bundle of " +
                              shared->bundle->schedule.name +
                              " was built for dense, 16-byte aligned tensors",
                          "copy the tensors into such ones");
      }
      return std::make_shared<const Launcher>(kernel->plan, dtypes_of(kernel->program),
                                              shared->page(*kernel), shared->memory);
    };
    return kernel_of(std::make_shared<Variants>(program, sizes, kernel->layouts, std::move(make),
                                                shared_->workspaces));
  }

  struct Shared {
    std::shared_ptr<const Bundle> bundle;
    Memory memory;
    std::shared_ptr<Workspaces> workspaces;
    std::multimap<std::string, std::size_t> places;  // of kernels
    std::mutex mutex;
    std::vector<std::shared_ptr<const LoadedPage>> pages;  // as `cubins`; null: not loaded yet

    std::shared_ptr<const LoadedPage> page(const Bundle::Kernel& kernel) {
      if (kernel.plan.launches.empty()) return nullptr;
      const std::lock_guard lock(mutex);
      std::shared_ptr<const LoadedPage>& page = pages.at(kernel.cubin);
      if (!page) {
        page = std::make_shared<const LoadedPage>(kernel.plan.name, bundle->cubins[kernel.cubin]);
      }
      return page;
    }
  };
  std::shared_ptr<Shared> shared_;
};

[[noreturn]] void damaged(const std::string& path, const std::string& why) {
  throw ProgramError("the bundle " + path + " is damaged: " + why,
                     "copy it again, or " + std::string(kAgain));
}

Bundle from_manifest(const json& manifest, std::string_view cubins, const std::string& path) {
  Bundle bundle;
  bundle.version = manifest.at("coda");
  bundle.toolkit = manifest.at("toolkit");
  bundle.target = target_from_json(manifest.at("target"));
  bundle.sizes = manifest.at("sizes");
  const coda::Module module = parse(manifest.at("text").get<std::string>(), path);
  const Schedule* schedule = module.find_schedule(manifest.at("schedule").get<std::string>());
  if (schedule == nullptr) damaged(path, "it holds no schedule");
  bundle.schedule = *schedule;
  for (const json& each : manifest.at("cubins")) {
    const auto bytes = each.get<std::size_t>();
    if (bytes > cubins.size()) damaged(path, "it ends before its last kernel");
    bundle.cubins.emplace_back(cubins.substr(0, bytes));
    cubins.remove_prefix(bytes);
  }
  for (const json& each : manifest.at("kernels")) {
    Bundle::Kernel kernel{
        .program = parse(each.at("text").get<std::string>(), path).find(""),
        .sizes = each.at("sizes"),
        .cubin = each.at("cubin"),
    };
    for (const json& layout : each.at("layouts")) {
      kernel.layouts.push_back({.strides = layout.at(0), .alignment = layout.at(1)});
    }
    if (kernel.layouts.size() != tensors_of(kernel.program)) damaged(path, "layouts are missing");
    kernel.plan = plan_from_json(each.at("plan"), tensors_of(kernel.program));
    if (kernel.cubin >= bundle.cubins.size()) damaged(path, "a kernel without a cubin");
    bundle.kernels.push_back(std::move(kernel));
  }
  return bundle;
}

}  // namespace

Bundle build_bundle(const Schedule& schedule, const Sizes& sizes, const Target& target,
                    const PlanOptions& options) {
  const Nvrtc compiler = nvrtc();
  Bundle bundle{.version = CODA_VERSION,
                .toolkit = compiler.version,
                .target = target,
                .schedule = schedule,
                .sizes = sizes};
  const Recorder recorder(bundle, options);
  const Executable planned(schedule, recorder, sizes);
  // As they came from several threads.
  std::ranges::sort(bundle.kernels, {}, [](const Bundle::Kernel& kernel) {
    return std::pair(kernel.program.name(), sizes_text(kernel.sizes));
  });
  return bundle;
}

void write_bundle(const Bundle& bundle, const std::string& path) {
  json kernels = json::array(), cubins = json::array();
  for (const Bundle::Kernel& kernel : bundle.kernels) {
    kernels.push_back({{"text", print(kernel.program)},
                       {"sizes", kernel.sizes},
                       {"layouts", layouts_json(kernel.layouts)},
                       {"plan", plan_json(kernel.plan)},
                       {"cubin", kernel.cubin}});
  }
  for (const std::string& cubin : bundle.cubins) cubins.push_back(cubin.size());
  const std::string manifest = json{
      {"coda", bundle.version},
      {"toolkit", bundle.toolkit},
      {"target", target_json(bundle.target)},
      {"schedule", bundle.schedule.name},
      {"text", print(bundle.schedule)},
      {"sizes", bundle.sizes},
      {"kernels", std::move(kernels)},
      {"cubins",
       std::move(cubins)}}.dump();
  std::string length = std::to_string(manifest.size());
  length.insert(0, kLength - length.size(), '0');
  std::string rest = length + manifest;
  for (const std::string& cubin : bundle.cubins) rest += cubin;
  OutputFile file(path);
  const std::string header = std::string(kMagic) + hex(sha256(rest));
  file.write(header.data(), header.size());
  file.write(rest.data(), rest.size());
  file.commit();
}

bool is_bundle(const std::string& path) {
  try {
    const InputFile file(path);
    if (file.bytes() < static_cast<std::int64_t>(kFamily.size())) return false;
    std::string start(kFamily.size(), '\0');
    file.read(0, start.data(), start.size());
    return start == kFamily;
  } catch (const ProgramError&) {
    return false;
  }
}

Bundle read_bundle(const std::string& path) {
  const std::string text = read_file(path);
  if (!text.starts_with(kFamily)) {
    throw ProgramError(path + " is no bundle", "name a file that coda build has written");
  }
  if (!text.starts_with(kMagic)) {
    throw ProgramError("the bundle " + path + " is of another format than this coda reads", kAgain);
  }
  const std::string_view all = text;
  const std::string_view digest = all.substr(kMagic.size()).substr(0, kDigest);
  if (digest.size() < kDigest) damaged(path, "it is cut off");
  const std::string_view rest = all.substr(kMagic.size() + kDigest);
  if (digest != hex(sha256(rest))) damaged(path, "its checksum is wrong");
  // NOTE: what has the right checksum was written by somebody's coda build.
  try {
    std::size_t length = 0;
    std::from_chars(rest.data(), rest.data() + std::min(rest.size(), kLength), length);
    if (rest.size() < kLength || rest.size() - kLength < length) damaged(path, "it is cut off");
    const json manifest = json::parse(rest.substr(kLength, length));
    return from_manifest(manifest, rest.substr(kLength + length), path);
  } catch (const json::exception& error) {
    damaged(path, error.what());
  }
}

std::optional<std::string> bundle_refusal(const Bundle& bundle, const Target& device) {
  if (bundle.target == device) return std::nullopt;
  const auto text = [](const Target& target) {
    return target.architecture + " with " + std::to_string(target.processors) + " processors and " +
           readable_bytes(target.shared) + " of shared memory a block";
  };
  return "the bundle of " + bundle.schedule.name + " was built for " + text(bundle.target) +
         ", and this GPU is " + text(device);
}

std::unique_ptr<Backend> bundle_backend(std::shared_ptr<const Bundle> bundle,
                                        const Allocator& allocator) {
  if (const auto why = bundle_refusal(*bundle, Driver::get().device().target)) {
    throw Unsupported(*why, "build it on this machine: coda build");
  }
  return std::make_unique<Bundled>(std::move(bundle), allocator);
}

OpenBundle open_bundle(const std::string& path, const Allocator& allocator) {
  auto bundle = std::make_shared<const Bundle>(read_bundle(path));
  auto backend = bundle_backend(bundle, allocator);
  return {.bundle = std::move(bundle), .backend = std::move(backend)};
}

}  // namespace coda::cuda
