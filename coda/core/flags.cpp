// coda/core/flags.cpp: every environment variable that the library reads.
#include "coda/core/flags.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <thread>

#include "coda/core/error.h"

namespace coda::flags {
namespace {

constexpr int kMostThreads = 1024;

// Empty where unset.
std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

int allowed_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
  // More cores than a cpu_set_t holds.
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kMostThreads);
}

}  // namespace

int threads() {
  const std::string text = variable("CODA_THREADS");
  if (text.empty()) return allowed_cores();
  int count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  if (!whole || count < 1 || count > kMostThreads) {
    throw ProgramError("CODA_THREADS is \"" + text + "\", which is no number of threads",
                       "set it to a whole number from 1 to " + std::to_string(kMostThreads) +
                           ", or unset it to use all cores");
  }
  return count;
}

bool color(int descriptor) {
  return isatty(descriptor) == 1 && variable("NO_COLOR").empty();
}

std::string isa() {
  return variable("CODA_ISA");
}

std::string gemm() {
  return variable("CODA_GEMM");
}

std::string cache() {
  const std::string folder = variable("CODA_CACHE");
  if (folder == "off") return "";
  if (!folder.empty()) return folder;
  const std::string caches = variable("XDG_CACHE_HOME");
  // NOTE: a relative XDG_CACHE_HOME is to be ignored, says its specification.
  if (caches.starts_with('/')) return caches + "/coda";
  const std::string home = variable("HOME");
  return home.empty() ? "" : home + "/.cache/coda";
}

std::string nvrtc() {
  return variable("CODA_NVRTC");
}

std::string nvtx_injection() {
  return variable("NVTX_INJECTION64_PATH");
}

std::string cuda_home() {
  const std::string home = variable("CUDA_HOME");
  return home.empty() ? variable("CUDA_PATH") : home;
}

std::vector<std::string> path() {
  std::vector<std::string> folders;
  std::string rest = variable("PATH");
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find(':'), rest.size());
    if (end > 0) folders.push_back(rest.substr(0, end));
    rest.erase(0, end + 1);
  }
  return folders;
}

std::vector<std::string> python_prefixes() {
  std::vector<std::string> prefixes;
  const auto add = [&](const std::string& prefix) {
    if (!prefix.empty() && std::ranges::find(prefixes, prefix) == prefixes.end()) {
      prefixes.push_back(prefix);
    }
  };
  add(variable("VIRTUAL_ENV"));
  add(variable("CONDA_PREFIX"));
  if (const std::string home = variable("HOME"); !home.empty()) add(home + "/.local");
  for (const std::filesystem::path folder : path()) {
    std::error_code error;
    if (!std::filesystem::exists(folder / "python3", error)) continue;
    // /usr/bin's packages may be in /usr/local, as pip puts them there.
    if (folder == "/usr/bin") add("/usr/local");
    add(folder.parent_path());
  }
  return prefixes;
}

}  // namespace coda::flags
