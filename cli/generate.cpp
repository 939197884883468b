// cli/generate.cpp: `coda generate`: text from a model that `coda train` saved, or token ids.
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>
#include <utility>

#include "cli/commands.h"
#include "cli/printable.h"
#include "cli/stop_signals.h"
#include "coda/core/error.h"
#include "coda/cpu/cpu.h"
#include "coda/model/generate.h"

namespace coda {
namespace {

constexpr std::int64_t kBytes = 256;  // a model of so many tokens reads and writes bytes

struct Arguments {
  std::string model = "coda-model", prompt = "\n";
  std::vector<std::int64_t> prompt_ids;
  std::int64_t tokens = 400;
  SamplingOptions sampling;
  int threads = 0;
};

// A stream that nobody reads any more ends the program as the signal would; another failure is an
// error.
void require_written() {
  if (std::ferror(stdout) == 0) return;
  if (errno == EPIPE) throw CLI::RuntimeError(kStoppedBySignal + SIGPIPE);
  throw ProgramError(std::string("cannot write the text: ") + std::strerror(errno),
                     "write to a place with space");
}

bool show(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
  require_written();
  return StopSignals::received() == 0;
}

void write_text(Reader& reader, const Arguments& a) {
  PrintableText printable;
  for (const char byte : a.prompt) show(printable.add(byte));
  generate(reader, a.prompt, a.tokens, a.sampling,
           [&](char byte) { return show(printable.add(byte)); });
  show(printable.finish() + "\n");
}

void write_ids(Reader& reader, const Arguments& a, const ModelConfig& config) {
  for (const std::int64_t id : a.prompt_ids) {
    if (id >= 0 && id < config.vocabulary) continue;
    throw ProgramError("--prompt-ids has " + std::to_string(id) + ", and the model " +
                           std::to_string(config.vocabulary) + " tokens",
                       "give ids from 0 to " + std::to_string(config.vocabulary - 1));
  }
  const char* between = "";
  generate_ids(reader, a.prompt_ids, a.tokens, a.sampling, [&](std::int64_t id) {
    return show(std::exchange(between, " ") + std::to_string(id));
  });
  show("\n");
}

void run(const Arguments& a) {
  const ModelConfig config = load_config(a.model);
  if (config.vocabulary != kBytes && a.prompt_ids.empty()) {
    throw ProgramError("the model in " + a.model + " has " + std::to_string(config.vocabulary) +
                           " tokens, and only one of 256 reads and writes bytes",
                       "give the prompt as token ids, --prompt-ids 1,2,3: the ids that follow are "
                       "written");
  }
  Arena parameters(ArenaLayout(config), DType::f32);
  load_parameters(a.model, parameters);
  cpu::Options cpu;
  cpu.threads = a.threads;
  const std::unique_ptr<Backend> backend = cpu::backend(cpu);
  Reader reader(config, parameters, *backend);
  const StopSignals signals;
  if (a.prompt_ids.empty()) {
    write_text(reader, a);
  } else {
    write_ids(reader, a, config);
  }
  const int signal = StopSignals::received();
  if (signal != 0) throw CLI::RuntimeError(kStoppedBySignal + signal);
}

}  // namespace

void add_generate(CLI::App& app) {
  auto arguments = std::make_shared<Arguments>();
  Arguments& a = *arguments;
  CLI::App* command = app.add_subcommand("generate", "Write text with a trained model");
  command->add_option("--model", a.model, "The folder that `coda train --output` wrote")
      ->capture_default_str();
  CLI::Option* prompt = command->add_option("--prompt", a.prompt, "The text to go on from");
  command
      ->add_option("--prompt-ids", a.prompt_ids,
                   "Token ids to go on from, 1,2,3: what follows is written as ids too")
      ->delimiter(',')
      ->excludes(prompt);
  command->add_option("--bytes,--tokens", a.tokens, "Bytes, or tokens, to write")
      ->check(number_between(0, 1e9))
      ->capture_default_str();
  command
      ->add_option("--temperature", a.sampling.temperature,
                   "Below 1 bolder in what is likely, 0: always the likeliest")
      ->check(number_between(0, 1000))
      ->capture_default_str();
  command->add_option("--top-k", a.sampling.top_k, "Choose among so many of the likeliest, 0: all")
      ->check(number_between(0, 1e9))
      ->capture_default_str();
  command
      ->add_option("--top-p", a.sampling.top_p,
                   "Of these, among the fewest likeliest that together are so probable")
      ->check(number_between(0, 1))
      ->capture_default_str();
  command->add_option("--seed", a.sampling.seed, "Of the choices")->capture_default_str();
  command->add_option("--threads", a.threads, "Threads (default: CODA_THREADS, or all cores)")
      ->check(number_between(1, 1024));
  command->footer(
      "Ctrl-C ends the text. Bytes that are no UTF-8 are shown as U+FFFD.\n"
      "Example: coda generate --model coda-model --prompt \"And the king\" --bytes 200");
  command->callback([arguments] { run(*arguments); });
}

}  // namespace coda
