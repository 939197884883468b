// cli/generate.cpp: `coda generate`: text from a model that `coda train` saved.
#include <cstdio>
#include <memory>

#include "cli/commands.h"
#include "cli/progress.h"
#include "coda/cpu/cpu.h"
#include "coda/model/generate.h"

namespace coda {
namespace {

struct Arguments {
  std::string model = "coda-model", prompt = "\n";
  std::int64_t bytes = 400;
  SamplingOptions sampling;
  int threads = 0;
};

void run(const Arguments& a) {
  const ModelConfig config = load_config(a.model);
  Arena parameters(ArenaLayout(config), DType::f32);
  load_parameters(a.model, parameters);
  cpu::Options cpu;
  cpu.threads = a.threads;
  const std::unique_ptr<Backend> backend = cpu::backend(cpu);
  Reader reader(config, parameters, *backend);
  for (const char byte : a.prompt) std::fputc(printable(byte), stdout);
  generate(reader, a.prompt, a.bytes, a.sampling, [](char byte) {
    std::fputc(printable(byte), stdout);
    std::fflush(stdout);
    return std::ferror(stdout) == 0;
  });
  std::fputc('\n', stdout);
}

}  // namespace

void add_generate(CLI::App& app) {
  auto arguments = std::make_shared<Arguments>();
  Arguments& a = *arguments;
  CLI::App* command = app.add_subcommand("generate", "Write text with a trained model");
  command->add_option("--model", a.model, "The folder that `coda train --output` wrote")
      ->capture_default_str();
  command->add_option("--prompt", a.prompt, "The text to go on from");
  command->add_option("--bytes", a.bytes, "Bytes to write")
      ->check(number_between(0, 1e9))
      ->capture_default_str();
  command
      ->add_option("--temperature", a.sampling.temperature,
                   "Below 1 bolder in what is likely, 0: always the likeliest byte")
      ->check(number_between(0, 1000))
      ->capture_default_str();
  command->add_option("--top-k", a.sampling.top_k, "Choose among so many bytes, 0: all")
      ->check(number_between(0, 256))
      ->capture_default_str();
  command->add_option("--seed", a.sampling.seed, "Of the choices")->capture_default_str();
  command->add_option("--threads", a.threads, "Threads (default: CODA_THREADS, or all cores)")
      ->check(number_between(1, 1024));
  command->footer(
      "Example: coda generate --model coda-model --prompt \"And the king\" --bytes 200");
  command->callback([arguments] { run(*arguments); });
}

}  // namespace coda
