// tests/cuda_bundle_test.cpp: plans as JSON, bundles as files, and their kernels on a driver that
// writes launches down.
#include "coda/cuda/bundle.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "coda/backend/execute.h"
#include "coda/check/bind.h"
#include "coda/core/error.h"
#include "coda/core/file.h"
#include "coda/core/sha256.h"
#include "coda/cuda/choose.h"
#include "coda/cuda/driver.h"
#include "coda/cuda/nvrtc.h"
#include "coda/cuda/plan_json.h"
#include "coda/program/text.h"
#include "coda/rewrite/ledger.h"
#include "coda/rewrite/rewrite.h"
#include "tests/fake_driver/device.h"

namespace coda {
namespace {

namespace fs = std::filesystem;
using testing::fake;
using testing::FakeDriver;

std::string temporary(const std::string& name) {
  const fs::path folder = fs::path(::testing::TempDir()) / "coda_bundle_test";
  fs::create_directories(folder);
  return folder / name;
}

// ---- plans ----

TEST(PlanJson, HoldsEveryPart) {
  using Kind = cuda::Word::Kind;
  cuda::Plan plan{.name = "p", .path = "gemm 128x192", .page = "// a \"page\"\n"};
  plan.tables = {{1, 0xffffffffu}, {}};
  plan.workspace = std::int64_t{1} << 40;
  plan.notes = {"one", "two"};
  cuda::Launch launch{.entry = "p_1", .grid = {132, 2, 3}, .block = 384, .shared = 232448};
  launch.cluster = 2;
  launch.maps = {{.tensor = 1,
                  .offset = -6,
                  .dtype = DType::f16,
                  .axes = {{8, 0, 4}, {16, std::int64_t{1} << 33, 2}},
                  .swizzle = 64,
                  .promotion = 128}};
  launch.words = {{Kind::number, 0, -3},
                  {Kind::pointer, 2, 5},
                  {Kind::workspace, 0, 24},
                  {Kind::table, 1, 4},
                  {Kind::number, 0, std::int64_t{1} << 62}};
  plan.launches = {launch, {.entry = "p_2"}};

  const auto json = cuda::plan_json(plan);
  const cuda::Plan got = cuda::plan_from_json(nlohmann::json::parse(json.dump()), 3);
  EXPECT_EQ(cuda::plan_json(got), json);
  EXPECT_EQ(got.name, plan.name);
  EXPECT_EQ(got.path, plan.path);
  EXPECT_EQ(got.page, plan.page);
  EXPECT_EQ(got.tables, plan.tables);
  EXPECT_EQ(got.workspace, plan.workspace);
  EXPECT_EQ(got.notes, plan.notes);
  ASSERT_EQ(got.launches.size(), 2u);
  const cuda::Launch& first = got.launches[0];
  EXPECT_EQ(first.entry, "p_1");
  EXPECT_EQ(first.grid, launch.grid);
  EXPECT_EQ(first.block, 384);
  EXPECT_EQ(first.shared, 232448);
  EXPECT_EQ(first.cluster, 2);
  ASSERT_EQ(first.maps.size(), 1u);
  EXPECT_EQ(first.maps[0].tensor, 1);
  EXPECT_EQ(first.maps[0].offset, -6);
  EXPECT_EQ(first.maps[0].dtype, DType::f16);
  EXPECT_EQ(first.maps[0].axes, launch.maps[0].axes);
  EXPECT_EQ(first.maps[0].swizzle, 64);
  EXPECT_EQ(first.maps[0].promotion, 128);
  ASSERT_EQ(first.words.size(), launch.words.size());
  for (std::size_t i = 0; i < first.words.size(); ++i) {
    EXPECT_EQ(first.words[i].kind, launch.words[i].kind);
    EXPECT_EQ(first.words[i].tensor, launch.words[i].tensor);
    EXPECT_EQ(first.words[i].value, launch.words[i].value);
  }
}

TEST(PlanJson, RefusesPlacesThatAreNot) {
  cuda::Plan plan{.name = "p"};
  plan.launches = {{.entry = "p", .words = {{cuda::Word::Kind::pointer, 2, 0}}}};
  EXPECT_NO_THROW(cuda::plan_from_json(cuda::plan_json(plan), 3));
  EXPECT_THROW(cuda::plan_from_json(cuda::plan_json(plan), 2), ProgramError);
  plan.launches[0].words = {{cuda::Word::Kind::table, 0, 0}};
  EXPECT_THROW(cuda::plan_from_json(cuda::plan_json(plan), 3), ProgramError);
}

Schedule mlp() {
  return rewrite(parse_file("programs/llama.coda").find("mlp")).forward.schedule;
}

Sizes mlp_sizes() {
  return {{"M", 256}, {"D", 256}, {"F", 512}};
}

TEST(PlanJson, ReadsWhatPlannersMake) {
  for (const Step& step : mlp().steps) {
    const Sizes sizes = bind_sizes(step.program, mlp_sizes());
    for (const char* tile : {"", "general"}) {
      const cuda::Plan plan = cuda::choose_plan(
          check(step.program), sizes, cuda::dense_layouts(step.program, sizes), {}, {.tile = tile});
      const std::size_t tensors = step.program.params().size() + step.program.results().size();
      const auto json = cuda::plan_json(plan);
      EXPECT_EQ(cuda::plan_json(cuda::plan_from_json(json, tensors)), json);
    }
  }
}

// ---- files ----

// A bundle whose cubins are no code.
cuda::Bundle made_up() {
  const Program program =
      parse("coda 1\nprogram twice(x: f32[N]) -> (y: f32[N]) {\n  y = x + x\n}\n", "t.coda")
          .find("");
  cuda::Bundle bundle{.version = "0", .toolkit = "13.0", .schedule = as_schedule(program)};
  bundle.sizes = {{"N", 64}};
  cuda::Bundle::Kernel kernel{.program = program, .sizes = bundle.sizes};
  kernel.layouts =
      cuda::canonical_layouts(program, bundle.sizes, cuda::dense_layouts(program, bundle.sizes));
  kernel.plan = {.name = "twice", .path = "stream"};
  kernel.plan.launches = {{.entry = "twice",
                           .words = {{cuda::Word::Kind::pointer, 0, 0},
                                     {cuda::Word::Kind::pointer, 1, 0},
                                     {cuda::Word::Kind::number, 0, 64}}}};
  bundle.kernels = {kernel};
  bundle.cubins = {
      std::string("\x7f"
                  "ELF\0\n cubin",
                  12)};
  return bundle;
}

TEST(BundleFile, IsReadAsItWasWritten) {
  const cuda::Bundle bundle = made_up();
  const std::string path = temporary("twice.bundle");
  EXPECT_FALSE(cuda::is_bundle(path));
  cuda::write_bundle(bundle, path);
  EXPECT_TRUE(cuda::is_bundle(path));
  EXPECT_FALSE(cuda::is_bundle("programs/norm.coda"));
  const cuda::Bundle got = cuda::read_bundle(path);
  EXPECT_EQ(got.version, bundle.version);
  EXPECT_EQ(got.toolkit, bundle.toolkit);
  EXPECT_EQ(got.target, bundle.target);
  EXPECT_EQ(got.schedule, bundle.schedule);
  EXPECT_EQ(got.schedule.name, "twice");
  EXPECT_EQ(got.sizes, bundle.sizes);
  EXPECT_EQ(got.cubins, bundle.cubins);
  ASSERT_EQ(got.kernels.size(), 1u);
  EXPECT_EQ(got.kernels[0].program, bundle.kernels[0].program);
  EXPECT_EQ(got.kernels[0].layouts, bundle.kernels[0].layouts);
  EXPECT_EQ(cuda::plan_json(got.kernels[0].plan), cuda::plan_json(bundle.kernels[0].plan));
  fs::remove(path);
}

void expect_refusal(const std::string& path, const std::string& text, const char* words) {
  write_file(path, text);
  try {
    cuda::read_bundle(path);
    FAIL() << "read: " << words;
  } catch (const ProgramError& error) {
    const std::string what = error.what();
    EXPECT_NE(what.find(words), std::string::npos) << what;
    EXPECT_NE(what.find(path), std::string::npos) << what;
  }
}

TEST(BundleFile, RefusesWhatIsDamagedOrForeign) {
  const std::string path = temporary("damaged.bundle");
  cuda::write_bundle(made_up(), path);
  const std::string whole = read_file(path);
  for (std::size_t at = whole.find('\n') + 1; at < whole.size(); at += 7) {
    std::string text = whole;
    text[at] = static_cast<char>(text[at] ^ 1);
    expect_refusal(path, text, "its checksum is wrong");
  }
  for (const std::size_t length : {whole.size() - 1, std::size_t{100}, std::size_t{20}}) {
    expect_refusal(path, whole.substr(0, length), "is damaged");
  }
  expect_refusal(path, "", "is no bundle");
  expect_refusal(path, "coda 1\n", "is no bundle");
  expect_refusal(path, "coda bundle 2\n" + whole.substr(14), "another format");
  // A right checksum over nonsense.
  const std::string rest = "0000000000000002{}";
  expect_refusal(path, "coda bundle 1\n" + hex(sha256(rest)) + rest, "is damaged");
  fs::remove(path);
}

TEST(BundleFile, IsForOneKindOfGpu) {
  const cuda::Bundle bundle = made_up();
  EXPECT_FALSE(cuda::bundle_refusal(bundle, {}));
  const auto why = cuda::bundle_refusal(bundle, {.architecture = "sm_100a"});
  ASSERT_TRUE(why);
  EXPECT_NE(why->find("sm_90a"), std::string::npos) << *why;
  EXPECT_NE(why->find("sm_100a"), std::string::npos) << *why;
  EXPECT_TRUE(cuda::bundle_refusal(bundle, {.processors = 114}));
}

// ---- on a device ----

class BundleRun : public testing::FakeDevice {};

std::vector<FakeDriver::Launch> launches_of(const Schedule& schedule, const Backend& backend,
                                            const Sizes& sizes) {
  const Executable executable(schedule, backend, sizes);
  std::uintptr_t address = 0x1000000;
  std::vector<Tensor> params, results;
  const auto place = [&](const Type& type) {
    address += 0x1000000;
    return dense(reinterpret_cast<void*>(address), type.dtype, shape_of(type, sizes));
  };
  for (const Param& param : schedule.params) params.push_back(place(param.type));
  for (const Result& result : schedule.results) results.push_back(place(result.type));
  std::byte* scratch = reinterpret_cast<std::byte*>(0x80000000);
  fake()->launches.clear();
  executable.run(params, results, {scratch, executable.scratch_bytes()});
  return fake()->launches;
}

TEST_F(BundleRun, LaunchesWhatTheBackendWould) {
  const std::string path = temporary("mlp.bundle");
  const Schedule schedule = mlp();
  cuda::write_bundle(cuda::build_bundle(schedule, mlp_sizes(), cuda::Driver::get().device().target),
                     path);
  const cuda::OpenBundle opened = cuda::open_bundle(path);
  EXPECT_EQ(opened.bundle->schedule, schedule);
  const auto backend = cuda::backend();
  const auto expected = launches_of(schedule, *backend, mlp_sizes());
  const auto got = launches_of(opened.bundle->schedule, *opened.backend, opened.bundle->sizes);
  ASSERT_GE(got.size(), schedule.steps.size());
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].kernel, expected[i].kernel);
    EXPECT_EQ(got[i].grid, expected[i].grid);
    EXPECT_EQ(got[i].argument, expected[i].argument);
  }
  fs::remove(path);
}

