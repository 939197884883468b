// coda/cpu/isa.h: the cap on SIMD targets, for tests.
#pragma once

namespace coda::cpu {

// Applies flags::isa() to our loops and to oneDNN, once in the process and before either runs.
// Throws ProgramError for a name that is none of sse4, avx2, avx512.
void cap_isa();

}  // namespace coda::cpu
