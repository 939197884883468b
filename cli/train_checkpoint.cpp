// cli/train_checkpoint.cpp: the folder of a run, and options that cannot change.
#include "cli/train_checkpoint.h"

#include <charconv>
#include <utility>

#include "coda/core/error.h"

namespace coda {
namespace {

struct Interval {
  double count = 0;
  bool seconds = false;  // else steps
};

std::optional<Interval> interval_from(const std::string& text) {
  Interval interval;
  const auto [rest, error] =
      std::from_chars(text.data(), text.data() + text.size(), interval.count);
  const std::string unit(rest, text.data() + text.size());
  if (error != std::errc() || !(interval.count > 0) || interval.count > 1e12) return std::nullopt;
  interval.seconds = !unit.empty();
  if (unit == "s") return interval;
  if (unit == "min") interval.count *= 60;
  if (unit == "min") return interval;
  const bool whole =
      interval.count == static_cast<double>(static_cast<std::int64_t>(interval.count));
  return unit.empty() && whole ? std::optional(interval) : std::nullopt;
}

}  // namespace

CLI::Validator save_interval() {
  return CLI::Validator(
      [](const std::string& text) {
        return interval_from(text) ? std::string()
                                   : text + " is neither steps (500) nor a time (10min, 30s)";
      },
      "STEPS|TIME");
}

RunFolder::RunFolder(std::string folder, Begin begin, const std::string& every)
    : folder_(std::move(folder)) {
  const std::optional<Interval> interval = interval_from(every);
  if (!interval) throw InternalError("--save-every was not checked: " + every);
  if (interval->seconds) {
    time_ = std::chrono::duration<double>(interval->count);
  } else {
    steps_ = static_cast<std::int64_t>(interval->count);
  }
  if (begin == Begin::anew && holds_model(folder_)) {
    throw ProgramError(folder_ + " holds a model already",
                       "give --resume to go on with its training, --overwrite to replace it, or "
                       "another --output");
  }
  if (begin != Begin::resume) prepare_folder(folder_);
  lock_ = std::make_unique<FolderLock>(folder_);
  remove_temporaries(folder_);
}

void RunFolder::save_if_due(const Trainer& trainer) {
  const std::int64_t done = trainer.position().done;
  const bool due = steps_ ? done % *steps_ == 0 : Clock::now() - saved_at_ >= time_;
  if (due) save(trainer);
}

void RunFolder::save(const Trainer& trainer) {
  const std::int64_t done = trainer.position().done;
  if (saved_ == done) return;
  try {
    save_checkpoint(folder_, trainer);
  } catch (const ProgramError& error) {
    if (!saved_) throw;
    const Diagnostic& first = error.diagnostics().front();
    throw ProgramError(first.message + "; the checkpoint of step " + std::to_string(*saved_) +
                           " in " + folder_ + " is as it was",
                       first.fix + "; then go on from it with --resume");
  }
  saved_ = done;
  saved_at_ = Clock::now();
}

void refuse_other(const CLI::App& command, const std::string& option, const std::string& saved) {
  const std::vector<std::string> given = command.get_option(option)->results();
  throw ProgramError(option + " is " + (given.empty() ? "given" : given.front()) +
                         ", but the run that --resume goes on with has " + saved,
                     "leave " + option + " away, or begin anew with --overwrite");
}

}  // namespace coda
