// tests/rewrite_options_test.cpp: what an author asks of rewriting changes where numbers are kept,
// and in what order, but never what they are.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "coda/core/error.h"
#include "coda/program/library.h"
#include "coda/program/text.h"
#include "coda/rewrite/retype.h"
#include "coda/rewrite/stack.h"
#include "tests/exact_schedule.h"
#include "tests/training_bounds.h"

namespace coda::testing {
namespace {

using Names = std::vector<std::string>;

Program block_of(const std::string& text) {
  return parse("use \"prelude.coda\"\n" + text, "block.coda").programs.back();
}

Program library_block(const std::string& file, const std::string& name) {
  return parse(*embedded_program(file), file).find(name);
}

std::set<std::string> set_of(const Names& names) {
  return {names.begin(), names.end()};
}

Names params_of(const Schedule& schedule) {
  Names names;
  for (const Param& param : schedule.params) names.push_back(param.name);
  return names;
}

// Every tensor that some step of the schedule reads.
std::set<std::string> reads(const Schedule& schedule) {
  std::set<std::string> names;
  for (const Step& step : schedule.steps) names.insert(step.inputs.begin(), step.inputs.end());
  return names;
}

// Bytes that backward reads and that only the forward could have made.
std::int64_t kept(const Rewritten& made, const Program& block, const Sizes& sizes) {
  std::int64_t bytes = 0;
  for (const Result& result : made.forward.schedule.results) {
    const Names params = params_of(made.backward->schedule);
    if (std::ranges::find(params, result.name) == params.end()) continue;
    if (block.find_param(result.name) >= 0) continue;
    bytes +=
        elements_of(result.type, sizes) * static_cast<std::int64_t>(size_of(result.type.dtype));
  }
  return bytes;
}

// Rewritten, and equal to the block's meaning.
Rewritten rewritten(const Program& block, const Sizes& sizes, const RewriteOptions& options = {},
                    const GradOptions& gradients = {}) {
  Rewritten made = rewrite(block, gradients, options);
  EXPECT_EQ(run_exact(block, gradients, made, sizes, drawn(block, gradients, sizes)).differences,
            "");
  return made;
}

std::string error_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const ProgramError& error) {
    return to_string(error.diagnostics().front());
  }
  return "no error";
}

const Sizes kMlp = {{"M", 7}, {"D", 66}, {"F", 5}};

std::string mlp(const std::string& y, const std::string& z) {
  return "block mlp(x: bf16[M, D], w1: bf16[F, D], w2: bf16[D, F]) -> (out: bf16[M, D]) {\n"
         "  y = " +
         y + "\n  z = " + z + "\n  out = z @ w2\n}\n";
}
const std::string kY = "tanh(x @ w1)", kZ = "y * y";

// ---- save or recompute ----

TEST(Options, TheTextSaysWhatIsSaved) {
  const auto saved = [](const std::string& y, const std::string& z) {
    return rewritten(block_of(mlp(y, z)), kMlp).saved;
  };
  EXPECT_EQ(saved(kY, kZ), (Names{"y", "z"}));
  EXPECT_EQ(saved(kY, "recompute(" + kZ + ")"), Names{"y"});
  EXPECT_EQ(saved("recompute(" + kY + ")", kZ), (Names{"product", "z"}));
  EXPECT_EQ(saved("recompute(" + kY + ")", "recompute(" + kZ + ")"), Names{"product"});
  EXPECT_EQ(saved("tanh(save(x @ w1))", "recompute(" + kZ + ")"), (Names{"save"}));
}

TEST(Options, NamesSayWhatIsSaved) {
  const Program block = block_of(mlp(kY, kZ));
  const auto saved = [&](const RewriteOptions& options) {
    return rewritten(block, kMlp, options).saved;
  };
  EXPECT_EQ(saved({.recompute = {"z"}}), Names{"y"});
  EXPECT_EQ(saved({.recompute = {"y"}}), (Names{"product", "z"}));
  EXPECT_EQ(saved({.recompute = {"y", "z"}}), Names{"product"});
  // What the policy would not keep: a map of what it keeps.
  const Program gated = block_of(
      "block gated(x: bf16[M, D], g: bf16[M, D], w: bf16[F, D]) -> (out: bf16[M, F]) {\n"
      "  s = sigmoid(x)\n  out = (s * g) @ w\n}\n");
  EXPECT_FALSE(set_of(rewritten(gated, kMlp).saved).contains("s"));
  EXPECT_TRUE(set_of(rewritten(gated, kMlp, {.save = {"s"}}).saved).contains("s"));
}

// ---- a budget ----

