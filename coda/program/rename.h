// coda/program/rename.h: the same computation under other names.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "coda/program/program.h"

namespace coda {

// What is absent or empty stays as it is.
struct Names {
  std::optional<std::string> program = {};
  std::optional<Program::Kind> kind = {};
  std::vector<std::string> params = {}, results = {};  // all of them
  Substitution dims = {};
};

// Throws ProgramError where a type repeats a dimension under the new names.
Program renamed(const Program& program, const Names& names);

// Matches the dimensions of `pattern` against those of `actual`, whatever axes they stand on, and
// extends `dims`; false, and `dims` as it was, where they cannot match.
bool unify(const Type& pattern, const Type& actual, Substitution& dims);
// With `dims` in place of its own; what the program makes for itself keeps clear of the names that
// come in. Throws ProgramError as renamed does.
Program with_dims(const Program& program, Substitution dims);

// Under names that say nothing but the place: equal for programs and blocks that compute the same,
// whatever they, their parameters and results are called.
Program nameless(const Program& program);

}  // namespace coda
