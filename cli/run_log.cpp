// cli/run_log.cpp: lines of JSON out, and in again.
#include "cli/run_log.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>
#include <stdexcept>

#include "coda/core/error.h"
#include "coda/core/file.h"

namespace coda {
namespace {

using nlohmann::json;

// NOTE: JSON has no NaN: what was not finite was written as null.
double number(const json& record, const char* key) {
  const json& value = record.at(key);
  return value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>();
}

std::int64_t step_of(const json& record) {
  const auto step = record.at("step").get<std::int64_t>();
  constexpr std::int64_t kMost = 1'000'000'000'000'000;  // sums of them do not overflow
  if (step < 0 || step > kMost) throw std::out_of_range("a step of " + std::to_string(step));
  return step;
}

template <class T>
void forget_after(std::map<std::int64_t, T>& all, std::int64_t step) {
  all.erase(all.upper_bound(step), all.end());
}

void start(RunLog& log, const json& record) {
  const auto step = step_of(record);
  // At step 0 what was measured before the first step is measured again.
  forget_after(log.steps, step == 0 ? -1 : step);
  forget_after(log.held_out, step == 0 ? -1 : step);
  forget_after(log.samples, step == 0 ? -1 : step);
  if (step == 0) log.sessions.clear();
  log.sessions.push_back({.start = record, .from = step, .to = step});
}

void add(RunLog& log, const json& record) {
  const auto event = record.at("event").get<std::string>();
  if (event == "start") return start(log, record);
  if (log.sessions.empty()) return;  // read_log refuses a log that nothing starts
  RunLog::Session& session = log.sessions.back();
  if (event == "kernels") {
    log.kernels = record;
    return;
  }
  const auto step = step_of(record);
  session.to = step;
  if (event == "step") {
    log.steps[step] = {.loss = number(record, "loss"),
                       .rate = number(record, "rate"),
                       .norm = number(record, "norm")};
    session.training = number(record, "seconds");
  } else if (event == "held_out") {
    log.held_out[step] = number(record, "loss");
  } else if (event == "sample") {
    log.samples[step] = bytes_of_text(record.at("text").get<std::string>());
  } else if (event == "time") {
    session.training = number(record, "training");
    session.timed = session.training;
    session.measuring = number(record, "measuring");
    session.kernels = record.at("kernels").get<std::map<std::string, double>>();
  } else if (event == "end") {
    session.ended = true;
    session.interrupted = record.at("interrupted").get<bool>();
  }
  // Others are of a later version of the log.
}

}  // namespace

std::string log_path(const std::string& folder) {
  return folder + "/log.jsonl";
}

RunLogWriter::RunLogWriter(const std::string& folder, bool append) : path_(log_path(folder)) {
  if (append && std::filesystem::exists(path_)) {
    // Without the line that a killed run left incomplete.
    const std::string text = read_file(path_);
    std::filesystem::resize_file(path_, text.rfind('\n') + 1);
  }
  file_ = std::fopen(path_.c_str(), append ? "a" : "w");
  if (file_ != nullptr) return;
  throw ProgramError("cannot write " + path_ + ": " + std::strerror(errno),
                     "check that the folder is writable, or give --no-report");
}

RunLogWriter::~RunLogWriter() {
  if (file_ != nullptr) std::fclose(file_);
}

void RunLogWriter::write(const json& record) {
  if (file_ == nullptr) return;
  const std::string line = record.dump(-1, ' ', true, json::error_handler_t::replace) + "\n";
  const bool written = std::fwrite(line.data(), 1, line.size(), file_) == line.size();
  if (written && std::fflush(file_) == 0) return;
  problem_ = "cannot write " + path_ + ": " + std::strerror(errno);
  std::fclose(file_);
  file_ = nullptr;
}

std::string text_of_bytes(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x80) text += static_cast<char>(0xc0 | byte >> 6);
    text += static_cast<char>(byte >= 0x80 ? 0x80 | (byte & 0x3f) : byte);
  }
  return text;
}

std::string bytes_of_text(std::string_view text) {
  std::string bytes;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool pair = (byte & 0xfe) == 0xc2 && i + 1 < text.size();
    bytes += static_cast<char>(pair ? (byte & 3) << 6 | (text[++i] & 0x3f) : byte);
  }
  return bytes;
}

RunLog read_log(const std::string& folder) {
  const std::string path = log_path(folder), text = read_file(path);
  RunLog log;
  std::size_t line = 0;
  for (std::size_t at = 0, end = 0; at < text.size(); at = end + 1) {
    end = text.find('\n', at);
    if (end == std::string::npos) break;  // incomplete: the run was killed
    ++line;
    const auto refuse = [&](const std::exception& error) {
      throw ProgramError(
          path + ":" + std::to_string(line) + ": no record of a training run: " + error.what(),
          "give the folder of a model that `coda train` wrote");
    };
    try {
      add(log, json::parse(text.begin() + static_cast<std::ptrdiff_t>(at),
                           text.begin() + static_cast<std::ptrdiff_t>(end)));
    } catch (const json::exception& error) {
      refuse(error);
    } catch (const std::out_of_range& error) {
      refuse(error);
    }
  }
  if (log.sessions.empty()) {
    throw ProgramError(path + " holds no training run",
                       "give the folder of a model that `coda train` wrote");
  }
  return log;
}

}  // namespace coda