TEST_F(BundleRun, RefusesOtherSizesProgramsAndStrides) {
  auto bundle = std::make_shared<cuda::Bundle>(made_up());
  const auto backend = cuda::bundle_backend(bundle);
  const Checked twice = check(bundle->kernels[0].program);
  EXPECT_FALSE(backend->refusal(twice, {{"N", 64}}));
  const auto why = backend->refusal(twice, {{"N", 65}});
  ASSERT_TRUE(why);
  EXPECT_NE(why->find("N=65"), std::string::npos) << *why;
  EXPECT_THROW(backend->compile(twice, {{"N", 65}}), Unsupported);
  const Program other =
      parse("coda 1\nprogram twice(x: f32[N]) -> (y: f32[N]) {\n  y = x * x\n}\n", "t.coda")
          .find("");
  EXPECT_THROW(backend->compile(check(other), {{"N", 64}}), Unsupported);

  const Kernel kernel = backend->compile(twice, {{"N", 64}});
  Tensor x = dense(reinterpret_cast<void*>(0x10000), DType::f32, {64});
  const Tensor y = dense(reinterpret_cast<void*>(0x20000), DType::f32, {64});
  kernel.run(std::span(&x, 1), std::span(&y, 1), {});
  EXPECT_EQ(fake()->launches.size(), 1u);
  x.strides = {2};
  EXPECT_THROW(kernel.run(std::span(&x, 1), std::span(&y, 1), {}), Unsupported);
}