// From all that pays down to nothing, in steps.
void expect_monotone(const Program& block, const Sizes& sizes, const GradOptions& gradients) {
  const std::int64_t all = kept(rewritten(block, sizes, {}, gradients), block, sizes);
  std::int64_t before = all;
  std::set<std::int64_t> amounts;
  for (int part = 8; part >= 0; --part) {
    SCOPED_TRACE(std::to_string(part) + " eighths");
    const std::int64_t memory = all * part / 8;
    const Rewritten made = rewritten(block, sizes, {.memory = memory, .sizes = sizes}, gradients);
    const std::int64_t now = kept(made, block, sizes);
    EXPECT_LE(now, before);
    before = now;
    amounts.insert(now);
    const std::string note = "forward keeps " + std::to_string(now) +
                             " bytes for backward, more than the " + std::to_string(memory) +
                             " allowed: nothing else can be computed again";
    const bool noted = std::ranges::find(made.notes, note) != made.notes.end();
    EXPECT_EQ(noted, now > memory) << now << " of " << memory << " allowed";
  }
  EXPECT_GE(amounts.size(), 4u);
  EXPECT_LT(*amounts.begin(), all / 2);
}

TEST(Options, LessMemoryKeepsLess) {
  const Sizes layer = {{"B", 1}, {"S", 6}, {"D", 64}, {"H", 2}, {"G", 1}, {"E", 4}, {"F", 96}};
  for (const char* file : {"llama.coda", "gemma.coda"}) {
    SCOPED_TRACE(file);
    const Program block = library_block(file, "layer");
    expect_monotone(block, bind_sizes(block, layer), training_gradients(block));
  }
  Sizes sizes = layer;
  sizes["V"] = 9;
  const Program model = stack(parse(*embedded_program("llama.coda"), "llama.coda"), 2);
  expect_monotone(model, bind_sizes(model, sizes), training_gradients(model));
}

TEST(Options, WithoutMemoryNothingThatAProductMakesIsKept) {
  const Rewritten made = rewritten(block_of(mlp(kY, kZ)), kMlp, {.memory = 0, .sizes = kMlp});
  EXPECT_EQ(made.saved, Names{});
  EXPECT_TRUE(std::ranges::none_of(made.notes, [](const std::string& note) {
    return note.find("forward keeps") != std::string::npos;
  }));
}

// ---- accumulation ----

struct Maker {
  const Step* step = nullptr;
  const Result* result = nullptr;
};

Maker maker_of(const Schedule& schedule, const std::string& name) {
  for (const Step& step : schedule.steps) {
    for (std::size_t i = 0; i < step.outputs.size(); ++i) {
      if (step.outputs[i] == name) return {&step, &step.program.results()[i]};
    }
  }
  ADD_FAILURE() << "no step makes " << name;
  return {};
}

bool has_product(const Program& program) {
  return std::ranges::any_of(program.nodes(),
                             [](const Node& node) { return node.op == Op::product; });
}

// On the CPU and by the reference, from the same contents.
void expect_added(const Program& block, const GradOptions& gradients, const Sizes& sizes) {
  const Program whole = joint(block, gradients);
  const TrainingStep step(block, gradients, sizes);
  const std::vector<OwnedTensor> inputs = random_inputs(whole, sizes, 3);
  std::vector<Tensor> params, before;
  TrainingStep::Tensors tensors;
  for (std::size_t p = 0; p < inputs.size(); ++p) {
    params.push_back(inputs[p].tensor());
    tensors.emplace(whole.params()[p].name, dense_copy(params.back()));
  }
  for (const Result& result : whole.results()) {
    OwnedTensor held(result.type.dtype, shape_of(result.type, sizes));
    for (std::int64_t i = 0; i < held.tensor().elements(); ++i) {
      store(result.type.dtype, held.tensor().data, i, 100 + static_cast<double>(i % 7));
    }
    before.push_back(tensors.insert_or_assign(result.name, std::move(held)).first->second.tensor());
  }
  const auto want = reference::evaluate(whole, sizes, params, reference::Mode::exact, before);
  step.run(tensors);
  for (std::size_t r = 0; r < want.size(); ++r) {
    const Result& result = whole.results()[r];
    const Tensor& got = tensors.at(result.name).tensor();
    const double roundoff = result.type.dtype == DType::bf16 ? 0x1p-8 : 1e-6;
    for (std::int64_t i = 0; i < got.elements(); ++i) {
      const double truth = want[r].data[static_cast<std::size_t>(i)];
      ASSERT_NEAR(load(got.dtype, got.data, i), truth, roundoff * (std::abs(truth) + 10))
          << result.name << ", element " << i;
    }
  }
}

