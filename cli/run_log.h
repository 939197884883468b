// cli/run_log.h: the log of a training run: FOLDER/log.jsonl, a JSON object a line, in ASCII.
//
//   {"event": "start", "step": S, …}      the run's facts; from step S on, what is said before of
//                                         later steps no longer counts (a run that was resumed)
//   {"event": "kernels", …}               what runs in a step, one layer of it as schedules
//   {"event": "step", "step", "loss", "rate", "norm", "seconds"}
//   {"event": "held_out", "step", "loss"}
//   {"event": "sample", "step", "text"}   a code point for each byte
//   {"event": "time", "step", …}          seconds since the start: in all, measuring, by kernel
//   {"event": "end", "step", "interrupted"}
#pragma once

#include <cstdint>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace coda {

// The file of the log in a model's folder.
std::string log_path(const std::string& folder);

// Writes the log, each line when it is complete, so that what a killed run measured is there.
class RunLogWriter {
 public:
  // Appends, or begins anew. Throws ProgramError where the file cannot be opened.
  RunLogWriter(const std::string& folder, bool append);
  ~RunLogWriter();
  RunLogWriter(const RunLogWriter&) = delete;
  RunLogWriter& operator=(const RunLogWriter&) = delete;

  // NOTE: does not throw: a full disk is no reason to lose what was learnt. Nothing is written
  // after the first failure, which problem() tells.
  void write(const nlohmann::json& record);
  const std::string& problem() const { return problem_; }  // empty: none

 private:
  std::string path_, problem_;
  std::FILE* file_ = nullptr;
};

// Bytes that need not be UTF-8 as text that JSON can hold, and back.
std::string text_of_bytes(std::string_view bytes);
std::string bytes_of_text(std::string_view text);

// A log that was read.
struct RunLog {
  struct Step {
    double loss = 0, rate = 0, norm = 0;  // nats a byte; of the gradients, before clipping
  };
  // From a start to the next.
  struct Session {
    nlohmann::json start;
    std::int64_t from = 0, to = 0;          // steps
    double training = 0, measuring = 0;     // seconds
    double timed = 0;                       // seconds of training that `kernels` is of
    std::map<std::string, double> kernels;  // seconds, by "schedule: kernel"
    bool ended = false, interrupted = false;
  };

  std::vector<Session> sessions;
  nlohmann::json kernels;  // of the last session
  std::map<std::int64_t, Step> steps;
  std::map<std::int64_t, double> held_out;
  std::map<std::int64_t, std::string> samples;  // bytes
};

// Throws ProgramError where there is no log, and for a line that is none; but not for a last line
// that a killed run left incomplete.
RunLog read_log(const std::string& folder);

}  // namespace coda
