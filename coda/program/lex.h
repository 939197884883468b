// coda/program/lex.h: text → tokens and comments, with their places.
//
// Newlines are no tokens: a token knows whether it begins a line, and the parser, which knows the
// open brackets, decides whether that ends a statement. Comments stand apart, so that only the
// formatter's part of the parser sees them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "coda/core/error.h"

namespace coda::ast {

// A text and its name in messages.
struct Source {
  std::string file;
  std::string text;
};

// A piece of a source: bytes [begin, end) and the place of the first; columns count characters
// from 1.
struct Span {
  std::uint32_t begin = 0, end = 0;
  int line = 0, column = 0;
};

// At most this many diagnostics of one file are kept: what follows a hundred mistakes is noise.
inline constexpr std::size_t kMostDiagnostics = 100;

enum class TokenKind : std::uint8_t {
  end,     // of the text
  name,    // letters, digits, _ and single dots inside: `gamma1`, `0.wq`, `d_0.wq`
  number,  // 12, 0.5, 1e-5
  string,  // "…", on one line
  symbol,  // one of ( ) [ ] { } , : = += -> + - * / @ == != < <= > >=
  bad,     // already reported
};

struct Token {
  TokenKind kind = TokenKind::end;
  std::string_view text;  // into the source; of a string: without the quotes
  Span span;
  bool starts_line = false;
};

struct Comment {
  std::string text;           // without the '#' and spaces at the end
  std::size_t next = 0;       // index of the token that follows
  bool own_line = false;      // nothing but space before it
  bool blank_before = false;  // own_line, and the line above is blank
  int line = 0;
};

struct Lexed {
  std::vector<Token> tokens;  // the last is `end`
  std::vector<Comment> comments;
};

// true, false, inf and nan.
bool is_literal(std::string_view name);
// The language's own words, literals and dtypes included: nothing else may have such a name.
bool is_reserved(std::string_view name);

// Whether a value may be called that: a name that is not reserved.
bool is_name(std::string_view text);

// Reports what is no token of the language, and goes on.
Lexed lex(const Source& source, std::vector<Diagnostic>& diagnostics);

// The line of the source that holds `span`, without outer spaces and shortened where it is long.
std::string line_of(const Source& source, const Span& span);

}  // namespace coda::ast
