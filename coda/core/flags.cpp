// coda/core/flags.cpp: every environment variable that the library reads.
#include "coda/core/flags.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
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

}  // namespace coda::flags
