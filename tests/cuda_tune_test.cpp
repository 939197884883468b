// tests/cuda_tune_test.cpp: tables of measured choices, and the race that makes them, on a clock
// that says what it is told.
#include "coda/cuda/tune.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>

#include "coda/core/error.h"
#include "coda/core/file.h"
#include "coda/cuda/choose.h"
#include "coda/cuda/nvrtc.h"
#include "coda/cuda/tuning.h"
#include "coda/program/text.h"

namespace coda {
namespace {

namespace fs = std::filesystem;

Program parsed(const std::string& text) {
  return parse("coda 1\n" + text, "test.coda").find("");
}

Program linear(const std::string& name = "linear", const std::string& dtype = "bf16") {
  return parsed("program " + name + "(x: " + dtype + "[M, K], w: " + dtype +
                "[N, K]) -> (y: " + dtype + "[M, N]) {\n  y = " + dtype + "(x @ w)\n}\n");
}

const Sizes kSizes{{"M", 2048}, {"N", 2048}, {"K", 512}};

std::vector<cuda::Layout> dense(const Program& program) {
  return cuda::canonical_layouts(program, kSizes, cuda::dense_layouts(program, kSizes));
}

cuda::TuningEntry entry_of(const Program& program, const std::string& tile,
                           const std::string& gpu = "NVIDIA H200") {
  const cuda::Tuning nothing(gpu, "13", {});
  cuda::TuningEntry entry = nothing.subject(program, kSizes, dense(program));
  entry.tile = tile;
  entry.seconds = 1e-3;
  entry.model = "128x192";
  entry.model_seconds = 2e-3;
  return entry;
}

// ---- tables ----

TEST(TuningTable, IsReadAsItWasWritten) {
  cuda::TuningTable table;
  table.add(entry_of(linear(), "128x64"));
  table.add(entry_of(linear("f", "f16"), "128x128"));
  table.add(entry_of(linear(), "128x128"));  // in place of the first
  const cuda::TuningTable again = cuda::TuningTable::parse(table.text(), "t.json");
  EXPECT_EQ(again.text(), table.text());
  ASSERT_EQ(again.entries().size(), 2u);
  const cuda::TuningEntry* found = again.find(entry_of(linear(), ""));
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->tile, "128x128");
  EXPECT_EQ(found->sizes, kSizes);
  EXPECT_DOUBLE_EQ(found->model_seconds, 2e-3);
}

TEST(TuningTable, TellsGpuToolkitDtypeSizesAndLayoutsApartButNotNames) {
  const Program program = linear();
  cuda::TuningTable table;
  table.add(entry_of(program, "128x64"));
  const auto tile = [&](const cuda::Tuning& tuning, const Program& of, const Sizes& sizes,
                        const std::vector<cuda::Layout>& layouts) {
    const cuda::TuningEntry* entry = tuning.find(of, sizes, layouts);
    return entry == nullptr ? "" : entry->tile;
  };
  const std::vector<cuda::TuningTable> tables = {table};
  const cuda::Tuning h200("NVIDIA H200", "13", tables);
  const auto layouts = dense(program);
  EXPECT_EQ(tile(h200, program, kSizes, layouts), "128x64");
  EXPECT_EQ(tile(h200, linear("other_name"), kSizes, layouts), "128x64");
  EXPECT_EQ(tile(h200, linear("linear", "f16"), kSizes, layouts), "");
  Sizes larger = kSizes;
  larger["M"] = 4096;
  EXPECT_EQ(tile(h200, program, larger, layouts), "");
  auto misaligned = layouts;
  misaligned[0].alignment = 2;
  EXPECT_EQ(tile(h200, program, kSizes, misaligned), "");
  auto transposed = layouts;
  transposed[1].strides = {1, 2048};
  EXPECT_EQ(tile(h200, program, kSizes, transposed), "");
  EXPECT_TRUE(cuda::Tuning("NVIDIA H100", "13", tables).empty());
  EXPECT_TRUE(cuda::Tuning("NVIDIA H200", "12", tables).empty());
}

TEST(TuningTable, HasAWordForEachLayout) {
  const Program program = linear();
  auto layouts = dense(program);
  EXPECT_EQ(cuda::layout_class(program, kSizes, layouts), "dense dense dense");
  layouts[0].strides = {1024, 1};
  layouts[1].strides = {1, 2048};
  layouts[2].alignment = 4;
  EXPECT_EQ(cuda::layout_class(program, kSizes, layouts), "dense+ K.N dense:4");
  layouts[0].strides = {0, 1};
  EXPECT_EQ(cuda::layout_class(program, kSizes, layouts), "K.M0 K.N dense:4");
}

TEST(TuningTable, LaterTablesGoFirst) {
  std::vector<cuda::TuningTable> tables(2);
  tables[0].add(entry_of(linear(), "128x64"));
  tables[1].add(entry_of(linear(), "128x128"));
  const cuda::Tuning tuning("NVIDIA H200", "13", tables);
  EXPECT_EQ(tuning.find(linear(), kSizes, dense(linear()))->tile, "128x128");
}

TEST(TuningTable, GrowsInAFileAndRefusesDamage) {
  const fs::path folder = fs::path(::testing::TempDir()) / "coda_tuning_test";
  fs::remove_all(folder);
  const std::string path = folder / "deeper" / "tuning.json";
  EXPECT_TRUE(cuda::TuningTable::read(path).entries().empty());
  const std::vector<cuda::TuningEntry> first = {entry_of(linear(), "128x64")};
  const std::vector<cuda::TuningEntry> second = {entry_of(linear("f", "f16"), "128x128")};
  cuda::add_to_table(path, first);
  cuda::add_to_table(path, second);
  EXPECT_EQ(cuda::TuningTable::read(path).entries().size(), 2u);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder / "deeper"), fs::directory_iterator()), 1);
  write_file(path, "{\"coda tuning\": 1, \"entr");
  EXPECT_THROW(cuda::add_to_table(path, first), ProgramError);
  write_file(path, "{\"coda tuning\": 9, \"entries\": []}");
  try {
    cuda::TuningTable::read(path);
    FAIL() << "another format was read";
  } catch (const ProgramError& error) {
    EXPECT_NE(std::string(error.what()).find("format 9"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find(path), std::string::npos) << error.what();
  }
  fs::remove_all(folder);
}

