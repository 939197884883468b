// coda/cpu/pair_gemm.cpp: which kernel multiplies bf16, and the loops of each over a tile.
//
// Both walk panels of B, then blocks of k, whose part of the panel stays in the first cache, then
// rows of A. C is loaded and stored once a block of k, exactly.
#include "coda/cpu/pair_gemm.h"

// NOTE: g++ 12 warns of the intrinsics' own undefined values.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop

#include <algorithm>
#include <cstring>

#include "coda/core/error.h"
#include "coda/core/flags.h"
#include "coda/cpu/pair_pack.h"
#include "coda/cpu/tile_registers.h"

namespace coda::cpu {
namespace {

using Int = std::int64_t;
using Half = std::uint16_t;

// Blocks of k. Of tiles: 32 columns of it are 32 KiB of B. Of vectors: B streams from the second
// cache as fast as it is used, and C is touched less often.
constexpr Int kTileDepth = 512;
constexpr Int kDotDepth = 2048;

// A[m, k] in two parts: what lies whole in the caller's memory, and the last, zero-padded step.
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

// ---- vdpbf16ps: six rows by 64 columns of C in vector registers ----

#define CODA_DOT __attribute__((target("avx512f,avx512bw,avx512bf16")))

constexpr int kDotRows = 6;

struct DotStep {
  const Half* a;
  Int a_step;
  const Half* b[2];  // two panels; the second may be the first again
  Int pairs;
};

template <int kRows, int kVectors>
CODA_DOT inline void dot_step(__m512 (&sums)[kRows][kVectors], const DotStep& step) {
  for (Int p = 0; p < step.pairs; ++p) {
    __m512bh b[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      b[v] = reinterpret_cast<__m512bh>(
          _mm512_loadu_si512(step.b[v / 2] + p * 2 * kPanel + v % 2 * kPanel));
    }
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      int pair = 0;
      __builtin_memcpy(&pair, step.a + r * step.a_step + 2 * p, sizeof pair);
      const auto a = reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[r][v] = _mm512_dpbf16_ps(sums[r][v], a, b[v]);
    }
  }
}

// Up to six rows × 16 kVectors columns of C; of the last `columns` are there.
template <int kRows, int kVectors>
CODA_DOT void dot_block(const Left& a, Int row, Depth k, const Half* const* b, float* c, Int n,
                        Int columns, Onto onto) {
  __m512 sums[kRows][kVectors];
  __mmask16 mask[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    const Int here = columns - 16 * v;
    mask[v] = here >= 16 ? 0xffff : here <= 0 ? 0 : static_cast<__mmask16>((1 << here) - 1);
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      sums[r][v] = onto == Onto::fresh ? _mm512_setzero_ps()
                                       : _mm512_maskz_loadu_ps(mask[v], c + r * n + 16 * v);
    }
  }
  const Int whole = k.last < a.whole_k ? k.last : a.whole_k;
  const auto run = [&](const Half* from, Int step, Int first, Int last) CODA_DOT {
    dot_step<kRows, kVectors>(
        sums, {from, step, {b[0] + first * kPanel, b[1] + first * kPanel}, (last - first) / 2});
  };
  if (whole > k.first) run(a.whole + row * a.step + k.first, a.step, k.first, whole);
  if (k.last > a.whole_k) run(a.last + row * kStep, kStep, a.whole_k, a.whole_k + kStep);
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      _mm512_mask_storeu_ps(c + r * n + 16 * v, mask[v], sums[r][v]);
    }
  }
}

using DotBlock = void (*)(const Left&, Int, Depth, const Half* const*, float*, Int, Int, Onto);

DotBlock dot_block_of(Int rows, Int columns) {
  static constexpr DotBlock blocks[kDotRows][2] = {
      {dot_block<1, 2>, dot_block<1, 4>}, {dot_block<2, 2>, dot_block<2, 4>},
      {dot_block<3, 2>, dot_block<3, 4>}, {dot_block<4, 2>, dot_block<4, 4>},
      {dot_block<5, 2>, dot_block<5, 4>}, {dot_block<6, 2>, dot_block<6, 4>}};
  return blocks[rows - 1][columns > kPanel ? 1 : 0];
}

