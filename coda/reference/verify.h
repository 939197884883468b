// coda/reference/verify.h: a backend against the reference, by earned tolerance (docs/numerics.md).
//
// Lies in reference/ because backend/ may not see what judges it. Any thread may call all of it; an
// executor belongs to one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coda/backend/backend.h"

namespace coda {

// O(1); every 512th channel of what is no weight × 40; × 1e-4; × 1e+4 where no exp follows.
enum class Inputs : std::uint8_t { normal, outliers, tiny, huge };
// Memory of every tensor, results included, but for the last: dense; gaps between rows, a
// misaligned base and, for every other seed, one axis for each factor; the first dimension fastest;
// stride 0 along the first dimension of some inputs.
enum class Layouts : std::uint8_t { dense, padded, transposed, broadcast };

std::string_view name_of(Inputs inputs);
std::string_view name_of(Layouts layout);

// Runs what is to be judged: fills `results` from `params`. Throws as a backend would.
using Executor =
    std::function<void(const Program& program, const Sizes& sizes, std::span<const Tensor> params,
                       std::span<const Tensor> results)>;

struct VerifyOptions {
  std::vector<Inputs> inputs = {Inputs::normal, Inputs::outliers};
  std::vector<Layouts> layouts = {Layouts::dense};
  int seeds = 8;
  std::uint64_t seed = 1;  // the first
  // Executors that must give the same bits: other thread counts, other tiles.
  std::vector<Executor> same_bits = {};
  // Called before each set of inputs is drawn, with how many of all are done.
  std::function<void(int done, int all)> progress = {};
};

// One result under one kind of input.
struct Verdict {
  std::string result;
  Inputs inputs = Inputs::normal;
  Layouts layout = Layouts::dense;
  // The median over seeds of ‖got − exact‖ / ‖exact‖; of integers and bools the share that differs.
  double error = 0;
  double naive_error = 0;  // the same of the rounded reference
  double worst_ratio = 0;  // worst element's error over the naive sequence's worst, over all seeds
  std::int64_t compared = 0;  // elements over all seeds; less than all where something overflows
  bool passed = false;
  std::string why;  // of a failure: what, where, both values
};

// Random inputs; results poisoned and fenced with guard bytes, as are the gaps of strided tensors;
// inputs checked unchanged; a second run, over another poison, checked bit-equal. Accumulating
// results start from random contents. An element is compared where the naive sequence is finite, if
// at least half of them are; where the truth is not finite, the kinds must agree.
std::vector<Verdict> verify(const Program& program, const Sizes& sizes, const Executor& executor,
                            const VerifyOptions& options = {});

// One row a verdict, the reason below one that failed. "-": nothing was compared, as the result is
// empty or the naive sequence overflows.
std::string table(std::span<const Verdict> verdicts);

// The executor of a backend: checks, compiles (once for each program and sizes in turn) and runs.
// Scratch is poisoned before each run. `backend` must outlive it.
Executor executor_of(const Backend& backend);

// Dense inputs as verify draws them: within range where the program indexes by them, positive where
// it takes a root or a logarithm, upstream gradients with zeros and repeated values.
std::vector<OwnedTensor> random_inputs(const Program& program, const Sizes& sizes,
                                       std::uint64_t seed, Inputs inputs = Inputs::normal);

}  // namespace coda
