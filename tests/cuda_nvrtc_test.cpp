// tests/cuda_nvrtc_test.cpp: pages compile, what ptxas says of them is read, and faults are named.
#include "coda/cuda/nvrtc.h"

#include <gtest/gtest.h>

#include <thread>

#include "coda/core/error.h"
#include "coda/core/file.h"

namespace coda::cuda {
namespace {

testing::AssertionResult has(std::string_view text, std::string_view part) {
  if (text.find(part) != std::string_view::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << '"' << part << "\" is not in: " << text;
}

constexpr std::string_view kScale = R"cuda(#include "twice.cuh"
extern "C" __global__ void scale(float* x, long long n) {
  const long long i = blockIdx.x * 128ll + threadIdx.x;
  if (i < n) x[i] = twice(x[i]);
}
)cuda";

// Keeps 96 values alive where 1024 threads twice on a processor have 32 registers each.
constexpr std::string_view kSpills = R"cuda(
extern "C" __global__ void __launch_bounds__(1024, 2) heavy(float* x) {
  float v[96];
#pragma unroll
  for (int i = 0; i < 96; ++i) v[i] = x[i * 1024 + threadIdx.x];
  for (int j = 0; j < 10; ++j) {
#pragma unroll
    for (int i = 0; i < 96; ++i) v[i] = v[i] * v[(i * 7 + 1) % 96] + x[j];
  }
#pragma unroll
  for (int i = 0; i < 96; ++i) x[i * 1024 + threadIdx.x] = v[i];
}
extern "C" __global__ void __launch_bounds__(128) light(float* x) {
  __shared__ float s[32];
  s[threadIdx.x & 31] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = s[31 - (threadIdx.x & 31)];
}
)cuda";

const std::vector<DeviceFile> kFiles = {
    {"twice.cuh", "__device__ float twice(float x) { return 2 * x; }\n"},
    {"broken.cuh", "__device__ float broken(float x) {\n  return undeclared;\n}\n"},
};

// What the tests below call.
class NvrtcCompiles : public testing::Test {
 protected:
  void SetUp() override {
    if (const auto problem = nvrtc_problem()) GTEST_SKIP() << "skipped: " << *problem;
  }

