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
};

// Linear warm-up, then half a cosine from `rate` to a twentieth of it. Step counts from 0.
double scheduled_rate(double rate, std::int64_t step, std::int64_t steps);

class AdamW {
 public:
  AdamW(const ArenaLayout& layout, const Backend& backend, DType dtype,
        const OptimizerOptions& options);

  // Moves the parameters against the gradients; gives the gradients' norm before clipping.
  double step(Arena& parameters, const Arena& gradients, double rate, Timings* timings = nullptr);

 private:
  // What one run of the program covers: the matrices, or the norm weights.
  struct Part {
    std::int64_t first, rows;
    double weight_decay;
    CompiledBlock program;
  };

  OptimizerOptions options_;
  std::int64_t steps_ = 0;
  CompiledBlock square_sums_, clip_;
  std::vector<Part> parts_;
  // The program does not write where it reads, so parameters and moments alternate with these.
  Arena first_[2], second_[2], next_;
  OwnedTensor partial_;
  std::int64_t rows_;
  Scalar limit_, norm_, grad_scale_, rate_, beta1_, beta2_, eps_, decay_, bias1_, bias2_;
  Scratch scratch_;
};

}  // namespace coda
