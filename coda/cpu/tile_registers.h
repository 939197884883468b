// coda/cpu/tile_registers.h: eight tile registers that multiply bf16 in pairs: the machine's own
// (AMX), and a model of them.
//
// A tile has at most 16 rows of at most 64 bytes; a configuration says how many of each. Both
// classes have the same functions, so a kernel is one template. Registers are numbers that the
// compiler knows.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace coda::cpu {

inline constexpr int kTileRows = 16;
inline constexpr int kTileBytes = 64;  // of a row: 16 f32, or 16 pairs of bf16

// As the instruction ldtilecfg reads it.
struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};

  void set(int tile, int tile_rows, int bytes) {
    rows[tile] = static_cast<std::uint8_t>(tile_rows);
    row_bytes[tile] = static_cast<std::uint16_t>(bytes);
  }
  bool operator==(const TileConfig&) const = default;
};
static_assert(sizeof(TileConfig) == 64);

// Why this process cannot use the registers of the machine; empty: it can. The first call asks
// Linux for them, for all threads of the process.
std::string_view amx_problem();

// The machine's. NOTE: only where amx_problem() is empty. What is configured belongs to the thread
// until release(); other libraries expect to find nothing.
//
// The compiler's intrinsics take the register as a literal, which no template can give: so these
// are the same instructions, written out.
class AmxTiles {
 public:
  void configure(const TileConfig& config) { asm volatile("ldtilecfg %0" ::"m"(config)); }
  void release() { asm volatile("tilerelease" ::); }
  template <int kTile>
  void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
  }
  // `step`: bytes from row to row.
  template <int kTile>
  void load(const void* from, std::int64_t step) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(step), "i"(kTile) : "memory");
  }
  template <int kTile>
  void store(void* to, std::int64_t step) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(step), "i"(kTile) : "memory");
  }
  // C[m, n] += A[m, pairs of k] · B[pairs of k, n].
  template <int kC, int kA, int kB>
  void dot() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kC), "i"(kA), "i"(kB));
  }
};

// The same in memory, element by element. Where the machine would fault, it throws InternalError.
class ModelTiles {
 public:
  void configure(const TileConfig& config);
  void release();
  template <int kTile>
  void zero() {
    zero_tile(kTile);
  }
  template <int kTile>
  void load(const void* from, std::int64_t step) {
    load_tile(kTile, from, step);
  }
  template <int kTile>
  void store(void* to, std::int64_t step) {
    store_tile(kTile, to, step);
  }
  template <int kC, int kA, int kB>
  void dot() {
    dot_tiles(kC, kA, kB);
  }

 private:
  using Tile = std::array<std::array<std::byte, kTileBytes>, kTileRows>;
  void require_configured(int tile) const;
  void zero_tile(int tile);
  void load_tile(int tile, const void* from, std::int64_t step);
  void store_tile(int tile, void* to, std::int64_t step);
  void dot_tiles(int c, int a, int b);

  bool configured_ = false;
  TileConfig config_;
  std::array<Tile, 8> tiles_ = {};
};

}  // namespace coda::cpu
