// cli/train_checkpoint.h: when and where `coda train` saves, and what --resume takes over.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "cli/commands.h"
#include "coda/core/file.h"
#include "coda/model/checkpoint.h"

namespace coda {

// What the folder may hold when training begins.
enum class Begin : std::uint8_t { anew, overwrite, resume };

// The folder that one run writes to. No second run may, as long as it lives.
class RunFolder {
 public:
  // `every` as --save-every gives it: "500" steps, "10min", "30s". Throws ProgramError for a folder
  // that cannot be written to, and for one that holds a model where training begins anew.
  RunFolder(std::string folder, Begin begin, const std::string& every);

  const std::string& path() const { return folder_; }
  // Where a checkpoint is due. Throws ProgramError that says what is left where it cannot be saved.
  void save_if_due(const Trainer& trainer);
  // Unless this step was saved before.
  void save(const Trainer& trainer);
  // The step that the folder's checkpoint has: it was restored from there.
  void set_saved(std::int64_t step) { saved_ = step; }

 private:
  using Clock = std::chrono::steady_clock;

  std::string folder_;
  std::unique_ptr<FolderLock> lock_;
  std::optional<std::int64_t> steps_;      // between two checkpoints, or
  std::chrono::duration<double> time_{0};  // the time
  std::optional<std::int64_t> saved_;      // the last saved step
  Clock::time_point saved_at_ = Clock::now();
};

// Accepts what --save-every does.
CLI::Validator save_interval();

// An option that a run had from its beginning, and that the command line wants otherwise.
[[noreturn]] void refuse_other(const CLI::App& command, const std::string& option,
                               const std::string& saved);

// Gives an option the value that the run has. Throws ProgramError where the command line gives
// another one.
template <class T>
void take_over(const CLI::App& command, const std::string& option, T& value, const T& saved) {
  if (command.count(option) > 0 && value != saved) {
    refuse_other(command, option, nlohmann::json(saved).dump());
  }
  value = saved;
}

}  // namespace coda
