// coda/model/optimizer.h: AdamW with global-norm clipping, and the schedule of the learning rate.
#pragma once

#include <cstdint>

#include "coda/model/blocks.h"
#include "coda/model/parameters.h"

namespace coda {

struct OptimizerOptions {
  double rate = 3e-3;  // the highest learning rate
  double beta1 = 0.9;
  double beta2 = 0.99;
  double eps = 1e-8;
  double weight_decay = 0.1;  // of matrices
  double clip = 1;            // the gradients' largest global norm
  bool operator==(const OptimizerOptions&) const = default;
};

// Linear warm-up, then half a cosine from `rate` to a twentieth of it. Step counts from 0.
double scheduled_rate(double rate, std::int64_t step, std::int64_t steps);

class AdamW {
 public:
  // `dtype` is the model's: moments are f32 for a model in bf16, else of that dtype.
  AdamW(const ArenaLayout& layout, const Backend& backend, DType dtype,
        const OptimizerOptions& options);

  // Moves the weights against the gradients; gives the gradients' norm before clipping. Where the
  // optimizer was made for bf16, the weights are f32 and `rounded` is what the products read.
  double step(Arena& weights, const Arena& gradients, double rate, Arena* rounded = nullptr,
              Timings* timings = nullptr);

  // What the next step depends on: the moments, and how many steps there were.
  Arena& first_moment() { return first_[0]; }
  Arena& second_moment() { return second_[0]; }
  const Arena& first_moment() const { return first_[0]; }
  const Arena& second_moment() const { return second_[0]; }
  void set_steps(std::int64_t steps) { steps_ = steps; }

 private:
  AdamW(const ArenaLayout& layout, const Backend& backend, DType dtype, DType model_dtype,
        const OptimizerOptions& options);

  // What one run of the program covers: the matrices, or the norm weights.
  struct Part {
    std::int64_t first, rows;
    double weight_decay;
    CompiledBlock program;
  };

  OptimizerOptions options_;
  bool rounds_;  // the model reads a bf16 copy of the weights
  std::int64_t steps_ = 0;
  CompiledBlock square_sums_, clip_;
  std::vector<Part> parts_;
  // The program does not write where it reads, so weights and moments alternate with these.
  Arena first_[2], second_[2], next_;
  OwnedTensor partial_;
  std::int64_t rows_;
  Scalar limit_, norm_, grad_scale_, rate_, beta1_, beta2_, eps_, decay_, bias1_, bias2_;
  Scratch scratch_;
};

}  // namespace coda
