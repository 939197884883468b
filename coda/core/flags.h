// coda/core/flags.h: the only reader of the environment.
#pragma once

#include <string>
#include <vector>

namespace coda::flags {

// CODA_THREADS: threads of the CPU backend; all cores that this process may use where it is unset.
// At least 1. Throws ProgramError where the variable is not a positive number.
int threads();

// True where `descriptor` (1 or 2) is a terminal and NO_COLOR is unset.
bool color(int descriptor);

// CODA_ISA: caps the SIMD target ("avx2", "avx512", …) for tests; empty: the best that the machine
// has.
std::string isa();

// CODA_GEMM: who multiplies on the CPU ("onednn", "amx", "dot", "model"), for checks; empty: the
// fastest that the machine has.
std::string gemm();

// CODA_CACHE: the folder of compiled kernels; unset: coda/ in XDG_CACHE_HOME, or in ~/.cache.
// Empty: none, by CODA_CACHE=off or for want of a home.
std::string cache();

// CODA_NVRTC: the file libnvrtc.so.…; empty: it is looked for.
std::string nvrtc();

// NVTX_INJECTION64_PATH: set by a profiler that wants names of ranges; empty: there is none.
std::string nvtx_injection();

// CUDA_HOME, else CUDA_PATH; empty where both are unset.
std::string cuda_home();

// PATH, folder by folder.
std::vector<std::string> path();

// Where Python environments are, likeliest first: VIRTUAL_ENV, CONDA_PREFIX, ~/.local, and the
// prefix of each folder of PATH that has a python3.
std::vector<std::string> python_prefixes();

}  // namespace coda::flags
