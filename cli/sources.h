// cli/sources.h: what the commands share: loading program files, choosing a program, sizes, errors
// as JSON.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coda/program/text.h"

namespace coda {

namespace cuda {
struct Bundle;
}

// The program of that name; empty: the last of the file. Throws ProgramError with the nearest name.
Program load_program(const std::string& path, const std::string& name);

// What runs under a name: a program or block, or a schedule, of which `program` is the whole as one
// block.
struct Runnable {
  Program program;
  std::optional<Schedule> schedule = {};
  std::shared_ptr<const cuda::Bundle> bundle = nullptr;  // what it is compiled into, for one device
};
// Of that name; empty: the last of the file. A bundle (coda build) is its schedule. Throws
// ProgramError with the nearest name.
Runnable load_runnable(const std::string& path, const std::string& name);
// With every bf16 as `dtype`.
Runnable retyped(const Runnable& runnable, DType dtype);
// With the value of that name, or what a step of the schedule stores under it, as one more result.
// Throws ProgramError with the nearest name where there is none.
Runnable exposed(const Runnable& runnable, const std::string& name);

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
