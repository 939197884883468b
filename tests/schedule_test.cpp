// tests/schedule_test.cpp: schedules as text, there and back; put together to one block; run in
// chunks.
#include "coda/program/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "coda/backend/execute.h"
#include "coda/check/bind.h"
#include "coda/check/check.h"
#include "coda/program/library.h"
#include "coda/program/text.h"
#include "coda/reference/reference.h"
#include "coda/reference/verify.h"
#include "coda/rewrite/rewrite.h"

namespace coda {
namespace {

Schedule schedule_of(const std::string& text) {
  const Module module = parse(text, "test.coda");
  const Schedule* schedule = module.find_schedule("");
  EXPECT_NE(schedule, nullptr) << text;
  return schedule == nullptr ? Schedule() : *schedule;
}

// To text and back; the text is one that format leaves alone.
void round_trip(const std::vector<Schedule>& schedules) {
  const std::string text = print(schedules);
  SCOPED_TRACE(text);
  const Module module = parse(text, "printed.coda");
  ASSERT_EQ(module.schedules.size(), schedules.size());
  for (std::size_t i = 0; i < schedules.size(); ++i) {
    EXPECT_TRUE(module.schedules[i] == schedules[i]);
    for (const Step& step : module.schedules[i].steps) EXPECT_NO_THROW(check(step.program));
  }
  EXPECT_EQ(print(module), text);
  EXPECT_EQ(print(module.schedules), text);
  EXPECT_EQ(format(text, "printed.coda"), text);
}

// What a training step may differentiate.
std::optional<GradOptions> gradients(const Program& program) {
  GradOptions options;
  for (const Param& param : program.params()) {
    // A scalar may be an option of attention, which has no gradient.
    if (is_float(param.type.dtype) && !param.type.is_scalar()) {
      options.wrt.push_back(param.name);
    }
  }
  const auto floats = [](const Result& result) {
    return is_float(result.type.dtype);
  };
  const auto adds = [](const Result& result) {
    return result.store == Store::accumulate;
  };
  if (options.wrt.empty() || std::ranges::none_of(program.results(), floats) ||
      std::ranges::any_of(program.results(), adds)) {
    return std::nullopt;
  }
  return options;
}

TEST(Schedules, OfEveryBlockComeBackFromText) {
  int schedules = 0;
  for (const std::string_view file : embedded_programs()) {
    const Module module = parse(*embedded_program(file), file);
    for (std::size_t i = module.imported; i < module.programs.size(); ++i) {
      const Program& program = module.programs[i];
      SCOPED_TRACE(std::string(file) + " " + program.name());
      round_trip({rewrite(program).forward.schedule});
      ++schedules;
      const auto options = gradients(program);
      if (!options) continue;
      const Rewritten both = rewrite(program, *options);
      Schedule forward = both.forward.schedule, backward = both.backward->schedule;
      if (forward.name == backward.name) backward.name += "_backward";
      round_trip({forward});
      round_trip({std::move(forward), std::move(backward)});
      schedules += 2;
    }
  }
  EXPECT_GT(schedules, 100);
}

const char* const kLoop =
    "coda 1\n"
    "\n"
    "# Shares of each class.\n"
    "program shares(p: f32[M, D], w: f32[V, D], lse: f32[M], target: i64[M], first: i64)\n"
    "    -> (dz: f32[M, V]) {\n"
    "  dz = exp(p @ w - lse) - where(index(V) + first == target, 1, 0)\n"
    "}\n"
    "\n"
    "program weight(dz: f32[M, V], p: f32[M, D]) -> (dw: f32[V, D]) {\n"
    "  dw = dz @ p\n"
    "}\n"
    "\n"
    "program into(dz: f32[M, V], w: f32[V, D]) -> (dp: +f32[M, D]) {\n"
    "  dp += dz @ w\n"
    "}\n"
    "\n"
    "program scaled(a: f32[A, B], s: f32[A]) -> (b: f32[A, B]) {\n"
    "  b = a * s\n"
    "}\n"
    "\n"
    "# The head's gradient, in chunks of the vocabulary.\n"
    "schedule head(p: f32[M, D], w: f32[V, D], lse: f32[M], target: i64[M])\n"
    "    -> (dw: f32[V, D], dp: f32[M, D]) {\n"
    "  for V in chunks of 4 from v0 {\n"
    "    dz = shares(p, w, lse, target, v0)\n"
    "    dw = weight(dz, p)\n"
    "    sum += into(dz, w)\n"
    "  }\n"
    "  dp = scaled(sum, lse)\n"
    "}\n";

TEST(Schedules, AreWrittenAsTheirPartsSay) {
  const Module module = parse(kLoop, "test.coda");
  const Schedule& head = *module.find_schedule("head");
  EXPECT_EQ(head.comment, "The head's gradient, in chunks of the vocabulary.");
  EXPECT_EQ(head.where.line, 22);
  ASSERT_EQ(head.loops.size(), 1u);
  EXPECT_EQ(head.loops[0].dim, "V");
  EXPECT_EQ(head.loops[0].size, 4);
  EXPECT_EQ(head.loops[0].first, "v0");
  ASSERT_EQ(head.steps.size(), 4u);
  EXPECT_EQ(head.steps[0].inputs, (std::vector<std::string>{"p", "w", "lse", "target", "v0"}));
  EXPECT_EQ(head.steps[2].outputs, std::vector<std::string>{"sum"});
  EXPECT_EQ(head.steps[2].loop, 0);
  EXPECT_EQ(head.steps[3].loop, -1);
  // The step has the schedule's names of dimensions, the file its own.
  EXPECT_EQ(head.steps[3].program.params()[0].type.text(), "f32[M, D]");
  EXPECT_EQ(module.find("scaled").params()[0].type.text(), "f32[A, B]");
  EXPECT_EQ(print(module), kLoop);
  EXPECT_EQ(format(kLoop, "test.coda"), kLoop);
  round_trip({head});
}

TEST(Schedules, AreFoundByName) {
  const std::string f = "program f(x: f32[N]) -> (y: f32[N]) {\n  y = exp(x)\n}\n";
  const auto schedule = [](const std::string& name) {
    return "schedule " + name + "(x: f32[N]) -> (y: f32[N]) {\n  y = f(x)\n}\n";
  };
  const Module last = parse(f + schedule("s"), "test.coda");
  ASSERT_NE(last.find_schedule(""), nullptr);
  EXPECT_EQ(last.find_schedule("")->name, "s");
  const std::string between =
      f + schedule("s") + "block g(x: f32[N]) -> (y: f32[N]) {\n  y = x\n}\n";
  const Module middle = parse(between, "test.coda");
  EXPECT_EQ(middle.find_schedule(""), nullptr);
  EXPECT_EQ(middle.find_schedule("s")->name, "s");
  EXPECT_EQ(middle.find_schedule("f"), nullptr);
  EXPECT_EQ(print(parse(print(middle), "test.coda")), print(middle));
  EXPECT_LT(print(middle).find("schedule s"), print(middle).find("block g"));
  try {
    middle.find("s");
    FAIL() << "a schedule was taken for a program";
  } catch (const ProgramError& error) {
    EXPECT_STREQ(
        error.what(),
        "error: `s` is a schedule, not a program or block\n"
        "  fix: run, verify, check and print take schedules; name a program or block here");
  }
}

TEST(Schedules, PrintProgramsThatComputeTheSameOnce) {
  const Schedule s = schedule_of(
      "program up(x: f32[M, N], w: f32[K, N]) -> (y: f32[M, K]) { y = x @ w }\n"
      "program up_again(a: f32[M, N], b: f32[K, N]) -> (c: f32[M, K]) { c = a @ b }\n"
      "program up_twice(a: f32[M, N], b: f32[K, N]) -> (c: f32[M, K]) { c = 2 * (a @ b) }\n"
      "schedule s(x: f32[M, N], 0.w: f32[K, N], 1.w: f32[K, N])\n"
      "    -> (0.y: f32[M, K], 1.y: f32[M, K], z: f32[M, K]) {\n"
      "  0.y = up(x, 0.w)\n"
      "  1.y = up_again(x, 1.w)\n"
      "  z = up_twice(x, 1.w)\n"
      "}\n");
  const std::string text = print(s);
  EXPECT_EQ(text.find("up_again"), std::string::npos) << text;
  EXPECT_NE(text.find("1.y = up(x, 1.w)"), std::string::npos) << text;
  EXPECT_NE(text.find("z = up_twice(x, 1.w)"), std::string::npos) << text;
  round_trip({s});
}

TEST(Schedules, PrintDifferentProgramsOfOneNameUnderTwo) {
  Schedule s = schedule_of(
      "program f(x: f32[N]) -> (y: f32[N]) { y = exp(x) }\n"
      "program g(x: f32[N]) -> (y: f32[N]) { y = sqrt(x) }\n"
      "schedule s(x: f32[N]) -> (y: f32[N]) {\n  t = f(x)\n  y = g(t)\n}\n");
  const Module other = parse("program f(x: f32[N]) -> (y: f32[N]) { y = sqrt(x) }\n", "test.coda");
  s.steps[1].program = other.find("f");
  EXPECT_NE(print(s).find("y = f_2(t)"), std::string::npos) << print(s);
  round_trip({s});
  s.name = "f";  // the schedule's own name is taken, too
  EXPECT_NE(print(s).find("t = f_2(x)\n  y = f_3(t)"), std::string::npos) << print(s);
  round_trip({s});
}

TEST(Schedules, KeepTheirProgramsThatCameByUse) {
  const Loader loader = [](std::string_view) -> std::optional<std::string> {
    return "program f(x: f32[A]) -> (y: f32[A]) { y = exp(x) }\n";
  };
  const Module module = parse(
      "use \"f.coda\"\nschedule s(x: f32[N]) -> (y: f32[N]) {\n  y = f(x)\n}\n", "s.coda", loader);
  const std::string text = print(module);
  EXPECT_NE(text.find("program f(x: f32[N])"), std::string::npos) << text;
  EXPECT_TRUE(parse(text, "test.coda").schedules[0] == module.schedules[0]);
}

TEST(Schedules, MarkWhatIsAddedAmongSeveral) {
  const std::string text =
      "coda 1\n"
      "\n"
      "program f(dz: f32[M, N], x: f32[M, K]) -> (dw: +f32[N, K], s: f32[M]) {\n"
      "  dw += dz @ x\n"
      "  s = sum(dz, N)\n"
      "}\n"
      "\n"
      "schedule s(dz: f32[M, N], x: f32[M, K]) -> (dw: +f32[N, K], s: f32[M]) {\n"
      "  +dw, s = f(dz, x)\n"
      "}\n";
  EXPECT_EQ(format(text, "test.coda"), text);
  EXPECT_EQ(print(parse(text, "test.coda")), text);
}

TEST(Schedules, KeepCommentsWhenFormatted) {
  const std::string text =
      "coda 1\n"
      "\n"
      "program f(x: f32[N]) -> (y: f32[N]) {\n"
      "  y = exp(x)\n"
      "}\n"
      "\n"
      "# Above.\n"
      "schedule s(x: f32[N]) -> (z: f32[N]) {  # header\n"
      "  # first\n"
      "  y = f(x)  # step\n"
      "\n"
      "  # loop\n"
      "  for N in chunks of 2 {  # head\n"
      "    # inside\n"
      "    z = f(y)  # inner\n"
      "    # end of loop\n"
      "  }\n"
      "  # end\n"
      "}\n";
  EXPECT_EQ(format(text, "test.coda"), text);
  const std::string loose =
      "schedule   s( x:f32[ N ] )->(z:f32[N]){\n y=f( x )\nfor N   in chunks of 2\tfrom  a "
      "{z=g(y,a)} "
      "# after\n }\n";
  EXPECT_EQ(format(loose, "test.coda"),
            "coda 1\n\nschedule s(x: f32[N]) -> (z: f32[N]) {\n  y = f(x)\n"
            "  for N in chunks of 2 from a {\n    z = g(y, a)\n    # after\n  }\n}\n");
}

TEST(Schedules, TakeNoWordFromOlderTexts) {
  const std::string text =
      "coda 1\n\n"
      "program f(schedule: f32[N], for: f32[N]) -> (from: f32[N]) {\n"
      "  in = schedule * for\n"
      "  from = in * in\n"
      "}\n";
  EXPECT_EQ(print(parse(text, "test.coda")), text);
}

// Relative, by norm.
double distance(const std::vector<reference::Array>& a, const std::vector<reference::Array>& b) {
  double worst = 0;
  EXPECT_EQ(a.size(), b.size());
  for (std::size_t r = 0; r < a.size(); ++r) {
    double difference = 0, norm = 0;
    EXPECT_EQ(a[r].data.size(), b[r].data.size());
    for (std::size_t i = 0; i < a[r].data.size(); ++i) {
      difference += std::pow(a[r].data[i] - b[r].data[i], 2);
      norm += std::pow(b[r].data[i], 2);
    }
    worst = std::max(worst, std::sqrt(difference / std::max(norm, 1e-300)));
  }
  return worst;
}

std::vector<Tensor> views(const std::vector<OwnedTensor>& owned) {
  std::vector<Tensor> tensors;
  for (const OwnedTensor& each : owned) tensors.push_back(each.tensor());
  return tensors;
}

TEST(Schedules, PutTogetherAreTheirBlock) {
  const Sizes sizes{{"M", 5}, {"D", 12}, {"A", 12}, {"F", 7}, {"HQ", 2}, {"HKV", 1},
                    {"E", 6}, {"B", 1},  {"S", 5},  {"V", 9}, {"N", 6},  {"K", 4}};
  int blocks = 0;
  for (const char* file : {"llama.coda", "norm.coda", "gated.coda", "gpt2.coda", "head.coda"}) {
    const Module module = parse(*embedded_program(file), file);
    for (std::size_t i = module.imported; i < module.programs.size(); ++i) {
      const Program& block = module.programs[i];
      SCOPED_TRACE(block.name());
      Sizes bound;
      try {
        bound = bind_sizes(block, sizes);
      } catch (const ProgramError&) {
        continue;
      }
      const Program whole = inline_schedule(rewrite(block).forward.schedule);
      const auto params = random_inputs(block, bound, 3);
      const auto exact = reference::Mode::exact;
      EXPECT_LT(distance(reference::evaluate(whole, bound, views(params), exact),
                         reference::evaluate(block, bound, views(params), exact)),
                1e-10);
      ++blocks;
    }
  }
  EXPECT_GT(blocks, 15);
}

TEST(Schedules, PutTogetherReorderWhatAStoreReordered) {
  const Program whole = inline_schedule(schedule_of(
      "program flip(x: f32[M, N]) -> (y: bf16[N, M]) { y = 2 * x }\n"
      "program rows(y: bf16[N*M]) -> (z: f32[N*M]) { z = y }\n"
      "schedule s(x: f32[M, N]) -> (z: f32[N*M]) {\n  y = flip(x)\n  z = rows(y)\n}\n"));
  const Sizes sizes{{"M", 2}, {"N", 3}};
  const OwnedTensor x(DType::f32, {2, 3});
  for (int i = 0; i < 6; ++i) x.as<float>()[i] = static_cast<float>(i) + 1 / 512.0f;
  const std::vector<Tensor> params{x.tensor()};
  const auto exact = reference::evaluate(whole, sizes, params, reference::Mode::exact);
  const auto rounded = reference::evaluate(whole, sizes, params, reference::Mode::rounded);
  const std::vector<double> order = {0, 3, 1, 4, 2, 5};
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(exact[0].data[i], 2 * (order[i] + 1 / 512.0));
    // What is stored in bf16 between the steps is rounded.
    EXPECT_EQ(rounded[0].data[i], order[i] > 0 ? 2 * order[i] : 1 / 256.0);
  }
}

std::vector<reference::Array> executed(const Schedule& schedule, const Sizes& sizes,
                                       std::span<const Tensor> params) {
  const Executable executable(schedule, *reference::backend(), sizes);
  std::vector<OwnedTensor> results;
  std::vector<reference::Array> arrays;
  for (const Result& result : schedule.results) {
    results.emplace_back(result.type.dtype, shape_of(result.type, sizes));
    std::fill_n(results.back().as<std::byte>(), results.back().bytes(), std::byte{0xff});
  }
  const OwnedTensor scratch(DType::u8, {static_cast<std::int64_t>(executable.scratch_bytes())});
  std::fill_n(scratch.as<std::byte>(), scratch.bytes(), std::byte{0xff});
  executable.run(params, views(results), {scratch.as<std::byte>(), scratch.bytes()});
  for (std::size_t r = 0; r < results.size(); ++r) {
    arrays.push_back(reference::load(schedule.results[r].type, results[r].tensor(), sizes));
  }
  return arrays;
}

TEST(Schedules, InChunksComputeWhatTheyComputeAtOnce) {
  const Schedule head = schedule_of(kLoop);
  const Program whole = inline_schedule(head);
  for (const std::int64_t v : {0, 1, 3, 4, 5, 8, 11}) {
    SCOPED_TRACE(v);
    const Sizes sizes{{"M", 3}, {"D", 5}, {"V", v}};
    const auto params = random_inputs(whole, sizes, 7);
    EXPECT_LT(distance(executed(head, sizes, views(params)),
                       reference::evaluate(whole, sizes, views(params), reference::Mode::exact)),
              1e-5);
  }
}

TEST(Schedules, InChunksHoldOneChunk) {
  Schedule head = schedule_of(kLoop);
  head.loops[0].size = 64;
  const Sizes sizes{{"M", 64}, {"D", 64}, {"V", 64 * 50}};
  const std::size_t one = 64 * 64 * sizeof(float);
  const auto kernels = Executable(head, *reference::backend(), sizes).scratch_bytes();
  // dz of one chunk, the sum, and the chunk's first element.
  EXPECT_LE(kernels, 2 * one + 64);
}

// What rewriting cuts under a memory budget.
TEST(Schedules, OfAHeadInChunksComeBackAndCompute) {
  const Module module = parse(*embedded_program("head.coda"), "head.coda");
  const Sizes sizes{{"M", 16}, {"D", 8}, {"V", 300}};
  RewriteOptions options;
  options.memory = 2048;
  options.sizes = sizes;
  const GradOptions gradients{.of = {"loss"}, .wrt = {"h", "gamma", "w"}};
  const Rewritten made = rewrite(module.find("head"), gradients, options);
  const Schedule& backward = made.backward->schedule;
  ASSERT_FALSE(backward.loops.empty()) << print(backward);
  round_trip({made.forward.schedule, backward});
  for (const Partition* half : {&made.forward, &*made.backward}) {
    SCOPED_TRACE(print(half->schedule));
    const Program whole = inline_schedule(half->schedule);
    const auto params = random_inputs(whole, sizes, 5);
    // Both round to bf16, at different places.
    EXPECT_LT(distance(executed(half->schedule, sizes, views(params)),
                       reference::evaluate(whole, sizes, views(params), reference::Mode::exact)),
              2e-2);
  }
}

}  // namespace
}  // namespace coda
