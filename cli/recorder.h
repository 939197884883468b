// cli/recorder.h: what `coda train` measures as it goes, for the report: nothing of it changes what
// is learnt.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "cli/commands.h"
#include "cli/run_log.h"
#include "coda/model/measuring.h"
#include "coda/model/trainer.h"
#include "coda/rewrite/explain.h"

namespace coda {

// Text that the trainer's model writes after a line's end; the same for the same weights and seed.
std::string sample_text(Trainer& trainer, const Backend& backend, std::uint64_t seed,
                        std::int64_t bytes, const std::function<void(char)>& show = {});

// The command line that gave `command` its options, without the folders of absolute paths, which
// are nobody else's business.
std::string command_text(const CLI::App& command);

class Recorder {
 public:
  // `timings` is where the trainer's kernels add their seconds while it trains. All must live as
  // long. Goes on with the folder's log where the trainer has done steps.
  Recorder(const std::string& folder, Trainer& trainer, const Backend& backend, Timings& timings,
           std::uint64_t seed);

  // Records the facts of the run and of its kernels, the held-out loss, which it gives, and a
  // sample. `whole` is the report on the trainer's model.
  double begin(nlohmann::json facts, const Report& whole);
  // Records a step, `seconds` after the first began, and measures what is due after it.
  void step(const Trainer::Report& step, double seconds);
  void end(double held_out, const std::string& sample, bool interrupted);

  // Why the log is not complete; empty: it is.
  const std::string& problem() const { return log_.problem(); }

  // Seconds that measuring took since begin(), and with the first sample, which is for the report
  // alone too.
  double paused() const { return paused_; }
  double measuring() const { return paused_ + costs_.sample; }

 private:
  // Runs `work` outside of the training's times; gives its seconds.
  double timed(const std::function<void()>& work);
  void write_held_out(double loss);
  void write_sample(const std::string& text);
  void write_short_sample();
  void write_time();

  Trainer& trainer_;
  const Backend& backend_;
  Timings& timings_;
  std::uint64_t seed_;
  RunLogWriter log_;
  MeasuringCosts costs_;
  std::optional<MeasuringPlan> plan_;
  std::int64_t first_;  // done before
  double seconds_ = 0, paused_ = 0;
};

}  // namespace coda
