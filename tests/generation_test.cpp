// tests/generation_test.cpp: cached keys and values, and how the next token is chosen.
#include "coda/model/generate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "tests/tiny_model.h"

namespace coda {
namespace {

TEST(Reader, CachedKeysGiveTheLossOfTheWholeSequence) {
  const auto backend = cpu_backend();
  const ModelConfig config = tiny();
  Model model(config, *backend, 1, config.context);
  randomize(model.parameters(), 3);
  const Batch batch = random_batch(config, 1, 4);
  Reader reader(config, model.parameters(), *backend);
  const std::span ids(batch.ids.as<std::int64_t>(), 6),
      targets(batch.targets.as<std::int64_t>(), 6);
  double loss = 0;
  std::vector<double> logits;
  for (std::size_t i = 0; i < 6; ++i) {
    logits = reader.read(ids.subspan(i, 1));
    double sum = 0;
    for (const double z : logits) sum += std::exp(z);
    loss += (std::log(sum) - logits[static_cast<std::size_t>(targets[i])]) / 6;
  }
  EXPECT_NEAR(loss, model.loss(batch), 1e-5);

  Reader at_once(config, model.parameters(), *backend);
  const std::vector<double> same = at_once.read(ids);
  for (std::size_t i = 0; i < same.size(); ++i) EXPECT_NEAR(same[i], logits[i], 1e-4);
}

TEST(Reader, CachedKeysGiveTheLogitsOfTheWholeSequence) {
  const auto backend = cpu_backend();
  ModelConfig config = tiny(Embeddings::tied);
  config.context = 40;
  config.rope_scaling = RopeScaling{.factor = 4, .low_factor = 1, .high_factor = 4, .context = 8};
  Arena parameters(ArenaLayout(config), DType::f32);
  randomize(parameters, 3);
  const Batch batch = random_batch(config, 1, 4);
  const OwnedTensor whole = logits(config, parameters, *backend, batch);
  const std::span ids(batch.ids.as<std::int64_t>(), 40);
  Reader reader(config, parameters, *backend);
  // A prompt of three, then one at a time.
  for (std::size_t at = 0; at < 40; at = std::max<std::size_t>(at + 1, 3)) {
    const std::size_t count = at == 0 ? 3 : 1;
    const std::vector<double> cached = reader.read(ids.subspan(at, count));
    for (std::size_t v = 0; v < cached.size(); ++v) {
      const std::size_t row = at + count - 1;
      ASSERT_NEAR(cached[v], whole.as<float>()[row * cached.size() + v], 1e-4) << row << " " << v;
    }
  }
}

TEST(Reader, AFullContextForgetsItsOlderHalf) {
  const auto backend = cpu_backend();
  const ModelConfig config = tiny();
  Arena parameters(ArenaLayout(config), DType::f32);
  randomize(parameters, 3);
  const std::vector<std::int64_t> ids = {1, 2, 3, 4, 5, 6, 7};
  Reader long_reader(config, parameters, *backend), short_reader(config, parameters, *backend);
  for (std::size_t i = 0; i < 6; ++i) long_reader.read(std::span(ids).subspan(i, 1));
  const std::vector<double> a = long_reader.read(std::span(ids).last(1));
  const std::vector<double> b = short_reader.read(std::span(ids).last(3));
  EXPECT_EQ(a, b);
}

TEST(Sample, FollowsTemperatureAndTopK) {
  const std::vector<double> logits = {0, 3, 1, 2.9};
  Random random(1);
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(sample(logits, {.temperature = 0}, random), 1);
    EXPECT_EQ(sample(logits, {.temperature = 5, .top_k = 1}, random), 1);
    const std::int64_t two = sample(logits, {.temperature = 1, .top_k = 2}, random);
    EXPECT_TRUE(two == 1 || two == 3);
  }
  int counts[4] = {};
  for (int i = 0; i < 4000; ++i) ++counts[sample(logits, {.temperature = 1, .top_k = 0}, random)];
  const double sum = 1 + std::exp(3) + std::exp(1) + std::exp(2.9);
  EXPECT_NEAR(counts[1], 4000 * std::exp(3) / sum, 150);
  EXPECT_NEAR(counts[2], 4000 * std::exp(1) / sum, 60);
}

// By the definition: a token stays where those that are likelier have less than top_p together.
TEST(Sample, TopPKeepsTheFewestLikeliestTokens) {
  Random random(2);
  for (int round = 0; round < 200; ++round) {
    const SamplingOptions options{.temperature = 0.3 + 2 * random.uniform(),
                                  .top_k = round % 3 == 0 ? 0 : 1 + random.below(30),
                                  .top_p = round % 10 == 0 ? 1 : random.uniform()};
    std::vector<double> logits, p;
    for (int i = 0; i < 20; ++i) logits.push_back(3 * random.normal());
    const auto likelier = [&](std::size_t than) {
      return std::ranges::count_if(logits, [&](double z) { return z > logits[than]; });
    };
    double total = 0;
    for (std::size_t i = 0; i < 20; ++i) {
      const bool kept = options.top_k == 0 || likelier(i) < options.top_k;
      p.push_back(kept ? std::exp(logits[i] / options.temperature) : 0);
      total += p.back();
    }
    std::map<std::int64_t, double> want;
    double rest = 0;
    for (std::size_t i = 0; i < 20; ++i) {
      double above = 0;
      for (std::size_t j = 0; j < 20; ++j) above += logits[j] > logits[i] ? p[j] / total : 0;
      if (p[i] == 0 || (options.top_p < 1 && above >= options.top_p)) continue;
      want[static_cast<std::int64_t>(i)] = p[i];
      rest += p[i];
    }
    const std::vector<Candidate> got = candidates(logits, options);
    ASSERT_EQ(got.size(), want.size()) << round;
    for (const Candidate& each : got) {
      ASSERT_NEAR(each.probability, want.at(each.token) / rest, 1e-12) << round;
    }
    EXPECT_TRUE(want.contains(sample(logits, options, random)));
  }
}

}  // namespace
}  // namespace coda
