// tests/rewrite_exact_test.cpp: every block of programs/ means what its schedule means, forward and
// backward, at any size and magnitude; and its gradients are slopes.
#include <gtest/gtest.h>

#include <algorithm>

#include "coda/program/library.h"
#include "coda/rewrite/grad.h"
#include "coda/rewrite/retype.h"
#include "coda/rewrite/rewrite.h"
#include "coda/rewrite/stack.h"
#include "tests/exact_schedule.h"

namespace coda::testing {
namespace {

#ifdef __SANITIZE_ADDRESS__  // ten times slower: a sample will do
constexpr int kSizes = 1;
constexpr double kScales[] = {1e4};
#else
constexpr int kSizes = 8;
constexpr double kScales[] = {1e4, 1e-4};
#endif
constexpr double kTolerance = 1e-10;

struct Block {
  std::string file;
  Program program;
};

std::ostream& operator<<(std::ostream& out, const Block& block) {
  return out << block.file << ":" << block.program.name();
}

std::vector<Block> blocks() {
  std::vector<Block> found;
  for (const std::string_view file : embedded_programs()) {
    const Module module = parse(*embedded_program(file), file);
    for (std::size_t i = module.imported; i < module.programs.size(); ++i) {
      const Program& program = module.programs[i];
      if (program.kind() == Program::Kind::block) found.push_back({std::string(file), program});
    }
  }
  return found;
}

// Sizes that fit together: G divides H, E is even, what is split adds up.
Sizes random_sizes(const Program& program, std::mt19937_64& random) {
  const auto one_of = [&](std::initializer_list<std::int64_t> from) {
    return from.begin()[std::uniform_int_distribution<std::size_t>(0, from.size() - 1)(random)];
  };
  Sizes sizes;
  for (const char* name : {"M", "D", "F", "K", "N", "V", "A", "L"}) {
    sizes[name] = one_of({0, 1, 1, 2, 3, 5, 7, 63, 64, 65, 70, 130});
  }
  sizes["B"] = one_of({0, 1, 1, 2, 2, 3});
  sizes["S"] = one_of({0, 1, 2, 3, 5});
  sizes["T"] = one_of({1, 2, 3, 5});
  sizes["G"] = one_of({1, 1, 2});
  sizes["H"] = sizes["G"] * one_of({1, 2, 3});
  sizes["E"] = one_of({2, 4, 6, 10});
  sizes["P"] = sizes["S"] + 1;
  std::set<std::string> names;
  for (const ValueInfo& value : program.values()) {
    for (const Dim& dim : value.type.dims) collect_names(dim, names);
  }
  std::erase_if(sizes, [&](const auto& each) { return !names.contains(each.first); });
  return complete(program, sizes);
}

const Sizes kSmall = {{"M", 3}, {"B", 1}, {"S", 3}, {"T", 3}, {"G", 1}, {"H", 2}, {"E", 4},
                      {"D", 5}, {"F", 6}, {"K", 5}, {"V", 7}, {"A", 5}, {"P", 4}};

Sizes small_sizes(const Program& program) {
  Sizes sizes = kSmall;
  std::set<std::string> names;
  for (const ValueInfo& value : program.values()) {
    for (const Dim& dim : value.type.dims) collect_names(dim, names);
  }
  std::erase_if(sizes, [&](const auto& each) { return !names.contains(each.first); });
  return complete(program, sizes);
}

Tensors inputs_of(const Program& program, const Program& gradient, const Sizes& sizes,
                  std::uint64_t seed) {
  const Fill fill{.seed = seed,
                  .at = {{"eps", 0.1},
                         {"rate", 0.3},
                         {"smoothing", 0.2},
                         {"cap", 2},
                         {"ignore_index", 1},
                         {"limit", 0.5}}};
  Tensors tensors;
  draw(program, sizes, fill, tensors);
  draw(gradient, sizes, {.seed = seed + 1}, tensors);
  for (auto& [name, tensor] : tensors) {  // a mean divides by their sum
    if (name != "class_weight" && name != "token_weight") continue;
    for (std::int64_t i = 0; i < tensor.tensor().elements(); ++i) {
      tensor.as<double>()[i] = 0.25 + std::abs(tensor.as<double>()[i]);
    }
  }
  return tensors;
}

OwnedTensor copy_of(const OwnedTensor& tensor) {
  return dense_copy(tensor.tensor());
}

Tensors copies_of(const Tensors& tensors) {
  Tensors copies;
  for (const auto& [name, tensor] : tensors) copies.emplace(name, copy_of(tensor));
  return copies;
}

// A block, its gradient, and what rewriting makes of both.
struct Rewriting {
  Program program, gradient;
  Rewritten rewritten;