TEST(TuningTable, ShippedOnesAreWhole) {
  ASSERT_FALSE(cuda::shipped_tunings().empty());
  for (const cuda::DeviceFile& file : cuda::shipped_tunings()) {
    EXPECT_NO_THROW(cuda::TuningTable::parse(file.text, file.name));
  }
}

// ---- plans ----

TEST(TunedPlan, TakesTheMeasuredTileUnlessOneIsPinned) {
  const Program program = linear();
  const Checked checked = check(program);
  const auto layouts = dense(program);
  std::vector<std::string> reasons;
  const auto tiles = cuda::tile_candidates(checked, kSizes, layouts, {}, reasons);
  ASSERT_GE(tiles.size(), 2u);
  const auto path = [&](const std::string& measured, const std::string& pinned) {
    std::vector<cuda::TuningTable> tables(1);
    if (!measured.empty()) tables[0].add(entry_of(program, measured));
    const auto tuning = std::make_shared<const cuda::Tuning>("NVIDIA H200", "13", tables);
    return cuda::choose_plan(checked, kSizes, layouts, {}, {.tile = pinned, .tuning = tuning});
  };
  EXPECT_NE(path("", "").path.find(tiles[0]), std::string::npos);
  const cuda::Plan tuned = path(tiles[1], "");
  EXPECT_NE(tuned.path.find(tiles[1]), std::string::npos) << tuned.path;
  EXPECT_TRUE(std::ranges::any_of(
      tuned.notes, [](const std::string& note) { return note.starts_with("tuned: "); }));
  EXPECT_NE(path(tiles[1], tiles[0]).path.find(tiles[0]), std::string::npos);
  EXPECT_EQ(path(tiles[1], "general").path, "general");
  // A table of an older coda: the planner chooses, and says so.
  const cuda::Plan stale = path("96x96", "");
  EXPECT_NE(stale.path.find(tiles[0]), std::string::npos) << stale.path;
  EXPECT_TRUE(std::ranges::any_of(stale.notes, [](const std::string& note) {
    return note.find("96x96") != std::string::npos;
  }));
}

