// tests/cuda_gemm_pages.h: plans of the fast path for products, run on the host: the kernel of
// device/sm90_gemm.cuh itself, with its barriers, its copies and its products.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "coda/check/bind.h"
#include "coda/check/check.h"
#include "coda/core/error.h"
#include "coda/core/file.h"
#include "coda/cuda/arguments.h"
#include "coda/cuda/gemm.h"
#include "coda/cuda/launch.h"
#include "tests/cuda_asm_to_host.h"
#include "tests/cuda_host_map.h"
#include "tests/cuda_pack_pages.h"

namespace coda::cuda {

// Why cuTensorMapEncodeTiled would refuse a map; empty: it takes it.
inline std::string map_fault(const MapSpec& map, const void* address) {
  const auto bytes = static_cast<std::int64_t>(size_of(map.dtype));

  if (reinterpret_cast<std::uintptr_t>(address) % 16 != 0)
    return "its first element is not aligned to 16 bytes";
  if (map.axes.size() < 2 || map.axes.size() > 5) return "it has no rank of 2 to 5";
  for (std::size_t a = 0; a < map.axes.size(); ++a) {
    const MapSpec::Axis& axis = map.axes[a];
    if (axis.extent < 1 || axis.extent > std::int64_t{1} << 32) return "an extent past 2^32";
    if (axis.box < 1 || axis.box > 256) return "a box of " + std::to_string(axis.box);
    if (a == 0) continue;
    if (axis.stride * bytes % 16 != 0) return "a stride that is no multiple of 16 bytes";
    if (axis.stride <= 0 || axis.stride * bytes >= std::int64_t{1} << 40)
      return "a stride out of range";
  }
  const std::int64_t inner = map.axes[0].box * bytes;
  if (inner % 16 != 0) return "an inner box that is no multiple of 16 bytes";
  if (map.swizzle != 0 && inner > map.swizzle) return "an inner box wider than the swizzle";
  return "";
}

// Pages, compiled many at once; each is known by its text.
class GemmPages {
 public:
  struct Call {
    int blocks, threads, cluster;
    unsigned shared;
    std::uint64_t seed;
    long long conflicts;
  };
  // The kernel's argument; false: `fault` says why.
  using Run = bool (*)(const void* argument, Call* call, char* fault, std::size_t size);

  GemmPages()
      : folder_(std::filesystem::temp_directory_path() /
                ("coda_gemm_" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(folder_);
    for (const DeviceFile& file : device_files()) {
      write_file((folder_ / file.name).string(), asm_to_host(file.text));
    }
  }
  ~GemmPages() { std::filesystem::remove_all(folder_); }
  GemmPages(const GemmPages&) = delete;

  static GemmPages& all() {
    static GemmPages pages;
    return pages;
  }

  // To be compiled with the next run.
  void want(const Plan& plan) {
    if (!known_.emplace(plan.page, known_.size()).second) return;
    waiting_.push_back(plan);
  }

  Run find(const Plan& plan) {
    want(plan);
    compile();
    const std::string name = prefix(plan) + "run";
    for (void* library : libraries_) {
      if (void* run = dlsym(library, name.c_str())) return reinterpret_cast<Run>(run);
    }
    throw InternalError("no kernel " + name);
  }

 private:
  std::string prefix(const Plan& plan) const {
    return "p" + std::to_string(known_.at(plan.page)) + "_";
  }

  // A library for each set of maps and a few pages, two at a time.
  void compile() {
    if (waiting_.empty()) return;
    constexpr std::size_t kTogether = 12;
    std::map<bool, std::vector<Plan>> kinds;
    for (const Plan& plan : waiting_) {
      kinds[plan.page.find("#define CODA_MAPS fast") != std::string::npos].push_back(plan);
    }
    waiting_.clear();
    std::vector<std::string> stems;
    for (const auto& [fast, plans] : kinds) {
      for (std::size_t first = 0; first < plans.size(); first += kTogether) {
        stems.push_back((folder_ / ("pages_" + std::to_string(++files_))).string());
        std::string text = std::string("#define CODA_MAPS ") + (fast ? "fast" : "exact") +
                           "\n#include \"tests/cuda_ptx_on_host.h\"\n"
                           "#include \"sm90_gemm.cuh\"\n#include \"philox.cuh\"\n"
                           "namespace coda { unsigned char shared[1024]; }\n";
        for (std::size_t i = first; i < std::min(plans.size(), first + kTogether); ++i) {
          text += page(plans[i]);
        }
        write_file(stems.back() + ".cpp", text);
      }
    }
    std::string list;
    for (const std::string& stem : stems) list += stem + "\n";
    write_file((folder_ / "list").string(), list);
    const std::string command =
        "xargs -a " + (folder_ / "list").string() +
        " -P 2 -I STEM sh -c 'c++ -std=c++20 -O1 -w -shared -fPIC -fno-strict-aliasing "
        "-ffp-contract=off -I" CODA_SOURCE_DIR " STEM.cpp -o STEM.so 2> STEM.log'";
    const bool built = std::system(command.c_str()) == 0;
    for (const std::string& stem : stems) {
      if (!built && !std::filesystem::exists(stem + ".so")) {
        throw InternalError("pages do not compile:\n" + read_file(stem + ".log").substr(0, 4000));
      }
      void* library = dlopen((stem + ".so").c_str(), RTLD_NOW | RTLD_LOCAL);
      if (library == nullptr) throw InternalError(dlerror());
      libraries_.push_back(library);
    }
  }

  // In a namespace of its own.
  std::string page(const Plan& plan) const {
    const std::string own = prefix(plan), text = plan.page.substr(0, plan.page.find(kCopies));
    std::string rest;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = std::min(text.find('\n', at), text.size() - 1) + 1;
      const std::string line = text.substr(at, end - at);
      const bool directive = line.starts_with("#include") || line.starts_with("#define");
      rest += directive                      ? ""
              : line == "namespace coda {\n" ? "namespace coda {\nusing namespace ::coda;\n"
                                             : line;
      at = end;
    }
    const Launch& launch = *std::ranges::find_if_not(plan.launches, is_copy);
    const std::string mark = " " + launch.entry + "(";
    const std::string lines = "\n" + launch.entry + "(";
    const std::size_t entry = rest.find(rest.find(lines) != std::string::npos ? lines : mark);
    rest.replace(entry + 1, launch.entry.size(), own + "kernel");
    return "namespace " + own + "page {\n" + rest + "extern \"C\" bool " + own +
           "run(const void* argument, void* call, char* fault, unsigned long size) {\n"
           "  struct Call { int blocks, threads, cluster; unsigned shared; unsigned long long "
           "seed; "
           "long long conflicts; };\n"
           "  Call& c = *static_cast<Call*>(call);\n"
           "  const std::string why = ::coda::host::run({c.blocks, c.threads, c.cluster, c.shared, "
           "c.seed}, [&] { " +
           own +
           "kernel(*static_cast<const coda::Arguments*>(argument)); }, c.conflicts);\n"
           "  snprintf(fault, size, \"%s\", why.c_str());\n  return why.empty();\n}\n}\n";
  }

