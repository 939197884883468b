// tests/rewrite_head_test.cpp: a head whose backward goes through the vocabulary in chunks is the
// head, whatever the targets are.
#include <gtest/gtest.h>

#include "coda/program/library.h"
#include "coda/rewrite/retype.h"
#include "tests/exact_schedule.h"
#include "tests/training_bounds.h"

namespace coda::testing {
namespace {

Program head_block(const std::string& name) {
  return parse(*embedded_program("head.coda"), "head.coda").find(name);
}

enum class Targets : std::uint8_t { classes, strange, ignored };

// Targets inside of the vocabulary; some of them outside, negative or ignored; all ignored.
void put_targets(Targets which, std::int64_t classes, Tensors& inputs) {
  const Tensor& target = inputs.at("target").tensor();
  const std::int64_t strange[] = {0, classes - 1, -1, classes, 1, classes + 300, -100};
  for (std::int64_t i = 0; i < target.elements(); ++i) {
    const std::int64_t value = which == Targets::ignored   ? -100
                               : which == Targets::strange ? strange[i % 7]
                                                           : (i * 37) % classes;
    store(target.dtype, target.data, i, static_cast<double>(value));
  }
  store(DType::i64, inputs.at("ignore_index").tensor().data, 0, -100);
}

std::vector<double> elements(const Tensor& tensor) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < tensor.elements(); ++i) {
    values.push_back(load(tensor.dtype, tensor.data, i));
  }
  return values;
}

TEST(HeadInChunks, IsTheHead) {
  for (const char* name : {"head", "head_rows", "head_sum", "head_softcap", "head_full"}) {
    const Program block = head_block(name);
    const GradOptions gradients{.wrt = {"h", "gamma", "w"}};
    for (const std::int64_t classes : {512, 600, 1001}) {
      const Sizes sizes = {{"M", 7}, {"D", 66}, {"V", classes}};
      const Rewritten whole = rewrite(block, gradients);
      const Rewritten chunked = rewrite(block, gradients, {.memory = 0, .sizes = sizes});
      EXPECT_TRUE(whole.backward->schedule.loops.empty());
      ASSERT_EQ(chunked.backward->schedule.loops.size(), 1u) << name;
      EXPECT_EQ(chunked.backward->schedule.loops[0].dim, "V");
      EXPECT_EQ(chunked.backward->schedule.loops[0].size, 256);
      for (const Targets which : {Targets::classes, Targets::strange, Targets::ignored}) {
        SCOPED_TRACE(std::string(name) + " of " + std::to_string(classes) + " classes, targets " +
                     std::to_string(static_cast<int>(which)));
        Tensors inputs = drawn(block, gradients, sizes);
        put_targets(which, classes, inputs);
        const Exact all = run_exact(block, gradients, whole, sizes, inputs);
        const Exact parts = run_exact(block, gradients, chunked, sizes, inputs);
        EXPECT_EQ(all.differences, "");
        EXPECT_EQ(parts.differences, "");
        // NOTE: `head` also gives lse, whose gradient no target stops.
        const bool is_zero = which == Targets::ignored && name != std::string("head");
        for (const std::string& wrt : gradients.wrt) {
          for (const double x : elements(parts.made.at("d_" + wrt).tensor())) {
            ASSERT_TRUE(is_zero ? x == 0 : std::isfinite(x)) << "d_" << wrt << " has " << x;
          }
        }
      }
    }
  }
}

// To keep the softmax forward would have to write the logits, read them and write it.
TEST(KeptHead, ForwardKeepsLogitsAndNoSoftmax) {
  const Program block = parse(
                            "coda 1\n\nuse \"prelude.coda\"\n\n"
                            "block b(x: bf16[M, K], w: bf16[V, K], target: i64[M], ignore: i64)\n"
                            "    -> (loss: f32) {\n"
                            "  loss = sum(cross_entropy(x @ w, target, ignore), M)\n}\n",
                            "kept.coda")
                            .find("b");
  const std::vector<std::string> saved = rewrite(block, {.wrt = {"x", "w"}}).saved;
  EXPECT_EQ(std::ranges::count(saved, "product"), 1) << ::testing::PrintToString(saved);
  EXPECT_EQ(std::ranges::count(saved, "exp"), 0) << ::testing::PrintToString(saved);
}

