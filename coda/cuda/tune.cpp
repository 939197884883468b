// coda/cuda/tune.cpp: candidates compiled, verified, then timed in turns.
#include "coda/cuda/tune.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <exception>

#include "coda/check/check.h"
#include "coda/core/error.h"
#include "coda/core/pool.h"
#include "coda/cuda/cuda.h"
#include "coda/cuda/driver.h"
#include "coda/cuda/launch.h"
#include "coda/cuda/memory.h"

namespace coda::cuda {
namespace {

constexpr int kPoison = 0xff;  // NaN of every float
constexpr int kMostRuns = 1000;

std::size_t bytes_of(const Tensor& tensor) {
  return static_cast<std::size_t>(spanned_elements(tensor)) * size_of(tensor.dtype);
}

// The tensors of one program in the kernels' memory, and what they start from.
class Bench {
 public:
  Bench(const Program& program, std::span<const Tensor> params, std::span<const Tensor> results,
        const Memory& memory)
      : program_(program), memory_(memory), initial_(results.begin(), results.end()) {
    for (const Tensor& param : params) {
      params_.push_back(place(param));
      memory_.copy_in(params_.back().data, param.data, bytes_of(param));
    }
    for (const Tensor& result : results) results_.push_back(place(result));
  }

  void need_scratch(std::size_t bytes) {
    if (bytes <= scratch_.size() && !scratch_.empty()) return;
    scratch_ = {static_cast<std::byte*>(take(bytes)), bytes};
  }

  void run(const Kernel& kernel) const { kernel.run(params_, results_, scratch_, {}); }

  // What one run stores, on the host. Results hold nothing useful before.
  std::vector<OwnedTensor> results_of(const Kernel& kernel) const {
    std::vector<OwnedTensor> stored;
    for (std::size_t i = 0; i < results_.size(); ++i) {
      const Tensor& initial = initial_[i];
      stored.emplace_back(initial.dtype, std::vector{spanned_elements(initial)});
      const void* from = initial.data;
      if (!accumulates(i)) {
        std::memset(stored.back().tensor().data, kPoison, bytes_of(initial));
        from = stored.back().tensor().data;
      }
      memory_.copy_in(results_[i].data, from, bytes_of(initial));
    }
    run(kernel);
    memory_.wait({});
    for (std::size_t i = 0; i < results_.size(); ++i) {
      memory_.copy_out(stored[i].tensor().data, results_[i].data, bytes_of(results_[i]));
    }
    return stored;
  }

  // Before a turn: sums that grow for ever would end as infinities, which cost no power.
  void reset() const {
    for (std::size_t i = 0; i < results_.size(); ++i) {
      if (accumulates(i)) memory_.zero(results_[i], {});
    }
  }

 private:
  bool accumulates(std::size_t i) const { return program_.results()[i].store == Store::accumulate; }

  void* take(std::size_t bytes) {
    void* memory = memory_.allocate(bytes);
    blocks_.emplace_back(memory, memory_.release);
    return memory;
  }

  Tensor place(const Tensor& host) {
    Tensor tensor = host;
    tensor.data = take(bytes_of(host));
    return tensor;
  }

