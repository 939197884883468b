// tests/cuda_cache_test.cpp: what was compiled is found again, and what was damaged is not.
#include "coda/cuda/cache.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "coda/core/error.h"
#include "coda/core/file.h"
#include "coda/core/sha256.h"

namespace coda::cuda {
namespace {

testing::AssertionResult has(std::string_view text, std::string_view part) {
  if (text.find(part) != std::string_view::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << '"' << part << "\" is not in: " << text;
}

namespace fs = std::filesystem;
using From = Cached::From;

constexpr std::string_view kPage =
    "extern \"C\" __global__ void one(float* x) { x[threadIdx.x] = 1; }\n";
constexpr std::string_view kOther =
    "extern \"C\" __global__ void two(float* x) { x[threadIdx.x] = 2; }\n";

TEST(Sha256, OfTheStandardsExamples) {
  EXPECT_EQ(hex(sha256("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hex(sha256("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hex(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hex(sha256(std::string(1000000, 'a'))),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, OfEveryLengthAroundABlockDependsOnEveryByte) {
  std::set<std::string> seen;
  for (std::size_t length = 0; length < 130; ++length) {
    std::string text(length, 'x');
    Sha256 pieces;
    pieces.add(text.substr(0, length / 3));
    pieces.add(text.substr(length / 3));
    EXPECT_EQ(hex(pieces.digest()), hex(sha256(text))) << length;
    seen.insert(hex(sha256(text)));
    for (std::size_t i = 0; i < length; ++i) {
      text[i] = 'y';
      seen.insert(hex(sha256(text)));
      text[i] = 'x';
    }
  }
  EXPECT_EQ(seen.size(), 130u + 129u * 130u / 2u);
}

TEST(Sha256, OfPartsKnowsWhereTheyMeet) {
  const auto of = [](std::string_view a, std::string_view b) {
    Sha256 hash;
    hash.add_part(a);
    hash.add_part(b);
    return hex(hash.digest());
  };
  EXPECT_NE(of("ab", "c"), of("a", "bc"));
  EXPECT_NE(of("", "abc"), of("abc", ""));
}

class CudaCache : public testing::Test {
 protected:
  void SetUp() override {
    if (const auto problem = nvrtc_problem()) GTEST_SKIP() << "skipped: " << *problem;
    folder_ = fs::path(testing::TempDir()) / ("coda-cache-" + std::to_string(getpid()));
    fs::remove_all(folder_);
  }
  void TearDown() override {
    if (!folder_.empty()) fs::remove_all(folder_);
  }

  std::string folder() const { return (folder_ / "kernels").string(); }
  std::string entry() const { return Cache(folder()).path_of(kPage, {}); }

  // Of a process that has just started.
  Cached get(std::string_view page = kPage) { return Cache(folder()).get("one", page, {}); }

  // Damages the entry, and expects that it is found out, said, and made good.
  void expect_rebuilt(const std::string& damaged, const std::string& reason) {
    const std::string whole = read_file(entry());
    write_file(entry(), damaged);
    const Cached rebuilt = get();
    EXPECT_EQ(rebuilt.from, From::compiler) << reason;
    EXPECT_TRUE(has(rebuilt.note, entry()));
    EXPECT_TRUE(has(rebuilt.note, reason));
    EXPECT_EQ(rebuilt.kernel->cubin.substr(1, 3), "ELF");
    const Cached again = get();
    EXPECT_EQ(again.from, From::folder);
    EXPECT_EQ(again.note, "");
    EXPECT_EQ(again.kernel->cubin, rebuilt.kernel->cubin);
    write_file(entry(), whole);
  }

  fs::path folder_;
};

TEST_F(CudaCache, FindsInTheFolderWhatAnotherProcessCompiled) {
  const Cached first = get();
  EXPECT_EQ(first.from, From::compiler);
  EXPECT_EQ(first.note, "");
  EXPECT_GT(first.kernel->seconds, 0);
  const Cached second = get();
  EXPECT_EQ(second.from, From::folder);
  EXPECT_EQ(second.kernel->cubin, first.kernel->cubin);
  EXPECT_EQ(second.kernel->log, first.kernel->log);
  EXPECT_EQ(second.kernel->seconds, 0);
  ASSERT_EQ(second.kernel->entries.size(), 1u);
  EXPECT_EQ(second.kernel->entries[0].name, "one");
  EXPECT_EQ(second.kernel->entries[0].registers, first.kernel->entries[0].registers);
}

TEST_F(CudaCache, FindsInMemoryWhatItGaveBefore) {
  Cache cache(folder());
  const Cached first = cache.get("one", kPage, {});
  const Cached second = cache.get("one", kPage, {});
  EXPECT_EQ(second.from, From::memory);
  EXPECT_EQ(second.kernel, first.kernel);
}

TEST_F(CudaCache, MissesWhereAnythingThatCountsDiffers) {
  get();
  EXPECT_EQ(get(kOther).from, From::compiler);
  const std::vector<DeviceFile> files = {{"a.cuh", "// a\n"}};
  const std::vector<DeviceFile> edited = {{"a.cuh", "// b\n"}};
  Cache cache(folder());
  EXPECT_EQ(cache.get("one", kPage, files).from, From::compiler);
  EXPECT_EQ(cache.get("one", kPage, edited).from, From::compiler);
  EXPECT_EQ(cache.get("one", kPage, {}, {.flags = {"-DX"}}).from, From::compiler);
  EXPECT_EQ(cache.get("one", kPage, {}, {.architecture = "sm_90"}).from, From::compiler);
  EXPECT_EQ(cache.get("one", kPage, {}).from, From::folder);
  EXPECT_EQ(cache.use().entries, 6);
  EXPECT_GT(cache.use().bytes, 6 * 1000);
}

TEST_F(CudaCache, RebuildsADamagedEntryAndSaysSo) {
  get();
  const std::string whole = read_file(entry());
  std::string flipped = whole;
  flipped[whole.size() - whole.size() / 4] ^= 1;
  expect_rebuilt(flipped, "its checksum is wrong");
  flipped = whole;
  flipped[150] ^= 1;  // in the lengths of the parts
  expect_rebuilt(flipped, "its checksum is wrong");
  flipped = whole;
  flipped[20] = flipped[20] == '0' ? '1' : '0';  // in the key
  expect_rebuilt(flipped, "another page");
  flipped = whole;
  flipped[0] = 'x';
  expect_rebuilt(flipped, "no entry of this version");
}

TEST_F(CudaCache, RebuildsATruncatedEntry) {
  get();
  const std::string whole = read_file(entry());
  expect_rebuilt("", "cut off");
  expect_rebuilt(whole.substr(0, 100), "cut off");
  expect_rebuilt(whole.substr(0, 142), "its checksum is wrong");
  expect_rebuilt(whole.substr(0, whole.size() - 1), "its checksum is wrong");
  expect_rebuilt(whole + "x", "its checksum is wrong");
}

TEST_F(CudaCache, PagesThatDoNotCompileAreNotKept) {
  Cache cache(folder());
  for (int i = 0; i < 2; ++i) EXPECT_THROW(cache.get("one", "oops\n", {}), InternalError);
  EXPECT_EQ(cache.use().entries, 0);
}

TEST_F(CudaCache, ThreadsThatAskAtOnceShareOneCompilation) {
  Cache cache(folder());
  std::vector<Cached> found(4);
  std::vector<std::thread> threads;
  for (Cached& each : found) {
    threads.emplace_back([&] { each = cache.get("one", kPage, {}); });
  }
  for (std::thread& thread : threads) thread.join();
  int compiled = 0;
  for (const Cached& each : found) {
    EXPECT_EQ(each.kernel, found[0].kernel);
    if (each.from == From::compiler) ++compiled;
  }
  EXPECT_EQ(compiled, 1);
}

TEST_F(CudaCache, ProcessesThatWriteAtOnceLeaveWholeEntries) {
  fs::create_directories(folder_);
  std::vector<pid_t> children;
  for (int child = 0; child < 3; ++child) {
    const pid_t pid = fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      // Exits with 1 where anything is wrong. Each round writes over what the others write.
      int code = 0;
      for (int round = 0; round < 5 && code == 0; ++round) {
        for (const std::string_view page : {kPage, kOther}) {
          Cache cache(folder());
          const std::string path = cache.path_of(page, {});
          std::error_code gone;
          if (round % 2 == 0) fs::remove(path, gone);
          const Cached cached = cache.get("one", page, {});
          // A file that a sibling deletes between looking and reading is no damage.
          const bool damaged = cached.note.find("checksum") != std::string::npos ||
                               cached.note.find("cut off") != std::string::npos;
          if (damaged || cached.kernel->entries.size() != 1) code = 1;
        }
      }
      _exit(code);
    }
    children.push_back(pid);
  }
  for (const pid_t pid : children) {
    int status = 0;
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(get().from, From::folder);
  EXPECT_EQ(get(kOther).from, From::folder);
  for (const auto& file : fs::directory_iterator(folder())) {
    EXPECT_EQ(file.path().extension(), ".kernel") << "left behind";
  }
}

TEST_F(CudaCache, WorksWithoutAFolderThatCanBeWritten) {
  // A file stands where the folder would be: no user can write there, root neither.
  fs::create_directories(folder_);
  write_file(folder(), "not a folder");
  Cache cache(folder());
  const Cached first = cache.get("one", kPage, {});
  EXPECT_EQ(first.from, From::compiler);
  EXPECT_TRUE(has(first.note, "kernels are not kept"));
  EXPECT_TRUE(has(first.note, "CODA_CACHE"));
  EXPECT_EQ(cache.get("one", kOther, {}).note, "") << "said once";
  EXPECT_EQ(cache.get("one", kPage, {}).from, From::memory);
  EXPECT_EQ(cache.use().entries, 0);
}

TEST_F(CudaCache, OfNoFolderLivesInMemory) {
  Cache cache("");
  EXPECT_EQ(cache.get("one", kPage, {}).note, "");
  EXPECT_EQ(cache.get("one", kPage, {}).from, From::memory);
  EXPECT_EQ(cache.use().entries, 0);
}

}  // namespace
}  // namespace coda::cuda
