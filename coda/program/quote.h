// coda/program/quote.h: how messages show a piece of a text.
#pragma once

#include <string>
#include <string_view>

namespace coda::ast {

inline std::string quoted(std::string_view text) {
  return "`" + std::string(text) + "`";
}

inline constexpr std::size_t kStatement = 200, kPiece = 60;  // columns that a message gives them

// Its beginning, where it is longer than `columns`.
inline std::string shortened(std::string text, std::size_t columns) {
  if (text.size() <= columns) return text;
  // Not inside a UTF-8 sequence.
  while (columns > 0 && (static_cast<unsigned char>(text[columns]) & 0xc0) == 0x80) --columns;
  text.resize(columns);
  return text + " …";
}

}  // namespace coda::ast
