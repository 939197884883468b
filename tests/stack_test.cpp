// tests/stack_test.cpp: a stack is its embedding, its layers and its head run one after the other.
#include "coda/rewrite/stack.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "coda/program/builder.h"
#include "coda/program/library.h"
#include "tests/numeric_gradient.h"

namespace coda {
namespace {

using testing::Fill;
using testing::Tensors;

const std::string kEmbed =
    "block embed(table: bf16[V, N], ids: i64[M], rate: f32, seed: i64) -> (e: bf16[M, N]) {\n"
    "  e = dropout(table[ids], rate, seed)\n}\n";
const std::string kLayer =
    "block layer(x: bf16[B*S, D], gamma: bf16[D], w: bf16[F, D], down: bf16[D, F],\n"
    "    turn: f32[S, D], eps: f32, rate: f32, seed: i64)\n"
    "    -> (out: bf16[B*S, D], size: f32[B*S]) {\n"
    "  y = tanh(rmsnorm(x, gamma, eps) @ w)\n"
    "  out = x + dropout(y @ down, rate, seed) * turn\n"
    "  size = sum(y * y, F)\n}\n";
const std::string kHead =
    "block head(h: bf16[M, D], gamma: bf16[D], w: bf16[V, D], target: i64[M], eps: f32)\n"
    "    -> (loss: f32, lse: f32[M]) {\n"
    "  z = rmsnorm(h, gamma, eps) @ w\n"
    "  lse = logsumexp(z, V)\n"
    "  loss = sum(lse - pick(z, target), M) / size(M)\n}\n";

Module module_of(const std::string& text) {
  return parse("use \"prelude.coda\"\n" + text, "model.coda");
}

std::string params_of(const Program& program) {
  std::string text;
  for (const Param& param : program.params()) {
    text += (text.empty() ? "" : "; ") + param.name + ": " + param.type.text();
  }
  return text;
}

std::string results_of(const Program& program) {
  std::string text;
  for (const Result& result : program.results()) {
    text += (text.empty() ? "" : "; ") + result.name + ": " + result.type.text();
  }
  return text;
}

// What the stack's tensors are to one of its blocks: "3.wq" is the wq of layer 3.
Tensors own_tensors(const Program& part, const std::string& prefix, const Tensors& all) {
  Tensors tensors;
  for (const Param& param : part.params()) {
    const auto own = all.find(prefix + param.name);
    const auto& from = own != all.end() ? own->second : all.at(param.name);
    OwnedTensor copy(from.tensor().dtype, from.tensor().shape);
    for (std::int64_t i = 0; i < from.tensor().elements(); ++i) {
      store(copy.tensor().dtype, copy.tensor().data, i,
            load(copy.tensor().dtype, from.tensor().data, i));
    }
    tensors.emplace(param.name, std::move(copy));
  }
  return tensors;
}

TEST(Stack, NamesWhatEachLayerOwnsAndSharesTheRest) {
  const Program program = stack(module_of(kEmbed + kLayer + kHead), 2);
  EXPECT_EQ(params_of(program),
            "embed.table: bf16[V, D]; ids: i64[B*S]; rate: f32; seed: i64; "
            "0.gamma: bf16[D]; 0.w: bf16[F, D]; 0.down: bf16[D, F]; turn: f32[S, D]; eps: f32; "
            "0.seed: i64; 1.gamma: bf16[D]; 1.w: bf16[F, D]; 1.down: bf16[D, F]; 1.seed: i64; "
            "head.gamma: bf16[D]; head.w: bf16[V, D]; target: i64[B*S]");
  EXPECT_EQ(results_of(program), "0.size: f32[B*S]; 1.size: f32[B*S]; loss: f32; lse: f32[B*S]");
}

TEST(Stack, WithoutEndsTakesAndGivesTheStream) {
  const Program program = stack(module_of(kLayer), 1);
  EXPECT_EQ(program.params()[0].name, "x");
  EXPECT_EQ(results_of(program), "out: bf16[B*S, D]; 0.size: f32[B*S]");
  const Program bare = stack(module_of(kEmbed + kLayer + kHead), 1, {.embed = "", .head = ""});
  EXPECT_TRUE(bare == program);
}

TEST(Stack, ComputesItsPartsInTurn) {
  const Module module = module_of(kEmbed + kLayer + kHead);
  const Program program = stack(module, 3);
  const Sizes sizes = testing::complete(program, {{"B", 2}, {"S", 3}, {"D", 70}, {"V", 11}});
  Tensors tensors;
  testing::draw(program, sizes, {.ids = 11, .at = {{"eps", 0.1}, {"rate", 0.5}}}, tensors);
  const auto got = testing::evaluate(program, sizes, tensors);

  const auto run = [&](const std::string& block, const std::string& prefix) {
    const Program& part = module.find(block);
    Sizes own = sizes;
    own["M"] = 6;
    own["N"] = 70;
    return testing::evaluate(part, bind_sizes(part, own), own_tensors(part, prefix, tensors));
  };
  const auto give = [&](const std::string& name, const std::vector<double>& values) {
    tensors.erase(name);
    OwnedTensor tensor(DType::f64, {6, 70});
    std::copy(values.begin(), values.end(), tensor.as<double>());
    tensors.emplace(name, std::move(tensor));
  };
  give("x", run("embed", "embed.").at("e"));
  for (int i = 0; i < 3; ++i) {
    const std::string prefix = std::to_string(i) + ".";
    const auto results = run("layer", prefix);
    EXPECT_LT(testing::relative_error(got.at(prefix + "size"), results.at("size")), 1e-12) << i;
    give("x", results.at("out"));
  }
  give("h", {tensors.at("x").as<double>(), tensors.at("x").as<double>() + 6 * 70});
  const auto head = run("head", "head.");
  EXPECT_LT(testing::relative_error(got.at("loss"), head.at("loss")), 1e-12);
  EXPECT_LT(testing::relative_error(got.at("lse"), head.at("lse")), 1e-12);
}

TEST(Stack, RoundsTheStreamBetweenItsLayers) {
  const Program program = stack(module_of(kLayer), 2, {});
  int casts = 0;
  for (const Node& node : program.nodes()) casts += node.op == Op::cast;
  EXPECT_EQ(casts, 1);
  const auto named = [&](const ValueInfo& value) {
    return value.name == "0.out" && value.type.dtype == DType::bf16;
  };
  EXPECT_TRUE(std::ranges::any_of(program.values(), named));
}

TEST(Stack, TiesParametersOfOneType) {
  const Module module = module_of(kEmbed + kLayer + kHead);
  const Program tied = stack(module, 1, {.tied = {{"head.w", "embed.table"}}});
  EXPECT_LT(tied.find_param("head.w"), 0);
  EXPECT_EQ(use_counts(tied)[static_cast<std::size_t>(tied.find_param("embed.table"))], 2);
}

// The first diagnostic, all its parts.
template <class F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const ProgramError& error) {
    const Diagnostic& first = error.diagnostics().front();
    EXPECT_FALSE(first.rule.empty());
    EXPECT_FALSE(first.fix.empty());
    return to_string(first);
  }
  return "no error";
}

