// tests/train_command.h: `coda train` and its kin as processes, for tests that also interrupt them.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "coda/core/file.h"

namespace coda {

#ifdef CODA_BINARY

namespace fs = std::filesystem;

struct Outcome {
  int code = -1;
  std::string out, err;
};

// A folder of this process, gone at its end.
struct Folder {
  fs::path path = fs::temp_directory_path() / ("coda_train_" + std::to_string(getpid()));
  Folder() { fs::create_directories(path); }
  ~Folder() { fs::remove_all(path); }
};

inline fs::path folder() {
  static const Folder made;
  return made.path;
}

inline std::string path(const std::string& name) {
  return (folder() / name).string();
}

// A running build/coda. Its output goes to the files `out` and `err` of the folder.
inline pid_t start_coda(std::vector<std::string> arguments) {
  const std::string out = path("out"), err = path("err");
  fs::remove(out);
  fs::remove(err);
  const pid_t child = fork();
  if (child != 0) return child;
  if (std::freopen(out.c_str(), "w", stdout) == nullptr) _exit(99);
  if (std::freopen(err.c_str(), "w", stderr) == nullptr) _exit(99);
  arguments.insert(arguments.begin(), CODA_BINARY);
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  execv(CODA_BINARY, argv.data());
  _exit(99);
}

inline Outcome wait_for(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  Outcome outcome;
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  outcome.out = read_file(path("out"));
  outcome.err = read_file(path("err"));
  return outcome;
}

// Waits until `holds`, half a minute at most.
template <class Condition>
void wait_until(const Condition& holds) {
  for (int i = 0; i < 30000 && !holds(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// Runs build/coda; sends `signals`, 10 ms apart, once the output holds the text `interrupt`.
inline Outcome coda_command(std::vector<std::string> arguments, const std::string& interrupt = "",
                            const std::vector<int>& signals = {SIGINT}) {
  const pid_t child = start_coda(std::move(arguments));
  if (!interrupt.empty()) {
    wait_until([&] {
      return fs::exists(path("out")) && read_file(path("out")).find(interrupt) != std::string::npos;
    });
    for (const int signal : signals) {
      kill(child, signal);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  return wait_for(child);
}

inline std::string text_file(const std::string& name, std::size_t bytes) {
  std::string text;
  while (text.size() < bytes) text += "the cat sat on the mat and the rat ran at the hat.\n";
  text.resize(bytes);
  write_file(path(name), text);
  return path(name);
}

inline std::vector<std::string> small(std::vector<std::string> more) {
  std::vector<std::string> arguments = {"train",      "--data",  text_file("text.txt", 3000),
                                        "--layers",   "1",       "--width",
                                        "32",         "--heads", "2",
                                        "--kv-heads", "1",       "--seq",
                                        "32",         "--batch", "4",
                                        "--lr",       "0.01"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

#endif

}  // namespace coda
