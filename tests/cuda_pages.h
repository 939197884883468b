// tests/cuda_pages.h: plans of the predicated path, run on the host.
//
// The host's compiler can compile their pages: many pages a library. Most kernels are plain loops,
// one thread an element, and a launch is a loop over its threads; those with shared memory run with
// barriers.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "coda/backend/execute.h"
#include "coda/check/bind.h"
#include "coda/check/check.h"
#include "coda/core/error.h"
#include "coda/core/file.h"
#include "coda/cuda/general.h"
#include "coda/reference/verify.h"
#include "coda/rewrite/rewrite.h"
#include "tests/host_library.h"

namespace coda::cuda {

// Pages, compiled many at once; each is known by its text.
class HostPages {
 public:
  using Run = bool (*)(const void* words, const long long* grid, int block);

  HostPages() : folder_(std::filesystem::temp_directory_path() / unique_name()) {
    std::filesystem::create_directories(folder_);
  }
  ~HostPages() { std::filesystem::remove_all(folder_); }
  HostPages(const HostPages&) = delete;

  static HostPages& all() {
    static HostPages pages;
    return pages;
  }

  // To be compiled with the next run.
  void want(const Plan& plan) {
    if (plan.launches.empty() || !known_.emplace(plan.page, plans_.size()).second) return;
    plans_.push_back(plan);
  }
  std::size_t count() const { return plans_.size(); }

  void compile() {
    if (compiled_ == plans_.size()) return;
    const std::string stem = folder_ / ("pages_" + std::to_string(libraries_.size()));
    std::string text = "#include \"tests/cuda_blocks_on_host.h\"\n";
    for (; compiled_ < plans_.size(); ++compiled_) {
      text += page(compiled_) + runners(compiled_);
    }
    write_file(stem + ".cpp", text);
    libraries_.push_back(testing::host_library(stem, "-O1"));
  }

  Run find(const Plan& plan, const std::string& entry) {
    want(plan);
    compile();
    const std::string name = prefix(known_.at(plan.page)) + "run_" + entry;
    Run& run = runs_[name];
    for (void* library : libraries_) {
      if (run == nullptr) run = reinterpret_cast<Run>(dlsym(library, name.c_str()));
    }
    if (run == nullptr) throw InternalError("no kernel " + name);
    return run;
  }

  // Page `index` in a namespace of its own, its kernels under names of their own.
  std::string page(std::size_t index) const {
    const std::string own = prefix(index);
    std::string includes, rest;
    const std::string& text = plans_[index].page;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = std::min(text.find('\n', at), text.size() - 1) + 1;
      const std::string line = text.substr(at, end - at);
      (line.starts_with("#include") ? includes : rest) += line;
      at = end;
    }
    const std::string mark = "extern \"C\" __global__ void __launch_bounds__(256, ";
    for (std::size_t at = 0; (at = rest.find(mark, at)) != std::string::npos;) {
      at += mark.size() + std::string("2) ").size();
      rest.insert(at, own);
    }
    return includes + "namespace " + own + "page {\n" + rest + "}\n";
  }

 private:
  static std::string unique_name() { return "coda_pages_" + std::to_string(::getpid()); }
  static std::string prefix(std::size_t page) { return "p" + std::to_string(page) + "_"; }

  std::string runners(std::size_t index) const {
    const std::string own = prefix(index);
    std::set<std::string> entries;
    for (const Launch& launch : plans_[index].launches) entries.insert(launch.entry);
    std::string text;
    for (const std::string& entry : entries) {
      const std::string& page = plans_[index].page;
      const std::size_t body = page.find(" " + entry + "(");
      const bool barriers = page.substr(body, page.find("\n}\n", body) - body).find("__shared__") !=
                            std::string::npos;
      const std::string call = own + "page::" + own + entry + "(*static_cast<const " + own +
                               "page::Arguments_" + entry + "*>(words));";
      text += "extern \"C\" bool " + own + "run_" + entry +
              "(const void* words, const long long* grid, int block) {\n" +
              (barriers ? "  return coda::host::run(grid, block, [&] { " + call + " });\n}\n"
                        : "  gridDim.x = unsigned(grid[0]);\n  blockDim.x = unsigned(block);\n"
                          "  for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x)\n"
                          "    for (threadIdx.x = 0; threadIdx.x < blockDim.x; ++threadIdx.x)\n"
                          "      " +
                              call + "\n  return true;\n}\n");
    }
    return text;
  }

  std::filesystem::path folder_;
  std::vector<Plan> plans_;
  std::map<std::string, std::size_t> known_;  // page → number
  std::size_t compiled_ = 0;
  std::vector<void*> libraries_;
  std::map<std::string, Run> runs_;
};

