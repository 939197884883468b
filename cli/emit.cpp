// cli/emit.cpp: the page of CUDA that a program becomes, and what the compilers make of it.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>

#include "cli/commands.h"
#include "cli/pieces.h"
#include "coda/core/error.h"
#include "coda/core/file.h"
#include "coda/core/flags.h"
#include "coda/cuda/cache.h"
#include "coda/cuda/driver.h"

namespace coda {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::string file, name, tile, output;
  std::vector<std::string> sizes;
  bool ptx = false, sass = false, cubin = false;
};

// What stands beside the page, on the error output: the page itself can go into a file.
void say(const cuda::Plan& plan) {
  std::cerr << "program " << plan.name << ": " << plan.path << "\n";
  for (const cuda::Launch& launch : plan.launches) std::cerr << "  " << launch_text(launch) << "\n";
  for (const std::string& note : plan.notes) std::cerr << "  " << note << "\n";
}

void say(const cuda::Compiled& compiled) {
  for (const cuda::Compiled::Entry& entry : compiled.entries) {
    std::cerr << "  " << entry.name << ": " << entry.registers << " registers";
    if (entry.spill_stores + entry.spill_loads > 0) {
      std::cerr << ", spills " << entry.spill_stores << " bytes and reads " << entry.spill_loads;
    }
    std::cerr << "\n";
  }
}

// The toolkit's disassembler; throws ProgramError where there is none.
fs::path disassembler() {
  std::vector<fs::path> folders;
  for (const std::string& folder : flags::path()) folders.emplace_back(folder);
  // A wheel's, beside NVRTC; a toolkit's.
  folders.push_back(fs::path(cuda::nvrtc().path).parent_path().parent_path() / "bin");
  if (const std::string home = flags::cuda_home(); !home.empty()) {
    folders.push_back(fs::path(home) / "bin");
  }
  folders.emplace_back("/usr/local/cuda/bin");
  for (const fs::path& folder : folders) {
    if (access((folder / "nvdisasm").c_str(), X_OK) == 0) return folder / "nvdisasm";
  }
  throw ProgramError(
      "nvdisasm, which makes machine code readable, was not found",
      "install it with `pip install nvidia-cuda-nvdisasm` and add its folder to PATH, "
      "or install a CUDA toolkit and set CUDA_HOME to its folder");
}

// Runs `tool` on a cubin; what it prints goes to our output.
void disassemble(const fs::path& tool, const std::string& cubin) {
  std::string path = (fs::temp_directory_path() / "coda-XXXXXX").string();
  const int descriptor = mkstemp(path.data());
  if (descriptor < 0) {
    throw ProgramError("cannot write into " + fs::temp_directory_path().string(),
                       "set TMPDIR to a folder that can be written");
  }
  close(descriptor);
  write_file(path, cubin);
  std::cout.flush();
  const pid_t child = fork();
  if (child == 0) {
    execl(tool.c_str(), tool.c_str(), "--print-code", path.c_str(), nullptr);
    _exit(127);
  }
  int status = 0;
  if (child > 0) waitpid(child, &status, 0);
  fs::remove(path);
  if (child < 0 || status != 0) throw Unsupported(tool.string() + " failed on the cubin", "");
}

void emit(const Piece& piece, const Options& options) {
  const cuda::Target target = machine_target();
  const cuda::Plan plan = machine_plan(piece, options.tile);
  say(plan);
  const cuda::CompileOptions compiler{.architecture = target.architecture};
  if (options.ptx) {
    std::cout << cuda::compile_ptx(plan.name, plan.page, cuda::device_files(), compiler);
    return;
  }
  if (!options.sass && !options.cubin) {
    std::cout << plan.page;
    return;
  }
  const cuda::Cached cached =
      cuda::Cache::process().get(plan.name, plan.page, cuda::device_files(), compiler);
  if (!cached.note.empty()) std::cerr << cached.note << "\n";
  say(*cached.kernel);
  if (options.cubin) write_file(options.output, cached.kernel->cubin);
  if (options.sass) disassemble(disassembler(), cached.kernel->cubin);
}

void run_emit(const Options& options) {
  const std::vector<Piece> pieces = load_pieces(options.file, options.name, options.sizes).pieces;
  if (options.cubin && pieces.size() > 1) {
    throw ProgramError("`" + (options.name.empty() ? options.file : options.name) + "` is " +
                           std::to_string(pieces.size()) + " kernels, and a cubin holds one",
                       "name one program with --program");
  }
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (pieces.size() > 1) {
      std::cout << (i == 0 ? "" : "\n") << "// ---- kernel " << i + 1 << " of " << pieces.size()
                << ": " << pieces[i].program.name() << " ----\n\n";
    }
    emit(pieces[i], options);
  }
}

}  // namespace

void add_emit(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "emit", "Print the CUDA that a program becomes, for this machine's GPU or else an H200");
  command->add_option("file", options->file, "Program file")->required();
  command->add_option("--program,--block", options->name,
                      "Program, block or schedule; the last of the file if not given");
  command->add_option("--size", options->sizes,
                      "Sizes of names; 128 where neither given nor implied");
  command->add_option("--tile", options->tile,
                      "That candidate, like 128x192, or general; chosen if not given");
  CLI::Option* ptx = command->add_flag("--ptx", options->ptx, "PTX in place of CUDA");
  CLI::Option* sass =
      command->add_flag("--sass", options->sass, "Machine code in place of CUDA; needs nvdisasm");
  CLI::Option* cubin =
      command->add_flag("--cubin", options->cubin, "Write the compiled kernel to --output");
  CLI::Option* output = command->add_option("-o,--output", options->output, "File for --cubin");
  ptx->excludes(sass)->excludes(cubin);
  sass->excludes(cubin);
  cubin->needs(output);
  output->needs(cubin);
  command->footer("Example: coda emit gated.coda --program norm_swiglu --size M=16384 K=4096");
  command->callback([options] { run_emit(*options); });
}

}  // namespace coda