TEST(Options, GradientsAddWhereTheirProductEnds) {
  const Program block = retype(library_block("llama.coda", "layer"), DType::bf16, DType::f32);
  const Sizes sizes =
      bind_sizes(block, {{"B", 1}, {"S", 6}, {"D", 70}, {"H", 2}, {"G", 1}, {"E", 4}, {"F", 96}});
  GradOptions gradients = training_gradients(block);
  const Rewritten plain = rewritten(block, sizes, {}, gradients);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    SCOPED_TRACE(name_of(dtype));
    for (const char* name : {"wq", "wo", "gate", "down", "gamma1", "gamma2"}) {
      gradients.accumulate[name] = dtype;
    }
    const Rewritten made = rewritten(block, sizes, {}, gradients);
    EXPECT_EQ(made.forward.schedule.steps.size(), plain.forward.schedule.steps.size());
    EXPECT_EQ(made.backward->schedule.steps.size(), plain.backward->schedule.steps.size());
    for (const auto& [name, into] : gradients.accumulate) {
      const Maker maker = maker_of(made.backward->schedule, "d_" + name);
      ASSERT_NE(maker.step, nullptr);
      EXPECT_EQ(maker.result->store, Store::accumulate) << name;
      EXPECT_EQ(maker.result->type.dtype, into) << name;
      const bool is_norm = name.starts_with("gamma");
      EXPECT_TRUE(is_norm || has_product(maker.step->program)) << name;
    }
    const Maker overwritten = maker_of(made.backward->schedule, "d_wv");
    EXPECT_EQ(overwritten.result->store, Store::overwrite);
    EXPECT_EQ(overwritten.result->type.dtype, DType::f32);
    expect_added(block, gradients, sizes);
  }
}

// A table's gradient is a scatter; the head's is written by chunks.
TEST(Options, GradientsOfTablesAndHeadsAdd) {
  const Program model = retype(stack(parse(*embedded_program("llama.coda"), "llama.coda"), 1),
                               DType::bf16, DType::f32);
  const Sizes sizes = bind_sizes(
      model, {{"B", 1}, {"S", 6}, {"D", 64}, {"H", 2}, {"G", 1}, {"E", 4}, {"F", 40}, {"V", 9}});
  GradOptions gradients = training_gradients(model);
  for (const std::string& name : gradients.wrt) gradients.accumulate[name] = DType::f32;
  const Rewritten made = rewritten(model, sizes, {}, gradients);
  for (const Result& result : made.backward->schedule.results) {
    EXPECT_EQ(result.store, Store::accumulate) << result.name;
  }
  expect_added(model, gradients, sizes);
}

TEST(Options, WhatCannotAccumulateIsRefused) {
  const Program block = block_of(mlp(kY, kZ));
  const auto error = [&](GradOptions gradients) {
    return error_of([&] { rewrite(block, gradients); });
  };
  const std::string where = "block.coda:2:7: error: ";
  const std::string of_those =
      "\n  rule: a gradient that accumulates is one of those asked for\n  fix: ";
  EXPECT_EQ(error({.accumulate = {{"w3", DType::f32}}}),
            where + "no gradient with respect to `w3` is computed, so none accumulates" + of_those +
                "did you mean `w1`?");
  EXPECT_EQ(error({.accumulate = {{"out", DType::f32}}}),
            where + "no gradient with respect to `out` is computed, so none accumulates" +
                of_those + "leave it out");
  EXPECT_EQ(error({.wrt = {"x"}, .accumulate = {{"w1", DType::f32}}}),
            where + "no gradient with respect to `w1` is computed, so none accumulates" + of_those +
                "leave it out");
  for (const DType dtype : {DType::i32, DType::boolean, DType::f8e4m3, DType::f64}) {
    EXPECT_EQ(error({.accumulate = {{"w1", dtype}}}),
              where + "the gradient of `w1` cannot accumulate in " + std::string(name_of(dtype)) +
                  "\n  rule: gradients accumulate in f32, bf16 or f16\n  fix: name one of these");
  }
}

// ---- what needs no gradient ----

TEST(Options, FrozenWeightsAndInputsCutTheirKernels) {
  const Program block = block_of(mlp(kY, kZ));
  const auto steps = [&](const Names& wrt) {
    const Rewritten made = rewritten(block, kMlp, {}, {.wrt = wrt});
    for (const Result& result : made.backward->schedule.results) {
      EXPECT_NE(std::ranges::find(wrt, result.name.substr(2)), wrt.end()) << result.name;
    }
    return made.backward->schedule.steps.size();
  };
  const std::size_t all = steps({"x", "w1", "w2"});
  EXPECT_EQ(steps({"x", "w2"}), all - 1);  // no d_w1
  EXPECT_EQ(steps({"x"}), all - 2);
  EXPECT_EQ(steps({"w1", "w2"}), all - 1);  // no d_x
  EXPECT_EQ(steps({"w2"}), 1u);
  EXPECT_EQ(rewritten(block, kMlp, {}, {.wrt = {"w2"}}).saved, Names{"z"});
}

