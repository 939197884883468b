// cli/printable.cpp: UTF-8 byte by byte (Unicode 15, table 3-7: well-formed byte sequences).
#include "cli/printable.h"

#include <cstdint>
#include <utility>

namespace coda {
namespace {

constexpr const char* kReplacement = "\xef\xbf\xbd";

// Bytes that follow a first byte; 0 for one that begins nothing.
std::size_t continuations(std::uint8_t first) {
  if (first >= 0xc2 && first <= 0xdf) return 1;
  if (first >= 0xe0 && first <= 0xef) return 2;
  if (first >= 0xf0 && first <= 0xf4) return 3;
  return 0;
}

// Neither longer than needed, nor a surrogate, nor past the last character.
bool may_follow(std::uint8_t first, std::uint8_t second) {
  const std::uint8_t low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
  const std::uint8_t high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
  return low <= second && second <= high;
}

}  // namespace

std::string PrintableText::add(char byte) {
  const auto code = static_cast<std::uint8_t>(byte);
  std::string shown;
  if (left_ > 0) {
    const bool follows = begun_.size() == 1 ? may_follow(static_cast<std::uint8_t>(begun_[0]), code)
                                            : (code & 0xc0) == 0x80;
    if (follows) {
      begun_.push_back(byte);
      if (--left_ > 0) return "";
      // The second half of Latin-1's control characters: some terminals obey them.
      const bool control = begun_[0] == '\xc2' && code < 0xa0;
      const std::string whole = std::exchange(begun_, "");
      return control ? "?" : whole;
    }
    shown = finish();
  }
  if (code < 0x80) {
    const bool control = code < 0x20 || code == 0x7f;
    return shown + (control && byte != '\n' && byte != '\t' ? '?' : byte);
  }
  left_ = continuations(code);
  if (left_ == 0) return shown + kReplacement;
  begun_ = byte;
  return shown;
}

std::string PrintableText::finish() {
  left_ = 0;
  return std::exchange(begun_, "").empty() ? "" : kReplacement;
}

}  // namespace coda