  std::filesystem::path folder_;
  std::map<std::string, std::size_t> known_;  // page → number
  std::vector<Plan> waiting_;
  std::vector<void*> libraries_;
  int files_ = 0;
};

// What a run of a plan did beside its results.
struct HostRun {
  long long conflicts = 0;  // of banks of shared memory
};

inline HostRun launch_gemm(const Plan& plan, std::span<const Tensor> params,
                           std::span<const Tensor> results, std::uint64_t seed = 1) {
  constexpr std::size_t kFence = 32;  // words
  std::vector<std::uint64_t> workspace(static_cast<std::size_t>(plan.workspace) / 8 + kFence + 1,
                                       ~std::uint64_t{0});
  Addresses addresses;
  for (const auto& tensors : {params, results}) {
    for (const Tensor& tensor : tensors) {
      addresses.tensors.push_back(tensor.data);
      addresses.dtypes.push_back(tensor.dtype);
    }
  }
  addresses.workspace = workspace.data();
  std::vector<std::vector<std::uint32_t>> tables = plan.tables;
  for (auto& table : tables) addresses.tables.push_back(table.data());
  std::deque<host::HostMap> maps;
  std::map<int, std::vector<unsigned char>> written;  // of each result
  const auto encode = [&](const MapSpec& map, void* address, TensorMap& to) {
    if (const std::string fault = map_fault(map, address); !fault.empty()) {
      throw InternalError("a tensor map of tensor " + std::to_string(map.tensor) + ": " + fault);
    }
    host::HostMap& host = maps.emplace_back();
    host.bytes = static_cast<int>(size_of(map.dtype));
    host.base = static_cast<unsigned char*>(address);
    host.rank = static_cast<int>(map.axes.size());
    host.swizzle = map.swizzle;
    std::int64_t elements = 1;
    for (std::size_t a = 0; a < map.axes.size(); ++a) {
      host.extents[a] = map.axes[a].extent;
      host.strides[a] = a == 0 ? host.bytes : map.axes[a].stride * host.bytes;
      host.box[a] = static_cast<int>(map.axes[a].box);
      elements *= map.axes[a].extent;
    }
    if (static_cast<std::size_t>(map.tensor) >= params.size()) {
      auto& counts = written[map.tensor];
      counts.resize(static_cast<std::size_t>(elements), 0);
      host.written = counts.data();
    }
    std::memset(&to, 0, sizeof to);
    const host::HostMap* pointer = &host;
    std::memcpy(&to, &pointer, sizeof pointer);
  };
  HostRun out;
  for (const Launch& launch : plan.launches) {
    if (is_copy(launch)) {
      launch_copy(plan, launch, addresses);
      continue;
    }
    if (launch.shared > Target().shared) throw InternalError("more shared memory than there is");
    const Argument argument = argument_of(launch, addresses, encode);
    if (launch.zeroed >= 0) {
      const Word& word = launch.words.at(static_cast<std::size_t>(launch.zeroed));
      std::memset(reinterpret_cast<void*>(word_of(word, addresses)), 0, 4);
    }
    GemmPages::Call call{static_cast<int>(launch.grid[0]),     launch.block, launch.cluster,
                         static_cast<unsigned>(launch.shared), seed,         0};
    std::array<char, 2000> fault{};
    if (!GemmPages::all().find(plan)(argument.data(), &call, fault.data(), fault.size())) {
      throw InternalError(plan.name + " (" + plan.path + "): " + fault.data());
    }
    out.conflicts += call.conflicts;
  }
  for (std::size_t i = (static_cast<std::size_t>(plan.workspace) + 7) / 8; i < workspace.size();
       ++i) {
    if (workspace[i] != ~std::uint64_t{0})
      throw InternalError(plan.name + " writes past its workspace");
  }
  for (const auto& [tensor, counts] : written) {
    for (std::size_t i = 0; i < counts.size(); ++i) {
      if (counts[i] == 1) continue;
      throw InternalError("element " + std::to_string(i) + " of result " +
                          std::to_string(tensor - static_cast<int>(params.size())) + " of " +
                          plan.name + " is stored " + std::to_string(counts[i]) + " times");
    }
  }
  return out;
}

}  // namespace coda::cuda
