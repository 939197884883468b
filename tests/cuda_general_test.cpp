// tests/cuda_general_test.cpp: the predicated path, run on the host and judged by the verifier.
//
// Its pages are plain loops, one thread an element, so the host's compiler can compile them: many
// pages a library, each launch a loop over its threads. What is shown is everything but the GPU's
// own arithmetic (the leaves of device/maps.cuh).
#include "coda/cuda/general.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "coda/backend/execute.h"
#include "coda/check/bind.h"
#include "coda/check/check.h"
#include "coda/core/error.h"
#include "coda/core/file.h"
#include "coda/cuda/nvrtc.h"
#include "coda/program/text.h"
#include "coda/reference/verify.h"
#include "coda/rewrite/grad.h"
#include "coda/rewrite/retype.h"
#include "coda/rewrite/rewrite.h"
#include "tests/cases.h"

namespace coda::cuda {
namespace {

using ::coda::testing::Case;
using ::coda::testing::case_table;

// Pages, compiled many at once; each is known by its text.
class Pages {
 public:
  using Run = void (*)(const void* words, const std::int64_t* grid, int block);

  Pages()
      : folder_(std::filesystem::temp_directory_path() /
                ("coda_pages_" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(folder_);
  }
  ~Pages() { std::filesystem::remove_all(folder_); }

  // To be compiled with the next run.
  void want(const Plan& plan) {
    if (plan.launches.empty() || !known_.emplace(plan.page, known_.size()).second) return;
    waiting_.push_back(plan);
  }
  std::size_t count() const { return known_.size(); }

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

  void compile() {
    if (waiting_.empty()) return;
    const std::string stem = folder_ / ("pages_" + std::to_string(libraries_.size()));
    std::ofstream out(stem + ".cpp");
    out << "#include \"tests/cuda_on_host.h\"\n";
    for (const Plan& plan : waiting_) write(out, plan);
    out.close();
    const std::string command =
        "c++ -std=c++17 -O1 -w -shared -fPIC -ffp-contract=off -I" CODA_SOURCE_DIR
        " -I" CODA_SOURCE_DIR "/coda/device " +
        stem + ".cpp -o " + stem + ".so 2> " + stem + ".log";
    if (std::system(command.c_str()) != 0) {
      throw InternalError("pages do not compile:\n" + read_file(stem + ".log").substr(0, 4000));
    }
    void* library = dlopen((stem + ".so").c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw InternalError(dlerror());
    libraries_.push_back(library);
    waiting_.clear();
  }

 private:
  static std::string prefix(std::size_t page) { return "p" + std::to_string(page) + "_"; }

  // In a namespace of its own, its entries under names of their own.
  void write(std::ofstream& out, const Plan& plan) const {
    const std::string own = prefix(known_.at(plan.page));
    std::string page = plan.page;
    std::set<std::string> entries;
    for (const Launch& launch : plan.launches) entries.insert(launch.entry);
    std::string includes, rest;
    for (std::size_t at = 0; at < page.size();) {
      const std::size_t end = page.find('\n', at);
      const std::string line = page.substr(at, end - at + 1);
      (line.starts_with("#include") ? includes : rest) += line;
      at = end + 1;
    }
    out << includes << "namespace " << own << "page {\n";
    const std::string mark = "extern \"C\" __global__ void ";
    for (std::size_t at = 0; (at = rest.find(mark, at)) != std::string::npos; at += mark.size()) {
      rest.insert(at + mark.size(), own);
    }
    out << rest;
    for (const std::string& entry : entries) {
      out << "extern \"C\" void " << own << "run_" << entry
          << "(const void* words, const long long* grid, int block) {\n  gridDim = "
             "{unsigned(grid[0]), "
             "unsigned(grid[1]), unsigned(grid[2])};\n  blockDim = {unsigned(block), 1, 1};\n"
             "  for (unsigned b = 0; b < gridDim.x; ++b) for (unsigned t = 0; t < blockDim.x; ++t) "
             "{\n"
             "    blockIdx.x = b; threadIdx.x = t;\n    "
          << own << entry << "(*static_cast<const Arguments_" << entry << "*>(words));\n  }\n}\n";
    }
    out << "}\n";
  }

  std::filesystem::path folder_;
  std::map<std::string, std::size_t> known_;  // page → number
  std::vector<Plan> waiting_;
  std::vector<void*> libraries_;
  std::map<std::string, Run> runs_;
};

Pages& pages() {
  static Pages pages;
  return pages;
}

void launch(const Plan& plan, std::span<const Tensor> params, std::span<const Tensor> results) {
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
    pages().find(plan, launch.entry)(words.data(), launch.grid.data(), launch.block);
  }
  for (std::size_t i = (bytes + 7) / 8; i < workspace.size(); ++i) {
    ASSERT_EQ(workspace[i], ~std::uint64_t{0}) << "writes past the workspace of " << plan.name;
  }
}

class OnHost final : public Backend {
 public:
  std::string_view name() const override { return "general, on the host"; }
  std::optional<std::string> refusal(const Checked&, const Sizes&) const override { return {}; }
  Kernel compile(const Checked& checked, const Sizes& sizes) const override {
    pages().want(plan_general(checked, sizes, dense_layouts(checked.program(), sizes), {}));
    const auto run = [checked, sizes](std::span<const Tensor> params,
                                      std::span<const Tensor> results, std::span<std::byte>) {
      const std::vector<Layout> layouts = layouts_of(checked.program(), sizes, params, results);
      launch(plan_general(checked, sizes, layouts, {}), params, results);
    };
    return Kernel(Kernel::HostRun(run), 0, "");
  }
};

const Backend& on_host() {
  static const OnHost backend;
  return backend;
}

// Programs as they are, blocks as their schedules; prepared first, so that pages are compiled
// together.
class Sweep {
 public:
  void add(const std::string& label, const Program& program, const Sizes& given,
           const VerifyOptions& options) {
    const Sizes sizes = bind_sizes(program, given);
    Entry entry{label, program, sizes, options, nullptr, nullptr};
    if (program.kind() == Program::Kind::block) {
      entry.executable =
          std::make_shared<Executable>(rewrite(program).forward.schedule, on_host(), sizes);
    } else {
      entry.kernel = std::make_shared<Kernel>(on_host().compile(check(program), sizes));
    }
    entries_.push_back(std::move(entry));
  }

  void run() {
    pages().compile();
    const std::size_t before = pages().count();
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
    // Layouts and sizes change words only.
    EXPECT_EQ(pages().count(), before);
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

TEST(CudaGeneral, CasesErrNoMoreThanTheUnfusedSequence) {
  Sweep sweep;
  for (const Case& entry : case_table().cases) {
    const Program program = entry.load();
    for (std::size_t i = 0; i < entry.sizes.size(); ++i) {
      const std::string label = ::coda::testing::test_name(entry) + " sizes " + std::to_string(i);
      sweep.add(label, program, entry.sizes[i],
                {.inputs = {Inputs::normal},
                 .layouts = i == 1 ? case_table().layouts : std::vector{Layouts::dense},
                 .seed = 1 + i});
    }
  }
  sweep.run();
}

}  // namespace
}  // namespace coda::cuda
