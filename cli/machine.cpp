// cli/machine.cpp: asks the kernel and the libraries.
#include "cli/machine.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <dnnl.hpp>
#include <fstream>
#include <string>
#include <thread>

#include "coda/cpu/cpu.h"

namespace coda {
namespace {

// "unknown" where the kernel does not say, as on some ARM machines.
std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

std::string system_name() {
  utsname names{};
  if (uname(&names) != 0) return "unknown";
  // What is behind the number may be anybody's own.
  const std::string release = names.release;
  return std::string(names.sysname) + " " + release.substr(0, release.find('-')) + " " +
         names.machine;
}

}  // namespace

nlohmann::json machine_facts() {
  return {{"cpu", cpu_name()},
          {"cores", std::thread::hardware_concurrency()},
          {"memory", sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGE_SIZE)},
          {"system", system_name()}};
}

nlohmann::json version_facts() {
  const dnnl_version_t* onednn = dnnl_version();
  return {{"coda", CODA_VERSION},
          {"compiler", "C++ compiler " __VERSION__},
          {"onednn", std::to_string(onednn->major) + "." + std::to_string(onednn->minor) + "." +
                         std::to_string(onednn->patch)},
          {"simd", cpu::simd_target()}};
}

}  // namespace coda
