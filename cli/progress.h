// cli/progress.h: a line that says how far a long job is: rewritten in place on a terminal, a new
// line every few seconds elsewhere.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

namespace coda {

class Progress {
 public:
  // `stream` is stdout or stderr.
  explicit Progress(std::FILE* stream);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Shows the line if it is time to.
  void show(const std::string& line);
  // Shows it now, and leaves it.
  void finish(const std::string& line);

 private:
  void write(const std::string& line);

  std::FILE* stream_;
  bool terminal_;
  std::size_t width_ = 0;  // of the line on the terminal
  std::chrono::steady_clock::time_point next_;
};

// A loss that does not jump: the mean of about the last 20, of fewer where there are few. `count`:
// of the losses, `loss` included; `before`: the same without it.
double smoothed(double before, double loss, std::int64_t count);

// "1:05", "12 s"
std::string duration_text(double seconds);
// "4.3 MB", "812 KB"
std::string bytes_text(double bytes);
// "1,234,567"
std::string count_text(std::int64_t count);

}  // namespace coda
