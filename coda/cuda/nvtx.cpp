// coda/cuda/nvtx.cpp: finds the two functions of NVTX that ranges need.
#include "coda/cuda/nvtx.h"

#include <dlfcn.h>

#include <string>

#include "coda/core/flags.h"

namespace coda::cuda {
namespace {

struct Nvtx {
  int (*push)(const char*) = nullptr;
  int (*pop)() = nullptr;

  Nvtx() {
    if (flags::nvtx_injection().empty()) return;
    // The process's own copy first (PyTorch brings one), then the loader's, then the toolkit's.
    const std::string toolkit = flags::cuda_home().empty() ? "/usr/local/cuda" : flags::cuda_home();
    for (const std::string& folder : {std::string(), toolkit + "/lib64/"}) {
      for (const char* name :
           {"libnvtx3interop.so", "libnvtx3interop.so.1", "libnvToolsExt.so.1"}) {
        if (open((folder + name).c_str())) return;
      }
    }
  }

  bool open(const char* name) {
    void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return false;
    push = reinterpret_cast<decltype(push)>(dlsym(library, "nvtxRangePushA"));
    pop = reinterpret_cast<decltype(pop)>(dlsym(library, "nvtxRangePop"));
    if (push == nullptr || pop == nullptr) push = nullptr;
    return push != nullptr;
  }
};

const Nvtx& nvtx() {
  static const Nvtx loaded;
  return loaded;
}

}  // namespace

ProfilerRange::ProfilerRange(const char* name) {
  if (nvtx().push != nullptr) nvtx().push(name);
}

ProfilerRange::~ProfilerRange() {
  if (nvtx().push != nullptr) nvtx().pop();
}

}  // namespace coda::cuda
