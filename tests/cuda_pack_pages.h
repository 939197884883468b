// tests/cuda_pack_pages.h: the kernels of device/pack.cuh of a plan, run on the host with their
// threads and barriers.
#pragma once

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>

#include "coda/core/error.h"
#include "coda/core/file.h"
#include "coda/cuda/launch.h"
#include "tests/host_library.h"

namespace coda::cuda {

inline constexpr std::string_view kCopies = "\n// What the copy engine cannot read as it lies.\n";

inline bool is_copy(const Launch& launch) {
  return launch.entry.find("pack_") != std::string::npos;
}

// Libraries of pages' copies, by their text.
class PackPages {
 public:
  using Run = bool (*)(const void* argument, const long long* grid, int block);

  PackPages()
      : folder_(std::filesystem::temp_directory_path() /
                ("coda_pack_" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(folder_);
  }
  ~PackPages() { std::filesystem::remove_all(folder_); }
  PackPages(const PackPages&) = delete;

  static PackPages& all() {
    static PackPages pages;
    return pages;
  }

  Run find(const Plan& plan, const std::string& entry) {
    const std::string text = plan.page.substr(plan.page.find(kCopies));
    void*& library = libraries_[text];
    if (library == nullptr) library = compiled(plan, text);
    return reinterpret_cast<Run>(dlsym(library, ("run_" + entry).c_str()));
  }

 private:
  void* compiled(const Plan& plan, const std::string& text) {
    std::string page =
        "#include \"tests/cuda_blocks_on_host.h\"\n" + text +
        "template <class A> bool run(void (*kernel)(A), const void* argument, const long long* "
        "grid, int block) {\n  return coda::host::run(grid, block, [&] { "
        "kernel(*static_cast<const A*>(argument)); });\n}\n";
    for (const Launch& launch : plan.launches) {
      if (!is_copy(launch)) continue;
      page += "extern \"C\" bool run_" + launch.entry +
              "(const void* argument, const long long* grid, int block) {\n  return run(" +
              launch.entry + ", argument, grid, block);\n}\n";
    }
    const std::string stem = folder_ / std::to_string(libraries_.size());
    write_file(stem + ".cpp", page);
    return testing::host_library(stem, "-O1");
  }

  std::filesystem::path folder_;
  std::map<std::string, void*> libraries_;
};

inline void launch_copy(const Plan& plan, const Launch& launch, const Addresses& addresses) {
  const Argument argument = argument_of(launch, addresses, {});
  const long long grid[] = {launch.grid[0], launch.grid[1], launch.grid[2]};
  if (!PackPages::all().find(plan, launch.entry)(argument.data(), grid, launch.block)) {
    throw InternalError("threads of " + launch.entry + " wait for ever");
  }
}

}  // namespace coda::cuda
