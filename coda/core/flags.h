// coda/core/flags.h: the only reader of the environment.
#pragma once

#include <string>

namespace coda::flags {

// CODA_THREADS: threads of the CPU backend; all cores that this process may use where it is unset.
// At least 1. Throws ProgramError where the variable is not a positive number.
int threads();

// True where `descriptor` (1 or 2) is a terminal and NO_COLOR is unset.
bool color(int descriptor);

// CODA_ISA: caps the SIMD target ("avx2", "avx512", …) for tests; empty: the best that the machine
// has.
std::string isa();

}  // namespace coda::flags
