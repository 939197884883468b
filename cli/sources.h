// cli/sources.h: what the commands share: loading program files, choosing a program, sizes, errors
// as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "coda/program/text.h"

namespace coda {

// The program of that name; empty: the last of the file. Throws ProgramError with the nearest name.
Program load_program(const std::string& path, const std::string& name);

// {"M=128", "N=64"} → sizes. Throws ProgramError for anything else.
Sizes sizes_from(const std::vector<std::string>& assignments);

// Every name of a dimension in the program.
std::set<std::string> dimensions_of(const Program& program);

// Sizes of all names of `program`: those given, those that follow from them, and for the rest
// `otherwise`, or 2 where the name only counts parts of dimensions (heads, sequences). Throws
// ProgramError where a given name is none of the program's.
Sizes complete_sizes(const Program& program, Sizes given, std::int64_t otherwise);

// "a,b" → {"a", "b"}; empty → {}.
std::vector<std::string> names_from(const std::string& list);

nlohmann::json errors_json(const ProgramError& error);

}  // namespace coda
