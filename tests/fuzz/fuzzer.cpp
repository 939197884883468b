// tests/fuzz/fuzzer.cpp: one fuzzer; JUDGE names what it feeds.
#include <cstddef>

#include "tests/fuzz/judges.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  coda::testing::JUDGE({data, size});
  return 0;
}
