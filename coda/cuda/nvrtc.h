// coda/cuda/nvrtc.h: a page of CUDA → a cubin, by NVIDIA's run-time compiler.
//
// The library is loaded when something is first compiled: from a Python wheel or a CUDA toolkit.
// Neither a driver nor a GPU is needed. All functions are thread-safe, and compilations run beside
// one another.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coda/cuda/plan.h"

namespace coda::cuda {

// A page compiled, and what its kernels take of a processor.
struct Compiled {
  struct Entry {
    std::string name;
    int registers = 0;                      // a thread
    int spill_stores = 0, spill_loads = 0;  // bytes
    std::int64_t stack = 0;                 // bytes a thread
    std::int64_t shared = 0;                // bytes a block, dynamic shared memory not among them
  };
  std::string cubin;
  std::string log;
  std::vector<Entry> entries;  // in the order of the log
  double seconds = 0;          // that compiling took; 0 where it came from a cache
};

struct CompileOptions {
  std::string architecture = "sm_90a";
  std::vector<std::string> flags = {};  // beside ours, e.g. "-DSTAGES=4"
};

// The flags of ours and `options`, as given to the compiler: what a cache's key holds.
std::vector<std::string> compile_flags(const CompileOptions& options);

// `name` is the program's: it appears in errors and in place of a file name. Throws Unsupported
// where there is no compiler (with what to install), InternalError where the page does not compile
// or serialises its products (C7511): with the first errors and the lines of the page they are at.
Compiled compile(std::string_view name, std::string_view page, std::span<const DeviceFile> files,
                 const CompileOptions& options = {});

// The page as PTX.
std::string compile_ptx(std::string_view name, std::string_view page,
                        std::span<const DeviceFile> files, const CompileOptions& options = {});

// Where the compiler is.
struct Nvrtc {
  std::string path;     // of libnvrtc.so.…
  std::string version;  // "13.0"
};
Nvrtc nvrtc();  // Throws Unsupported as compile()
// Which compiler it is, for keys of caches; the library is not loaded for it where it can be
// helped. Never throws.
std::string nvrtc_identity();
std::optional<std::string> nvrtc_problem();  // why there is none, and what to install

// What ptxas says of each kernel (--ptxas-options=-v).
std::vector<Compiled::Entry> parse_resources(std::string_view log);

// Why a log of a successful compilation is a fault of the page nonetheless: C7511, products that
// run one after another; nullopt where it is none.
std::optional<std::string> fault_in_log(std::string_view log);

// The first errors of `log`, each with its line of `page`.
std::string first_errors(std::string_view log, std::string_view name, std::string_view page);

}  // namespace coda::cuda
