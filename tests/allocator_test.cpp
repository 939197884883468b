// tests/allocator_test.cpp: the memory of tensors and scratch, from a caller's own functions.
#include "coda/core/allocator.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <thread>
#include <vector>

#include "coda/backend/execute.h"
#include "coda/core/error.h"
#include "coda/core/npy.h"
#include "coda/core/safetensors.h"
#include "coda/cpu/cpu.h"
#include "coda/program/text.h"
#include "coda/rewrite/rewrite.h"
#include "tests/refusal.h"

namespace coda {
namespace {

// Gives memory up to a limit, and keeps the books.
struct Books {
  std::size_t limit = std::numeric_limits<std::size_t>::max();
  std::size_t shift = 0;  // bytes by which what it gives is misaligned
  std::atomic<std::size_t> taken = 0, given_back = 0, held = 0, wrong = 0, least = 0;

  Allocator allocator() { return {take, give_back, this}; }

  static void* take(void* context, std::size_t bytes, std::size_t alignment) {
    auto& books = *static_cast<Books*>(context);
    if (bytes == 0 || alignment != kAllocationAlignment) ++books.wrong;
    if (books.held + bytes > books.limit) return nullptr;
    ++books.taken;
    books.held += bytes;
    const std::size_t all = (bytes + books.shift + alignment - 1) / alignment * alignment;
    auto* memory = static_cast<std::byte*>(std::aligned_alloc(alignment, all));
    std::memset(memory, 0xab, all);  // not zeroed
    return memory + books.shift;
  }
  static void give_back(void* context, void* memory, std::size_t bytes, std::size_t alignment) {
    auto& books = *static_cast<Books*>(context);
    if (alignment != kAllocationAlignment) ++books.wrong;
    ++books.given_back;
    books.held -= bytes;
    std::free(static_cast<std::byte*>(memory) - books.shift);
  }

  void expect_balanced(std::size_t at_least) const {
    EXPECT_GE(taken, at_least);
    EXPECT_EQ(taken, given_back);
    EXPECT_EQ(held, 0u);
    EXPECT_EQ(wrong, 0u);
  }
};

class AllocatorTest : public ::testing::Test {
 protected:
  ~AllocatorTest() override { set_allocator({}); }
};

TEST_F(AllocatorTest, TensorsAreAlignedZeroedAndGivenBack) {
  Books books;
  set_allocator(books.allocator());
  EXPECT_EQ(current_allocator().context, &books);
  for (const std::int64_t extent : {0, 1, 15, 16, 17, 4096}) {
    const OwnedTensor tensor(DType::f32, {extent});
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.as<float>()) % kAllocationAlignment, 0u);
    EXPECT_NE(tensor.as<float>(), nullptr);
    for (std::int64_t i = 0; i < extent; ++i) ASSERT_EQ(tensor.as<float>()[i], 0.0f);
    const OwnedTensor copy = dense_copy(tensor.tensor());
    EXPECT_EQ(books.taken - books.given_back, 2u);
  }
  books.expect_balanced(12);
}

TEST_F(AllocatorTest, ABackendsMemoryAndScratchComeFromIt) {
  Books books;
  set_allocator(books.allocator());
  {
    const Module module = parse(R"(
block f(x: f32[M, K], w: f32[N, K], v: f32[D, N]) -> (z: f32[M, D]) {
  y = x @ w
  z = (y * rsqrt(sum(y * y, N) + 1)) @ v
})",
                                "f.coda");
    const auto cpu = cpu::backend();
    const Executable f(rewrite(module.find("f")).forward.schedule, *cpu,
                       {{"M", 65}, {"K", 3}, {"N", 70}, {"D", 5}});
    const Memory memory = cpu->memory();
    void* const scratch = memory.allocate(f.scratch_bytes());
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(scratch) % kAllocationAlignment, 0u);
    const OwnedTensor x(DType::f32, {65, 3}), w(DType::f32, {70, 3}), v(DType::f32, {5, 70});
    const OwnedTensor z(DType::f32, {65, 5});
    const std::array params = {x.tensor(), w.tensor(), v.tensor()};
    const std::size_t before = books.taken;
    f.run(params, std::array{z.tensor()}, {static_cast<std::byte*>(scratch), f.scratch_bytes()});
    EXPECT_EQ(books.taken, before) << "a run allocates nothing";
    memory.release(scratch);
  }
  books.expect_balanced(5);
}