TEST(TunedPlan, TakesTheMeasuredWayOfAStreamToo) {
  const Program program =
      parsed("program sums(x: bf16[M, N]) -> (y: f32[M]) {\n  y = sum(x * x, N)\n}\n");
  const Checked checked = check(program);
  const Sizes sizes{{"M", 1024}, {"N", 4096}};
  const auto layouts = cuda::canonical_layouts(program, sizes, cuda::dense_layouts(program, sizes));
  std::vector<std::string> reasons;
  const auto tiles = cuda::tile_candidates(checked, sizes, layouts, {}, reasons);
  ASSERT_GE(tiles.size(), 2u);
  std::vector<cuda::TuningTable> tables(1);
  cuda::TuningEntry entry = cuda::Tuning("NVIDIA H200", "13", {}).subject(program, sizes, layouts);
  entry.tile = tiles[1];
  tables[0].add(entry);
  const auto tuning = std::make_shared<const cuda::Tuning>("NVIDIA H200", "13", tables);
  const auto plan = [&](const cuda::PlanOptions& options) {
    return cuda::choose_plan(checked, sizes, layouts, {}, options);
  };
  EXPECT_EQ(plan({.tuning = tuning}).page, plan({.tile = tiles[1]}).page);
  EXPECT_NE(plan({.tuning = tuning}).page, plan({}).page);
  EXPECT_EQ(plan({.tile = tiles[0], .tuning = tuning}).page, plan({}).page);
}

// ---- the race ----

// y = 2 x, or y += 2 x, by kernels that are fast or slow, right or wrong.
class Race : public ::testing::Test {
 protected:
  Race() {
    tools_.memory = host_memory();
    tools_.compile = [this](const std::string& tile) {
      if (tile == "broken") throw Unsupported("no such kernel");
      return Kernel(Kernel::HostRun([this, tile](auto params, auto results, auto) {
                      const auto* x = static_cast<const float*>(params[0].data);
                      auto* y = static_cast<float*>(results[0].data);
                      for (int i = 0; i < 64; ++i) {
                        const float term = 2 * x[i] * (tile == "other order" ? 1 + 1e-6f : 1);
                        y[i] = adds_ ? y[i] + term : term;
                      }
                      if (tile == "wrong") y[17] = 3;
                      if (tile == "unwritten") y[5] = std::numeric_limits<float>::quiet_NaN();
                      if (adds_) largest_ = std::max(largest_, y[1]);
                      ++runs_[tile];
                      clock_ += seconds_[tile] * (1 + drift_ * static_cast<double>(all_++));
                    }),
                    tile == "hungry" ? 4096 : 0, "");
    };
    tools_.seconds = [this](const std::function<void()>& work) {
      const double before = clock_;
      work();
      return clock_ - before;
    };
    for (int i = 0; i < 64; ++i) x_.as<float>()[i] = static_cast<float>(i);
    seconds_ = {{"a", 1e-3},         {"b", 2e-3},           {"c", 5e-4},         {"wrong", 1e-5},
                {"unwritten", 1e-5}, {"other order", 8e-4}, {"close", 0.995e-3}, {"hungry", 3e-4}};
  }

  std::optional<cuda::TuneResult> race(const std::vector<std::string>& tiles,
                                       const cuda::TuneOptions& options = {}) {
    const Program program =
        parsed(adds_ ? "program twice(x: f32[N]) -> (y: +f32[N]) {\n  y += x + x\n}\n"
                     : "program twice(x: f32[N]) -> (y: f32[N]) {\n  y = x + x\n}\n");
    const Tensor x = x_.tensor(), y = y_.tensor();
    return cuda::tune(program, tiles, std::span(&x, 1), std::span(&y, 1), tools_, options);
  }

