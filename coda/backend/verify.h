// coda/backend/verify.h: a backend against the reference, by earned tolerance (docs/numerics.md).
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "coda/backend/backend.h"
#include "coda/program/schedule.h"

namespace coda {

enum class Inputs : std::uint8_t {
  normal,
  outliers,
  tiny,
  huge
};  // O(1); every 512th channel × 40; × 1e-4; × 1e+4
enum class Layouts : std::uint8_t {
  dense,
  padded,
  transposed,
  broadcast
};  // strides of the inputs

struct VerifyOptions {
  std::vector<Inputs> inputs = {Inputs::normal, Inputs::outliers};
  std::vector<Layouts> layouts = {Layouts::dense};
  int seeds = 8;
  std::uint64_t seed = 1;  // the first; every run of the verifier takes the next `seeds` numbers
};

// One result under one kind of input.
struct Verdict {
  std::string result;
  Inputs inputs = Inputs::normal;
  Layouts layout = Layouts::dense;
  double error = 0;        // median over seeds of ‖got − exact‖ / ‖exact‖
  double naive_error = 0;  // the same of the rounded reference
  double worst_ratio = 0;  // worst element's error over the naive sequence's worst
  bool passed = false;
  std::string why;  // of a failure: the element, both values; "wrote outside its result"; "left NaN
                    // poison"; …
};

// Runs what is to be judged: fills `results` from `params`. Throws as a backend would.
using Executor =
    std::function<void(const Program& program, const Sizes& sizes, std::span<const Tensor> params,
                       std::span<const Tensor> results)>;

// Fresh random inputs, upstream-like values included, outputs poisoned with NaN and fenced with
// guard bytes, inputs checked unchanged, a second run checked bit-equal. `before` contents of
// accumulating results are random.
std::vector<Verdict> verify(const Program& program, const Sizes& sizes, const Executor& executor,
                            const VerifyOptions& options = {});

// The executor of a backend: check, compile and run a program.
Executor executor_of(const Backend& backend);

}  // namespace coda
