// coda/cuda/tune.h: measures the candidates of a program beside one another, and names the fastest.
//
// Every candidate runs on tensors of the tuner's own, so nothing of the caller's is written, and
// programs that accumulate or work in place start from the same contents each time. One that
// disagrees with the planner's own choice cannot win. The candidates take turns, so that a clock
// that falls with the temperature is fair to all.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "coda/backend/backend.h"
#include "coda/cuda/plan.h"

namespace coda::cuda {

// What tuning asks of the machine. Tests bring their own.
struct TuneTools {
  std::function<Kernel(const std::string& tile)> compile;
  Memory memory;  // of the kernels
  // The seconds that the device works on what `work` issues to the default stream.
  std::function<double(const std::function<void()>& work)> seconds;
};

// For the GPU of this process. Throws Unsupported where there is none.
// `params` and `results` as below; their strides are compiled for.
TuneTools device_tools(const Checked& checked, const Sizes& sizes, std::span<const Tensor> params,
                       std::span<const Tensor> results);

struct TuneOptions {
  int rounds = 9;            // how often each candidate has its turn; the median counts
  double turn = 0.01;        // seconds of a turn
  double warm_up = 0.2;      // seconds of work before the first turn
  double least_gain = 0.01;  // of the planner's time: less is noise, and the planner's choice stays
  // Called between turns. `done` of `all`.
  std::function<void(int done, int all)> progress = {};
  // Asked between turns; true: stop, and return nothing.
  std::function<bool()> stopped = {};
};

struct TuneResult {
  struct Candidate {
    std::string tile;
    double seconds = 0;   // the median of a run
    std::string refused;  // why it cannot win; empty: it can
  };
  std::vector<Candidate> candidates;  // as they were given
  std::string tile;                   // the fastest
  double seconds = 0;
};

// `tiles` are those of tile_candidates (choose.h), the planner's choice first. `params` and
// `results` lie on the host, with the strides that the kernels are to run with: contents to run on;
// results start from theirs where they accumulate. nullopt where it was stopped. Throws what
// running the planner's choice throws.
std::optional<TuneResult> tune(const Program& program, std::span<const std::string> tiles,
                               std::span<const Tensor> params, std::span<const Tensor> results,
                               const TuneTools& tools, const TuneOptions& options = {});

// Why `got` is not what `expected` is: bit for bit, or within the rounding of another order of
// sums; nullopt: it is. Dense tensors of the host, or whole lines of memory.
std::optional<std::string> disagreement(const Tensor& expected, const Tensor& got);

// From a tensor's first element to its last, gaps among them. Strides are not negative.
std::int64_t spanned_elements(const Tensor& tensor);

}  // namespace coda::cuda
