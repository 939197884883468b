// tests/fake_driver/nvtx.cpp: an NVTX library that writes ranges down: "<a <b > >".
#include <string>

namespace {

std::string& seen() {
  static std::string text;
  return text;
}

}  // namespace

extern "C" {

int nvtxRangePushA(const char* name) {
  seen() += "<" + std::string(name) + " ";
  return 0;
}

int nvtxRangePop() {
  seen() += "> ";
  return 0;
}

const char* coda_fake_ranges() {
  return seen().c_str();
}

}  // extern "C"
