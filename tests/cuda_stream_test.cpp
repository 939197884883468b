// tests/cuda_stream_test.cpp: the streaming path: pages as goldens, compiled, and run on the host.
//
// `cuda_stream_test --update` writes tests/golden/cuda/ anew.
#include "coda/cuda/stream.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "coda/check/bind.h"
#include "coda/core/file.h"
#include "coda/cuda/nvrtc.h"
#include "coda/program/text.h"
#include "coda/reference/verify.h"
#include "coda/rewrite/retype.h"
#include "tests/cases.h"
#include "tests/host_library.h"

namespace coda::cuda {
namespace {

bool update = false;

struct Named {
  std::string file, name;
};

Program load(const Named& named) {
  const std::string folder =
      named.file.find(".") == named.file.find(".coda") &&
              std::filesystem::exists(CODA_SOURCE_DIR "/programs/" + named.file)
          ? "/programs/"
          : "/tests/golden/";
  const Module module = parse_file(CODA_SOURCE_DIR + folder + named.file);
  for (const Schedule& schedule : module.schedules)
    for (const Step& step : schedule.steps)
      if (step.program.name() == named.name) return step.program;
  return module.find(named.name);
}

std::optional<Plan> plan_of(const Program& program, const Sizes& sizes,
                            std::vector<std::string>& reasons) {
  return plan_stream(check(program), sizes, dense_layouts(program, sizes), {}, reasons);
}

// ---- pages on the host ----

class Pages {
 public:
  using Run = bool (*)(const void* words, const long long* grid, int block);

  Pages()
      : folder_(std::filesystem::temp_directory_path() /
                ("coda_stream_" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(folder_);
  }
  ~Pages() { std::filesystem::remove_all(folder_); }

  void want(const Plan& plan) {
    if (plan.launches.empty() || !known_.emplace(plan.page, known_.size()).second) return;
    waiting_.push_back(plan);
  }
  Run find(const Plan& plan, const std::string& entry) {
    want(plan);
    compile();
    const std::string name = prefix(plan) + "run_" + entry;
    for (void* library : libraries_)
      if (void* run = dlsym(library, name.c_str())) return reinterpret_cast<Run>(run);
    throw InternalError("no kernel " + name);
  }

 private:
  std::string prefix(const Plan& plan) const {
    return "p" + std::to_string(known_.at(plan.page)) + "_";
  }
  void compile() {
    if (waiting_.empty()) return;
    const std::string stem = folder_ / ("pages_" + std::to_string(libraries_.size()));
    std::ofstream out(stem + ".cpp");
    out << "#include \"tests/cuda_blocks_on_host.h\"\n";
    for (const Plan& plan : waiting_) write(out, plan);
    out.close();
    libraries_.push_back(testing::host_library(stem, "-O0 -fno-strict-aliasing"));
    waiting_.clear();
  }
  void write(std::ofstream& out, const Plan& plan) const {
    const std::string own = prefix(plan);
    std::string includes, rest;
    for (std::size_t at = 0; at < plan.page.size();) {
      const std::size_t end = plan.page.find('\n', at);
      const std::string line = plan.page.substr(at, end - at + 1);
      (line.starts_with("#include") ? includes : rest) += line;
      at = end + 1;
    }
    out << includes << "namespace " << own << "page {\n";
    for (const Launch& launch : plan.launches) {
      const std::string mark = ") " + launch.entry + "(";
      rest.replace(rest.find(mark) + 2, launch.entry.size(), own + launch.entry);
    }
    out << rest;
    for (const Launch& launch : plan.launches) {
      out << "extern \"C\" bool " << own << "run_" << launch.entry
          << "(const void* words, const long long* grid, int block) {\n"
             "  return coda::host::run(grid, block, [&] { "
          << own << launch.entry << "(*static_cast<const Arguments_" << plan.launches[0].entry
          << "*>(words)); });\n}\n";
    }
    out << "}\n";
  }

  std::filesystem::path folder_;
  std::map<std::string, std::size_t> known_;
  std::vector<Plan> waiting_;
  std::vector<void*> libraries_;
};

Pages& pages() {
  static Pages pages;
  return pages;
}

void launch(const Plan& plan, std::span<const Tensor> params, std::span<const Tensor> results) {
  std::vector<std::uint64_t> workspace(static_cast<std::size_t>(plan.workspace) / 8 + 32,
                                       ~std::uint64_t{0});
  for (const Launch& launch : plan.launches) {
    std::vector<std::int64_t> words;
    for (const Word& word : launch.words) {
      const auto t = static_cast<std::size_t>(word.tensor);
      if (word.kind == Word::Kind::number) {
        words.push_back(word.value);
      } else if (word.kind == Word::Kind::workspace) {
        words.push_back(reinterpret_cast<std::int64_t>(workspace.data()) + word.value);
      } else {
        const Tensor& tensor = t < params.size() ? params[t] : results[t - params.size()];
        words.push_back(reinterpret_cast<std::int64_t>(tensor.data) +
                        word.value * static_cast<std::int64_t>(size_of(tensor.dtype)));
      }
    }
    words.push_back(0);
    const long long grid[] = {launch.grid[0], launch.grid[1], launch.grid[2]};
    if (!pages().find(plan, launch.entry)(words.data(), grid, launch.block))
      throw InternalError("threads of " + launch.entry + " wait for ever");
  }
}

// Plans for the very tensors; where the path refuses, nothing is judged.
struct Runs {
  int taken = 0, refused = 0;
  std::set<std::string> reasons;