TEST(HeadInChunks, IsTheHeadOnTheCpu) {
  for (const char* name : {"head", "head_full"}) {
    const Program block = retype(head_block(name), DType::bf16, DType::f32);
    const GradOptions gradients{.wrt = {"h", "gamma", "w"}};
    const Program joined = joint(block, gradients);
    const Sizes sizes = bind_sizes(joined, {{"M", 40}, {"D", 66}, {"V", 1001}});
    const TrainingStep whole(block, gradients, sizes);
    const TrainingStep chunked(block, gradients, sizes, {.memory = 0, .sizes = sizes});
    ASSERT_EQ(chunked.rewritten().backward->schedule.loops.size(), 1u);
    for (const Targets which : {Targets::classes, Targets::strange, Targets::ignored}) {
      SCOPED_TRACE(std::string(name) + ", targets " + std::to_string(static_cast<int>(which)));
      std::vector<OwnedTensor> inputs = random_inputs(joined, sizes, 5);
      TrainingStep::Tensors tensors;
      for (std::size_t p = 0; p < inputs.size(); ++p) {
        tensors.emplace(joined.params()[p].name, std::move(inputs[p]));
      }
      put_targets(which, 1001, tensors);
      TrainingStep::Tensors again;
      for (const auto& [key, tensor] : tensors) again.emplace(key, dense_copy(tensor.tensor()));
      std::vector<Tensor> params;
      for (const Param& param : joined.params()) params.push_back(tensors.at(param.name).tensor());
      const auto truth = reference::evaluate(joined, sizes, params, reference::Mode::exact);
      whole.run(tensors);
      chunked.run(again);
      for (std::size_t r = 0; r < truth.size(); ++r) {
        const std::string& result = joined.results()[r].name;
        for (const TrainingStep::Tensors* each : {&tensors, &again}) {
          const std::vector<double> got = elements(each->at(result).tensor());
          EXPECT_LE(distance(got.data(), truth[r].data), 1e-5) << result;
        }
      }
    }
  }
}

// Without a norm before it either operand's rows may be the chunks: those whose sums are smaller.
TEST(HeadInChunks, AddUpTheSmallerGradient) {
  const Program block =
      parse(
          "coda 1\nuse \"prelude.coda\"\n"
          "block loss_of(x: bf16[M, K], w: bf16[V, K], target: i64[M], ignore_index: i64)\n"
          "    -> (loss: f32) {\n"
          "  rows = cross_entropy(x @ w, target, ignore_index)\n"
          "  loss = sum(rows, M)\n}\n",
          "head.coda")
          .find("loss_of");
  struct Wanted {
    std::int64_t rows, classes;
    std::string dim, sum;
  };
  for (const Wanted& wanted :
       {Wanted{4096, 128256, "V", "d_x"}, Wanted{262144, 8192, "M", "d_w"}}) {
    const Sizes sizes = {{"M", wanted.rows}, {"V", wanted.classes}, {"K", 4096}};
    const std::int64_t memory = wanted.rows * wanted.classes * 2 / 10;
    const Rewritten made = rewrite(block, {.wrt = {"x", "w"}}, {.memory = memory, .sizes = sizes});
    const Schedule& schedule = made.backward->schedule;
    ASSERT_EQ(schedule.loops.size(), 1u);
    EXPECT_EQ(schedule.loops[0].dim, wanted.dim);
    std::int64_t extra = 0;
    for (const Step& step : schedule.steps) {
      Sizes chunk = sizes;
      if (step.loop == 0) chunk[wanted.dim] = schedule.loops[0].size;
      for (std::size_t r = 0; r < step.outputs.size(); ++r) {
        const Type& type = step.program.results()[r].type;
        if (step.outputs[r].starts_with("d_")) {
          EXPECT_EQ(step.outputs[r] == wanted.sum, step.loop < 0) << step.outputs[r];
        } else {
          extra += elements_of(type, chunk) * static_cast<std::int64_t>(size_of(type.dtype));
        }
      }
    }
    EXPECT_LE(extra, memory) << wanted.dim;
  }
}

}  // namespace
}  // namespace coda::testing
