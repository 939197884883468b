// coda/model/trainer.cpp: one step of training, and the loss on text that is never learnt.
#include "coda/model/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "coda/core/error.h"

namespace coda {
namespace {

std::uint64_t batch_seed(std::uint64_t seed) {
  return seed ^ 0x62617463686573u;
}

}  // namespace

Trainer::Trainer(const ModelConfig& config, const TrainerOptions& options, const Corpus& corpus,
                 const Backend& backend)
    : options_(options),
      corpus_(corpus),
      model_(config, backend, options.sequences, config.context, options.dtype),
      optimizer_(model_.layout(), backend, model_.dtype(), options.optimizer),
      random_(batch_seed(options.seed)),
      batch_(options.sequences, config.context) {
  if (options.dtype == DType::bf16) masters_.emplace(model_.layout(), DType::f32);
  initialize(weights(), config, options.seed);
  if (masters_) model_.parameters().assign(*masters_);
}

void Trainer::go_on_from(const Position& position) {
  done_ = position.done;
  random_ = Random(position.random);
  optimizer_.set_steps(done_);
  if (masters_) model_.parameters().assign(*masters_);
}

double Trainer::calibrate() {
  Random random(options_.seed);
  corpus_.sample(random, batch_);
  model_.learn(batch_);  // warms caches and the pool
  constexpr int kRuns = 3;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kRuns; ++i) model_.learn(batch_);
  const auto time = std::chrono::steady_clock::now() - start;
  constexpr double kOptimizer = 1.05;  // AdamW's part, which would change the weights
  return kOptimizer * std::chrono::duration<double>(time).count() / kRuns;
}

Trainer::Report Trainer::step() {
  Report report;
  corpus_.sample(random_, batch_);
  report.loss = model_.learn(batch_);
  report.rate = scheduled_rate(options_.optimizer.rate, done_, options_.steps);
  report.gradient_norm = optimizer_.step(weights(), model_.gradients(), report.rate,
                                         masters_ ? &model_.parameters() : nullptr, timings_);
  if (!std::isfinite(report.loss) || !std::isfinite(report.gradient_norm)) {
    throw ProgramError("training diverged in step " + std::to_string(done_ + 1) + ": the loss is " +
                           std::to_string(report.loss) + ", the gradients' norm " +
                           std::to_string(report.gradient_norm),
                       "give a smaller --lr than " + std::to_string(options_.optimizer.rate));
  }
  ++done_;
  return report;
}

void Trainer::time_into(Timings* timings) {
  timings_ = timings;
  model_.time_into(timings);
}

double Trainer::held_out_loss() {
  const std::int64_t batches =
      std::max<std::int64_t>(options_.held_out_sequences / options_.sequences, 1);
  const std::int64_t windows = batches * options_.sequences;
  double total = 0;
  for (std::int64_t i = 0; i < batches; ++i) {
    corpus_.held_out(i * options_.sequences, windows, batch_);
    total += model_.loss(batch_);
  }
  return total / static_cast<double>(batches);
}

}  // namespace coda
