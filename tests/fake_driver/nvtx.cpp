// tests/fake_driver/nvtx.cpp: an NVTX library that writes ranges down: "<a <b > >".
#include <mutex>
#include <string>

namespace {

std::string& seen() {
  static std::string text;
  return text;
}

// From any thread, as the real one.
int write(const std::string& text) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  seen() += text;
  return 0;
}

}  // namespace

extern "C" {

int nvtxRangePushA(const char* name) {
  return write("<" + std::string(name) + " ");
}

int nvtxRangePop() {
  return write("> ");
}

const char* coda_fake_ranges() {
  return seen().c_str();
}

}  // extern "C"
