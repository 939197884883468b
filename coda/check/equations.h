// coda/check/equations.h: equations between extents, and the size that one of them gives a name.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coda/program/dims.h"

namespace coda {

// left = the sum of `right`, or = `value` where that is given.
struct Equation {
  Dim left;
  std::vector<Dim> right;
  std::optional<std::int64_t> value;
  std::string what;  // "axis 1 of w", "the pieces of split"
  int node = -1;     // the statement it comes from, or
  int tensor = -1;   // the tensor
};

std::set<std::string> names_in(const Equation& equation);
std::string right_text(const Equation& equation);

// The extent where all its names have sizes and all its quotients are whole.
std::optional<std::int64_t> known_extent(const Dim& dim, const Sizes& sizes);

// The real number ≥ 0 that `unknown` must be. nullopt where the equation leaves it open (another
// unknown name, a factor of extent 0, a block count, several powers); negative where no number
// fits.
std::optional<double> solve_for(const Equation& equation, const std::string& unknown,
                                const Sizes& sizes);

}  // namespace coda
