// cli/verify.cpp: a backend against the reference, as a table.
#include "coda/reference/verify.h"

#include <chrono>
#include <cstdio>
#include <iostream>
#include <memory>
#include <optional>

#include "cli/commands.h"
#include "cli/devices.h"
#include "cli/inputs.h"
#include "cli/progress.h"
#include "cli/sources.h"

namespace coda {
namespace {

struct Options {
  std::string file, name, device = "cpu", dtype, tile;
  std::vector<std::string> sizes;
  int seeds = 8;
  std::uint64_t seed = 1;
  bool json = false;
};

constexpr std::int64_t kDefaultSize = 128;

void run_verify(const Options& options) {
  Runnable runnable = load_runnable(options.file, options.name);
  if (!options.dtype.empty()) runnable = retyped(runnable, dtype_from_flag(options.dtype));
  const Program& program = runnable.program;
  const Sizes sizes = runnable.bundle
                          ? runnable.bundle->sizes
                          : complete_sizes(program, sizes_from(options.sizes), kDefaultSize);
  VerifyOptions verify_options;
  verify_options.seeds = options.seeds;
  verify_options.seed = options.seed;
  verify_options.inputs = {Inputs::normal, Inputs::outliers, Inputs::tiny, Inputs::huge};
  verify_options.layouts = {Layouts::dense};
  if (!runnable.bundle) verify_options.layouts.push_back(Layouts::padded);
  // The reference multiplies matrices by plain loops: large ones take their time.
  using Clock = std::chrono::steady_clock;
  std::optional<Progress> line;
  verify_options.progress = [&line, start = Clock::now()](int done, int all) {
    if (Clock::now() - start < std::chrono::seconds(2)) return;
    if (!line) line.emplace(stderr);
    line->show("verifying: " + std::to_string(done) + " of " + std::to_string(all) + " inputs");
  };
  const std::vector<Verdict> verdicts =
      verify(program, sizes,
             runnable.bundle ? bundle_executor(runnable.bundle)
                             : device_executor(options.device, runnable.schedule, options.tile),
             verify_options);
  line.reset();
  bool passed = true;
  nlohmann::json rows = nlohmann::json::array();
  for (const Verdict& verdict : verdicts) {
    passed = passed && verdict.passed;
    rows.push_back({{"result", verdict.result},
                    {"inputs", name_of(verdict.inputs)},
                    {"layout", name_of(verdict.layout)},
                    {"error", verdict.error},
                    {"naive_error", verdict.naive_error},
                    {"worst_ratio", verdict.worst_ratio},
                    {"passed", verdict.passed},
                    {"why", verdict.why}});
  }
  if (options.json) {
    std::cout << nlohmann::json{{"program", program.name()},
                                {"device", options.device},
                                {"sizes", sizes},
                                {"passed", passed},
                                {"verdicts", rows}}
                     .dump(2)
              << "\n";
  } else {
    std::cout << program.name() << " on " << options.device << ", sizes";
    for (const auto& [name, size] : sizes) std::cout << " " << name << "=" << size;
    std::cout << "\n" << table(verdicts) << (passed ? "passed\n" : "FAILED\n");
  }
  if (!passed) throw CLI::RuntimeError(kRefused);
}

}  // namespace

void add_verify(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("verify",
                                         "Run a program, block or schedule on random inputs and "
                                         "judge it by the double-precision reference");
  command->add_option("file", options->file, "Program file")->required();
  command->add_option("--program,--block", options->name,
                      "The program, block or schedule of the file; the last if not given");
  command->add_option("--size", options->sizes,
                      "Sizes of names; 128 where neither given nor implied");
  command
      ->add_option("--device", options->device, "cpu, cuda, reference (rounded) or exact (double)")
      ->check(CLI::IsMember(device_names()));
  command->add_option("--tile", options->tile,
                      "With --device cuda: the kernel to take, by its tile (128x192) or `general`");
  command->add_option("--dtype", options->dtype, "Verify the bf16 of the text as f32, f64 or f16");
  command->add_option("--seeds", options->seeds, "How many random inputs of each kind")
      ->check(CLI::Range(1, 1000));
  command->add_option("--seed", options->seed, "The first seed");
  command->add_flag("--json", options->json, "The table as JSON");
  command->footer(
      "Example: coda verify programs/norm.coda --program residual_norm --size M=65 N=192 K=100");
  command->callback([options] { run_verify(*options); });
}

}  // namespace coda
