// coda/cpu/panel_gemm.h: our own products, on right operands that pack_panels() made.
//
// One packing and one contract for all kernels: AMX's tile registers (bf16), AVX-512's vectors
// (bf16 by vdpbf16ps, f32), and a model of AMX for tests. Where there is none of them, oneDNN
// multiplies. Sums run over k in one order, whatever the tile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "coda/cpu/gemm.h"

namespace coda::cpu {

enum class PanelKernel : std::uint8_t { none, amx, dot, model, fma };

// The one that this process uses for operands of `dtype`: as CODA_GEMM says, else the rule's
// choice. Throws ProgramError for a name that is unknown or that this machine cannot run.
PanelKernel panel_kernel(DType dtype);

// Why the machine cannot run it; empty: it can.
std::string problem_of(PanelKernel kernel);
// What `coda env` says of products: the kernels for bf16 and f32, and why no faster ones.
std::string describe_products();

std::size_t panel_scratch(const TileShape& shape);

// C[m, n] (+)= A[m, k] · B[k, n]; C is dense. A runs along k in memory; b: of pack_panels(). The
// scratch holds at least panel_scratch(), 64-byte aligned.
void multiply_panels(PanelKernel kernel, const TileShape& shape, const MatrixRef& a,
                     const std::byte* b, float* c, Onto onto, std::span<std::byte> scratch);

}  // namespace coda::cpu
