// cli/bench.cpp: `coda bench`: finds Python with PyTorch, and the benchmarks, and becomes them.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "coda/core/error.h"
#include "coda/core/flags.h"

namespace coda {
namespace {

namespace fs = std::filesystem;

// The folder of this very command, links resolved.
fs::path own_folder() {
  std::error_code error;
  const fs::path command = fs::read_symlink("/proc/self/exe", error);
  return error ? fs::current_path() : command.parent_path();
}

// bench/bench.py of the tree that the command was built in, or of the installed one.
fs::path benchmarks(const fs::path& own) {
  const std::vector<fs::path> candidates = {own / "../bench", own / "../share/coda/bench",
                                            CODA_SOURCE_DIR "/bench"};
  std::string tried;
  for (const fs::path& folder : candidates) {
    const fs::path script = folder / "bench.py";
    if (fs::exists(script)) return fs::weakly_canonical(script);
    tried += (tried.empty() ? "" : ", ") + script.lexically_normal().string();
  }
  throw ProgramError("the benchmarks are not there: " + tried,
                     "run the command in the folder that it was built in");
}

// libcoda_bench.so beside the command, or where it is installed.
fs::path library(const fs::path& own) {
  for (const fs::path& folder : {own, own / "../lib"}) {
    const fs::path file = folder / "libcoda_bench.so";
    if (fs::exists(file)) return fs::weakly_canonical(file);
  }
  throw ProgramError("libcoda_bench.so is not beside the command in " + own.string(),
                     "ninja -C " + own.string() + " coda_bench");
}

// The first python3 that can import torch; where `needs_gpu`, with a GPU in sight.
std::string python(const fs::path& own, bool needs_gpu) {
  std::vector<fs::path> candidates;
  for (const std::string& folder : flags::path())
    candidates.push_back(fs::path(folder) / "python3");
  candidates.push_back(own / "../.venv/bin/python3");
  candidates.push_back(CODA_SOURCE_DIR "/.venv/bin/python3");
  const std::string probe =
      needs_gpu ? "import sys, torch; sys.exit(not torch.cuda.is_available())" : "import torch";
  std::string tried;
  for (const fs::path& candidate : candidates) {
    if (access(candidate.c_str(), X_OK) != 0) continue;
    const std::string file = candidate.string();
    if (file.find_first_of("'\\") != std::string::npos) continue;  // no name for a shell
    if (std::system(("'" + file + "' -c '" + probe + "' >/dev/null 2>&1").c_str()) == 0) {
      return file;
    }
    tried += (tried.empty() ? "" : ", ") + file;
  }
  throw Unsupported(
      "no Python with PyTorch" + std::string(needs_gpu ? " and a GPU" : "") +
          (tried.empty() ? ": there is no python3" : "; tried " + tried) +
          ". Benchmarks run on a machine with an NVIDIA GPU and `pip install torch`; " +
          "`coda bench --dry-run` lists them without a GPU",
      "");
}

// NOTE: does not return: the process becomes Python's.
void run(const std::vector<std::string>& words) {
  const auto has = [&](const char* option) {
    return std::find(words.begin(), words.end(), option) != words.end();
  };
  const fs::path own = own_folder();
  std::vector<std::string> command = {python(own, !has("--dry-run")), benchmarks(own).string()};
  if (!has("--library")) command.insert(command.end(), {"--library", library(own).string()});
  command.insert(command.end(), words.begin(), words.end());
  std::vector<char*> arguments;
  for (std::string& word : command) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  execv(arguments[0], arguments.data());
  throw ProgramError(command[0] + " does not start: " + std::strerror(errno),
                     "run it by hand: " + command[0] + " " + command[1]);
}

}  // namespace

void add_bench(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "bench", "Time programs on the GPU beside cuBLAS and other rivals, checked first");
  auto words = std::make_shared<std::vector<std::string>>();
  // Python reads the options: see bench/bench.py.
  command->prefix_command();
  command->footer(
      "What to time: parts (gemm fused weights rope head stream layer compile), cases "
      "(residual_norm), or FILE.coda:program with --size; all parts if nothing is named.\n"
      "Options: --device cuda, --layer D, --head, --width D, --tile T, --tiles, --rivals a,b, "
      "--quick, --no-check, --budget SECONDS, --dry-run, --output FILE.json.\n"
      "Example: coda bench --quick residual_norm\n"
      "         coda bench --dry-run fused");
  command->callback([command] { run(command->remaining()); });
}

}  // namespace coda