  static std::string fault(std::string_view page) {
    try {
      compile("swish", page, kFiles);
    } catch (const InternalError& error) {
      return error.what();
    }
    return "it compiled";
  }
};

TEST_F(NvrtcCompiles, APageWithItsDeviceFilesToACubin) {
  const Compiled compiled = compile("scale", kScale, kFiles);
  EXPECT_EQ(compiled.cubin.substr(0, 4),
            "\x7f"
            "ELF");
  EXPECT_TRUE(has(compiled.cubin, "scale"));
  ASSERT_EQ(compiled.entries.size(), 1u) << compiled.log;
  EXPECT_EQ(compiled.entries[0].name, "scale");
  EXPECT_GT(compiled.entries[0].registers, 4);
  EXPECT_LT(compiled.entries[0].registers, 64);
  EXPECT_EQ(compiled.entries[0].spill_stores, 0);
  EXPECT_GT(compiled.seconds, 0);
}

TEST_F(NvrtcCompiles, AndSaysWhatEachKernelSpillsAndShares) {
  const Compiled compiled = compile("two", kSpills, kFiles);
  ASSERT_EQ(compiled.entries.size(), 2u) << compiled.log;
  const bool heavy_first = compiled.entries[0].name == "heavy";
  const Compiled::Entry& heavy = compiled.entries[heavy_first ? 0 : 1];
  const Compiled::Entry& light = compiled.entries[heavy_first ? 1 : 0];
  EXPECT_EQ(heavy.name, "heavy");
  EXPECT_EQ(heavy.registers, 32);
  EXPECT_GT(heavy.spill_stores, 100);
  EXPECT_GT(heavy.spill_loads, 100);
  EXPECT_GE(heavy.stack, 64 * 4);
  EXPECT_EQ(light.name, "light");
  EXPECT_EQ(light.spill_stores, 0);
  EXPECT_EQ(light.stack, 0);
  EXPECT_EQ(light.shared, 128);
}

TEST_F(NvrtcCompiles, NamesAnErrorWithItsLineAndTheLinesBefore) {
  const std::string text = fault(
      "extern \"C\" __global__ void k(float* x) {\n"
      "  // y = silu(x)\n"
      "  x[0] = silu(y);\n"
      "}\n");
  EXPECT_TRUE(has(text, "the CUDA page of swish does not compile"));
  EXPECT_TRUE(has(text, "  2 |   // y = silu(x)"));
  EXPECT_TRUE(has(text, "swish.cu(3): error: "));
  EXPECT_TRUE(has(text, "x[0] = silu(y);"));
}

TEST_F(NvrtcCompiles, NamesTheDeviceFileOfAnError) {
  const std::string text = fault("#include \"broken.cuh\"\n");
  EXPECT_TRUE(has(text, "broken.cuh(2): error: "));
  EXPECT_TRUE(has(text, "undeclared"));
}

TEST_F(NvrtcCompiles, SaysAtMostThreeErrors) {
  std::string page = "extern \"C\" __global__ void k(float* x) {\n";
  for (int i = 0; i < 9; ++i)
    page += "  x[" + std::to_string(i) + "] = unknown" + std::to_string(i) + ";\n";
  const std::string text = fault(page + "}\n");
  EXPECT_TRUE(has(text, "swish.cu(2): error: "));
  EXPECT_TRUE(has(text, "unknown2"));
  EXPECT_FALSE(has(text, "unknown3"));
}

TEST_F(NvrtcCompiles, RefusesAnArchitectureThatTheCompilerDoesNotKnow) {
  try {
    compile("scale", kScale, kFiles, {.architecture = "sm_12a"});
    FAIL() << "sm_12a is no architecture";
  } catch (const Unsupported& error) {
    EXPECT_TRUE(has(error.what(), "--gpu-architecture"));
    EXPECT_TRUE(has(error.what(), nvrtc().path));
  }
}

TEST_F(NvrtcCompiles, ToPtxForPeople) {
  const std::string ptx = compile_ptx("scale", kScale, kFiles);
  EXPECT_TRUE(has(ptx, ".target sm_90a"));
  EXPECT_TRUE(has(ptx, ".visible .entry scale("));
  EXPECT_EQ(ptx.find('\0'), std::string::npos);
}

TEST_F(NvrtcCompiles, FlagsReachThePage) {
  const std::string page = "extern \"C\" __global__ void k(int* x) { x[0] = STAGES; }\n";
  EXPECT_EQ(compile("k", page, {}, {.flags = {"-DSTAGES=4"}}).entries.size(), 1u);
  EXPECT_THROW(compile("k", page, {}), InternalError);
}

TEST_F(NvrtcCompiles, InSeveralThreadsAtOnce) {
  std::vector<std::string> cubins(4);
  std::vector<std::thread> threads;
  for (std::string& cubin : cubins) {
    threads.emplace_back([&cubin] { cubin = compile("scale", kScale, kFiles).cubin; });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& cubin : cubins) EXPECT_EQ(cubin, cubins[0]);
}

TEST_F(NvrtcCompiles, AndSaysWhereTheCompilerIs) {
  EXPECT_TRUE(has(nvrtc().path, "libnvrtc.so"));
  EXPECT_TRUE(has(nvrtc().version, "1"));
  EXPECT_TRUE(has(nvrtc().version, "."));
  EXPECT_TRUE(has(nvrtc_identity(), "libnvrtc.so"));
}

// ---- logs, without a compiler ----

TEST(NvrtcLog, SpillsOfFunctionsThatWereNotInlinedAreTheKernels) {
  const auto entries = parse_resources(
      "ptxas info    : 0 bytes gmem\n"
      "ptxas info    : Compiling entry function 'a' for 'sm_90a'\n"
      "ptxas info    : Function properties for a\n"
      "ptxas         .     16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads\n"
      "ptxas info    : Used 168 registers, used 3 barriers, 40 bytes cumulative stack size\n"
      "ptxas info    : Function properties for _Z4slowf\n"
      "ptxas         .     24 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads\n"
      "ptxas info    : Compiling entry function 'b' for 'sm_90a'\n"
      "ptxas info    : Function properties for b\n"
      "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
      "ptxas info    : Used 22 registers, used 0 barriers, 4096 bytes smem, 400 bytes cmem[0]\n");
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[0].name, "a");
  EXPECT_EQ(entries[0].registers, 168);
  EXPECT_EQ(entries[0].spill_stores, 12);
  EXPECT_EQ(entries[0].spill_loads, 16);
  EXPECT_EQ(entries[0].stack, 40);
  EXPECT_EQ(entries[0].shared, 0);
  EXPECT_EQ(entries[1].name, "b");
  EXPECT_EQ(entries[1].registers, 22);
  EXPECT_EQ(entries[1].spill_stores, 0);
  EXPECT_EQ(entries[1].shared, 4096);
}

TEST(NvrtcLog, SerialisedProductsAreAFault) {
  const auto fault = fault_in_log(
      "ptxas info    : (C7511) Potential Performance Loss: wgmma.mma_async instructions are "
      "serialized due to insufficient register resources for the wgmma pipeline in function 'k'\n"
      "ptxas info    : Compiling entry function 'k' for 'sm_90a'\n");
  ASSERT_TRUE(fault.has_value());
  EXPECT_TRUE(has(*fault, "C7511"));
  EXPECT_TRUE(has(*fault, "function 'k'"));
  EXPECT_FALSE(fault_in_log("ptxas info    : Compiling entry function 'k' for 'sm_90a'\n"));
  EXPECT_FALSE(fault_in_log(""));
}

TEST(NvrtcLog, WithoutAnErrorLineIsSaidWhole) {
  EXPECT_EQ(first_errors("something odd\n", "k", "page"), "something odd");
}

// ---- what pages include ----

TEST(DeviceFiles, AreTheTextsOfTheFolder) {
  ASSERT_FALSE(device_files().empty());
  for (const DeviceFile& file : device_files()) {
    EXPECT_TRUE(file.text == read_file(std::string(CODA_SOURCE_DIR) + "/coda/device/" + file.name))
        << file.name;
    EXPECT_FALSE(has(file.text, "#include <")) << file.name << " needs a toolkit";
  }
}

TEST_F(NvrtcCompiles, EveryDeviceFileOnItsOwn) {
  for (const DeviceFile& file : device_files()) {
    const std::string page = "#include \"" + file.name + "\"\n" + std::string(kScale);
    std::vector<DeviceFile> files(device_files().begin(), device_files().end());
    files.push_back(kFiles[0]);
    EXPECT_NO_THROW(compile("scale", page, files)) << file.name;
  }
}

}  // namespace
}  // namespace coda::cuda
