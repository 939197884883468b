// cli/commands.h: the subcommands of coda. Each adds itself, with its help and an example, to the
// application.
#pragma once

#include <CLI/CLI.hpp>

namespace coda {

void add_check(CLI::App& app);
void add_fmt(CLI::App& app);
void add_print(CLI::App& app);
void add_grad(CLI::App& app);
void add_rewrite(CLI::App& app);
void add_explain(CLI::App& app);
void add_emit(CLI::App& app);
void add_tune(CLI::App& app);
void add_build(CLI::App& app);
void add_verify(CLI::App& app);
void add_run(CLI::App& app);
void add_train(CLI::App& app);
void add_evaluate(CLI::App& app);
void add_report(CLI::App& app);
void add_generate(CLI::App& app);
void add_bench(CLI::App& app);
void add_env(CLI::App& app);

// Accepts numbers in [low, high], and says so of anything else. NOTE: CLI11's own ranges accept
// NaN.
CLI::Validator number_between(double low, double high);

// Exit codes, for scripts. A command ends early with `throw CLI::RuntimeError(code)`.
enum ExitCode : int {
  kOk = 0,
  kRefused =
      1,  // the text, the inputs or the files are wrong; a verification or a format check failed
  kUsage = 2,              // the command line is wrong
  kUnsupported = 3,        // this backend cannot do it
  kInternal = 70,          // a fault of ours
  kStoppedBySignal = 128,  // and the signal's number
  kInterrupted = 130,
};

}  // namespace coda
