// tests/ledger_test.cpp: the ledger against bytes counted from signatures alone, loops, totals, and
// the layer that a kernel works for.
#include "coda/rewrite/ledger.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "coda/check/bind.h"
#include "coda/program/text.h"
#include "coda/rewrite/explain.h"
#include "coda/rewrite/stack.h"
#include "tests/training_gradients.h"

namespace coda {
namespace {

const Sizes kSizes = {{"B", 1},    {"S", 512},  {"D", 1024}, {"H", 16},  {"G", 4},   {"E", 64},
                      {"F", 2816}, {"V", 8192}, {"M", 512},  {"K", 512}, {"N", 1024}};

std::int64_t bytes_of(const Type& type, const Sizes& sizes) {
  std::int64_t elements = 1;
  for (const Dim& dim : type.dims) elements *= require_extent(dim, sizes);
  return elements * static_cast<std::int64_t>(size_of(type.dtype));
}

// Each tensor of a schedule by its name, whoever mentions it.
std::map<std::string, std::int64_t> tensors_of(const Schedule& schedule, const Sizes& sizes) {
  std::map<std::string, std::int64_t> bytes;
  for (const Step& step : schedule.steps) {
    for (std::size_t i = 0; i < step.inputs.size(); ++i) {
      bytes[step.inputs[i]] = bytes_of(step.program.params()[i].type, sizes);
    }
    for (std::size_t i = 0; i < step.outputs.size(); ++i) {
      bytes[step.outputs[i]] = bytes_of(step.program.results()[i].type, sizes);
    }
  }
  return bytes;
}

// Each kernel reads its distinct operands and writes its distinct results once: what the ledger
// counts is no more than that, and not less but for tables of which some rows are read.
void expect_each_tensor_once(const Half& half, const Sizes& sizes) {
  const Schedule& schedule = half.partition.schedule;
  const auto bytes = tensors_of(schedule, sizes);
  for (std::size_t i = 0; i < schedule.steps.size(); ++i) {
    const Step& step = schedule.steps[i];
    if (step.loop >= 0) continue;  // moves chunks
    SCOPED_TRACE(half.phase + " " + step.program.name());
    const std::set<std::string> inputs(step.inputs.begin(), step.inputs.end());
    const std::set<std::string> outputs(step.outputs.begin(), step.outputs.end());
    EXPECT_EQ(inputs.size(), step.inputs.size()) << "an operand comes in twice";
    EXPECT_EQ(outputs.size(), step.outputs.size()) << "a result goes out twice";
    std::int64_t read = 0, written = 0;
    bool has_table = false;
    for (const std::string& name : inputs) read += bytes.at(name);
    for (const Result& result : step.program.results()) {
      written += bytes_of(result.type, sizes);
      if (result.store == Store::accumulate) read += bytes_of(result.type, sizes);
    }
    for (const Node& node : step.program.nodes()) {
      has_table = has_table || node.op == Op::gather || node.op == Op::pick;
    }
    const Cost& cost = half.fused.steps[i];
    EXPECT_LE(cost.bytes_read, 1.05 * static_cast<double>(read));
    EXPECT_EQ(cost.bytes_written, written);
    EXPECT_TRUE(has_table || cost.bytes_read == read) << cost.bytes_read << " " << read;
  }
}

Sizes sizes_of(const Program& block) {
  Sizes sizes;
  std::set<std::string> names;
  for (const Param& param : block.params()) {
    for (const Dim& dim : param.type.dims) collect_names(dim, names);
  }
  for (const std::string& name : names) {
    if (kSizes.contains(name)) sizes[name] = kSizes.at(name);
  }
  return bind_sizes(block, sizes);
}

TEST(Ledger, CountsEachTensorOfAKernelOnce) {
  const std::pair<const char*, const char*> blocks[] = {
      {"llama.coda", "layer"}, {"qwen3.coda", "layer"},    {"gated.coda", "mlp"},
      {"head.coda", "head"},   {"parallel.coda", "layer"}, {"embedding.coda", "embed_norm"},
      {"gemma.coda", "layer"}, {"olmo2.coda", "layer"},    {"norm.coda", "layernorm_linear"}};
  for (const auto& [file, name] : blocks) {
    SCOPED_TRACE(std::string(file) + ":" + name);
    const Program block = parse_file(file).find(name);
    const Report made = report(block, testing::training_gradients(block), sizes_of(block));
    ASSERT_EQ(made.halves.size(), 2u);
    Cost total, unfused;
    for (const Half& half : made.halves) {
      expect_each_tensor_once(half, made.sizes);
      for (const Cost& cost : half.fused.steps) total += cost;
      unfused += half.unfused.total;
    }
    EXPECT_EQ(made.total.bytes_read, total.bytes_read);
    EXPECT_EQ(made.total.bytes_written, total.bytes_written);
    EXPECT_EQ(made.total.flops, total.flops);
    EXPECT_EQ(bytes_moved(made.unfused), bytes_moved(unfused));
    EXPECT_LT(bytes_moved(made.total), bytes_moved(made.unfused));
    EXPECT_LE(bytes_moved(made.ideal), bytes_moved(made.total));
  }
}

TEST(Ledger, CountsWhatNoFusionAvoids) {
  const Program block = parse(
                            "block f(x: bf16[M, K], w: bf16[N, K], table: f32[V, N], ids: i64[M]) "
                            "-> (y: bf16[M, N]) {\n"
                            "  y = tanh(x @ w) + table[ids]\n}\n",
                            "test.coda")
                            .find("");
  const Sizes sizes = {{"M", 8}, {"K", 16}, {"N", 4}, {"V", 1000}};
  const Cost forward = ideal(block, sizes);
  EXPECT_EQ(forward.bytes_read, 2 * 8 * 16 + 2 * 4 * 16 + 4 * 8 * 4 + 8 * 8);
  EXPECT_EQ(forward.bytes_written, 2 * 8 * 4);
  const Report both = report(block, {.wrt = {"x", "w"}}, sizes);
  EXPECT_EQ(both.ideal.bytes_read, forward.bytes_read + 2 * 8 * 4);
  EXPECT_EQ(both.ideal.bytes_written, forward.bytes_written + 2 * 8 * 16 + 2 * 4 * 16);
}

TEST(Ledger, CountsEveryChunkOfALoop) {
  const Program program =
      parse("program p(x: bf16[M, K], w: bf16[V, K]) -> (y: bf16[V, M]) {\n  y = w @ x\n}\n",
            "test.coda")
          .find("");
  Schedule schedule = as_schedule(program);
  const Sizes sizes = {{"M", 4}, {"K", 8}, {"V", 100}};
  const Cost whole = ledger(schedule, sizes).total;
  schedule.loops.push_back({.dim = "V", .size = 32});
  schedule.steps[0].loop = 0;
  const Cost chunks = ledger(schedule, sizes).total;
  EXPECT_EQ(chunks.bytes_read, whole.bytes_read + 3 * 2 * 4 * 8);  // x again for each chunk
  EXPECT_EQ(chunks.bytes_written, whole.bytes_written);
  EXPECT_EQ(chunks.flops, whole.flops);
}

TEST(Ledger, WritesAmounts) {
  EXPECT_EQ(amount(0, "B"), "0 B");
  EXPECT_EQ(amount(999, "B"), "999 B");
  EXPECT_EQ(amount(1050000, "B"), "1.05 MB");
  EXPECT_EQ(amount(2500000000000, "FLOP"), "2.50 TFLOP");
}

// ---- the layer of a kernel ----

struct Stacked {
  Report made;
  // The layer of the kernel of `half` whose products read or make the gradient of `weight`.
  std::vector<std::optional<int>> layers(std::size_t half, const std::string& weight) const {
    std::vector<std::optional<int>> found;
    const Half& of = made.halves[half];
    for (std::size_t i = 0; i < of.layers.size(); ++i) {
      const Step& step = of.partition.schedule.steps[i];
      const bool reads = std::ranges::find(step.inputs, weight) != step.inputs.end();
      const bool makes = std::ranges::find(step.outputs, "d_" + weight) != step.outputs.end();
      if (reads || makes) found.push_back(of.layers[i]);
    }
    return found;
  }
};

TEST(Layers, AreThoseOfTheWeightsOfProducts) {
  const Program block = stack(parse_file("llama.coda"), 3);
  const Stacked llama{report(block, testing::training_gradients(block), sizes_of(block))};
  for (int i = 0; i < 3; ++i) {
    for (const char* weight : {".wq", ".wk", ".wv", ".wo", ".gate", ".up", ".down"}) {
      const std::string name = std::to_string(i) + weight;
      SCOPED_TRACE(name);
      for (const std::size_t half : {0u, 1u}) {
        const auto layers = llama.layers(half, name);
        EXPECT_FALSE(layers.empty());
        for (const auto& layer : layers) EXPECT_EQ(layer, i);
      }
    }
  }
  for (const std::size_t half : {0u, 1u}) {
    for (const auto& layer : llama.layers(half, "head.w")) EXPECT_EQ(layer, std::nullopt);
  }
  const Half& forward = llama.made.halves[0];
  for (std::size_t i = 0; i < forward.layers.size(); ++i) {
    EXPECT_TRUE(forward.fused.steps[i].kind != "opaque" || forward.layers[i]) << i;
  }
  EXPECT_EQ(forward.layers.back(), std::nullopt);
}

TEST(Layers, ArePartOfTheReport) {
  const Program block = stack(parse_file("llama.coda"), 2);
  const nlohmann::json json =
      report_json(report(block, {.of = {"loss"}, .wrt = {"0.wq", "1.wq"}}, sizes_of(block)));
  std::map<std::string, std::set<std::string>> seen;
  for (const nlohmann::json& kernel : json["kernels"]) {
    for (const char* key : {"phase", "kind", "layer"}) seen[key].insert(kernel[key].dump());
    EXPECT_GE(kernel["bytes_read"], 0);
    EXPECT_GT(kernel["bytes_written"], 0);
    EXPECT_GE(kernel["flops"], 0);
    EXPECT_NE(
        kernel["text"].get<std::string>().find("program " + kernel["name"].get<std::string>()),
        std::string::npos);
  }
  using Set = std::set<std::string>;
  EXPECT_EQ(seen["phase"], (Set{"\"forward\"", "\"backward\""}));
  EXPECT_EQ(seen["kind"], (Set{"\"gemm\"", "\"stream\"", "\"opaque\""}));
  EXPECT_EQ(seen["layer"], (Set{"0", "1", "null"}));
  for (const char* key : {"total", "unfused", "ideal"}) {
    EXPECT_GT(json["ledger"][key]["bytes_read"], 0) << key;
  }
}

}  // namespace
}  // namespace coda
