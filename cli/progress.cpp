// cli/progress.cpp: a progress line, and numbers as people read them.
#include "cli/progress.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

namespace coda {
namespace {

using Clock = std::chrono::steady_clock;

std::string number(const char* format, double value) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), format, value);
  return text.data();
}

}  // namespace

Progress::Progress(std::FILE* stream)
    : stream_(stream), terminal_(isatty(fileno(stream)) == 1), next_(Clock::now()) {}

Progress::~Progress() {
  if (width_ > 0) std::fputc('\n', stream_);
}

void Progress::write(const std::string& line) {
  if (terminal_) {
    // Blanks wipe what a longer line left.
    const std::size_t blanks = width_ > line.size() ? width_ - line.size() : 0;
    std::fprintf(stream_, "\r%s%s", line.c_str(), std::string(blanks, ' ').c_str());
    width_ = line.size();
  } else {
    std::fprintf(stream_, "%s\n", line.c_str());
  }
  std::fflush(stream_);
}

void Progress::show(const std::string& line) {
  const auto now = Clock::now();
  if (now < next_) return;
  next_ = now + (terminal_ ? std::chrono::milliseconds(200) : std::chrono::milliseconds(5000));
  write(line);
}

void Progress::finish(const std::string& line) {
  write(line);
  if (terminal_) std::fputc('\n', stream_);
  width_ = 0;
}

double smoothed(double before, double loss, std::int64_t count) {
  const double weight = std::max(0.05, 3.0 / (static_cast<double>(count) + 2));
  return before + weight * (loss - before);
}

std::string duration_text(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::llround(std::max(seconds, 0.0)));
  if (whole < 60) return std::to_string(whole) + " s";
  const std::string rest = std::to_string(whole % 60);
  return std::to_string(whole / 60) + ":" + (rest.size() < 2 ? "0" : "") + rest;
}

std::string bytes_text(double bytes) {
  if (bytes < 1e3) return number("%.0f bytes", bytes);
  if (bytes < 1e6) return number("%.1f KB", bytes / 1e3);
  if (bytes < 1e9) return number("%.1f MB", bytes / 1e6);
  return number("%.2f GB", bytes / 1e9);
}

std::string count_text(std::int64_t count) {
  std::string text = std::to_string(count);
  for (std::size_t at = text.size(); at > 3; at -= 3) text.insert(at - 3, 1, ',');
  return text;
}

}  // namespace coda
