// coda/core/sha256.h: SHA-256 (FIPS 180-4): names of contents, and checksums of files.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace coda {

class Sha256 {
 public:
  using Digest = std::array<std::uint8_t, 32>;

  void add(std::string_view bytes);
  // The bytes with their length before them: {"ab", "c"} and {"a", "bc"} differ.
  void add_part(std::string_view bytes);
  // Of all bytes added. Nothing may be added afterwards.
  Digest digest();

 private:
  void block(const std::uint8_t* bytes);

  std::array<std::uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::uint8_t, 64> rest_ = {};
  std::uint64_t length_ = 0;  // bytes
};

Sha256::Digest sha256(std::string_view bytes);
std::string hex(const Sha256::Digest& digest);

}  // namespace coda
