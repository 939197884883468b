// tests/model_test.cpp: the Llama-style model: gradients, learning, files.
#include "coda/model/model.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <set>

#include "coda/core/error.h"
#include "coda/core/file.h"
#include "coda/model/measuring.h"
#include "coda/model/trainer.h"
#include "coda/reference/reference.h"
#include "tests/tiny_model.h"

namespace coda {
namespace {

// Each tensor's gradient along a random direction against the loss at two points of it.
void expect_central_differences(Embeddings embeddings) {
  const auto backend = reference::backend();
  const ModelConfig config = tiny(embeddings);
  Model model(config, *backend, 2, config.context, DType::f64);
  randomize(model.parameters(), 3);
  const Batch batch = random_batch(config, 2, 4);
  model.learn(batch);
  std::map<std::string, std::vector<double>> gradients;
  for (const auto& [name, tensor] : model.gradients().tensors()) gradients[name] = values(tensor);
  Random random(5);
  for (const auto& [name, tensor] : model.parameters().tensors()) {
    auto* data = static_cast<double*>(tensor.data);
    const std::vector<double> start(data, data + tensor.elements());
    std::vector<double> direction;
    double slope = 0, norm = 0;
    for (const double gradient : gradients[name]) {
      direction.push_back(random.normal());
      slope += gradient * direction.back();
      norm += gradient * gradient;
    }
    EXPECT_GT(norm, 0) << name;
    constexpr double kStep = 1e-5;
    double loss[2];
    for (const int side : {0, 1}) {
      for (std::size_t i = 0; i < start.size(); ++i) {
        data[i] = start[i] + (side == 0 ? -kStep : kStep) * direction[i];
      }
      loss[side] = model.loss(batch);
    }
    std::ranges::copy(start, data);
    const double difference = (loss[1] - loss[0]) / (2 * kStep);
    EXPECT_NEAR(difference, slope, 1e-7 * std::sqrt(norm * static_cast<double>(start.size())))
        << name;
  }
}

TEST(Model, GradientsAreCentralDifferences) {
  expect_central_differences(Embeddings::separate);
}

TEST(Model, ATiedTableGetsBothGradients) {
  expect_central_differences(Embeddings::tied);
}

TEST(Model, TheCpuAgreesWithTheReferenceInDouble) {
  const auto truth_backend = reference::backend();
  const auto backend = cpu_backend();
  const ModelConfig config = tiny();
  Model truth(config, *truth_backend, 2, config.context, DType::f64);
  Model model(config, *backend, 2, config.context);
  randomize(truth.parameters(), 3);
  randomize(model.parameters(), 3);
  const Batch batch = random_batch(config, 2, 4);
  EXPECT_NEAR(model.learn(batch), truth.learn(batch), 1e-5);
  for (const auto& [name, tensor] : truth.gradients().tensors()) {
    const std::vector<double> want = values(tensor), got = values(model.gradients()[name]);
    double difference = 0, norm = 0;
    for (std::size_t i = 0; i < want.size(); ++i) {
      difference += (got[i] - want[i]) * (got[i] - want[i]);
      norm += want[i] * want[i];
    }
    EXPECT_LT(std::sqrt(difference), 1e-5 * std::sqrt(norm)) << name;
  }
}

// A folder of this process, gone at its end.
struct Folder {
  std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("coda_model_test_" + std::to_string(getpid()));
  Folder() { std::filesystem::create_directories(path); }
  ~Folder() { std::filesystem::remove_all(path); }
};

std::string temporary(const std::string& name) {
  static const Folder made;
  return (made.path / name).string();
}

std::string rhyme(std::size_t bytes) {
  std::string text;
  while (text.size() < bytes) text += "the cat sat on the mat and the rat ran at the hat. ";
  text.resize(bytes);
  return text;
}

std::string rhyme_file() {
  const std::string path = temporary("rhyme.txt");
  write_file(path, rhyme(4000));
  return path;
}

ModelConfig small() {
  ModelConfig c = tiny();
  c.vocabulary = 256;
  c.width = 32;
  c.heads = 4;
  c.key_heads = 2;
  c.head_width = 8;
  c.hidden = 64;
  c.context = 32;
  return c;
}

TrainerOptions options(std::int64_t steps) {
  TrainerOptions o;
  o.sequences = 4;
  o.steps = steps;
  o.held_out_sequences = 4;
  o.optimizer.rate = 1e-2;
  return o;
}

TEST(Trainer, TheHeldOutLossFalls) {
  const auto backend = cpu_backend();
  const Corpus corpus(rhyme_file(), 32);
  Trainer trainer(small(), options(60), corpus, *backend);
  const double before = trainer.held_out_loss();
  EXPECT_NEAR(before, std::log(256.0), 0.1);
  while (trainer.done() < trainer.steps()) trainer.step();
  EXPECT_LT(trainer.held_out_loss(), 0.5);
}

TEST(Trainer, Bf16WithF32MastersLearnsAsMuch) {
  const auto backend = cpu_backend();
  const Corpus corpus(rhyme_file(), 32);
  std::vector<double> losses;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    TrainerOptions o = options(60);
    o.dtype = dtype;
    Trainer trainer(small(), o, corpus, *backend);
    while (trainer.done() < trainer.steps()) trainer.step();
    losses.push_back(trainer.held_out_loss());
  }
  EXPECT_LT(losses[1], 0.6);
  EXPECT_NE(losses[0], losses[1]);
  EXPECT_NEAR(losses[0], losses[1], 0.05);
}

TEST(Trainer, TheProductsReadTheMastersRounded) {
  const auto backend = cpu_backend();
  const Corpus corpus(rhyme_file(), 32);
  TrainerOptions o = options(3);
  o.dtype = DType::bf16;
  // Each step is less than half a unit in the last place of bf16, but the masters keep it.
  o.optimizer.rate = 1e-6;
  Trainer trainer(small(), o, corpus, *backend);
  const std::vector<double> before = values(trainer.weights()["lm_head.weight"]);
  while (trainer.done() < trainer.steps()) trainer.step();
  const std::vector<double> masters = values(trainer.weights()["lm_head.weight"]);
  const std::vector<double> read = values(trainer.model().parameters()["lm_head.weight"]);
  ASSERT_EQ(trainer.model().parameters().dtype(), DType::bf16);
  EXPECT_NE(before, masters);
  for (std::size_t i = 0; i < masters.size(); ++i) {
    ASSERT_EQ(read[i], round_to(DType::bf16, masters[i])) << i;
  }
}

TEST(Trainer, LearnsTheSameBitsWithOneAndTwoThreads) {
  const Corpus corpus(rhyme_file(), 32);
  std::vector<std::vector<double>> learnt;
  for (const int threads : {1, 2}) {
    const auto backend = cpu_backend(threads);
    Trainer trainer(small(), options(5), corpus, *backend);
    for (int i = 0; i < 5; ++i) trainer.step();
    learnt.emplace_back();
    for (const auto& [name, tensor] : trainer.model().parameters().tensors()) {
      const std::vector<double> all = values(tensor);
      learnt.back().insert(learnt.back().end(), all.begin(), all.end());
    }
  }
  EXPECT_EQ(learnt[0], learnt[1]);
}

TEST(Trainer, CalibrationChangesNothingThatIsLearnt) {
  const auto backend = cpu_backend();
  const Corpus corpus(rhyme_file(), 32);
  Trainer one(small(), options(3), corpus, *backend), two(small(), options(3), corpus, *backend);
  EXPECT_GT(two.calibrate(), 0);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(one.step().loss, two.step().loss);
}

TEST(Trainer, ALossThatIsNotFiniteIsAnError) {
  const auto backend = cpu_backend();
  const Corpus corpus(rhyme_file(), 32);
  Trainer trainer(small(), options(3), corpus, *backend);
  randomize(trainer.model().parameters(), 1);
  const Tensor& head = trainer.model().parameters()["lm_head.weight"];
  store(head.dtype, head.data, 0, std::nan(""));
  EXPECT_THROW(trainer.step(), ProgramError);
}

TEST(Optimizer, TheRateWarmsUpAndFalls) {
  EXPECT_DOUBLE_EQ(scheduled_rate(1, 0, 1000), 0.01);
  EXPECT_DOUBLE_EQ(scheduled_rate(1, 99, 1000), 1);
  EXPECT_NEAR(scheduled_rate(1, 550, 1000), 0.525, 1e-9);
  EXPECT_NEAR(scheduled_rate(1, 1000, 1000), 0.05, 1e-9);
  for (std::int64_t step = 100; step < 999; ++step) {
    EXPECT_GT(scheduled_rate(1, step, 1000), scheduled_rate(1, step + 1, 1000));
  }
}

TEST(Optimizer, AStepIsAdamWWithClipping) {
  const auto backend = cpu_backend();
  const ModelConfig config = tiny();
  const ArenaLayout layout(config);
  const OptimizerOptions o;
  AdamW adamw(layout, *backend, DType::f32, o);
  Arena parameters(layout, DType::f32), gradients(layout, DType::f32);
  randomize(parameters, 1);
  randomize(gradients, 2);
  std::map<std::string, std::vector<double>> p, g, m, v;
  double norm = 0;
  for (const auto& [name, tensor] : gradients.tensors()) {
    g[name] = values(tensor);
    p[name] = values(parameters[name]);
    m[name] = v[name] = std::vector<double>(g[name].size());
    for (const double x : g[name]) norm += x * x;
  }
  norm = std::sqrt(norm);
  ASSERT_GT(norm, o.clip);
  for (int t = 1; t <= 3; ++t) {
    EXPECT_NEAR(adamw.step(parameters, gradients, 0.01), norm, 1e-4 * norm);
    for (const auto& [name, tensor] : parameters.tensors()) {
      const double decay = tensor.shape.size() == 2 ? o.weight_decay : 0;
      const std::vector<double> got = values(tensor);
      for (std::size_t i = 0; i < got.size(); ++i) {
        const double x = g[name][i] * o.clip / norm;
        m[name][i] = o.beta1 * m[name][i] + (1 - o.beta1) * x;
        v[name][i] = o.beta2 * v[name][i] + (1 - o.beta2) * x * x;
        const double update = m[name][i] / (1 - std::pow(o.beta1, t)) /
                              (std::sqrt(v[name][i] / (1 - std::pow(o.beta2, t))) + o.eps);
        p[name][i] -= 0.01 * (decay * p[name][i] + update);
        ASSERT_NEAR(got[i], p[name][i], 1e-4) << name << " " << i << " step " << t;
      }
    }
  }
}

TEST(Files, ASavedModelHasTheSameLoss) {
  const auto backend = cpu_backend();
  for (const Embeddings embeddings : {Embeddings::separate, Embeddings::tied}) {
    ModelConfig config = tiny(embeddings);
    if (embeddings == Embeddings::tied) config.rope_scaling = RopeScaling{.context = 4};
    Model model(config, *backend, 2, config.context);
    randomize(model.parameters(), 3);
    const std::string folder = temporary("saved/model");
    save_model(folder, config, model.parameters());
    EXPECT_EQ(load_config(folder), config);
    Model again(load_config(folder), *backend, 2, config.context);
    load_parameters(folder, again.parameters());
    const Batch batch = random_batch(config, 2, 4);
    EXPECT_EQ(again.loss(batch), model.loss(batch));
  }
}

TEST(Files, AModelThatDoesNotFitIsAnErrorThatNamesTheTensor) {
  const ModelConfig config = tiny();
  Arena parameters(ArenaLayout(config), DType::f32);
  const std::string folder = temporary("other");
  save_model(folder, config, parameters);
  ModelConfig wider = config;
  wider.hidden = 13;
  Arena other(ArenaLayout(wider), DType::f32);
  try {
    load_parameters(folder, other);
    FAIL() << "loaded tensors of other sizes";
  } catch (const ProgramError& error) {
    EXPECT_NE(std::string(error.what()).find("mlp."), std::string::npos) << error.what();
  }
  EXPECT_THROW(load_config(temporary("nothing")), ProgramError);
  write_file(temporary("other/config.json"), "{\"vocab_size\": \"many\"}");
  EXPECT_THROW(load_config(folder), ProgramError);
}

TEST(Config, CountsTheParametersThatTheArenaHas) {
  for (const Embeddings embeddings : {Embeddings::separate, Embeddings::tied}) {
    std::int64_t count = 0;
    for (const ArenaLayout::Entry& entry : ArenaLayout(tiny(embeddings)).entries) {
      std::int64_t n = 1;
      for (const std::int64_t extent : entry.shape) n *= extent;
      count += n;
    }
    EXPECT_EQ(count, tiny(embeddings).parameters());
  }
}

TEST(Corpus, RefusesWhatCannotBeLearnt) {
  const auto message = [](const std::string& path) {
    try {
      const Corpus corpus(path, 32);
      return std::string("no error");
    } catch (const ProgramError& error) {
      return std::string(error.what());
    }
  };
  EXPECT_NE(message(temporary("missing.txt")).find("missing.txt"), std::string::npos);
  EXPECT_NE(message(std::filesystem::temp_directory_path().string()).find("fix"),
            std::string::npos);
  write_file(temporary("empty.txt"), "");
  EXPECT_NE(message(temporary("empty.txt")).find("empty"), std::string::npos);
  write_file(temporary("short.txt"), rhyme(65));
  EXPECT_NE(message(temporary("short.txt")).find("65 bytes"), std::string::npos);
  write_file(temporary("enough.txt"), rhyme(66));
  EXPECT_EQ(message(temporary("enough.txt")), "no error");
}

TEST(Corpus, NeverSamplesWhatIsHeldOut) {
  std::string text(1000, 'a');
  text.replace(1000 - 50, 50, 50, 'b');
  write_file(temporary("two.txt"), text);
  const Corpus corpus(temporary("two.txt"), 32);
  ASSERT_EQ(corpus.held_out_bytes(), 50);
  Batch batch(8, 32);
  Random random(1);
  for (int i = 0; i < 100; ++i) {
    corpus.sample(random, batch);
    for (std::int64_t j = 0; j < 8 * 32; ++j) {
      ASSERT_EQ(batch.ids.as<std::int64_t>()[j], 'a');
      ASSERT_EQ(batch.targets.as<std::int64_t>()[j], 'a');
    }
  }
  corpus.held_out(0, 8, batch);
  for (std::int64_t j = 0; j < 8 * 32; ++j) {
    ASSERT_EQ(batch.ids.as<std::int64_t>()[j], 'b');
    ASSERT_EQ(batch.targets.as<std::int64_t>()[j], 'b');
  }
}

TEST(Measuring, TakesAtMostItsShareOfTheTimeThatIsLeft) {
  for (const std::int64_t done : {0, 40, 399}) {
    for (const double cost : {0.5, 3.0, 10.0, 1e3}) {
      const MeasuringCosts costs{.step = 0.1, .held_out = 0.1 * cost, .sample = 0.07 * cost};
      const MeasuringPlan plan = measuring_plan(done, 400, costs);
      const double spent = static_cast<double>(plan.held_out.size()) * costs.held_out +
                           static_cast<double>(plan.samples.size()) * costs.sample;
      EXPECT_LE(spent, kMeasuringShare * costs.step * static_cast<double>(400 - done));
      for (const std::set<std::int64_t>* steps : {&plan.held_out, &plan.samples}) {
        if (steps->empty()) continue;
        EXPECT_GT(*steps->begin(), done);
        EXPECT_LT(*steps->rbegin(), 400);
      }
    }
  }
}

TEST(Measuring, SamplesAtEveryPointOfALongRunAndHalfwayOfAShortOne) {
  const MeasuringCosts costs{.step = 0.05, .held_out = 0.25, .sample = 0.1};
  EXPECT_EQ(measuring_plan(0, 3000, costs).samples,
            (std::set<std::int64_t>{30, 60, 150, 300, 750, 1500}));
  EXPECT_GE(measuring_plan(0, 3000, costs).held_out.size(), 10u);
  EXPECT_EQ(measuring_plan(0, 200, costs).samples, (std::set<std::int64_t>{20, 100}));
  EXPECT_TRUE(measuring_plan(0, 20, costs).samples.empty());
}

}  // namespace
}  // namespace coda
