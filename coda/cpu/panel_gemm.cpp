// coda/cpu/panel_gemm.cpp: which kernel multiplies, and the loops of the tile registers.
//
// They walk panels of B, then blocks of k, whose part of the panel stays in the first cache, then
// rows of A. C is loaded and stored once a block of k, exactly.
#include "coda/cpu/panel_gemm.h"

#include <algorithm>
#include <cstring>

#include "coda/core/error.h"
#include "coda/core/flags.h"
#include "coda/cpu/panel_pack.h"
#include "coda/cpu/tile_registers.h"
#include "coda/cpu/vector_gemm.h"

namespace coda::cpu {
namespace {

using Int = std::int64_t;
using Half = std::uint16_t;

// A block of k: 32 columns of it are 32 KiB of B.
constexpr Int kTileDepth = 512;

// A[m, k] in bf16, as in LeftUnits.
struct Left {
  const Half* whole;
  Int step;          // elements from row to row
  Int whole_k;       // multiple of kStep
  const Half* last;  // [m][kStep]; null: there is none
};

Left left_of(const TileShape& shape, const MatrixRef& a, std::span<std::byte> scratch) {
  Left left{reinterpret_cast<const Half*>(a.data), a.row_step, shape.k / kStep * kStep, nullptr};
  if (left.whole_k == shape.k) return left;
  auto* last = reinterpret_cast<Half*>(scratch.data());
  const auto rest = static_cast<std::size_t>(shape.k - left.whole_k);
  for (Int i = 0; i < shape.m; ++i) {
    std::memcpy(last + i * kStep, left.whole + i * left.step + left.whole_k, rest * 2);
    std::memset(last + i * kStep + rest, 0, (kStep - rest) * 2);
  }
  left.last = last;
  return left;
}

// Steps [first, last) of k: from the caller's rows, then perhaps the padded one.
struct Depth {
  Int first, last;
};

// ---- tile registers: two by two tiles of C ----

template <int kRowTiles, int kColumnTiles, class Tiles>
void tile_step(Tiles& tiles, const Half* a, Int a_step, const Half* b) {
  constexpr Int kPairs = 2 * kPanel;
  tiles.template load<4>(a, a_step * 2);
  if constexpr (kRowTiles == 2) tiles.template load<5>(a + kTileRows * a_step, a_step * 2);
  tiles.template load<6>(b, kPairs * 2);
  tiles.template dot<0, 4, 6>();
  if constexpr (kRowTiles == 2) tiles.template dot<2, 5, 6>();
  if constexpr (kColumnTiles == 2) {
    tiles.template load<7>(b + kPairs / 2, kPairs * 2);
    tiles.template dot<1, 4, 7>();
    if constexpr (kRowTiles == 2) tiles.template dot<3, 5, 7>();
  }
}

// Calls op.<tile>(its place in C) for each tile of C.
template <int kRowTiles, int kColumnTiles, class Op>
void each_tile(float* c, Int n, const Op& op) {
  op.template operator()<0>(c);
  if constexpr (kColumnTiles == 2) op.template operator()<1>(c + 16);
  if constexpr (kRowTiles == 2) op.template operator()<2>(c + kTileRows * n);
  if constexpr (kRowTiles == 2 && kColumnTiles == 2)
    op.template operator()<3>(c + kTileRows * n + 16);
}

template <int kRowTiles, int kColumnTiles, class Tiles>
void tile_block(Tiles& tiles, const Left& a, Int row, Depth k, const Half* b, float* c, Int n,
                Onto onto) {
  each_tile<kRowTiles, kColumnTiles>(c, n, [&]<int kTile>(float* at) {
    if (onto == Onto::fresh) {
      tiles.template zero<kTile>();
    } else {
      tiles.template load<kTile>(at, n * 4);
    }
  });
  const Int whole = std::min(k.last, a.whole_k);
  for (Int p = k.first; p < whole; p += kStep) {
    tile_step<kRowTiles, kColumnTiles>(tiles, a.whole + row * a.step + p, a.step, b + p * kPanel);
  }
  if (k.last > a.whole_k) {
    tile_step<kRowTiles, kColumnTiles>(tiles, a.last + row * kStep, kStep, b + a.whole_k * kPanel);
  }
  each_tile<kRowTiles, kColumnTiles>(
      c, n, [&]<int kTile>(float* at) { tiles.template store<kTile>(at, n * 4); });
}

// Tiles of up to 32 rows and 32 columns of C; what is past them is neither computed nor stored.
TileConfig config_for(Int rows, Int columns) {
  TileConfig config;
  const int heights[2] = {static_cast<int>(std::min<Int>(rows, 16)),
                          static_cast<int>(std::max<Int>(rows - 16, 0))};
  const int widths[2] = {4 * static_cast<int>(std::min<Int>(columns, 16)),
                         4 * static_cast<int>(std::max<Int>(columns - 16, 0))};
  for (int i = 0; i < 2; ++i) {
    if (heights[i] > 0) config.set(4 + i, heights[i], kTileBytes);
    if (widths[i] > 0) config.set(6 + i, kStep / 2, widths[i]);
    for (int j = 0; j < 2; ++j) {
      if (heights[i] > 0 && widths[j] > 0) config.set(2 * i + j, heights[i], widths[j]);
    }
  }
  return config;
}

template <class Tiles>
void multiply_tiles(Tiles& tiles, const TileShape& shape, const Left& a, const Half* b, float* c,
                    Onto onto) {
  const Int depth = padded(shape.k, kStep);
  TileConfig current{.palette = 0};
  for (Int j = 0; j < shape.n; j += kPanel) {
    const Int columns = std::min(kPanel, shape.n - j);
    for (Int k = 0; k < depth; k += kTileDepth) {
      const Depth part{k, std::min(depth, k + kTileDepth)};
      const Onto way = k == 0 ? onto : Onto::add;
      for (Int i = 0; i < shape.m; i += 2 * kTileRows) {
        const Int rows = std::min<Int>(2 * kTileRows, shape.m - i);
        if (const TileConfig config = config_for(rows, columns); !(config == current)) {
          tiles.configure(config);
          current = config;
        }
        const auto run = rows > 16
                             ? (columns > 16 ? tile_block<2, 2, Tiles> : tile_block<2, 1, Tiles>)
                             : (columns > 16 ? tile_block<1, 2, Tiles> : tile_block<1, 1, Tiles>);
        run(tiles, a, i, part, b + j * depth, c + i * shape.n + j, shape.n, way);
      }
    }
  }
  tiles.release();
}

// ---- which ----

// The rule, measured: where AMX exists it wins, and where AVX-512 has bf16 its vectors do; in f32
// too. docs/cpu.md has the figures.
constexpr PanelKernel kPreferred[] = {PanelKernel::amx, PanelKernel::dot};
constexpr PanelKernel kPreferredF32[] = {PanelKernel::fma};

struct Named {
  PanelKernel kernel;
  std::string_view name, what;
};
constexpr Named kNamed[] = {{PanelKernel::none, "onednn", "oneDNN"},
                            {PanelKernel::amx, "amx", "AMX"},
                            {PanelKernel::dot, "dot", "vdpbf16ps"},
                            {PanelKernel::model, "model", "a model of AMX"},
                            {PanelKernel::fma, "", "AVX-512"}};

std::string_view what_of(PanelKernel kernel) {
  return std::ranges::find(kNamed, kernel, &Named::kernel)->what;
}

PanelKernel best_of(std::span<const PanelKernel> kernels) {
  const auto found =
      std::ranges::find_if(kernels, [](PanelKernel each) { return problem_of(each).empty(); });
  return found == kernels.end() ? PanelKernel::none : *found;
}

// For bf16.
PanelKernel asked_for(const std::string& name) {
  const auto found = std::ranges::find(kNamed, name, &Named::name);
  if (found == std::ranges::end(kNamed)) {
    throw ProgramError("CODA_GEMM is \"" + name + "\", which is nobody who multiplies",
                       "set it to onednn, amx, dot or model, or unset it to use the best there is");
  }
  const std::string problem = problem_of(found->kernel);
  if (problem.empty()) return found->kernel;
  throw ProgramError("CODA_GEMM is \"" + name + "\", but " + problem,
                     "unset it to use the best there is");
}

struct Chosen {
  PanelKernel bf16, f32;
};

const Chosen& chosen() {
  static const Chosen kernels = [] {
    const std::string name = flags::gemm();
    const PanelKernel f32 = best_of(kPreferredF32);
    if (name.empty()) return Chosen{best_of(kPreferred), f32};
    const PanelKernel bf16 = asked_for(name);
    return Chosen{bf16, bf16 == PanelKernel::none ? PanelKernel::none : f32};
  }();
  return kernels;
}

}  // namespace

PanelKernel panel_kernel(DType dtype) {
  if (dtype == DType::bf16) return chosen().bf16;
  return dtype == DType::f32 ? chosen().f32 : PanelKernel::none;
}

std::string problem_of(PanelKernel kernel) {
  if (kernel == PanelKernel::none || kernel == PanelKernel::model) return "";
  if (const std::string isa = flags::isa(); !isa.empty() && isa != "avx512") {
    return "CODA_ISA caps the SIMD target";
  }
  if (kernel == PanelKernel::amx) return std::string(amx_problem());
  return vector_problem(kernel == PanelKernel::dot ? DType::bf16 : DType::f32);
}

std::string describe_products() {
  std::string text = "bf16 by " + std::string(what_of(panel_kernel(DType::bf16))) + ", f32 by " +
                     std::string(what_of(panel_kernel(DType::f32)));
  if (!flags::gemm().empty()) return text + " (CODA_GEMM)";
  for (const PanelKernel better : kPreferred) {
    if (better == panel_kernel(DType::bf16)) break;
    text += "; " + problem_of(better);
  }
  return text;
}

std::size_t panel_scratch(const TileShape& shape) {
  const bool whole = shape.dtype != DType::bf16 || shape.k % kStep == 0;
  return whole ? 0 : static_cast<std::size_t>(shape.m * kStep * 2);
}

void multiply_panels(PanelKernel kernel, const TileShape& shape, const MatrixRef& a,
                     const std::byte* b, float* c, Onto onto, std::span<std::byte> scratch) {
  const Int units = panel_units(shape.dtype, shape.k);
  if (kernel == PanelKernel::fma) {
    const LeftUnits left{a.data, a.row_step * kUnitBytes, units, nullptr};
    return multiply_vectors(DType::f32, shape.m, shape.n, units, left, b, c, onto);
  }
  const Left left = left_of(shape, a, scratch);
  const auto* right = reinterpret_cast<const Half*>(b);
  switch (kernel) {
    case PanelKernel::amx: {
      AmxTiles tiles;
      return multiply_tiles(tiles, shape, left, right, c, onto);
    }
    case PanelKernel::model: {
      ModelTiles tiles;
      return multiply_tiles(tiles, shape, left, right, c, onto);
    }
    case PanelKernel::dot: {
      const LeftUnits halves{a.data, left.step * 2, left.whole_k / 2,
                             reinterpret_cast<const std::byte*>(left.last)};
      return multiply_vectors(DType::bf16, shape.m, shape.n, units, halves, b, c, onto);
    }
    case PanelKernel::none:
    case PanelKernel::fma:
      break;
  }
  throw InternalError("no kernel for products on panels");
}

}  // namespace coda::cpu