TEST(Options, FrozenLayersBelowAreNotEnteredByBackward) {
  const Program model = stack(parse(*embedded_program("llama.coda"), "llama.coda"), 3);
  const Sizes sizes = bind_sizes(
      model, {{"B", 1}, {"S", 4}, {"D", 64}, {"H", 2}, {"G", 1}, {"E", 4}, {"F", 40}, {"V", 9}});
  const GradOptions last{.of = {"loss"}, .wrt = {"2.down", "2.up", "head.w"}};
  const Rewritten made = rewritten(model, sizes, {}, last);
  for (const std::string& name : reads(made.backward->schedule)) {
    EXPECT_TRUE(layer_of(name).value_or(2) == 2) << name;
  }
  for (const std::string& name : made.saved) EXPECT_EQ(layer_of(name).value_or(2), 2) << name;
}

TEST(Options, NothingFlowsThroughDetach) {
  const std::string start =
      "block scaled(x: bf16[M, D], g: bf16[D], w: bf16[F, D], eps: f32) -> (y: bf16[M, F]) {\n"
      "  y = ";
  const Program attached = block_of(start + "(x * rsqrt(mean(x * x, D) + eps) * g) @ w\n}\n");
  const Program detached =
      block_of(start + "(x * detach(rsqrt(mean(x * x, D) + eps)) * g) @ w\n}\n");
  rewritten(attached, kMlp);
  const Rewritten made = rewritten(detached, kMlp);
  // dx = r * (dz * g): of one row, and no more than that.
  Tensors inputs = drawn(detached, {}, kMlp);
  const Exact exact = run_exact(detached, {}, made, kMlp, inputs);
  const auto at = [](const Tensors& tensors, const std::string& name, std::int64_t i) {
    return load(DType::f64, tensors.at(name).tensor().data, i);
  };
  const std::int64_t width = kMlp.at("D"), outs = kMlp.at("F");
  double square = 0;
  for (std::int64_t d = 0; d < width; ++d) square += std::pow(at(inputs, "x", d), 2);
  const double r = 1 / std::sqrt(square / static_cast<double>(width) + at(inputs, "eps", 0));
  for (std::int64_t d = 0; d < width; ++d) {
    double dz = 0;
    for (std::int64_t f = 0; f < outs; ++f) {
      dz += at(inputs, "d_y", f) * at(inputs, "w", f * width + d);
    }
    EXPECT_NEAR(at(exact.made, "d_x", d), r * dz * at(inputs, "g", d), 1e-12);
  }
}

// ---- what stays as written ----

std::string normed(const std::string& dtype, const std::string& n) {
  return "block normed(h: T[M, K], wo: T[D, K], g: T[D], w: T[F, D], eps: f32) -> (y: T[M, F]) {\n"
         "  x = h @ wo\n  y = " +
         n + " @ w\n}\n" + dtype;
}

Program normed_block(const std::string& dtype, const std::string& n) {
  std::string text = normed("", n);
  for (std::size_t at; (at = text.find("T[")) != std::string::npos;) text.replace(at, 1, dtype);
  return block_of(text);
}

const Sizes kNormed = {{"M", 7}, {"K", 9}, {"D", 66}, {"F", 5}};
const std::string kNote = "f16 could overflow without the row scale; --delay-f16 allows it";

bool mentions(const Names& notes, const std::string& text) {
  return std::ranges::any_of(
      notes, [&](const std::string& note) { return note.find(text) != std::string::npos; });
}

// Whether the norm's whole row stands between the two products.
bool waits_for_norm(const Rewritten& made) {
  return made.forward.schedule.steps.size() > 2;
}

TEST(Options, F16KeepsTheNormBeforeItsProductUnlessAsked) {
  const std::string norm = "rmsnorm(x, g, eps)";
  const Rewritten bf16 = rewritten(normed_block("bf16", norm), kNormed);
  EXPECT_FALSE(waits_for_norm(bf16));
  EXPECT_FALSE(mentions(bf16.notes, kNote));
  const Rewritten f16 = rewritten(normed_block("f16", norm), kNormed);
  EXPECT_TRUE(waits_for_norm(f16));
  EXPECT_TRUE(mentions(f16.notes, kNote));
  const Rewritten delayed = rewritten(normed_block("f16", norm), kNormed, {.delay_f16 = true});
  EXPECT_FALSE(waits_for_norm(delayed));
  EXPECT_FALSE(mentions(delayed.notes, kNote));
}

TEST(Options, APinIsNeverPassed) {
  const Rewritten made = rewritten(normed_block("bf16", "pin bf16(rmsnorm(x, g, eps))"), kNormed);
  EXPECT_TRUE(waits_for_norm(made));
  int pins = 0;
  for (const Step& step : made.forward.schedule.steps) {
    for (const Node& node : step.program.nodes()) pins += node.op == Op::pin ? 1 : 0;
  }
  EXPECT_GE(pins, 1);
}

}  // namespace
}  // namespace coda::testing