void expect_error(const std::string& text, const StackOptions& options, int layers,
                  const std::vector<std::string>& parts) {
  const std::string error = error_of([&] { stack(module_of(text), layers, options); });
  for (const std::string& part : parts) {
    EXPECT_NE(error.find(part), std::string::npos) << "no `" << part << "` in\n" << error;
  }
}

TEST(Stack, RefusesWhatCannotBeStacked) {
  expect_error(kEmbed + kHead, {}, 2, {"no block `layer`", "`embed`, `head`", "--block NAME"});
  expect_error(kLayer, {.layer = "layr"}, 2, {"no block `layr`", "did you mean `layer`"});
  expect_error(kLayer, {}, 0, {"a stack of 0 layers", "1 to", "between"});
  expect_error(kLayer, {}, 1000000, {"a stack of 1000000 layers"});
  expect_error("block layer(x: bf16[M, D], w: bf16[N, D]) -> (y: bf16[M, N]) {\n  y = x @ w\n}\n",
               {}, 2,
               {"model.coda:2:", "cannot follow itself", "x: bf16[M, D]", "y: bf16[M, N]",
                "declare `y: bf16[M, D]`"});
  expect_error("block layer(x: bf16[M, D]) -> (y: f32[M, D]) {\n  y = exp(x)\n}\n", {}, 2,
               {"cannot follow itself", "y: f32[M, D]"});
  expect_error("block layer(s: f32, x: bf16[M, D]) -> (y: bf16[M, D]) {\n  y = x * s\n}\n", {}, 2,
               {"no residual stream"});
  expect_error(kLayer + "block head(h: bf16[D]) -> (y: bf16[D]) {\n  y = exp(h)\n}\n", {}, 2,
               {"`h` of `head` is not the residual stream of `layer`", "h: bf16[D]",
                "x: bf16[B*S, D]", "declare `h: bf16[B*S, D]`"});
  expect_error(kEmbed + kLayer + kHead, {.tied = {{"head.w", "0.w"}}}, 2,
               {"`head.w` cannot be `0.w`", "head.w: bf16[V, D]", "0.w: bf16[F, D]"});
  expect_error(kEmbed + kLayer, {.tied = {{"head.w", "embed.table"}}}, 2,
               {"the stack has no `head.w`"});
}

TEST(Stack, KnowsTheLayerOfAName) {
  EXPECT_EQ(layer_of("0.wq"), 0);
  EXPECT_EQ(layer_of("d_31.wq"), 31);
  EXPECT_EQ(layer_of("head.w"), std::nullopt);
  EXPECT_EQ(layer_of("31"), std::nullopt);
  EXPECT_EQ(layer_of("eps"), std::nullopt);
  EXPECT_EQ(layer_of(""), std::nullopt);
}

// Every file of the library that has a layer: the whole model where it has its ends.
TEST(Stack, HoldsTheLayersOfTheLibrary) {
  int files = 0;
  for (const std::string_view file : embedded_programs()) {
    const Module module = parse_file(std::string(file));
    const auto is_layer = [](const Program& program) {
      return program.name() == "layer";
    };
    if (std::ranges::none_of(module.programs, is_layer)) continue;
    SCOPED_TRACE(file);
    ++files;
    const Program program = stack(module, 3);
    const std::string first = program.params()[0].name, last = program.results().back().name;
    EXPECT_TRUE(file == "layer_scale.coda" || (first.starts_with("embed.") && last == "lse"))
        << first << " " << last;
    for (const Param& param : program.params()) {
      if (!layer_of(param.name)) continue;
      EXPECT_GE(program.find_param("2" + param.name.substr(1)), 0) << param.name;
    }
    EXPECT_NO_THROW(testing::complete(program, {}));
  }
  EXPECT_GE(files, 10);
}

}  // namespace
}  // namespace coda
