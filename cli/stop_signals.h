// cli/stop_signals.h: Ctrl-C and SIGTERM as a request that a loop answers when it suits it.
#pragma once

namespace coda {

// While it lives, the first Ctrl-C or SIGTERM asks the loop to stop, and a second one kills.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  static int received();  // 0: none; else SIGINT or SIGTERM
};

}  // namespace coda