void multiply_dot(const TileShape& shape, const Left& a, const Half* b, float* c, Onto onto) {
  const Int depth = padded(shape.k, kStep);
  for (Int j = 0; j < shape.n; j += 2 * kPanel) {
    const Int columns = std::min(2 * kPanel, shape.n - j);
    const Half* const first = b + j * depth;
    const Half* const panels[2] = {first, columns > kPanel ? first + kPanel * depth : first};
    for (Int k = 0; k < depth; k += kDotDepth) {
      const Depth part{k, std::min(depth, k + kDotDepth)};
      const Onto way = k == 0 ? onto : Onto::add;
      for (Int i = 0; i < shape.m; i += kDotRows) {
        const Int rows = std::min<Int>(kDotRows, shape.m - i);
        dot_block_of(rows, columns)(a, i, part, panels, c + i * shape.n + j, shape.n, columns, way);
      }
    }
  }
}

// ---- which ----

// The rule, measured: where AMX exists it wins, and where vdpbf16ps exists it does without.
// docs/cpu.md has the figures.
constexpr PairKernel kPreferred[] = {PairKernel::amx, PairKernel::dot};

struct Named {
  PairKernel kernel;
  std::string_view name, what;
};
constexpr Named kNamed[] = {{PairKernel::none, "onednn", "oneDNN"},
                            {PairKernel::amx, "amx", "AMX, packed in pairs"},
                            {PairKernel::dot, "dot", "vdpbf16ps, packed in pairs"},
                            {PairKernel::model, "model", "a model of AMX, for tests"}};

PairKernel choose() {
  const std::string asked = flags::bf16();
  if (asked.empty()) {
    for (const PairKernel kernel : kPreferred) {
      if (problem_of(kernel).empty()) return kernel;
    }
    return PairKernel::none;
  }
  for (const Named& each : kNamed) {
    if (each.name != asked) continue;
    const std::string problem = problem_of(each.kernel);
    if (problem.empty()) return each.kernel;
    throw ProgramError("CODA_BF16 is \"" + asked + "\", but " + problem,
                       "unset it to use the best there is");
  }
  throw ProgramError("CODA_BF16 is \"" + asked + "\", which is no way to multiply bf16",
                     "set it to onednn, amx, dot or model, or unset it to use the best there is");
}

}  // namespace

PairKernel pair_kernel() {
  static const PairKernel chosen = choose();
  return chosen;
}

std::string problem_of(PairKernel kernel) {
  const std::string isa = flags::isa();
  const bool capped = !isa.empty() && isa != "avx512";
  if (kernel == PairKernel::amx) {
    return capped ? "CODA_ISA caps the SIMD target" : std::string(amx_problem());
  }
  if (kernel == PairKernel::dot) {
    if (capped) return "CODA_ISA caps the SIMD target";
    const bool has = __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw");
    return has ? "" : "the processor has no AVX-512 with bf16";
  }
  return "";
}

std::string describe_products() {
  const PairKernel kernel = pair_kernel();
  std::string text;
  for (const Named& each : kNamed) {
    if (each.kernel == kernel) text = each.what;
  }
  if (!flags::bf16().empty()) return text + " (CODA_BF16)";
  for (const PairKernel better : kPreferred) {
    if (better == kernel) break;
    text += "; " + problem_of(better);
  }
  return text;
}

std::size_t pair_scratch(const TileShape& shape) {
  return shape.k % kStep == 0 ? 0 : static_cast<std::size_t>(shape.m * kStep * 2);
}

void multiply_pairs(PairKernel kernel, const TileShape& shape, const MatrixRef& a,
                    const std::byte* b, float* c, Onto onto, std::span<std::byte> scratch) {
  const Left left = left_of(shape, a, scratch);
  const auto* right = reinterpret_cast<const Half*>(b);
  switch (kernel) {
    case PairKernel::amx: {
      AmxTiles tiles;
      return multiply_tiles(tiles, shape, left, right, c, onto);
    }
    case PairKernel::model: {
      ModelTiles tiles;
      return multiply_tiles(tiles, shape, left, right, c, onto);
    }
    case PairKernel::dot:
      return multiply_dot(shape, left, right, c, onto);
    case PairKernel::none:
      break;
  }
  throw InternalError("no kernel for products in pairs");
}

}  // namespace coda::cpu
