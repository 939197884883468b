// coda/cpu/tile_registers.cpp: the model of the tile registers, and the request for the machine's.
#include "coda/cpu/tile_registers.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <string>

#include "coda/core/error.h"

namespace coda::cpu {
namespace {

// arch/x86/include/uapi/asm/prctl.h of Linux 5.16 and later.
constexpr long kRequestFeature = 0x1023;
constexpr long kTileData = 18;

std::string_view find_amx_problem() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return "the processor says nothing of it";
  const bool tiles = (d >> 24 & 1) != 0, bf16 = (d >> 22 & 1) != 0;
  if (!tiles || !bf16) return "the processor has no AMX with bf16";
  if (!__get_cpuid(1, &a, &b, &c, &d) || (c >> 27 & 1) == 0) return "the system keeps no state";
  unsigned low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  if ((low >> 17 & 3) != 3) return "the system does not keep AMX's registers";
  if (syscall(SYS_arch_prctl, kRequestFeature, kTileData) != 0) return "Linux refuses AMX";
  return "";
}

float flushed(float x) {
  return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x;
}

float wide(const std::byte* pair, int which) {
  std::uint16_t half = 0;
  std::memcpy(&half, pair + 2 * which, sizeof half);
  const std::uint32_t bits = std::uint32_t{half} << 16;
  float value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return flushed(value);
}

}  // namespace

std::string_view amx_problem() {
  static const std::string_view problem = find_amx_problem();
  return problem;
}

void ModelTiles::configure(const TileConfig& config) {
  if (config.palette != 1 || config.start_row != 0) throw InternalError("a palette other than 1");
  for (int t = 0; t < 16; ++t) {
    const int rows = config.rows[t], bytes = config.row_bytes[t];
    const bool used = rows != 0 || bytes != 0;
    if (used && (t >= 8 || rows == 0 || bytes == 0 || rows > kTileRows || bytes > kTileBytes)) {
      throw InternalError("tile " + std::to_string(t) + " is configured as " +
                          std::to_string(rows) + " rows of " + std::to_string(bytes) + " bytes");
    }
  }
  config_ = config;
  configured_ = true;
  tiles_ = {};
}

void ModelTiles::release() {
  configured_ = false;
  tiles_ = {};
}

void ModelTiles::require_configured(int tile) const {
  if (!configured_ || config_.rows[tile] == 0) {
    throw InternalError("tile " + std::to_string(tile) + " is used and not configured");
  }
}

void ModelTiles::zero_tile(int tile) {
  require_configured(tile);
  tiles_[static_cast<std::size_t>(tile)] = {};
}

void ModelTiles::load_tile(int tile, const void* from, std::int64_t step) {
  require_configured(tile);
  Tile& to = tiles_[static_cast<std::size_t>(tile)];
  to = {};
  for (int r = 0; r < config_.rows[tile]; ++r) {
    std::memcpy(to[static_cast<std::size_t>(r)].data(),
                static_cast<const std::byte*>(from) + r * step, config_.row_bytes[tile]);
  }
}

void ModelTiles::store_tile(int tile, void* to, std::int64_t step) {
  require_configured(tile);
  const Tile& from = tiles_[static_cast<std::size_t>(tile)];
  for (int r = 0; r < config_.rows[tile]; ++r) {
    std::memcpy(static_cast<std::byte*>(to) + r * step, from[static_cast<std::size_t>(r)].data(),
                config_.row_bytes[tile]);
  }
}

// TDPBF16PS of Intel's manual: for each element of C, the first and the second elements of the
// pairs are summed apart, from zero and in the order of k, by fused multiply-adds; then the two are
// added, then that to C. To nearest even; denormals count as zero, going in and coming out.
void ModelTiles::dot_tiles(int c, int a, int b) {
  for (const int tile : {c, a, b}) require_configured(tile);
  const int rows = config_.rows[c], columns = config_.row_bytes[c] / 4, pairs = config_.rows[b];
  if (config_.rows[a] != rows || config_.row_bytes[a] != 4 * pairs ||
      config_.row_bytes[b] != config_.row_bytes[c]) {
    throw InternalError("tiles " + std::to_string(c) + ", " + std::to_string(a) + " and " +
                        std::to_string(b) + " do not fit together");
  }
  const auto at = [&](int tile, int row, int column) {
    return tiles_[static_cast<std::size_t>(tile)][static_cast<std::size_t>(row)].data() +
           4 * column;
  };
  for (int m = 0; m < rows; ++m) {
    for (int n = 0; n < columns; ++n) {
      float sums[2] = {0, 0};
      for (int p = 0; p < pairs; ++p) {
        for (int i = 0; i < 2; ++i) {
          sums[i] = flushed(std::fma(wide(at(a, m, p), i), wide(at(b, p, n), i), sums[i]));
        }
      }
      float sum = 0;
      std::memcpy(&sum, at(c, m, n), sizeof sum);
      sum = flushed(flushed(sum) + flushed(sums[0] + sums[1]));
      std::memcpy(at(c, m, n), &sum, sizeof sum);
    }
  }
}

}  // namespace coda::cpu