  const Program& program_;
  const Memory& memory_;
  std::vector<MemoryBlock> blocks_;
  std::vector<Tensor> initial_, params_, results_;
  std::span<std::byte> scratch_;
};

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

// Two runs of the same sums in other orders differ so much at most: of an element, or of the size
// that elements have on the whole.
double tolerance_of(DType dtype) {
  switch (dtype) {
    case DType::f8e4m3:
    case DType::f8e5m2:
      return 0.5;
    case DType::bf16:
      return std::ldexp(1, -6);
    case DType::f16:
      return std::ldexp(1, -9);
    case DType::f32:
      return std::ldexp(1, -12);
    case DType::f64:
      return std::ldexp(1, -40);
    case DType::i32:
    case DType::i64:
    case DType::u8:
    case DType::boolean:
      return 0;
  }
  return 0;
}

struct Contender {
  TuneResult::Candidate candidate;
  std::optional<Kernel> kernel;
  std::vector<double> times;
  int runs = 1;  // in a turn
};

std::string reason_of(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

// Compiles all; of the first, errors are thrown.
std::vector<Contender> compiled(std::span<const std::string> tiles, const TuneTools& tools) {
  std::vector<Contender> contenders(tiles.size());
  parallel_for(static_cast<std::int64_t>(tiles.size()), 0, [&](std::int64_t task, int) {
    const auto i = static_cast<std::size_t>(task);
    contenders[i].candidate.tile = tiles[i];
    try {
      contenders[i].kernel.emplace(tools.compile(tiles[i]));
    } catch (const std::exception& error) {
      if (i == 0) throw;
      contenders[i].candidate.refused = reason_of(error);
    }
  });
  return contenders;
}

// Takes out of the race what does not compute what the first does.
void verify(std::vector<Contender>& contenders, const Bench& bench) {
  const std::vector<OwnedTensor> expected = bench.results_of(*contenders[0].kernel);
  for (std::size_t c = 1; c < contenders.size(); ++c) {
    Contender& contender = contenders[c];
    if (!contender.kernel) continue;
    const std::vector<OwnedTensor> got = bench.results_of(*contender.kernel);
    for (std::size_t i = 0; i < got.size() && contender.kernel; ++i) {
      const auto why = disagreement(expected[i].tensor(), got[i].tensor());
      if (!why) continue;
      contender.candidate.refused = "result " + std::to_string(i) + " differs from that of " +
                                    contenders[0].candidate.tile + ": " + *why;
      contender.kernel.reset();
    }
  }
}

}  // namespace

std::int64_t spanned_elements(const Tensor& tensor) {
  if (tensor.elements() == 0) return 0;
  std::int64_t last = 0;
  for (std::size_t d = 0; d < tensor.shape.size(); ++d) {
    last += (tensor.shape[d] - 1) * tensor.strides[d];
  }
  return last + 1;
}

std::optional<std::string> disagreement(const Tensor& expected, const Tensor& got) {
  if (bytes_of(expected) == 0) return std::nullopt;
  if (std::memcmp(expected.data, got.data, bytes_of(expected)) == 0) return std::nullopt;
  const std::int64_t count = expected.elements();
  double squares = 0;
  std::int64_t finite = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const double x = load(expected.dtype, expected.data, i);
    if (!std::isfinite(x)) continue;
    squares += x * x;
    ++finite;
  }
  const double size = finite == 0 ? 0 : std::sqrt(squares / static_cast<double>(finite));
  const double tolerance = tolerance_of(expected.dtype);
  for (std::int64_t i = 0; i < count; ++i) {
    const double a = load(expected.dtype, expected.data, i), b = load(got.dtype, got.data, i);
    const bool same = a == b || (std::isnan(a) && std::isnan(b));
    // NOTE: infinities of two signs are as far apart as they are large.
    const bool near = std::isfinite(a) && std::isfinite(b) &&
                      std::abs(a - b) <= tolerance * std::max(std::abs(a), size);
    if (same || near) continue;
    std::array<char, 128> text = {};
    std::snprintf(text.data(), text.size(), "element %lld is %.9g, not %.9g",
                  static_cast<long long>(i), b, a);
    return text.data();
  }
  return std::nullopt;
}

std::optional<TuneResult> tune(const Program& program, std::span<const std::string> tiles,
                               std::span<const Tensor> params, std::span<const Tensor> results,
                               const TuneTools& tools, const TuneOptions& options) {
  if (tiles.empty()) throw InternalError("nothing to tune of " + program.name());
  const auto stopped = [&] {
    return options.stopped && options.stopped();
  };
  std::vector<Contender> contenders = compiled(tiles, tools);
  Bench bench(program, params, results, tools.memory);
  for (const Contender& contender : contenders) {
    if (contender.kernel) bench.need_scratch(contender.kernel->scratch_bytes());
  }
  if (stopped()) return std::nullopt;
  verify(contenders, bench);

  const auto turn = [&](Contender& contender, int runs) {
    bench.reset();
    return tools.seconds([&] {
      for (int i = 0; i < runs; ++i) bench.run(*contender.kernel);
    }) / runs;
  };
  // How many runs fill a turn.
  std::vector<Contender*> racing;
  for (Contender& contender : contenders) {
    if (!contender.kernel) continue;
    racing.push_back(&contender);
    const double once = std::max(turn(contender, 3), 1e-9);
    contender.runs = static_cast<int>(std::clamp(options.turn / once, 1.0, double{kMostRuns}));
  }
  for (double spent = 0; spent < options.warm_up && !stopped();) {
    const double once = turn(*racing[0], racing[0]->runs);
    spent += std::max(once * racing[0]->runs, options.turn / 10);
  }
  const int all = options.rounds * static_cast<int>(racing.size());
  int done = 0;
  for (int round = 0; round < options.rounds; ++round) {
    for (std::size_t i = 0; i < racing.size(); ++i) {
      if (stopped()) return std::nullopt;
      // Who follows whom changes from round to round.
      Contender& contender = *racing[(i + static_cast<std::size_t>(round)) % racing.size()];
      contender.times.push_back(turn(contender, contender.runs));
      if (options.progress) options.progress(++done, all);
    }
  }

  TuneResult result;
  for (Contender* contender : racing) {
    contender->candidate.seconds = contender->times.empty() ? 0 : median(contender->times);
  }
  const TuneResult::Candidate* best = &contenders[0].candidate;
  const double to_beat = best->seconds * (1 - options.least_gain);
  for (const Contender* contender : racing) {
    const TuneResult::Candidate& candidate = contender->candidate;
    if (candidate.seconds < to_beat && candidate.seconds < best->seconds) best = &candidate;
  }
  result.tile = best->tile;
  result.seconds = best->seconds;
  for (Contender& contender : contenders) result.candidates.push_back(contender.candidate);
  return result;
}

TuneTools device_tools(const Checked& checked, const Sizes& sizes, std::span<const Tensor> params,
                       std::span<const Tensor> results) {
  TuneTools tools;
  tools.memory = device_memory({});
  Backend::Request request{.program = checked, .sizes = sizes};
  request.params.assign(params.begin(), params.end());
  request.results.assign(results.begin(), results.end());
  tools.compile = [request](const std::string& tile) {
    return backend({.plan = {.tile = tile}})->compile_all(std::span(&request, 1)).front();
  };
  tools.seconds = [](const std::function<void()>& work) {
    const Driver& driver = Driver::get();
    const EntryPoints& call = driver.call();
    std::array<Event, 2> events = {};
    const auto need = [&](Result result, const char* what) {
      driver.check(result, what, "");
    };
    for (Event& event : events) need(call.EventCreate(&event, 0), "cuEventCreate");
    need(call.EventRecord(events[0], nullptr), "cuEventRecord");
    work();
    need(call.EventRecord(events[1], nullptr), "cuEventRecord");
    need(call.EventSynchronize(events[1]), "cuEventSynchronize");
    float milliseconds = 0;
    need(call.EventElapsedTime(&milliseconds, events[0], events[1]), "cuEventElapsedTime");
    for (const Event event : events) call.EventDestroy(event);
    return static_cast<double>(milliseconds) / 1e3;
  };
  Driver::get();
  return tools;
}

}  // namespace coda::cuda