// ---- the command ----

int run(const std::string& variables, const std::string& words, std::string* output = nullptr) {
  const std::string out = temporary("output");
  const int status =
      std::system((variables + " " CODA_BINARY " " + words + " >" + out + " 2>&1").c_str());
  if (output != nullptr) *output = read_file(out);
  return WEXITSTATUS(status);
}

TEST_F(BundleRun, NeedsNoCompiler) {
  const std::string path = temporary("norm.bundle");
  std::string output;
  ASSERT_EQ(run("CODA_CACHE=off",
                "build norm.coda --program residual_norm --size M=256 N=256 "
                "K=128 -o " +
                    path,
                &output),
            0)
      << output;
  EXPECT_NE(output.find("residual_norm: gemm"), std::string::npos) << output;
  const std::string bare = "CODA_CACHE=off CODA_NVRTC=/nowhere LD_LIBRARY_PATH=" FAKE_DRIVER_FOLDER;
  EXPECT_EQ(run(bare, "run " + path + " random", &output), 0) << output;
  EXPECT_EQ(run(bare, "run " + path + " random --size M=128", &output), 1) << output;
  EXPECT_EQ(run(bare, "run " + path + " random --dtype f32", &output), 1) << output;
  // The same from the text does.
  EXPECT_EQ(run(bare,
                "run norm.coda --program residual_norm random --size M=256 N=256 K=128 "
                "--device cuda",
                &output),
            3)
      << output;
  EXPECT_NE(output.find("pip install nvidia-cuda-nvrtc"), std::string::npos) << output;
  EXPECT_EQ(output.find("another device"), std::string::npos) << output;
  fs::remove(path);
}

}  // namespace
}  // namespace coda
