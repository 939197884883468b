// tests/host_library.h: emitted pages as libraries of the host's compiler.
#pragma once

#include <dlfcn.h>

#include <cstdlib>
#include <string>

#include "coda/core/error.h"
#include "coda/core/file.h"

namespace coda::testing {

// Compiles `stem`.cpp, which may include tests/ and coda/device/, and opens it. The library stays.
inline void* host_library(const std::string& stem, const std::string& flags) {
  const std::string source = CODA_SOURCE_DIR;
  const std::string command = "c++ -std=c++17 " + flags + " -w -shared -fPIC -ffp-contract=off -I" +
                              source + " -I" + source + "/coda/device " + stem + ".cpp -o " + stem +
                              ".so 2> " + stem + ".log";
  if (std::system(command.c_str()) != 0) {
    throw InternalError("pages do not compile:\n" + read_file(stem + ".log").substr(0, 4000));
  }
  void* library = dlopen((stem + ".so").c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw InternalError(dlerror());
  return library;
}

}  // namespace coda::testing
