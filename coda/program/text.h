// coda/program/text.h: .coda text to Programs and Schedules, and back.
//
// parse reports every error of a file in one ProgramError; parse(print(p)) == p for every Program
// and Schedule; format keeps comments and sugar. Texts are UTF-8. Any thread may call all of them.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coda/program/program.h"
#include "coda/program/schedule.h"

namespace coda {

inline constexpr int kLanguageVersion =
    1;  // `coda 1` on a file's first line; without that line a text means version 1

// A parsed file. Programs and blocks in text order, those that `use` brought in first.
struct Module {
  int version = kLanguageVersion;
  std::vector<Program> programs;
  std::size_t imported = 0;              // how many of them came by `use`
  std::vector<Schedule> schedules = {};  // the file's own, in text order

  // Throws ProgramError with the nearest names. An empty name: the only, or the last, program of
  // the file itself. The Program lives in the Module.
  const Program& find(std::string_view name) const;
  // nullptr: there is none. An empty name: the last item of the file itself, where that is a
  // schedule.
  const Schedule* find_schedule(std::string_view name) const;
};

// Text of the file that a `use "name"` asks for, or nullopt.
using Loader = std::function<std::optional<std::string>(std::string_view name)>;

// `file` names the text in messages. The default loader knows only the embedded programs/
// (library.h).
Module parse(std::string_view text, std::string_view file, const Loader& loader = {});
// `use` looks beside the file, then among the embedded programs; those use each other. A path that
// does not exist but names an embedded program ("programs/llama.coda", "llama.coda") reads that.
Module parse_file(const std::string& path);

// Canonical text, version line included: one that `format` leaves as it is.
std::string print(const Program& program);
// Without what `use` brought in: calls are already inlined.
std::string print(const Module& module);
// Their programs, those that compute the same once, then the schedules. One text that parses to
// them: names of schedules differ.
std::string print(std::span<const Schedule> schedules);
std::string print(const Schedule& schedule);
// One node as print shows it: its statement, or the expression that stands in another's statement.
std::string print_node(const Program& program, std::size_t node);

// The canonical layout of a text that parses (syntactically): `coda fmt`. Throws ProgramError with
// every mistake of one that does not.
std::string format(std::string_view text, std::string_view file);

}  // namespace coda