  cuda::TuneTools tools_;
  std::map<std::string, double> seconds_;
  std::map<std::string, int> runs_;
  double clock_ = 0, drift_ = 0;
  std::int64_t all_ = 0;
  bool adds_ = false;
  float largest_ = 0;
  OwnedTensor x_{DType::f32, {64}}, y_{DType::f32, {64}};
};

TEST_F(Race, IsWonByTheFastest) {
  const auto result = race({"a", "b", "c", "hungry"});
  ASSERT_TRUE(result);
  EXPECT_EQ(result->tile, "hungry");
  EXPECT_NEAR(result->seconds, 3e-4, 1e-9);
  EXPECT_NEAR(result->candidates[1].seconds, 2e-3, 1e-9);
}

TEST_F(Race, IsNotWonByAWrongOne) {
  const auto result = race({"a", "wrong", "unwritten", "broken", "b"});
  ASSERT_TRUE(result);
  EXPECT_EQ(result->tile, "a");
  EXPECT_NE(result->candidates[1].refused.find("element 17 is 3"), std::string::npos)
      << result->candidates[1].refused;
  EXPECT_FALSE(result->candidates[2].refused.empty());
  EXPECT_NE(result->candidates[3].refused.find("no such kernel"), std::string::npos);
  EXPECT_EQ(runs_["wrong"], 1);  // it is not timed
}

TEST_F(Race, AllowsAnotherOrderOfSums) {
  EXPECT_EQ(race({"a", "other order"})->tile, "other order");
}

TEST_F(Race, KeepsThePlannersChoiceWhereTheGainIsNoise) {
  EXPECT_EQ(race({"a", "close"})->tile, "a");
  EXPECT_EQ(race({"a", "close"}, {.least_gain = 0.001})->tile, "close");
}

TEST_F(Race, IsFairWhereTheClockFalls) {
  seconds_["d"] = 0.97e-3;
  drift_ = 1e-4;  // each run is slower than the one before
  EXPECT_EQ(race({"a", "d"})->tile, "d");
  EXPECT_EQ(race({"d", "a"})->tile, "d");
}

TEST_F(Race, LeavesTheCallersTensorsAndSumsOfReasonableSize) {
  adds_ = true;
  for (int i = 0; i < 64; ++i) y_.as<float>()[i] = 5;
  const auto result = race({"a", "b", "wrong"});
  ASSERT_TRUE(result);
  EXPECT_EQ(result->tile, "a");
  EXPECT_FALSE(result->candidates[2].refused.empty());
  for (int i = 0; i < 64; ++i) EXPECT_EQ(y_.as<float>()[i], 5);
  EXPECT_GT(largest_, 0);
  EXPECT_LE(largest_, 2 * 1000 + 5);  // a turn's worth, not the race's
}

TEST_F(Race, RunsOnTheStridesItIsGiven) {
  const Program program = parsed("program twice(x: f32[N]) -> (y: f32[N]) {\n  y = x + x\n}\n");
  tools_.compile = [this](const std::string& tile) {
    return Kernel(Kernel::HostRun([this, tile](auto params, auto results, auto) {
                    const Tensor &x = params[0], &y = results[0];
                    EXPECT_EQ(x.strides[0], 2);
                    EXPECT_EQ(y.strides[0], 3);
                    const auto* from = static_cast<const float*>(x.data);
                    auto* to = static_cast<float*>(y.data);
                    for (int i = 0; i < 21; ++i) to[3 * i] = 2 * from[2 * i];
                    if (tile == "gap") to[4] = 0;
                    clock_ += seconds_[tile];
                  }),
                  0, "");
  };
  seconds_["gap"] = 1e-5;
  const Tensor x{x_.tensor().data, DType::f32, {21}, {2}};
  const Tensor y{y_.tensor().data, DType::f32, {21}, {3}};
  EXPECT_EQ(cuda::spanned_elements(y), 61);
  const std::vector<std::string> tiles = {"a", "gap", "c"};
  const auto result = cuda::tune(program, tiles, std::span(&x, 1), std::span(&y, 1), tools_);
  ASSERT_TRUE(result);
  EXPECT_EQ(result->tile, "c");
  EXPECT_FALSE(result->candidates[1].refused.empty());  // it wrote between the elements
}