  explicit Rewriting(const Program& block, const RewriteOptions& options = {})
      : program(block), gradient(grad(block)), rewritten(rewrite(block, GradOptions{}, options)) {}

  Doubles truth(const Sizes& sizes, const Tensors& inputs) const {
    Doubles all = evaluate(program, sizes, inputs);
    all.merge(evaluate(gradient, sizes, inputs));
    return all;
  }
  Tensors run(const Sizes& sizes, const Tensors& inputs) const {
    Tensors all = copies_of(inputs);
    Tensors forward = ExactSchedule(rewritten.forward.schedule, sizes, all).take();
    for (const auto& [name, tensor] : forward) all.insert_or_assign(name, copy_of(tensor));
    forward.merge(ExactSchedule(rewritten.backward->schedule, sizes, all).take());
    return forward;
  }
};

// Without options; made once for all tests.
const Rewriting& rewriting_of(const Block& block) {
  static std::map<std::string, Rewriting> made;
  const std::string name = block.file + ":" + block.program.name();
  const auto found = made.find(name);
  return found != made.end() ? found->second : made.emplace(name, block.program).first->second;
}

// `least` as distance() takes it.
void expect_equal(const Rewriting& step, const Sizes& sizes, const Tensors& inputs, double least) {
  const auto truth = [&](const Tensors& at) {
    return step.truth(sizes, at);
  };
  std::string at;
  for (const auto& [dim, size] : sizes) at += " " + dim + "=" + std::to_string(size);
  EXPECT_EQ(differences(truth, inputs, truth(inputs), step.run(sizes, inputs), kTolerance, least),
            "")
      << "sizes" << at;
}

class EveryBlock : public ::testing::TestWithParam<Block> {};

TEST_P(EveryBlock, EqualsItsScheduleAtAnySize) {
  const Rewriting& step = rewriting_of(GetParam());
  EXPECT_EQ(not_kernels(step.rewritten.forward.schedule), "");
  EXPECT_EQ(not_kernels(step.rewritten.backward->schedule), "");
  std::mt19937_64 random(std::hash<std::string>{}(GetParam().file + step.program.name()));
  for (int i = 0; i < kSizes; ++i) {
    const Sizes sizes = random_sizes(step.program, random);
    expect_equal(step, sizes, inputs_of(step.program, step.gradient, sizes, 11 + random() % 1000),
                 1e-3);
    if (HasFailure()) return;
  }
}

TEST_P(EveryBlock, EqualsItsScheduleAtAnyMagnitude) {
  const Rewriting& step = rewriting_of(GetParam());
  const Sizes sizes = small_sizes(step.program);
  const Tensors inputs = inputs_of(step.program, step.gradient, sizes, 3);
  for (const auto& [name, tensor] : inputs) {
    if (tensor.tensor().dtype != DType::f64) continue;
    for (const double scale : kScales) {
      SCOPED_TRACE(name + " times " + std::to_string(scale));
      Tensors scaled = copies_of(inputs);
      for (std::int64_t i = 0; i < tensor.tensor().elements(); ++i) {
        scaled.at(name).as<double>()[i] *= scale;
      }
      expect_equal(step, sizes, scaled, 1e-8);
      if (HasFailure()) return;
    }
  }
}

TEST_P(EveryBlock, HasGradientsThatAreSlopes) {
  const Rewriting& step = rewriting_of(GetParam());
  const Sizes sizes = small_sizes(step.program);
  Tensors inputs = inputs_of(step.program, step.gradient, sizes, 4);
  const Tensors gradients = step.run(sizes, inputs);
  const auto loss = [&] {
    double total = 0;
    for (const auto& [name, values] : evaluate(step.program, sizes, inputs)) {
      if (step.gradient.find_param("d_" + name) < 0) continue;
      const OwnedTensor& weight = inputs.at("d_" + name);
      for (std::size_t i = 0; i < values.size(); ++i) total += values[i] * weight.as<double>()[i];
    }
    return total;
  };
  std::mt19937_64 random(8);
  std::uniform_real_distribution<double> uniform(-1, 1);
  constexpr double kStep = 1e-5;
  for (const Result& result : step.gradient.results()) {
    SCOPED_TRACE(result.name);
    const OwnedTensor& gradient = gradients.at(result.name);
    const OwnedTensor& x = inputs.at(result.name.substr(2));
    const std::int64_t count = x.tensor().elements();
    const std::vector<double> before(x.as<double>(), x.as<double>() + count);
    std::vector<double> direction;
    double slope = 0, scale = 1;
    for (std::int64_t i = 0; i < count; ++i) {
      direction.push_back(uniform(random));
      slope += direction.back() * gradient.as<double>()[i];
      scale = std::max(scale, std::abs(gradient.as<double>()[i]));
    }
    double sides[2];
    for (const int side : {0, 1}) {
      for (std::size_t i = 0; i < direction.size(); ++i) {
        x.as<double>()[i] = before[i] + (side == 0 ? -kStep : kStep) * direction[i];
      }
      sides[side] = loss();
    }
    std::ranges::copy(before, x.as<double>());
    EXPECT_NEAR((sides[1] - sides[0]) / (2 * kStep), slope, 1e-6 * scale);
  }
}

// Embedding, layers and head in one: fusion crosses their borders.
TEST(Stacks, EqualTheirSchedules) {
  for (const auto& [file, layers] : {std::pair{"llama.coda", 1},
                                     {"llama.coda", 2},
                                     {"llama.coda", 3},
                                     {"qwen3.coda", 2},
                                     {"gpt2.coda", 2},
                                     {"gemma.coda", 2}}) {
    SCOPED_TRACE(std::string(file) + ", layers: " + std::to_string(layers));
    const Rewriting step(stack(parse(*embedded_program(file), file), layers));
    EXPECT_EQ(not_kernels(step.rewritten.forward.schedule), "");
    EXPECT_EQ(not_kernels(step.rewritten.backward->schedule), "");
    Sizes sizes = small_sizes(step.program);
    expect_equal(step, sizes, inputs_of(step.program, step.gradient, sizes, 5), 1e-3);
    sizes["D"] = 65;
    expect_equal(step, sizes, inputs_of(step.program, step.gradient, sizes, 6), 1e-3);
  }
}

// What the policy and the dtype change is where numbers are kept, never what they are.
TEST_P(EveryBlock, EqualsItsScheduleUnderEveryOption) {
  std::vector<Rewriting> steps;
  steps.emplace_back(GetParam().program, RewriteOptions{.memory = 0});
  steps.emplace_back(retype(GetParam().program, DType::bf16, DType::f16));
  steps.emplace_back(retype(GetParam().program, DType::bf16, DType::f16),
                     RewriteOptions{.delay_f16 = true});
  for (std::size_t i = 0; i < steps.size(); ++i) {
    SCOPED_TRACE("option " + std::to_string(i));
    EXPECT_EQ(not_kernels(steps[i].rewritten.forward.schedule), "");
    EXPECT_EQ(not_kernels(steps[i].rewritten.backward->schedule), "");
    const Sizes sizes = small_sizes(steps[i].program);
    expect_equal(steps[i], sizes, inputs_of(steps[i].program, steps[i].gradient, sizes, 6), 1e-3);
  }
}

// Vocabularies of more than one chunk, with a last one that is not full.
TEST(EveryHead, EqualsItsScheduleInChunks) {
  int in_chunks = 0;
  for (const Block& block : blocks()) {
    if (block.file != "head.coda") continue;
    SCOPED_TRACE(block.program.name());
    const Rewriting step(block.program, RewriteOptions{.memory = 0});
    in_chunks += step.rewritten.backward->schedule.loops.empty() ? 0 : 1;
    for (const std::int64_t classes : {0, 1, 256, 600}) {
      Sizes sizes = small_sizes(step.program);
      sizes["V"] = classes;
      expect_equal(step, sizes, inputs_of(step.program, step.gradient, sizes, 9), 1e-3);
    }
  }
  EXPECT_GE(in_chunks, 2);
}

INSTANTIATE_TEST_SUITE_P(Library, EveryBlock, ::testing::ValuesIn(blocks()), [](const auto& info) {
  const std::string& file = info.param.file;
  return file.substr(0, file.find('.')) + "_" + info.param.program.name();
});

}  // namespace
}  // namespace coda::testing
