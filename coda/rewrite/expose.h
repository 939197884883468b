// coda/rewrite/expose.h: an intermediate value made a result, so that any backend shows what it
// computed.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "coda/program/program.h"

namespace coda {

// The same program with the value of that name as one more result, in the type that it has on chip.
// A name that is a result already leaves the program as it is. Throws ProgramError with the nearest
// name where there is no such value.
Program expose(const Program& program, std::string_view name);

}  // namespace coda
