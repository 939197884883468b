// tests/cuda_backend_test.cpp: from programs to launches, on a driver that writes them down.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <thread>

#include "coda/check/bind.h"
#include "coda/core/error.h"
#include "coda/cuda/cuda.h"
#include "coda/cuda/driver.h"
#include "coda/cuda/launch.h"
#include "coda/program/text.h"
#include "tests/fake_driver/device.h"

namespace coda {
namespace {

using testing::fake;
using testing::FakeDriver;

class CudaBackend : public testing::FakeDevice {
 protected:
  void SetUp() override {
    // As a profiler would, before the driver is there.
    setenv("NVTX_INJECTION64_PATH", "/nowhere", 1);
    dlopen(FAKE_NVTX, RTLD_NOW | RTLD_LOCAL);
    FakeDevice::SetUp();
  }
};

void* at(std::uintptr_t address) {
  return reinterpret_cast<void*>(address);
}

Program scaled() {
  return parse(
             "coda 1\nprogram scaled(x: bf16[M, N], s: f32) -> (y: bf16[M, N]) {\n"
             "  y = bf16(x * s)\n}\n",
             "test.coda")
      .find("");
}

// Tensors at addresses that nobody reads: the kernels do not run.
Tensor matrix(std::uintptr_t address, std::int64_t stride) {
  return {at(address), DType::bf16, {8, 64}, {stride, 1}};
}

struct Call {
  std::vector<Tensor> params, results;
};

Call call(std::uintptr_t x, std::uintptr_t y, std::int64_t stride = 64) {
  return {{matrix(x, stride), dense(at(0x900000), DType::f32, {})}, {matrix(y, stride)}};
}

const Sizes kSizes{{"M", 8}, {"N", 64}};

bool names(const FakeDriver::Launch& launch, std::uintptr_t address) {
  return std::ranges::find(launch.argument, address) != launch.argument.end();
}

TEST_F(CudaBackend, LaunchesOnTheCallersStreamWithTheCallsAddresses) {
  const auto backend = cuda::backend();
  const Kernel kernel = backend->compile(check(scaled()), kSizes);
  EXPECT_NE(kernel.note().find("stream"), std::string::npos) << kernel.note();
  const auto run = [&](const Call& call, std::uintptr_t stream) {
    kernel.run(call.params, call.results, {}, {at(stream)});
  };
  run(call(0x10000, 0x20000), 7);
  run(call(0x30000, 0x40000), 8);
  run(call(0x10000, 0x20000), 9);
  ASSERT_EQ(fake()->launches.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    const FakeDriver::Launch& launch = fake()->launches[i];
    EXPECT_EQ(launch.stream, at(7 + i));
    EXPECT_NE(launch.kernel.find("scaled"), std::string::npos) << launch.kernel;
    EXPECT_TRUE(names(launch, i == 1 ? 0x30000 : 0x10000));
    EXPECT_TRUE(names(launch, i == 1 ? 0x40000 : 0x20000));
  }
  EXPECT_EQ(fake()->launches[0].argument, fake()->launches[2].argument);
}

TEST_F(CudaBackend, CompilesAVariantOnceForEachLayout) {
  const auto backend = cuda::backend();
  const int before = fake()->modules;
  const Kernel kernel = backend->compile(check(scaled()), kSizes);
  EXPECT_EQ(fake()->modules, before + 1);
  const auto modules_after = [&](const Call& call) {
    kernel.run(call.params, call.results, {});
    return fake()->modules - before;
  };
  EXPECT_EQ(modules_after(call(0x10000, 0x20000)), 1);
  EXPECT_EQ(modules_after(call(0x10010, 0x20000)), 1);  // aligned enough
  const int misaligned = modules_after(call(0x10002, 0x20000));
  EXPECT_LE(misaligned, 2);
  EXPECT_EQ(modules_after(call(0x30002, 0x40000)), misaligned);
  EXPECT_EQ(fake()->launches.size(), 4u);
}

TEST_F(CudaBackend, TakesMemoryForAStreamWhereAVariantNeedsMoreThanTheScratch) {
  const Program program =
      parse(
          "coda 1\nprogram linear(x: bf16[M, K], w: bf16[N, K]) -> (y: bf16[M, N]) {\n"
          "  y = bf16(x @ w)\n}\n",
          "test.coda")
          .find("");
  const Sizes sizes{{"M", 256}, {"N", 256}, {"K", 64}};
  const Checked checked = check(program);
  const cuda::Plan general = cuda::choose_plan(checked, sizes, cuda::dense_layouts(program, sizes),
                                               {}, {.tile = "general"});
  int given = 0;
  cuda::Options options;
  options.allocator.allocate = [&](std::size_t bytes) {
    ++given;
    return std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  };
  options.allocator.release = [&](void* memory) {
    --given;
    std::free(memory);
  };
  {
    const auto backend = cuda::backend(options);
    const Kernel kernel = backend->compile(checked, sizes);
    EXPECT_EQ(kernel.scratch_bytes(), 0u);
    EXPECT_GT(general.workspace, 0);
    EXPECT_NE(kernel.note().find("gemm"), std::string::npos) << kernel.note();
    const std::vector<Tensor> params = {dense(at(0x100000), DType::bf16, {256, 64}),
                                        dense(at(0x200000), DType::bf16, {256, 64})};
    std::vector<Tensor> results = {dense(at(0x300000), DType::bf16, {256, 256})};
    std::vector<std::byte> scratch(kernel.scratch_bytes());
    kernel.run(params, results, scratch);
    EXPECT_EQ(fake()->launches.size(), 1u);
    // Once a call is known, nothing is allocated and no map is encoded.
    const int maps = fake()->maps, allocated = fake()->allocations, hooked = given;
    EXPECT_GT(maps, 0);
    kernel.run(params, results, scratch);
    EXPECT_EQ(fake()->maps, maps);
    EXPECT_EQ(fake()->allocations, allocated);
    EXPECT_EQ(given, hooked);
    // A misaligned result takes the predicated path, whose sums need memory: once for each stream.
    results[0].data = at(0x300002);
    kernel.run(params, results, scratch);
    EXPECT_GE(fake()->launches.size(), 3u);
    EXPECT_EQ(given, hooked + 1);
    results[0].data = at(0x300004);
    kernel.run(params, results, scratch);
    EXPECT_EQ(given, hooked + 1);
    kernel.run(params, results, scratch, {at(7)});
    EXPECT_EQ(given, hooked + 2);
  }
  EXPECT_EQ(given, 0);
}

TEST_F(CudaBackend, RefusesTooLittleScratch) {
  const Program program =
      parse(
          "coda 1\nprogram linear(x: bf16[M, K], w: bf16[N, K]) -> (y: bf16[M, N]) {\n"
          "  y = bf16(x @ w)\n}\n",
          "test.coda")
          .find("");
  const auto backend = cuda::backend({.plan = {.tile = "general"}});
  const Kernel kernel = backend->compile(check(program), {{"M", 16}, {"N", 16}, {"K", 8}});
  ASSERT_GT(kernel.scratch_bytes(), 0u);
  const std::vector<Tensor> params = {dense(at(0x100000), DType::bf16, {16, 8}),
                                      dense(at(0x200000), DType::bf16, {16, 8})};
  const std::vector<Tensor> results = {dense(at(0x300000), DType::bf16, {16, 16})};
  EXPECT_THROW(kernel.run(params, results, {}), InternalError);
}

TEST_F(CudaBackend, GivesTablesBackWhereThereIsNoRoomForAll) {
  int alive = 0, all = 0;
  Memory memory = cuda::backend()->memory();
  memory.allocate = [&](std::size_t bytes) {
    if (++all == 2) throw Unsupported("no room");
    ++alive;
    return std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  };
  memory.release = [&](void* gone) {
    --alive;
    std::free(gone);
  };
  cuda::Plan plan{.name = "scaled"};
  plan.launches = {{.entry = "scaled"}};
  plan.tables = {{1, 2}, {3}};
  const auto page = std::make_shared<const cuda::LoadedPage>("scaled", "no code");
  try {
    const cuda::Launcher launcher(plan, {}, page, memory);
    FAIL() << "no table was missed";
  } catch (const Unsupported& error) {
    EXPECT_STREQ(error.what(), "program scaled: no room");
  }
  EXPECT_EQ(all, 2);
  EXPECT_EQ(alive, 0);
}

TEST_F(CudaBackend, NamesRangesForProfilers) {
  void* library = dlopen(FAKE_NVTX, RTLD_NOW | RTLD_LOCAL);
  const auto ranges = reinterpret_cast<const char* (*)()>(dlsym(library, "coda_fake_ranges"));
  ASSERT_NE(ranges, nullptr);
  const auto backend = cuda::backend();
  const Kernel kernel = backend->compile(check(scaled()), kSizes);
  const Call once = call(0x10000, 0x20000);
  const std::string before = ranges();
  kernel.run(once.params, once.results, {});
  EXPECT_EQ(std::string(ranges()).substr(before.size()), "<scaled <scaled > > ");
}

TEST_F(CudaBackend, NamesProgramAndCallInErrors) {
  const auto backend = cuda::backend();
  const Kernel kernel = backend->compile(check(scaled()), kSizes);
  const Call once = call(0x10000, 0x20000);
  fake()->fail_launches = true;
  try {
    kernel.run(once.params, once.results, {});
    FAIL() << "a failed launch went unseen";
  } catch (const InternalError& error) {
    const std::string what = error.what();
    EXPECT_NE(what.find("scaled"), std::string::npos) << what;
    EXPECT_NE(what.find("cuLaunchKernelEx"), std::string::npos) << what;
  }
  EXPECT_THROW(backend->memory().allocate(std::size_t{1} << 41), Unsupported);
}

TEST_F(CudaBackend, RunsFromSeveralThreads) {
  const auto backend = cuda::backend();
  const Kernel kernel = backend->compile(check(scaled()), kSizes);
  std::vector<std::thread> threads;
  for (std::uintptr_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (std::uintptr_t i = 0; i < 500; ++i) {
        const Call own = call(0x10000 * (t + 1) + 2 * (i % 40), 0x100000 * (t + 1));
        kernel.run(own.params, own.results, {}, {at(t)});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_EQ(fake()->launches.size(), 2000u);
  for (const FakeDriver::Launch& launch : fake()->launches) {
    const auto t = reinterpret_cast<std::uintptr_t>(launch.stream);
    EXPECT_TRUE(names(launch, 0x100000 * (t + 1)));
  }
}

TEST_F(CudaBackend, ZeroesAndWritesDeviceMemory) {
  const Memory memory = cuda::backend()->memory();
  auto* words = static_cast<std::int32_t*>(memory.allocate(16 * sizeof(std::int32_t)));
  std::vector<std::int32_t> host(16, 7), back(16);
  memory.copy_in(words, host.data(), 64);
  memory.zero({words + 1, DType::i32, {2, 3}, {8, 1}}, {});
  memory.write(words + 4, (std::int64_t{-2} << 32) | 5, {});
  memory.wait({});
  memory.copy_out(back.data(), words, 64);
  EXPECT_EQ(back, (std::vector<std::int32_t>{7, 0, 0, 0, 5, -2, 7, 7, 7, 0, 0, 0, 7, 7, 7, 7}));
  memory.release(words);
}

}  // namespace
}  // namespace coda
