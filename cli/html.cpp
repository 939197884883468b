// cli/html.cpp: decodes UTF-8, escapes, and fills pages.
#include "cli/html.h"

#include <algorithm>
#include <cstdint>
#include <set>

#include "coda/core/error.h"
#include "coda/rewrite/svg.h"

namespace coda {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";  // U+FFFD

// The bytes of the UTF-8 sequence at the start of `text`, 0 where there is none: neither overlong
// ones, nor surrogates, nor beyond U+10FFFF.
std::size_t sequence(std::string_view text, std::uint32_t& code) {
  const auto at = [&](std::size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
  };
  const unsigned first = at(0);
  const std::size_t length = first < 0x80 ? 1 : first >> 5 == 6 ? 2 : first >> 4 == 14 ? 3 : 4;
  if (length == 4 && first >> 3 != 30) return 0;
  code = length == 1 ? first : first & (0x7fu >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((at(i) & 0xc0) != 0x80) return 0;
    code = code << 6 | (at(i) & 0x3f);
  }
  constexpr std::uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xd800 && code < 0xe000;
  return code < kLeast[length] || code > 0x10ffff || surrogate ? 0 : length;
}

bool unseen(std::uint32_t code) {
  if (code == '\n' || code == '\t') return false;
  const bool control = code < 0x20 || (code >= 0x7f && code < 0xa0);
  const bool turns = (code >= 0x200e && code <= 0x200f) || (code >= 0x202a && code <= 0x202e) ||
                     (code >= 0x2066 && code <= 0x2069);
  return control || turns || (code & 0xfffe) == 0xfffe || (code >= 0xfdd0 && code < 0xfdf0);
}

}  // namespace

std::string html(std::string_view bytes) {
  std::string text;
  while (!bytes.empty()) {
    std::uint32_t code = 0;
    const std::size_t length = sequence(bytes, code);
    const bool shown = length > 0 && !unseen(code);
    text += shown ? bytes.substr(0, length) : kReplacement;
    bytes.remove_prefix(length == 0 ? 1 : length);
  }
  return escaped(text);
}

std::string element(std::string_view tag, std::string_view attributes, std::string_view inner) {
  std::string text = "<" + std::string(tag);
  if (!attributes.empty()) text += " " + std::string(attributes);
  return text + ">" + std::string(inner) + "</" + std::string(tag) + ">";
}

std::string datum(std::string_view id, double value, std::string_view shown) {
  return element("data", "id=\"" + std::string(id) + formatted("\" value=\"%.17g\"", value),
                 html(shown));
}

std::string filled(std::string_view page,
                   std::initializer_list<std::pair<std::string_view, std::string>> parts) {
  std::string text;
  std::set<std::string_view> placed;
  while (!page.empty()) {
    const std::size_t at = std::min(page.find('@'), page.size());
    text += page.substr(0, at);
    page.remove_prefix(at);
    const std::string* found = nullptr;
    for (const auto& [name, part] : parts) {
      const std::string marker = "@" + std::string(name) + "@";
      if (!page.starts_with(marker)) continue;
      found = &part;
      placed.insert(name);
      page.remove_prefix(marker.size());
      break;
    }
    if (found != nullptr) {
      text += *found;
    } else if (!page.empty()) {
      text += page.front();
      page.remove_prefix(1);
    }
  }
  if (placed.size() != parts.size())
    throw InternalError("a page without a place for one of its parts");
  return text;
}

}  // namespace coda
