// cli/stop_signals.cpp: the handlers behind StopSignals.
#include "cli/stop_signals.h"

#include <csignal>

namespace coda {
namespace {

volatile std::sig_atomic_t stop_signal = 0;

void restore_signals() {
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

}  // namespace

StopSignals::StopSignals() {
  stop_signal = 0;
  const auto ask = [](int signal) {
    stop_signal = signal;
    restore_signals();
  };
  std::signal(SIGINT, ask);
  std::signal(SIGTERM, ask);
}

StopSignals::~StopSignals() {
  restore_signals();
}

int StopSignals::received() {
  return stop_signal;
}

}  // namespace coda
