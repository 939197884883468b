// tests/cuda_pack_test.cpp: products of tensors that the copy engine cannot read: the copies and
// the product run on the host.
#include "coda/cuda/pack.h"

#include <gtest/gtest.h>

#include "coda/cuda/choose.h"
#include "coda/cuda/nvrtc.h"
#include "coda/program/text.h"
#include "coda/reference/verify.h"
#include "tests/cases.h"
#include "tests/cuda_gemm_pages.h"

namespace coda::cuda {
namespace {

Program program_of(const std::string& text) {
  return parse("coda 1\nuse \"prelude.coda\"\n" + text, "test.coda").find("");
}

Program linear() {
  return program_of(
      "program linear(x: bf16[M, K], w: bf16[N, K], r: bf16[M, N]) -> (y: bf16[M, N]) {\n"
      "  y = x @ w + r\n}\n");
}

std::optional<Plan> packed(const Program& program, const Sizes& given,
                           std::vector<std::string>& reasons, Copies copies = Copies::always) {
  const Sizes sizes = bind_sizes(program, given);
  return plan_packed(check(program), sizes,
                     canonical_layouts(program, sizes, dense_layouts(program, sizes)), {}, nullptr,
                     reasons, copies);
}

std::string all(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

// ---- plans ----

TEST(CudaPack, CopiesWhatHasOddRows) {
  std::vector<std::string> reasons;
  const auto plan =
      packed(linear(), {{"M", 4096}, {"N", 50257}, {"K", 4096}}, reasons, Copies::where_they_pay);
  ASSERT_TRUE(plan) << all(reasons);
  EXPECT_TRUE(plan->path.starts_with("gemm ")) << plan->path;
  ASSERT_EQ(plan->launches.size(), 3u);
  EXPECT_EQ(plan->launches[0].entry, "linear_pack_r");
  EXPECT_EQ(plan->launches[1].entry, "linear");
  EXPECT_EQ(plan->launches[2].entry, "linear_unpack_y");
  const std::string notes = all(plan->notes);
  EXPECT_NE(notes.find("`r` is copied: it has rows of 100514 bytes, no multiple of 16"),
            std::string::npos)
      << notes;
  const std::int64_t copy = 4096 * 50304 * 2;
  EXPECT_GE(plan->workspace, 2 * copy);
  EXPECT_LE(plan->workspace, 2 * copy + (16 << 20));  // parts of tiles too
  // Maps of r and y are of the workspace, those of x and w are not.
  for (const MapSpec& map : plan->launches[1].maps) {
    EXPECT_EQ(map.workspace.has_value(), map.tensor >= 2) << map.tensor;
    EXPECT_EQ(map.axes[1].stride, map.tensor >= 2 ? 50304 : 4096);
  }
  const std::vector<Word>& words = plan->launches[0].words;
  ASSERT_EQ(words.size(), 9u);
  EXPECT_EQ(words[0].kind, Word::Kind::pointer);
  EXPECT_EQ(words[0].tensor, 2);
  EXPECT_EQ(words[1].kind, Word::Kind::workspace);
  const std::int64_t numbers[] = {4096, 50257, 50304, 4096, 50257, 50257, 1};
  for (std::size_t i = 0; i < 7; ++i) EXPECT_EQ(words[i + 2].value, numbers[i]) << i;
}

TEST(CudaPack, SmallProductsAreNotWorthCopies) {
  std::vector<std::string> reasons;
  EXPECT_FALSE(
      packed(linear(), {{"M", 64}, {"N", 33}, {"K", 64}}, reasons, Copies::where_they_pay));
  EXPECT_NE(all(reasons).find("copies of `r`, `y` would take longer"), std::string::npos)
      << all(reasons);
}

TEST(CudaPack, WhatCanBeReadIsNotCopied) {
  std::vector<std::string> reasons;
  EXPECT_FALSE(packed(linear(), {{"M", 512}, {"N", 512}, {"K", 512}}, reasons));
}

TEST(CudaPack, IsChosenAfterTheFastPathOnly) {
  const Program program = linear();
  const auto path = [&](std::int64_t n, const PlanOptions& options = {}) {
    const Sizes sizes = bind_sizes(program, {{"M", 2048}, {"N", n}, {"K", 1024}});
    const auto dense = canonical_layouts(program, sizes, dense_layouts(program, sizes));
    return choose_plan(check(program), sizes, dense, {}, options).path;
  };
  EXPECT_EQ(path(2048).find("cop"), std::string::npos);
  EXPECT_NE(path(2049).find(", 2 copies"), std::string::npos) << path(2049);
  EXPECT_EQ(path(2049, {.tile = "general"}), "general");
}

// Tensors with odd rows, or the first factor fastest, at addresses that suit their elements only.
std::vector<Layout> askew(const Program& program, const Sizes& sizes, Layouts kind) {
  std::vector<Layout> layouts;
  const auto add = [&](const Type& type) {
    std::vector<std::int64_t> extents;
    for (const Factor& factor : factors_of(type)) extents.push_back(require_extent(factor, sizes));
    if (kind == Layouts::transposed) std::ranges::reverse(extents);
    if (kind == Layouts::padded && extents.size() > 1) extents.back() += 3;
    std::vector<std::int64_t> strides = dense_strides(extents);
    if (kind == Layouts::transposed) std::ranges::reverse(strides);
    layouts.push_back({strides, static_cast<std::int64_t>(size_of(type.dtype))});
  };
  for (const Param& param : program.params()) add(param.type);
  for (const coda::Result& result : program.results()) add(result.type);
  return canonical_layouts(program, sizes, layouts);
}

// Whatever the program, copies lie apart in the workspace, and the product sees copies only.
TEST(CudaPack, CopiesOfEveryCaseLieApart) {
  int plans = 0;
  for (const ::coda::testing::Case& each : ::coda::testing::case_table().cases) {
    const Program program = each.load();
    const auto checked =
        program.kind() == Program::Kind::program ? try_check(program) : std::nullopt;
    if (!checked || checked->kind() != KernelKind::gemm) continue;
    for (const Sizes& given : each.sizes) {
      for (const Layouts kind : {Layouts::padded, Layouts::transposed}) {
        SCOPED_TRACE(each.name + " " + std::string(name_of(kind)));
        const Sizes sizes = bind_sizes(program, given);
        std::vector<std::string> why;
        const auto plan = plan_packed(*checked, sizes, askew(program, sizes, kind), {}, nullptr,
                                      why, Copies::always);
        plans += plan ? 1 : 0;
        if (!plan) continue;
        std::map<std::int64_t, std::int64_t> ends;  // of copies, by where they begin
        std::set<int> copied;
        for (const Launch& launch : plan->launches) {
          if (!is_copy(launch)) continue;
          copied.insert(launch.words[0].tensor);
          const DType dtype =
              launch.words[0].tensor < static_cast<int>(program.params().size())
                  ? program.params()[static_cast<std::size_t>(launch.words[0].tensor)].type.dtype
                  : program
                        .results()[static_cast<std::size_t>(launch.words[0].tensor) -
                                   program.params().size()]
                        .type.dtype;
          ends[launch.words[1].value] =
              launch.words[1].value + launch.words[2].value * launch.words[4].value *
                                          static_cast<std::int64_t>(size_of(dtype));
        }
        std::int64_t end = 0;
        for (const auto& [from, to] : ends) {
          EXPECT_LE(end, from);
          end = to;
        }
        EXPECT_LE(end, plan->workspace);
        for (const Launch& launch : plan->launches) {
          if (is_copy(launch)) continue;
          for (const MapSpec& map : launch.maps) {
            EXPECT_TRUE(copied.contains(map.tensor) == map.workspace.has_value()) << map.tensor;
            if (!map.workspace) continue;
            std::int64_t last = map.offset;
            for (const MapSpec::Axis& axis : map.axes) {
              last += (axis.extent - 1) * (&axis == map.axes.data() ? 1 : axis.stride);
            }
            EXPECT_LE(*map.workspace + (last + 1) * static_cast<std::int64_t>(size_of(map.dtype)),
                      ends.at(*map.workspace));
            EXPECT_EQ(map_fault(map, reinterpret_cast<void*>(map.offset * static_cast<std::int64_t>(
                                                                              size_of(map.dtype)))),
                      "");
          }
          for (const Word& word : launch.words) {
            EXPECT_FALSE(word.kind == Word::Kind::pointer && copied.contains(word.tensor));
          }
        }
      }
    }
  }
  EXPECT_GE(plans, 100);
}

// ---- on the host ----

const Target kFew{.processors = 3};  // blocks

struct Packed {
  int taken = 0;

  Executor executor() {
    return [this](const Program& program, const Sizes& sizes, std::span<const Tensor> params,
                  std::span<const Tensor> results) {
      std::vector<std::string> why;
      const Checked checked = check(program);
      const auto layouts =
          canonical_layouts(program, sizes, layouts_of(program, sizes, params, results));
      auto plan = plan_packed(checked, sizes, layouts, kFew, nullptr, why, Copies::always);
      if (plan) {
        ++taken;
      } else {
        plan = plan_gemm(checked, sizes, layouts, kFew, nullptr, why);
      }
      if (!plan) throw Unsupported(all(why));
      launch_gemm(*plan, params, results);
    };
  }
};

void expect_right(const Program& program, const Sizes& sizes,
                  const std::vector<Layouts>& layouts = {Layouts::dense}) {
  for (const Layouts layout : layouts) {
    Packed runs;
    const auto verdicts = verify(program, bind_sizes(program, sizes), runs.executor(),
                                 {.inputs = {Inputs::normal}, .layouts = {layout}, .seeds = 2});
    for (const Verdict& verdict : verdicts) {
      EXPECT_TRUE(verdict.passed) << program.name() << " " << name_of(layout) << "\n"
                                  << table(verdicts);
    }
    EXPECT_GT(runs.taken, 0) << name_of(layout);
  }
}

TEST(CudaPack, TensorsOfAnyStrides) {
  expect_right(linear(), {{"M", 130}, {"N", 67}, {"K", 75}},
               {Layouts::dense, Layouts::padded, Layouts::transposed});
}

TEST(CudaPack, AGradientWhoseOperandsStandAcross) {
  const Program weight = program_of(
      "program weight(dz: bf16[M, N], x: bf16[M, K]) -> (dw: +f32[N, K]) {\n  dw += dz @ x\n}\n");
  expect_right(weight, {{"M", 70}, {"N", 67}, {"K", 97}}, {Layouts::dense, Layouts::broadcast});
}

TEST(CudaPack, PairsOfWhichOneIsCopied) {
  const Program program = program_of(
      "program gated(x: bf16[M, K], gate: bf16[F, K], up: bf16[F, K]) -> (h: f16[M, F]) {\n"
      "  h = silu(x @ gate) * (x @ up)\n}\n");
  expect_right(program, {{"M", 66}, {"F", 64}, {"K", 64}}, {Layouts::padded});
}

TEST(CudaPack, OperandsThatTheCopyRounds) {
  const Program program = program_of(
      "program rounded(x: f32[M, K], w: f16[N, K]) -> (y: f32[M, N]) {\n"
      "  y = f16(x) @ w\n}\n");
  expect_right(program, {{"M", 66}, {"N", 40}, {"K", 48}});
  // Where the epilogue reads it as it is, it is no copy.
  const Program both = program_of(
      "program both(x: f32[M, N], w: bf16[N, N1], r: f32[M, N1]) -> (y: f32[M, N1]) {\n"
      "  y = bf16(x) @ w + r\n}\n");
  std::vector<std::string> reasons;
  const auto plan = packed(both, {{"M", 66}, {"N", 40}, {"N1", 48}}, reasons);
  ASSERT_TRUE(plan) << all(reasons);
  EXPECT_NE(all(plan->notes).find("`x` is copied: it is f32, rounded before the product"),
            std::string::npos)
      << all(plan->notes);
}

TEST(CudaPack, PagesCompileForAGpuWithoutSpills) {
  if (const auto problem = nvrtc_problem()) GTEST_SKIP() << *problem;
  std::vector<std::string> reasons;
  const auto plan = packed(linear(), {{"M", 130}, {"N", 67}, {"K", 75}}, reasons);
  ASSERT_TRUE(plan) << all(reasons);
  const Compiled compiled = compile(plan->name, plan->page, device_files());
  for (const Launch& launch : plan->launches) {
    const auto entry = std::ranges::find(compiled.entries, launch.entry, &Compiled::Entry::name);
    ASSERT_NE(entry, compiled.entries.end()) << launch.entry;
    EXPECT_EQ(entry->spill_stores + entry->spill_loads, 0) << launch.entry;
    EXPECT_LE(entry->registers, is_copy(launch) ? 64 : 168) << launch.entry;
  }
}

}  // namespace
}  // namespace coda::cuda
