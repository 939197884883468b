// coda/model/trainer.h: training, a step at a time: batches, learning rate, held-out loss.
#pragma once

#include <optional>

#include "coda/model/corpus.h"
#include "coda/model/model.h"
#include "coda/model/optimizer.h"

namespace coda {

struct TrainerOptions {
  std::int64_t sequences = 16;  // of a batch
  std::int64_t steps = 1000;
  std::uint64_t seed = 1;
  std::int64_t held_out_sequences = 96;
  // Of the products' operands. With bf16, AdamW moves f32 masters, and the products read them
  // rounded.
  DType dtype = DType::f32;
  OptimizerOptions optimizer;
};

class Trainer {
 public:
  // `corpus` and `backend` must live as long.
  Trainer(const ModelConfig& config, const TrainerOptions& options, const Corpus& corpus,
          const Backend& backend);

  Model& model() { return model_; }
  const ModelConfig& config() const { return model_.config(); }
  const TrainerOptions& options() const { return options_; }
  const Corpus& corpus() const { return corpus_; }
  // What is learnt, in f32: the model's parameters, or their masters where it reads bf16.
  Arena& weights() { return masters_ ? *masters_ : model_.parameters(); }
  const Arena& weights() const { return masters_ ? *masters_ : model_.parameters(); }
  AdamW& optimizer() { return optimizer_; }
  const AdamW& optimizer() const { return optimizer_; }
  std::int64_t steps() const { return options_.steps; }
  std::int64_t done() const { return done_; }
  std::int64_t tokens_per_step() const { return options_.sequences * model_.config().context; }

  // Where training is; with the weights and the optimizer's moments, all that the next step depends
  // on.
  struct Position {
    std::int64_t done = 0;     // steps
    std::uint64_t random = 0;  // the state of the numbers that choose batches
  };
  Position position() const { return {done_, random_.state()}; }
  // Goes on from there; the caller has filled weights() and the moments.
  void go_on_from(const Position& position);

  // Seconds that a step takes; changes nothing that is learnt.
  double calibrate();
  // Sets how many steps the schedule of the learning rate spans; before the first step.
  void set_steps(std::int64_t steps) { options_.steps = steps; }

  struct Report {
    double loss = 0;           // of this step's batch, nats a byte
    double gradient_norm = 0;  // before clipping
    double rate = 0;
  };
  // One batch learnt. A loss that is not finite is a ProgramError that says what to change.
  Report step();
  double held_out_loss();
  void time_into(Timings* timings);  // of every kernel; null: no more

 private:
  TrainerOptions options_;
  const Corpus& corpus_;
  Model model_;
  std::optional<Arena> masters_;
  AdamW optimizer_;
  Random random_;
  Batch batch_;
  std::int64_t done_ = 0;
  Timings* timings_ = nullptr;
};

}  // namespace coda
