// coda/cpu/cpu.h: the CPU backend: a tile executor with a library GEMM and a SIMD epilogue.
//
// Kernels run on the caller's thread and those of the process's one pool; run() returns when the
// results are there. Several threads may run kernels at once: one of them has the pool, the others
// run theirs alone.
#pragma once

#include <memory>
#include <string>

#include "coda/backend/backend.h"

namespace coda::cpu {

struct Options {
  int threads = 0;                // 0: flags::threads(). Results do not depend on it.
  std::int64_t tile_rows = 0;     // 0: chosen
  std::int64_t tile_columns = 0;  // 0: chosen
};

// Throws ProgramError where CODA_ISA is no SIMD target; compile() where CODA_THREADS is no number.
std::unique_ptr<Backend> backend(const Options& options = {});

// The SIMD instruction set in use, like "AVX3" or "AVX2".
std::string simd_target();
// Who multiplies bf16 and f32, and why nobody faster does here.
std::string products();

}  // namespace coda::cpu
