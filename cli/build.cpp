// cli/build.cpp: a program, schedule or block compiled ahead of time into one file.
#include <filesystem>
#include <iostream>
#include <memory>

#include "cli/commands.h"
#include "cli/pieces.h"
#include "coda/core/error.h"
#include "coda/cuda/bundle.h"
#include "coda/cuda/driver.h"
#include "coda/cuda/tuning.h"

namespace coda {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::string file, name, tile, output;
  std::vector<std::string> sizes;
};

void run_build(const Options& options) {
  const Pieces made = load_pieces(options.file, options.name, options.sizes);
  // A folder gets a file of the schedule's name.
  fs::path path = options.output;
  if (fs::is_directory(path)) path /= made.schedule.name + ".bundle";
  const auto elsewhere = made.pieces.size() > 1 ? cuda::PlanOptions::Elsewhere::choose
                                                : cuda::PlanOptions::Elsewhere::refuse;
  const cuda::Bundle bundle = cuda::build_bundle(
      made.schedule, made.sizes, machine_target(),
      {.tile = options.tile, .elsewhere = elsewhere, .tuning = cuda::Tuning::process()});
  cuda::write_bundle(bundle, path);
  std::cout << path.string() << ": " << made.schedule.name;
  for (const auto& [name, size] : made.sizes) std::cout << " " << name << "=" << size;
  std::cout << ", for " << bundle.target.architecture << ", "
            << cuda::readable_bytes(static_cast<std::int64_t>(fs::file_size(path))) << "\n";
  for (const cuda::Bundle::Kernel& kernel : bundle.kernels) {
    std::cout << "  " << kernel.program.name() << ": " << kernel.plan.path << "\n";
  }
}

}  // namespace

void add_build(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "build", "Compile a program, schedule or block into a file that runs without a compiler");
  command->add_option("file", options->file, "Program file")->required();
  command->add_option("--program,--block", options->name,
                      "The program, block or schedule of the file; the last if not given");
  command->add_option(
      "--size", options->sizes,
      "Sizes of names, for which alone it runs; 128 where neither given nor implied");
  command->add_option("--tile", options->tile,
                      "The kernel to take, like 128x192, or general; chosen if not given");
  command
      ->add_option("-o,--output", options->output,
                   "The file, or a folder for one of the program's name")
      ->required();
  command->footer(
      "Example: coda build gated.coda --program norm_swiglu --size M=16384 K=4096 F=11008 -o "
      "gated.bundle\n"
      "         coda run gated.bundle random");
  command->callback([options] { run_build(*options); });
}

}  // namespace coda