  Executor executor() {
    return [this](const Program& program, const Sizes& sizes, std::span<const Tensor> params,
                  std::span<const Tensor> results) {
      std::vector<std::string> why;
      const auto plan =
          plan_stream(check(program), sizes, layouts_of(program, sizes, params, results), {}, why);
      if (!plan) {
        ++refused;
        reasons.insert(why.begin(), why.end());
        throw Unsupported(why.at(0));
      }
      ++taken;
      launch(*plan, params, results);
    };
  }
};

void expect_right(const std::string& what, const Program& program, const Sizes& sizes,
                  const std::vector<Layouts>& layouts = {Layouts::dense}) {
  Runs runs;
  for (const Layouts layout : layouts) {
    try {
      const auto verdicts = verify(program, bind_sizes(program, sizes), runs.executor(),
                                   {.inputs = {Inputs::normal}, .layouts = {layout}, .seeds = 3});
      for (const Verdict& verdict : verdicts) {
        EXPECT_TRUE(verdict.passed) << what << " " << name_of(layout) << "\n" << table(verdicts);
        if (!verdict.passed) return;
      }
    } catch (const Unsupported& refusal) {
      if (layout == Layouts::dense) ADD_FAILURE() << what << ": " << refusal.what();
    }
  }
}

std::string text_of(const Sizes& sizes) {
  std::string text;
  for (const auto& [name, size] : sizes) text += " " + name + "=" + std::to_string(size);
  return text;
}

// What the fast path leaves to the general one, by reason.
bool may_refuse(const std::string& reason) {
  return reason.find("reductions inside a row of 64 vectors") != std::string::npos;
}

TEST(CudaStream, CaseTableRuns) {
  struct Run {
    std::string name;
    Program program;
    Sizes sizes;
  };
  std::vector<Run> runs;
  for (const ::coda::testing::Case& entry : ::coda::testing::case_table().cases) {
    const Program program = entry.load();
    if (program.kind() != Program::Kind::program) continue;
    const auto checked = try_check(program);
    if (!checked || checked->kind() != KernelKind::stream) continue;
    for (const Sizes& sizes : entry.sizes) {
      std::vector<std::string> why;
      const auto plan = plan_of(program, bind_sizes(program, sizes), why);
      if (!plan) {
        EXPECT_TRUE(may_refuse(why.at(0))) << entry.name << text_of(sizes) << ": " << why.at(0);
        continue;
      }
      pages().want(*plan);
      runs.push_back({entry.name + text_of(sizes), program, sizes});
    }
  }
  EXPECT_GE(runs.size(), 45u);
  for (const Run& run : runs) expect_right(run.name, run.program, run.sizes);
}

struct Text {
  std::string text;
  Sizes sizes;
  std::vector<Layouts> layouts = {Layouts::dense};
};

// Each is a way through the emitter that the case table does not take.
TEST(CudaStream, EveryShapeOfRowsRuns) {
  const std::vector<Layouts> every = {Layouts::dense, Layouts::padded, Layouts::transposed,
                                      Layouts::broadcast};
  const std::vector<Text> texts = {
      // A row too wide for registers, and one kept by a block.
      {"program p(x: bf16[M, D]) -> (y: bf16[M, D], l: f32[M], m: f32[M]) {\n"
       "  s = sum(x, D) / size(D)\n  y = x - s\n  l = logsumexp(x, D)\n  m = max(x, D)\n}",
       {{"M", 2}, {"D", 40000}}},
      {"program p(x: bf16[M, D], g: f32[D]) -> (y: f32[M, D]) {\n"
       "  y = x * rsqrt(sum(x * x, D) / size(D) + 1e-5) * g\n}",
       {{"M", 3}, {"D", 3000}},
       every},
      // Rows that start anywhere: vectors inside them, kept, looped, in chunks, or of one tensor
      // only.
      {"program p(z: bf16[M, V], t: i64[M]) -> (l: f32[M], e: f32[M], m: f32[M]) {\n"
       "  l = logsumexp(z, V) - pick(z, t)\n  e = logsumexp(z, V)\n  m = max(z, V)\n}",
       {{"M", 9}, {"V", 1021}},
       every},
      {"program p(z: bf16[M, V]) -> (l: f32[M], k: bf16[M, V]) {\n"
       "  l = logsumexp(z, V)\n  k = z * 2 - l\n}",
       {{"M", 2}, {"V", 33001}}},
      {"program p(x: bf16[M, D], g: bf16[D], b: f32[D]) -> (y: bf16[M, D]) {\n"
       "  c = x - sum(x, D) / size(D)\n"
       "  y = c * rsqrt(sum(c * c, D) / size(D) + 1e-5) * g + b\n}",
       {{"M", 11}, {"D", 523}},
       {Layouts::dense, Layouts::padded}},
      {"program p(x: bf16[M, N], s: f32[M], w: f32[N]) -> (y: bf16[M, N], z: +f32[M, N]) {\n"
       "  y = x * s * w\n  z += x + s\n}",
       {{"M", 10}, {"N", 2303}},
       every},
      {"program p(x: f32[M, N], c: bool[M, N]) -> (y: f32[M, N]) { y = where(c, x, -x) }",
       {{"M", 7}, {"N", 1001}},
       {Layouts::dense, Layouts::padded}},
      {"program p(x: f32[M, N]) -> (s: f32[blocks(M)], t: f32[M]) {\n"
       "  s = block_sum(sum(x * x, N), M)\n  t = max(x, N)\n}",
       {{"M", 70}, {"N", 333}}},
      // Heads of 80 and 96 elements, adjacent pairs, a partial rotation.
      {"program p(x: bf16[M, H*E], g: bf16[E]) -> (y: bf16[M, H*E], r: f32[M, H]) {\n"
       "  r = rsqrt(sum(x * x, E) / size(E) + 1e-5)\n  y = x * r * g\n}",
       {{"M", 5}, {"H", 3}, {"E", 80}},
       every},
      {"program p(x: bf16[B*S, H*E], cos: f32[S, E/2], sin: f32[S, E/2]) -> (y: bf16[B*S, H*E]) {\n"
       "  a, b = split(x as [B*S, H*(E/2)*2], 2: 1, 1)\n"
       "  y = join(2: a * cos - b * sin, b * cos + a * sin) as [B*S, H*E]\n}",
       {{"B", 2}, {"S", 3}, {"H", 3}, {"E", 32}},
       every},
      {"program p(x: f32[B*S, H*E], cos: f32[S, E/2], sin: f32[S, E/2]) -> (y: f16[B*S, H*E]) {\n"
       "  a, b = split(x, E: E/2, E/2)\n  y = join(E: a * cos - b * sin, b * cos + a * sin)\n}",
       {{"B", 2}, {"S", 3}, {"H", 2}, {"E", 96}},
       every},
      // Statistics of blocks, used in place; a tail block.
      {"program p(x: bf16[M, N]) -> (y: f32[M, N], t: f32[M, blocks(N)]) {\n"
       "  t = block_max(x, N)\n  y = x - spread(t, N)\n}",
       {{"M", 3}, {"N", 200}}},
      // Sums along rows beside statistics of rows; blocks that restart.
      {"program p(x: bf16[B*S, N]) -> (y: bf16[B*S, N], a: f32[B*blocks(S), N]) {\n"
       "  r = sum(x * x, N)\n  y = x * r\n  a = block_sum(x * r, S)\n}",
       {{"B", 2}, {"S", 100}, {"N", 96}}},
      {"program p(x: bf16[M, N], w: bf16[N]) -> (s: +f32[N], t: f32[N]) {\n"
       "  s += sum(x, M) * w\n  t = sum(x, M)\n}",
       {{"M", 300}, {"N", 72}},
       every},
      {"program p(x: bf16[M, N]) -> (s: bf16[N], t: +f32[N]) {\n"
       "  s = sum(x, M)\n  t += sum(x, M) * 2\n}",
       {{"M", 1500}, {"N", 40}}},
      // Integers, truth values, gathers, accumulation.
      {"program p(x: i32[M, N], c: bool[M, N], t: f32[V], ids: i64[M]) -> (y: i64[M, N], s: i64[M],"
       " g: +f32[M]) {\n  y = where(c, x * 2, index(N))\n  s = sum(y, N)\n  g += t[ids]\n}",
       {{"M", 7}, {"N", 40}, {"V", 9}},
       every},
      {"program p(x: bf16[M, N], rate: f32, seed: i64) -> (y: +bf16[M, N]) {\n"
       "  y += where(uniform(seed, x) < rate, 0, x / (1 - rate))\n}",
       {{"M", 9}, {"N", 72}},
       every},
      // One id more often than a list holds.
      {"program p(x: bf16[M, D], ids: i32[M]) -> (t: +f32[V, D]) { t += scatter_sum(x, ids, V) }",
       {{"V", 2}, {"D", 24}, {"M", 2200}}},
      // A range of rows that no list holds, and columns in slices.
      {"program p(x: f32[M, D], ids: i64[M]) -> (t: f32[V, D]) { t = scatter_sum(x, ids, V) }",
       {{"V", 5}, {"D", 300}, {"M", 2200}}},
  };
  std::vector<Program> programs;
  for (const Text& each : texts) {
    programs.push_back(parse("coda 1\n" + each.text, "test.coda").find(""));
    std::vector<std::string> why;
    const auto plan = plan_of(programs.back(), bind_sizes(programs.back(), each.sizes), why);
    ASSERT_TRUE(plan) << each.text << why.at(0);
    pages().want(*plan);
  }
  for (std::size_t t = 0; t < texts.size(); ++t) {
    const Text& each = texts[t];
    const Program& program = programs[t];
    expect_right(each.text, program, each.sizes, each.layouts);
  }
}

// Each way to share the work gives right results.
TEST(CudaStream, CandidatesRun) {
  const std::vector<Text> texts = {
      {"program p(x: bf16[M, N]) -> (s: f32[blocks(M), N]) { s = block_sum(x, M) }",
       {{"M", 70}, {"N", 328}}},
      {"program p(x: bf16[M, N], s: f32[M]) -> (y: bf16[M, N]) { y = x * s }",
       {{"M", 5}, {"N", 6000}}},
      {"program p(x: f32[M, N]) -> (s: f32[blocks(M)]) { s = block_sum(sum(x * x, N), M) }",
       {{"M", 66}, {"N", 4100}}},
  };
  struct Run {
    Program program;
    Sizes sizes;
    StreamTile tile;
  };
  std::vector<Run> runs;
  for (const Text& each : texts) {
    const Program program = parse("coda 1\n" + each.text, "test.coda").find("");
    const Sizes sizes = bind_sizes(program, each.sizes);
    const auto layouts = dense_layouts(program, sizes);
    const auto tiles = stream_tiles(check(program), sizes, layouts, {});
    EXPECT_GE(tiles.size(), 3u) << each.text;
    for (const StreamTile& tile : tiles) {
      std::vector<std::string> why;
      const auto plan = plan_stream(check(program), sizes, layouts, {}, why, &tile);
      ASSERT_TRUE(plan) << tile.text();
      pages().want(*plan);
      runs.push_back({program, sizes, tile});
    }
  }
  for (const Run& run : runs) {
    const Executor executor = [&](const Program& program, const Sizes& sizes,
                                  std::span<const Tensor> params, std::span<const Tensor> results) {
      std::vector<std::string> why;
      const auto plan = plan_stream(
          check(program), sizes, layouts_of(program, sizes, params, results), {}, why, &run.tile);
      launch(*plan, params, results);
    };
    const auto verdicts =
        verify(run.program, run.sizes, executor,
               {.inputs = {Inputs::normal}, .layouts = {Layouts::dense}, .seeds = 1});
    for (const Verdict& verdict : verdicts)
      EXPECT_TRUE(verdict.passed) << run.tile.text() << "\n" << table(verdicts);
  }
}

// ---- compiled ----

const Sizes kLarge = {{"M", 16384}, {"N", 4096},   {"K", 4096}, {"D", 4096},
                      {"B", 4},     {"S", 4096},   {"H", 32},   {"G", 8},
                      {"E", 128},   {"V", 128256}, {"P", 2004}, {"F", 11008}};

Sizes sizes_for(const Program& program, const Sizes& from) {
  std::set<std::string> names;
  for (const Param& param : program.params())
    for (const Dim& dim : param.type.dims) collect_names(dim, names);
  for (const Result& result : program.results())
    for (const Dim& dim : result.type.dims) collect_names(dim, names);
  for (const Node& node : program.nodes()) collect_names(node.attr.axis, names);
  Sizes sizes;
  for (const std::string& name : names) sizes[name] = from.contains(name) ? from.at(name) : 64;
  if (names.contains("N") && names.contains("H"))
    sizes["N"] =
        (names.contains("G") ? from.at("H") + 2 * from.at("G") : 3 * from.at("H")) * from.at("E");
  return sizes;
}

const std::vector<Named> kPages = {
    {"adamw.coda", "adamw_master"},
    {"norm.coda", "rmsnorm_rows"},
    {"rope.coda", "rope_norm_grad"},
    {"linear.coda", "bias_grad"},
    {"cross_entropy.coda", "cross_entropy_rows"},
    {"embedding.coda", "embedding_grad"},
    {"qwen3.qkv_norm.training.coda", "qkv_norm_grad_1_d_s_wv"},
};

TEST(CudaStream, PagesAreTheGoldenOnes) {
  const std::filesystem::path folder = CODA_SOURCE_DIR "/tests/golden/cuda";
  for (const Named& named : kPages) {
    const Program program = load(named);
    std::vector<std::string> why;
    const auto plan = plan_of(program, sizes_for(program, kLarge), why);
    ASSERT_TRUE(plan) << named.name << why.at(0);
    const std::filesystem::path path = folder / ("stream_" + named.name + ".page");
    if (update) {
      std::filesystem::create_directories(folder);
      std::ofstream(path) << plan->page;
      continue;
    }
    ASSERT_TRUE(std::filesystem::exists(path)) << path << ": run cuda_stream_test --update";
    EXPECT_EQ(read_file(path), plan->page) << path << ": run cuda_stream_test --update";
  }
}

TEST(CudaStream, PagesCompileWithoutSpills) {
  if (const auto problem = nvrtc_problem()) GTEST_SKIP() << "skipped: " << *problem;
  for (const Named& named : kPages) {
    const Program program = load(named);
    std::vector<std::string> why;
    const auto plan = plan_of(program, sizes_for(program, kLarge), why);
    ASSERT_TRUE(plan) << named.name << why.at(0);
    for (const auto& entry : compile(named.name, plan->page, device_files()).entries) {
      EXPECT_EQ(entry.spill_stores + entry.spill_loads + entry.stack, 0) << entry.name;
      EXPECT_LE(entry.registers * plan->launches[0].block, 65536) << entry.name;
    }
  }
}

// Every streaming program of the golden schedules, at small sizes.
TEST(CudaStream, DISABLED_GoldenSchedulesRun) {
  std::set<std::string> seen;
  const Sizes all = {{"M", 70}, {"D", 64}, {"B", 2},   {"S", 35},  {"H", 4},
                     {"G", 2},  {"E", 32}, {"V", 256}, {"F", 128}, {"P", 35}};
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(CODA_SOURCE_DIR "/tests/golden"))
    if (entry.path().extension() == ".coda") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  for (const std::string& file : files) {
    const Module module = parse_file(file);
    for (const Schedule& schedule : module.schedules) {
      for (const Step& step : schedule.steps) {
        const Program& program = step.program;
        const auto checked = try_check(program);
        if (!checked || checked->kind() != KernelKind::stream) continue;
        const std::string text = print(program);
        if (!seen.insert(text.substr(text.find('('))).second) continue;
        const Sizes sizes = sizes_for(program, all);
        std::vector<std::string> why;
        if (!plan_of(program, sizes, why)) continue;
        expect_right(std::filesystem::path(file).stem().string() + " " + program.name(), program,
                     sizes);
      }
    }
  }
}

}  // namespace
}  // namespace coda::cuda

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) coda::cuda::update |= std::string_view(argv[i]) == "--update";
  return RUN_ALL_TESTS();
}
