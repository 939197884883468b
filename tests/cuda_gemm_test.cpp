// tests/cuda_gemm_test.cpp: the fast path for products: its kernel run on the host, barriers,
// copies and products included, and judged by the verifier; and what the copy engine demands of a
// plan.
//
// A run checks by itself that every element of a tile's results is stored once, that no access
// leaves shared memory, that boxes lie as the hardware's swizzle puts them, that no barrier gets
// more arrivals than it expects, and that all threads finish. What is not shown: the GPU's own
// arithmetic, memory order, and speed. `cuda_gemm_test --long` takes every tile of everything.
#include "coda/cuda/gemm.h"

#include <gtest/gtest.h>

#include <random>

#include "coda/cuda/choose.h"
#include "coda/program/text.h"
#include "tests/cases.h"
#include "tests/cuda_gemm_jobs.h"
#include "tests/every_program.h"

namespace coda::cuda {
namespace {

bool everything = false;

Program program_of(const std::string& text) {
  return parse("coda 1\n" + text, "test.coda").find("");
}

// Of a job's tiles: all, or one in turn.
std::function<bool(std::size_t, std::size_t)> some_tiles(std::size_t& turn) {
  const std::size_t now = turn++;
  return [now](std::size_t tile, std::size_t tiles) {
    return everything || tile == now % tiles;
  };
}

std::function<bool(std::size_t, std::size_t)> one_tile(std::size_t& turn) {
  const std::size_t now = turn++;
  return [now](std::size_t tile, std::size_t tiles) {
    return tile == now % tiles;
  };
}

// Under sanitizers a sample will do.
#ifdef __SANITIZE_ADDRESS__
constexpr std::size_t kEach = 7;
#else
constexpr std::size_t kEach = 1;
#endif

TEST(CudaGemm, CasesErrNoMoreThanTheUnfusedSequence) {
  Jobs jobs;
  std::size_t turn = 0, index = 0;
  for (const testing::Case& entry : testing::case_table().cases) {
    const Program program = entry.load();
    if (program.kind() != Program::Kind::program) continue;
    if (check(program).kind() != KernelKind::gemm || index++ % kEach != 0) continue;
    bool any = false;
    for (const Sizes& sizes : entry.sizes) {
      const std::int64_t columns = sizes.contains("V") ? sizes.at("V") : 0;
      if (columns > 1024) continue;
      any = jobs.add(test_name(entry), program, sizes, 2, some_tiles(turn)) || any;
    }
    if (!any) std::printf("the fast path refuses %s\n", test_name(entry).c_str());
  }
  EXPECT_GE(jobs.size() * kEach, 10u);
  jobs.run();
}

// The kernels of the golden schedules, at small sizes: all with --long, else a sample.
TEST(CudaGemm, ProgramsOfSchedulesAreRight) {
  const Sizes known = {{"B", 2},   {"S", 64},  {"T", 64},  {"M", 136}, {"D", 256}, {"H", 2},
                       {"G", 1},   {"E", 128}, {"F", 200}, {"N", 264}, {"K", 136}, {"Q", 128},
                       {"P", 136}, {"A", 256}, {"V", 328}, {"R", 8}};
  Jobs jobs;
  std::size_t turn = 0, index = 0;
  const std::size_t each = kEach * (everything ? 1 : 12);
  for (const testing::Found& found : testing::every_program()) {
    if (check(found.program).kind() != KernelKind::gemm || index++ % each != 0) continue;
    try {
      const Sizes sizes = testing::sizes_from(found.program, known);
      jobs.add(found.where, found.program, sizes, 2, one_tile(turn));
    } catch (const ProgramError&) {
      continue;  // such sizes are none of its
    }
  }
  EXPECT_GE(jobs.size() * each, 100u);
  jobs.run();
}

// ---- every way through the kernel ----

struct Text {
  const char* text;
  std::vector<const char*> multiples;  // "M 1": a size drawn as a multiple
  Sizes fixed = {};
};

const std::vector<Text> kTexts = {
    // Every majorness, tiles of inputs in 16 and 32 bits, results in both.
    {"program p(x: bf16[M, K], w: bf16[N, K], r: f32[M, N]) -> (y: bf16[M, N], z: f32[M, N]) {\n"
     "  z = x @ w + r\n  y = z * 2\n}",
     {"M 1", "N 8", "K 8"}},
    {"program p(x: bf16[K, M], w: bf16[N, K], r: bf16[M, N]) -> (y: f32[M, N]) {\n"
     "  y = x @ w - r\n}",
     {"M 8", "N 8", "K 8"}},
    {"program p(x: f16[M, K], w: f16[K, N], c: f16[N]) -> (y: f16[M, N]) { y = x @ w + c }",
     {"M 1", "N 8", "K 8"}},
    {"program p(x: bf16[K, M], w: bf16[K, N], c: f32[N], r: f32[M]) -> (y: +f32[M, N]) {\n"
     "  y += (x @ w + c) * r\n}",
     {"M 8", "N 8", "K 1"}},
    // Summed, with depths of their own; an accumulating 16-bit result.
    {"program p(x: bf16[M, K], v: bf16[N, K], y: bf16[M, L], w: bf16[N, L]) -> (z: +bf16[M, N]) {\n"
     "  z += x @ v + y @ w\n}",
     {"M 1", "N 8", "K 8", "L 8"}},
    // Paired, on either majorness of the right operands.
    {"program p(x: bf16[M, K], v: bf16[N, K], w: bf16[N, K]) -> (z: bf16[M, N], g: bf16[M, N]) {\n"
     "  g = x @ v\n  z = g * sigmoid(x @ w)\n}",
     {"M 1", "N 8", "K 8"}},
    {"program p(x: bf16[M, K], v: bf16[K, N], w: bf16[K, N]) -> (z: bf16[M, N]) {\n"
     "  z = (x @ v) * (x @ w)\n}",
     {"M 1", "N 8", "K 8"}},
    // Side by side, with epilogues of their own; stacked.
    {"program p(x: bf16[M, K], u: bf16[Q, K], v: bf16[P, K], w: bf16[P, K], c: bf16[Q])\n"
     "    -> (a: bf16[M, Q], b: f32[M, P], d: bf16[M, P]) {\n"
     "  a = x @ u + c\n  b = x @ v\n  d = max(x @ w, 0)\n}",
     {"M 1", "Q 8", "P 8", "K 8"}},
    {"program p(a: bf16[M, N], b: bf16[M, L], x: bf16[M, K]) -> (da: +f32[N, K], db: +f32[L, K]) "
     "{\n"
     "  da += a @ x\n  db += b @ x\n}",
     {"M 1", "N 8", "L 8", "K 8"}},
    // Heads, positions that repeat.
    {"program p(x: bf16[B*S, D], w: bf16[H*E, D], c: f32[S, E/2], s: f32[S, E/2])\n"
     "    -> (q: bf16[B*S, H*E]) {\n"
     "  a, b = split(x @ w, E: E/2, E/2)\n  q = join(E: a * c - b * s, b * c + a * s)\n}",
     {"D 8", "B 1"},
     {{"S", 64}, {"H", 3}, {"E", 128}}},
    {"program p(x: bf16[B*S, D], w: bf16[H*E, D], c: f32[S, E/2], s: f32[S, E/2])\n"
     "    -> (q: bf16[B*S, H*E]) {\n"
     "  a, b = split(x @ w, E: E/2, E/2)\n  q = join(E: a * c - b * s, b * c + a * s)\n}",
     {"D 8"},
     {{"S", 64}, {"B", 3}, {"H", 5}, {"E", 64}}},
    // A softmax over each head, of a tile that holds it whole.
    {"program p(x: bf16[M, K], w: bf16[H*E, K]) -> (y: bf16[M, H*E]) {\n"
     "  z = x @ w\n  e = exp(z - max(z, E))\n  y = e / sum(e, E)\n}",
     {"M 1", "K 8"},
     {{"H", 3}, {"E", 128}}},
    // Statistics of blocks of both kinds, a statistic of an input, a pick.
    {"program p(x: bf16[M, K], w: bf16[N, K], ss: f32[M, blocks(K)], h: bf16[M, N])\n"
     "    -> (a: f32[M, blocks(N)], b: f32[M, blocks(N)], c: f32[blocks(M), N], r: f32[M]) {\n"
     "  r = rsqrt(sum(ss, blocks(K)) + 1)\n  z = x @ w * r\n  a = block_sum(z * h, N)\n"
     "  b = block_logsumexp(z, N)\n  c = block_sum(z + h, M)\n}",
     {"M 1", "N 8", "K 8"}},
    {"program p(x: bf16[M, K], w: bf16[N, K], t: i64[M]) -> (hit: f32[M], m: f32[M, blocks(N)]) {\n"
     "  z = x @ w\n  hit = pick(z, t)\n  m = block_max(z, N)\n}",
     {"M 1", "N 8", "K 8"}},
};

TEST(CudaGemm, EveryWayThroughTheKernelIsRight) {
  std::mt19937_64 random(7);
  Jobs jobs;
  std::size_t turn = 0;
  for (std::size_t t = 0; t < kTexts.size(); t += kEach) {
    const Text& each = kTexts[t];
    for (int round = 0; round < 2; ++round) {
      Sizes sizes = each.fixed;
      for (const std::string entry : each.multiples) {
        const std::string name = entry.substr(0, entry.find(' '));
        const std::int64_t of = std::stoll(entry.substr(entry.find(' ')));
        const std::int64_t most = name == "B" ? 4 : 420 / of;
        sizes[name] = of * std::uniform_int_distribution<std::int64_t>(1, most)(random);
      }
      const int processors = std::uniform_int_distribution<int>(2, 4)(random);
      EXPECT_TRUE(jobs.add(each.text, program_of(each.text), sizes, processors, some_tiles(turn)))
          << each.text << testing::text_of(sizes);
    }
  }
  jobs.run();
}

// What was faster on an H200 is the first choice: 128 columns where 192 leave a column of 64 and
// all of k does not fit into L2, or where there are few tiles.
TEST(CudaGemm, TheFirstChoiceIsWhatWasFastest) {
  const auto first = [](const std::string& text, const Sizes& sizes) {
    const Program program = program_of(text);
    const Sizes bound = bind_sizes(program, sizes);
    std::vector<std::string> reasons;
    return gemm_tiles(check(program), bound, dense_layouts(program, bound), {.processors = 132},
                      reasons)[0]
        .text();
  };
  const std::string weights =
      "program p(z: bf16[M, N], x: bf16[M, K]) -> (w: +f32[N, K]) {\n  w += z @ x\n}";
  EXPECT_EQ(first(weights, {{"M", 16384}, {"N", 4096}, {"K", 4096}}), "128x128");
  EXPECT_EQ(first(weights, {{"M", 16384}, {"N", 2048}, {"K", 5632}}), "128x128");
  EXPECT_EQ(first(weights, {{"M", 16384}, {"N", 8192}, {"K", 2048}}), "128x192");
  EXPECT_EQ(first(weights, {{"M", 16384}, {"N", 11264}, {"K", 2048}}), "128x192");
  EXPECT_EQ(first(weights, {{"M", 16384}, {"N", 22016}, {"K", 4096}}), "128x192");
  EXPECT_EQ(first(weights, {{"M", 16384}, {"N", 8192}, {"K", 8192}}), "128x192");
  const std::string data =
      "program p(z: bf16[M, V], w: bf16[V, K]) -> (x: bf16[M, K]) {\n  x = z @ w\n}";
  EXPECT_EQ(first(data, {{"M", 4096}, {"V", 128256}, {"K", 4096}}), "128x128");
  EXPECT_EQ(first(data, {{"M", 16384}, {"V", 4096}, {"K", 4096}}), "128x192");
}

// A candidate by its number, on four processors.
GemmTile tile_of(const Program& program, const Sizes& sizes, std::size_t tile) {
  std::vector<std::string> reasons;
  const Sizes bound = bind_sizes(program, sizes);
  return gemm_tiles(check(program), bound, dense_layouts(program, bound), {.processors = 4},
                    reasons)[tile];
}

// Workers share the last tiles along k: the parts meet in memory.
TEST(CudaGemm, SharedTilesAreRight) {
  Jobs jobs;
  const Program plain =
      program_of("program p(x: bf16[M, K], w: bf16[N, K]) -> (y: f32[M, N]) {\n  y = x @ w\n}");
  const Program stacked = program_of(
      "program p(a: bf16[M, N], b: bf16[M, L], x: bf16[M, K]) -> (da: +f32[N, K], db: +f32[L, K]) "
      "{\n  da += a @ x\n  db += b @ x\n}");
  const auto add = [&](const Program& program, const Sizes& sizes, int processors) {
    const Checked checked = check(program);
    const Sizes bound = bind_sizes(program, sizes);
    const std::vector<Layout> layouts = dense_layouts(program, bound);
    std::vector<std::string> reasons;
    const auto tiles = gemm_tiles(checked, bound, layouts, {.processors = processors}, reasons);
    jobs.add("shared", program, sizes, processors, [&](std::size_t tile, std::size_t) {
      const auto plan =
          plan_gemm(checked, bound, layouts, {.processors = processors}, &tiles[tile], reasons);
      const bool chosen = everything || tiles[tile].columns == 192;
      return chosen && plan && plan->workspace > 0;
    });
  };
  add(plain, {{"M", 130}, {"N", 200}, {"K", 6400}}, 6);
  add(plain, {{"M", 390}, {"N", 200}, {"K", 6400}}, 5);
  add(stacked, {{"M", 6400}, {"N", 264}, {"L", 136}, {"K", 200}}, 6);
  EXPECT_GE(jobs.size(), 4u);  // single blocks, pairs
  jobs.run();
}

// Where others hold processors, those that are free do all of it: of 5, here 1 or 2 ever start.
TEST(CudaGemm, FewProcessorsDoWhatAllWouldHaveDone) {
  Jobs jobs;
  const Program plain = program_of(
      "program p(x: bf16[M, K], w: bf16[N, K], h: bf16[M, N])\n"
      "    -> (y: bf16[M, N], s: f32[M, blocks(N)], c: f32[blocks(M), N]) {\n"
      "  y = x @ w + h\n  s = block_sum(y * y, N)\n  c = block_sum(y, M)\n}");
  const Program silent =
      program_of("program p(x: bf16[M, K], w: bf16[N, K]) -> (y: f32[M, N]) {\n  y = x @ w\n}");
  const auto add = [&](const Program& program, const Sizes& sizes, int free) {
    jobs.add(
        "drawn", program, sizes, 5,
        [&](std::size_t tile, std::size_t) {
          const Checked checked = check(program);
          const Sizes bound = bind_sizes(program, sizes);
          std::vector<std::string> reasons;
          const GemmTile found = gemm_tiles(checked, bound, dense_layouts(program, bound),
                                            {.processors = 5}, reasons)[tile];
          return found.drawn && found.columns > 64;
        },
        free);
  };
  add(plain, {{"M", 390}, {"N", 392}, {"K", 136}}, 1);
  add(silent, {{"M", 260}, {"N", 200}, {"K", 4000}}, 2);  // tiles shared along k
  EXPECT_EQ(jobs.size(), 4u);                             // of 192 and 128 columns
  jobs.run();
}

// Beside a collective's kernels, tiles are drawn.
TEST(CudaGemm, OnAGpuThatOthersUseTooTilesAreDrawn) {
  const Program program =
      program_of("program p(x: bf16[M, K], w: bf16[N, K]) -> (y: bf16[M, N]) {\n  y = x @ w\n}");
  const Sizes sizes = bind_sizes(program, {{"M", 16384}, {"N", 2048}, {"K", 8192}});
  const auto first = [&](bool exclusive) {
    std::vector<std::string> reasons;
    return gemm_tiles(check(program), sizes, dense_layouts(program, sizes),
                      {.exclusive = exclusive}, reasons)[0]
        .text();
  };
  EXPECT_EQ(first(true), "128x192");
  EXPECT_EQ(first(false), "128x192-drawn");
}

// Three heads of 128 in two tiles of 192: the middle one's sum is exchanged. With and without
// rotation, as many heads as fill the pairs and fewer, other columns beside them, tiles side by
// side and alone.
TEST(CudaGemm, HeadsAcrossTilesAreRight) {
  Jobs jobs;
  const Program plain = program_of(
      "program p(x: bf16[M, D], w: bf16[H*E, D], g: bf16[E])\n"
      "    -> (y: bf16[M, H*E], n: f32[M, H]) {\n"
      "  z = x @ w\n  n = rsqrt(sum(z * z, E) / size(E) + 1)\n  y = z * n * g\n}");
  const Program rotated = program_of(
      "program p(x: bf16[B*S, D], w: bf16[H*E, D], u: bf16[G*E, D], v: bf16[F*E, D],\n"
      "    c: f32[S, E/2], s: f32[S, E/2], g: bf16[E], r: f32[B*S], eps: f32)\n"
      "    -> (q: bf16[B*S, H*E], z: bf16[B*S, H*E], n: f32[B*S, H], k: bf16[B*S, G*E],\n"
      "    y: bf16[B*S, F*E]) {\n"
      "  z = r * (x @ w)\n  n = rsqrt(sum(z * z, E) / size(E) + eps)\n"
      "  a, b = split(z * n * g, E: E/2, E/2)\n  q = join(E: a * c - b * s, b * c + a * s)\n"
      "  t = x @ u\n  k = t * rsqrt(sum(t * t, E) / size(E) + eps)\n  y = x @ v\n}");
  const auto add = [&](const Program& program, const Sizes& sizes) {
    EXPECT_TRUE(jobs.add("heads", program, sizes, 4, [&](std::size_t tile, std::size_t) {
      return everything || tile_of(program, sizes, tile).across;
    })) << testing::text_of(sizes);
  };
  for (const std::int64_t heads : {1, 2, 3, 4, 7}) {
    add(plain, {{"M", 100 + 60 * heads}, {"D", 392}, {"H", heads}, {"E", 128}});
  }
  add(rotated, {{"B", 3}, {"S", 64}, {"D", 400}, {"H", 4}, {"G", 2}, {"F", 2}, {"E", 128}});
  add(rotated, {{"B", 5}, {"S", 64}, {"D", 520}, {"H", 2}, {"G", 1}, {"F", 1}, {"E", 128}});
  jobs.run();
}

// ---- what a run would say of a kernel that is wrong ----

class BrokenGemm : public ::testing::Test {
 protected:
  static std::string fault(const std::function<void(Plan&)>& breaks) {
    const Program program = program_of(
        "program p(x: bf16[M, K], w: bf16[N, K], r: bf16[M, N]) -> (y: bf16[M, N]) {\n"
        "  y = x @ w + r\n}");
    const Sizes sizes = bind_sizes(program, {{"M", 200}, {"N", 200}, {"K", 64}});
    const std::vector<OwnedTensor> inputs = random_inputs(program, sizes, 1);
    std::vector<Tensor> params;
    for (const OwnedTensor& input : inputs) params.push_back(input.tensor());
    OwnedTensor result(DType::bf16, {200, 200});
    std::vector<std::string> reasons;
    Plan plan = *plan_gemm(check(program), sizes, dense_layouts(program, sizes), {.processors = 2},
                           nullptr, reasons);
    breaks(plan);
    try {
      launch_gemm(plan, params, std::vector{result.tensor()});
    } catch (const InternalError& error) {
      return error.what();
    }
    return "nothing was noticed";
  }
  static void replace(std::string& text, const std::string& from, const std::string& to) {
    const std::size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
  }
};

TEST_F(BrokenGemm, ATileComputedTwiceIsSeen) {
  const std::string why =
      fault([](Plan& plan) { std::copy_n(plan.tables[0].begin(), 4, plan.tables[0].begin() + 4); });
  EXPECT_NE(why.find("stored twice"), std::string::npos) << why;
}

TEST_F(BrokenGemm, ATileThatNobodyComputesIsSeen) {
  const std::string why = fault([](Plan& plan) { plan.tables[0][0] = ~0u; });
  EXPECT_NE(why.find("is stored 0 times"), std::string::npos) << why;
}

TEST_F(BrokenGemm, BytesThatNeverComeAreSeen) {
  const std::string why =
      fault([](Plan& plan) { replace(plan.page, "return 8192;", "return 16384;"); });
  EXPECT_NE(why.find("wait for ever"), std::string::npos) << why;
}

TEST_F(BrokenGemm, AMapThatTheDriverRefusesIsSeen) {
  const std::string why = fault([](Plan& plan) { plan.launches[0].maps[0].axes[1].stride += 1; });
  EXPECT_NE(why.find("no multiple of 16 bytes"), std::string::npos) << why;
}

// ---- plans of all programs at large sizes ----

TEST(GemmPlan, MeetsTheRulesOfTheCopyEngine) {
  const std::vector<Sizes> known = {
      testing::layer_sizes(),
      {{"B", 1},
       {"S", 200},
       {"T", 200},
       {"M", 1000},
       {"D", 328},
       {"H", 5},
       {"G", 1},
       {"E", 64},
       {"F", 136},
       {"N", 264},
       {"K", 72},
       {"Q", 320},
       {"F", 1},
       {"A", 320},
       {"V", 50264},
       {"R", 8}},
  };
  int plans = 0;
  for (const testing::Found& found : testing::every_program()) {
    const Checked checked = check(found.program);
    if (checked.kind() != KernelKind::gemm) continue;
    for (const Sizes& from : known) {
      Sizes sizes;
      try {
        sizes = testing::sizes_from(found.program, from);
      } catch (const ProgramError&) {
        continue;
      }
      SCOPED_TRACE(found.where + " " + testing::text_of(sizes));
      std::vector<std::string> reasons;
      const std::vector<Layout> layouts = dense_layouts(found.program, sizes);
      const auto plan = plan_gemm(checked, sizes, layouts, {}, nullptr, reasons);
      if (!plan) continue;
      ++plans;
      const Launch& launch = plan->launches.at(0);
      EXPECT_LE(launch.shared, Target().shared);
      EXPECT_EQ(launch.grid[0] % launch.cluster, 0);
      EXPECT_LE(argument_bytes(launch), 32764);
      for (const MapSpec& map : launch.maps) {
        EXPECT_EQ(map_fault(map, nullptr), "");
        // All of it lies inside the tensor.
        const auto tensor = static_cast<std::size_t>(map.tensor);
        const std::size_t params = found.program.params().size();
        const Type& type = tensor < params ? found.program.params()[tensor].type
                                           : found.program.results()[tensor - params].type;
        std::int64_t last = map.offset;
        for (std::size_t a = 0; a < map.axes.size(); ++a) {
          last += (map.axes[a].extent - 1) * (a == 0 ? 1 : map.axes[a].stride);
        }
        EXPECT_GE(map.offset, 0);
        EXPECT_LT(last, elements_of(type, sizes)) << type.dims.size();
        EXPECT_EQ(map.dtype, type.dtype);
      }
    }
  }
  EXPECT_GT(plans, 300);
}

}  // namespace
}  // namespace coda::cuda

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    coda::cuda::everything |= std::string_view(argv[i]) == "--long";
  }
  return RUN_ALL_TESTS();
}