inline void launch_on_host(const Plan& plan, std::span<const Tensor> params,
                           std::span<const Tensor> results) {
  // All ones: a NaN to whoever reads workspace before writing it; and a fence behind.
  constexpr std::size_t kFence = 256;
  const auto bytes = static_cast<std::size_t>(plan.workspace);
  std::vector<std::uint64_t> workspace((bytes + kFence) / 8 + 1, ~std::uint64_t{0});
  for (const Launch& launch : plan.launches) {
    std::vector<std::int64_t> words;
    for (const Word& word : launch.words) {
      const auto t = static_cast<std::size_t>(word.tensor);
      switch (word.kind) {
        case Word::Kind::number:
          words.push_back(word.value);
          break;
        case Word::Kind::pointer: {
          const Tensor& tensor = t < params.size() ? params[t] : results[t - params.size()];
          words.push_back(reinterpret_cast<std::int64_t>(tensor.data) +
                          word.value * static_cast<std::int64_t>(size_of(tensor.dtype)));
          break;
        }
        case Word::Kind::workspace:
          words.push_back(reinterpret_cast<std::int64_t>(workspace.data()) + word.value);
          break;
        case Word::Kind::table:
          throw InternalError("the predicated path has no tables");
      }
    }
    const long long grid[] = {launch.grid[0], launch.grid[1], launch.grid[2]};
    if (!HostPages::all().find(plan, launch.entry)(words.data(), grid, launch.block)) {
      throw InternalError("threads of " + launch.entry + " wait for ever");
    }
  }
  for (std::size_t i = (bytes + 7) / 8; i < workspace.size(); ++i) {
    ASSERT_EQ(workspace[i], ~std::uint64_t{0}) << plan.name << " writes past its workspace";
  }
}

class OnHost final : public Backend {
 public:
  std::string_view name() const override { return "general, on the host"; }
  std::optional<std::string> refusal(const Checked&, const Sizes&) const override { return {}; }
  Kernel compile(const Checked& checked, const Sizes& sizes) const override {
    HostPages::all().want(
        plan_general(checked, sizes, dense_layouts(checked.program(), sizes), {}));
    const auto run = [checked, sizes](std::span<const Tensor> params,
                                      std::span<const Tensor> results, std::span<std::byte>) {
      const std::vector<Layout> layouts = layouts_of(checked.program(), sizes, params, results);
      launch_on_host(plan_general(checked, sizes, layouts, {}), params, results);
    };
    return Kernel(Kernel::HostRun(run), 0, "");
  }
};

// Programs as they are, blocks as their schedules; prepared first, so that pages are compiled
// together.
class Sweep {
 public:
  void add(const std::string& label, const Program& program, const Sizes& given,
           const VerifyOptions& options) {
    static const OnHost backend;
    const Sizes sizes = bind_sizes(program, given);
    Entry entry{label, program, sizes, options, nullptr, nullptr};
    if (program.kind() == Program::Kind::block) {
      entry.executable =
          std::make_shared<Executable>(rewrite(program).forward.schedule, backend, sizes);
    } else {
      entry.kernel = std::make_shared<Kernel>(backend.compile(check(program), sizes));
    }
    entries_.push_back(std::move(entry));
  }

  // Two seeds are a quick look: only what fails it is judged by as many as the contract asks for.
  void run() {
    HostPages::all().compile();
    const std::size_t pages = HostPages::all().count();
    for (const Entry& entry : entries_) {
      SCOPED_TRACE(entry.label);
      VerifyOptions options = entry.options;
      options.seeds = 2;
      if (passed(verify(entry.program, entry.sizes, executor(entry), options))) continue;
      options.seeds = 16;
      options.seed += 100;
      const std::vector<Verdict> verdicts =
          verify(entry.program, entry.sizes, executor(entry), options);
      EXPECT_TRUE(passed(verdicts)) << table(verdicts);
    }
    EXPECT_EQ(HostPages::all().count(), pages) << "a layout changed a page";
  }

 private:
  struct Entry {
    std::string label;
    Program program;
    Sizes sizes;
    VerifyOptions options;
    std::shared_ptr<Executable> executable;
    std::shared_ptr<Kernel> kernel;
  };

  static bool passed(const std::vector<Verdict>& verdicts) {
    return std::ranges::all_of(verdicts, &Verdict::passed);
  }
  static Executor executor(const Entry& entry) {
    return [&entry](const Program&, const Sizes&, std::span<const Tensor> params,
                    std::span<const Tensor> results) {
      if (entry.kernel) return entry.kernel->run(params, results, {});
      const OwnedTensor scratch(DType::u8,
                                {static_cast<std::int64_t>(entry.executable->scratch_bytes())});
      std::fill_n(scratch.as<std::byte>(), scratch.bytes(), std::byte{0xff});
      entry.executable->run(params, results, {scratch.as<std::byte>(), scratch.bytes()});
    };
  }

  std::vector<Entry> entries_;
};

}  // namespace coda::cuda
