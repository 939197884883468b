// tests/fuzz_test.cpp: the fuzzers' judges on the inputs that are kept: seeds, whatever a fuzzer
// has found, and the texts of the tree.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "coda/core/file.h"
#include "tests/fuzz/judges.h"

namespace coda::testing {
namespace {

void expect_no_fault(const std::string& folder, void (*judge)(Bytes)) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(CODA_SOURCE_DIR "/" + folder)) {
    const std::string bytes = read_file(entry.path());
    ++files;
    try {
      judge({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()});
    } catch (const std::exception& error) {
      ADD_FAILURE() << entry.path() << ": " << error.what();
    }
  }
  EXPECT_GT(files, 0) << folder;
}

TEST(Fuzz, KeptTextsHaveNoFault) {
  expect_no_fault("tests/fuzz/seeds/text", judge_text);
  expect_no_fault("tests/errors", judge_text);
  expect_no_fault("programs", judge_text);
}

TEST(Fuzz, KeptBlocksAreRewrittenWithoutFault) {
  expect_no_fault("tests/fuzz/seeds/rewrite", judge_rewrite);
}

TEST(Fuzz, KeptSafetensorsHaveNoFault) {
  expect_no_fault("tests/fuzz/seeds/safetensors", judge_safetensors);
}

TEST(Fuzz, KeptNpyFilesHaveNoFault) {
  expect_no_fault("tests/fuzz/seeds/npy", judge_npy);
}

}  // namespace
}  // namespace coda::testing