TEST_F(Race, StopsBetweenTurns) {
  int asked = 0, turns = 0;
  cuda::TuneOptions options;
  options.stopped = [&] {
    return ++asked > 30;
  };
  options.progress = [&](int done, int all) {
    turns = done;
    EXPECT_EQ(all, 18);
  };
  EXPECT_FALSE(race({"a", "b"}, options));
  EXPECT_LT(turns, 18);
}

TEST(Disagreement, SeesBitsKindsAndSizes) {
  OwnedTensor a(DType::f32, {4}), b(DType::f32, {4});
  const auto set = [](OwnedTensor& t, std::initializer_list<float> values) {
    std::ranges::copy(values, t.as<float>());
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  set(a, {1, nan, inf, 1000});
  set(b, {1, nan, inf, 1000});
  EXPECT_FALSE(cuda::disagreement(a.tensor(), b.tensor()));
  set(b, {1.01f, nan, inf, 1000});  // small beside what is there
  EXPECT_FALSE(cuda::disagreement(a.tensor(), b.tensor()));
  set(b, {1, 0, inf, 1000});
  EXPECT_TRUE(cuda::disagreement(a.tensor(), b.tensor()));
  set(b, {1, nan, -inf, 1000});
  EXPECT_TRUE(cuda::disagreement(a.tensor(), b.tensor()));
  set(b, {1, nan, inf, 1001});
  EXPECT_TRUE(cuda::disagreement(a.tensor(), b.tensor()));
  OwnedTensor i(DType::i32, {1}), j(DType::i32, {1});
  i.as<std::int32_t>()[0] = 1 << 20;
  j.as<std::int32_t>()[0] = (1 << 20) + 1;
  EXPECT_TRUE(cuda::disagreement(i.tensor(), j.tensor()));
}

// ---- the command, on a driver whose events take no time ----

struct Command {
  int status = 0;
  std::string output;
};

Command run(const std::string& before, const std::string& words) {
  const std::string out = fs::path(::testing::TempDir()) / "coda_tune_output";
  const std::string line = "CODA_CACHE=off LD_LIBRARY_PATH=" FAKE_DRIVER_FOLDER " " + before +
                           " " CODA_BINARY " tune " + words;
  const int status = std::system((line + " >" + out + " 2>&1").c_str());
  return {WEXITSTATUS(status), read_file(out)};
}

TEST(TuneCommand, KeepsWhatItMeasuredAndDoesNotMeasureItAgain) {
  if (const auto problem = cuda::nvrtc_problem()) GTEST_SKIP() << *problem;
  const std::string path = fs::path(::testing::TempDir()) / "coda_tune_table.json";
  fs::remove(path);
  const std::string words =
      "linear.coda --program linear --size M=64 N=64 K=64 --rounds 1 -o " + path;
  const Command list = run("", words + " --dry-run");
  EXPECT_EQ(list.status, 0) << list.output;
  EXPECT_NE(list.output.find("linear: 128x"), std::string::npos) << list.output;
  EXPECT_FALSE(fs::exists(path));
  const Command first = run("", words);
  EXPECT_EQ(first.status, 0) << first.output;
  ASSERT_EQ(cuda::TuningTable::read(path).entries().size(), 1u) << first.output;
  const Command second = run("", words);
  EXPECT_NE(second.output.find("known: 128x"), std::string::npos) << second.output;
  const Command off = run("", "linear.coda --program linear --size M=64 N=64 K=64");
  EXPECT_EQ(off.status, 1) << off.output;
  EXPECT_NE(off.output.find("CODA_CACHE is off"), std::string::npos) << off.output;
  fs::remove(path);
}

}  // namespace
}  // namespace coda
