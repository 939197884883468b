// coda/cpu/pair_gemm.h: our own products of bf16, on right operands that pack_pairs() made.
//
// One packing and one contract for three kernels: AMX's tile registers, AVX-512's vdpbf16ps, and a
// model of AMX for tests. Where there is none of them, or the rule says so, oneDNN multiplies.
// Sums run over k in one order, whatever the tile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "coda/cpu/gemm.h"

namespace coda::cpu {

enum class PairKernel : std::uint8_t { none, amx, dot, model };

// The one that this process uses: CODA_BF16 ("onednn", "amx", "dot", "model"), else the rule's
// choice. Throws ProgramError for a name that is unknown or that this machine cannot run.
PairKernel pair_kernel();

// Why the machine cannot run it; empty: it can.
std::string problem_of(PairKernel kernel);
// What `coda env` says of the products of bf16: the kernel, and why no faster one.
std::string describe_products();

std::size_t pair_scratch(const TileShape& shape);

// C[m, n] (+)= A[m, k] · B[k, n]; C is dense. A runs along k in memory; b: of pack_pairs(). The
// scratch holds at least pair_scratch(), 64-byte aligned.
void multiply_pairs(PairKernel kernel, const TileShape& shape, const MatrixRef& a,
                    const std::byte* b, float* c, Onto onto, std::span<std::byte> scratch);

}  // namespace coda::cpu