TEST_F(AllocatorTest, BlocksGoBackToWhoeverGaveThem) {
  Books first, second;
  set_allocator(first.allocator());
  auto a = std::make_unique<OwnedTensor>(DType::f32, std::vector<std::int64_t>{8});
  set_allocator(second.allocator());
  auto b = std::make_unique<OwnedTensor>(DType::f32, std::vector<std::int64_t>{8});
  set_allocator({});
  const OwnedTensor c(DType::f32, {8});
  a.reset();
  b.reset();
  first.expect_balanced(1);
  second.expect_balanced(1);
  EXPECT_EQ(first.taken, 1u);
  EXPECT_EQ(second.taken, 1u);
}

TEST_F(AllocatorTest, WhereThereIsNoMemoryTheErrorSaysHowMuchWasAskedFor) {
  Books books{.limit = 1 << 20};
  set_allocator(books.allocator());
  EXPECT_EQ(refusal([] { OwnedTensor(DType::f32, {1024, 1024}); }),
            "error: no memory for f32[1024, 1024]: 4194304 bytes (4 MiB)\n"
            "  fix: use smaller sizes, or let the allocator that was set give more");
  EXPECT_EQ(refusal([] { host_memory().allocate(2000000); }),
            "error: no memory for tensors or scratch: 2000000 bytes (1 MiB)\n"
            "  fix: use smaller sizes, or let the allocator that was set give more");
  EXPECT_NE(refusal([] { allocate(SIZE_MAX - 8, "all of it"); }).find("all of it"),
            std::string::npos);
  const OwnedTensor small(DType::f32, {8});
  EXPECT_EQ(small.as<float>()[7], 0.0f) << "the library goes on";
  EXPECT_EQ(books.taken, 1u);
}

TEST_F(AllocatorTest, NothingLeaksWhereMemoryEndsHalfWay) {
  const auto folder = std::filesystem::temp_directory_path();
  const std::string path = (folder / ("allocator-" + std::to_string(getpid()))).string();
  {
    const OwnedTensor tensor(DType::f32, {4096});
    std::map<std::string, Tensor> tensors;
    for (const char* name : {"a", "b", "c", "d"}) tensors[name] = tensor.tensor();
    write_safetensors(path, tensors);
  }
  Books books;
  set_allocator(books.allocator());
  EXPECT_EQ(read_safetensors(path).tensors.size(), 4u);
  books.limit = 40000;  // two of the four
  EXPECT_NE(refusal([&] { read_safetensors(path); }).find("16384 bytes"), std::string::npos);
  books.expect_balanced(6);
  std::filesystem::remove(path);
}

TEST_F(AllocatorTest, IsCalledFromAnyThread) {
  Books books;
  set_allocator(books.allocator());
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < 200; ++i) OwnedTensor(DType::bf16, {i});
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(books.taken, 800u);
  books.expect_balanced(800);
}

TEST_F(AllocatorTest, ThatIsHalfThereOrMisalignsIsRefused) {
  Books books;
  EXPECT_EQ(refusal([&] { set_allocator({Books::take, nullptr, &books}); }),
            "error: the allocator has no function to release\n"
            "  fix: give both functions, or neither for the system's memory");
  EXPECT_EQ(refusal([&] { set_allocator({nullptr, Books::give_back, &books}); }),
            "error: the allocator has no function to allocate\n"
            "  fix: give both functions, or neither for the system's memory");
  books.shift = 16;
  set_allocator(books.allocator());
  EXPECT_EQ(refusal([] { OwnedTensor(DType::f32, {2}); }),
            "error: the allocator that was set gave memory for f32[2] that is not aligned to 64 "
            "bytes\n  fix: align it as its last argument says");
  books.expect_balanced(1);
}

}  // namespace
}  // namespace coda
