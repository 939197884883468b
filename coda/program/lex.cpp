// coda/program/lex.cpp: one pass over the bytes; every byte that no rule takes is reported once.
#include "coda/program/lex.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "coda/core/dtype.h"

namespace coda::ast {
namespace {

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

bool is_name_part(char c) {
  return is_letter(c) || is_digit(c);
}

// Bytes of the name at the start of `text`; 0 where there is none. A name is parts joined by single
// dots; where the first is a number, which would make `2.5` a name, the second starts with a letter
// or _.
std::size_t name_length(std::string_view text) {
  const auto part = [&](std::size_t at) {
    std::size_t end = at;
    while (end < text.size() && is_name_part(text[end])) ++end;
    return end;
  };
  std::size_t end = part(0);
  const bool numbered = end > 0 && is_digit(text[0]);
  if (numbered) {
    if (!std::ranges::all_of(text.substr(0, end), is_digit)) return 0;
    if (end + 1 >= text.size() || text[end] != '.' || !is_letter(text[end + 1])) return 0;
  }
  while (end > 0 && end + 1 < text.size() && text[end] == '.' && is_name_part(text[end + 1])) {
    end = part(end + 1);
  }
  return end;
}

// Bytes of the valid UTF-8 sequence at `at`; 0 where there is none.
std::size_t utf8_length(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
  };
  const unsigned first = byte(at);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(at + i) & 0xc0) != 0x80) return 0;
  }
  const unsigned second = byte(at + 1);
  const bool overlong = (first == 0xe0 && second < 0xa0) || (first == 0xf0 && second < 0x90);
  const bool outside = (first == 0xed && second > 0x9f) || (first == 0xf4 && second > 0x8f);
  return overlong || outside ? 0 : length;
}

std::uint32_t code_point(std::string_view sequence) {
  const auto byte = [&](std::size_t i) {
    return static_cast<unsigned char>(sequence[i]);
  };
  std::uint32_t point = sequence.size() == 1 ? byte(0) : byte(0) & (0xffu >> (sequence.size() + 1));
  for (std::size_t i = 1; i < sequence.size(); ++i) point = point << 6 | (byte(i) & 0x3f);
  return point;
}

std::string hex(const char* format, unsigned value) {
  std::array<char, 16> text{};
  std::snprintf(text.data(), text.size(), format, value);
  return text.data();
}

constexpr auto kSymbols =
    std::to_array<std::string_view>({"+=", "->", "==", "!=", "<=", ">=", "(", ")", "[", "]", "{",
                                     "}",  ",",  ":",  "=",  "+",  "-",  "*", "/", "@", "<", ">"});

const char* const kSymbolRule =
    "the operators are `+ - * / @`, the comparisons and unary `-`; the rest are brackets, `,`, "
    "`:`, `=` and `+=`";

// What authors of other languages write, and what to write here.
struct Foreign {
  std::string_view text, fix;
};
constexpr auto kForeign = std::to_array<Foreign>({
    {"**", "write `x * x`, or `exp(y * log(x))` for a power that is no small whole number"},
    {"^", "write `x * x`, or `exp(y * log(x))` for a power that is no small whole number"},
    {"//", "a comment starts with `#`"},
    {"/*", "a comment starts with `#` and ends with its line"},
    {"&&", "multiply the two conditions: `a * b`"},
    {"||", "write `where(a, true, b)`"},
    {";", "end the statement with a new line"},
    {"?", "write `where(condition, a, b)`"},
    {"%", "write the index arithmetic with split or `as`: `v as [M, H*E]`"},
    {"!", "write `1 - condition`, or the opposite comparison"},
    {"'", "strings stand in double quotes"},
});

class Lexer {
 public:
  Lexer(const Source& source, std::vector<Diagnostic>& diagnostics)
      : source_(source), text_(source.text), diagnostics_(diagnostics) {}

  Lexed run() {
    if (text_.starts_with("\xef\xbb\xbf")) at_ = line_start_ = 3;  // a byte-order mark
    while (at_ < text_.size()) step();
    push(TokenKind::end, 0, 0);
    return std::move(out_);
  }

 private:
  void step() {
    const char c = text_[at_];
    if (c == '\n') {
      new_line();
    } else if (c == ' ' || c == '\t' || is_line_end(at_)) {
      ++at_;
    } else if (c == '#') {
      comment();
    } else if (is_letter(c)) {
      push(TokenKind::name, name_length(text_.substr(at_)), 0);
    } else if (is_digit(c)) {
      const std::size_t length = name_length(text_.substr(at_));
      if (length > 0) return push(TokenKind::name, length, 0);
      number();
    } else if (c == '"') {
      string();
    } else {
      symbol();
    }
  }

  // A carriage return counts as space before a newline only.
  bool is_line_end(std::size_t at) const {
    return text_[at] == '\r' && (at + 1 == text_.size() || text_[at + 1] == '\n');
  }

  void new_line() {
    blank_above_ = !line_has_content_;
    ++at_;
    ++line_;
    line_start_ = at_;
    starts_line_ = true;
    line_has_content_ = false;
  }

  Span span(std::size_t length) {
    // Columns are counted from the last place asked for, so that a long line costs linear time.
    if (column_line_ != line_ || column_at_ > at_) {
      column_line_ = line_;
      column_at_ = line_start_;
      column_ = 1;
    }
    for (; column_at_ < at_; ++column_at_) {
      column_ += (static_cast<unsigned char>(text_[column_at_]) & 0xc0) != 0x80;
    }
    return {static_cast<std::uint32_t>(at_), static_cast<std::uint32_t>(at_ + length), line_,
            column_};
  }

  // A token of `length` bytes, `quote` of them on each side not part of its text.
  void push(TokenKind kind, std::size_t length, std::size_t quote) {
    out_.tokens.push_back({.kind = kind,
                           .text = text_.substr(at_ + quote, length - 2 * quote),
                           .span = span(length),
                           .starts_line = starts_line_});
    at_ += length;
    starts_line_ = false;
    line_has_content_ = true;
  }

  void bad(std::size_t length, std::string message, std::string rule, std::string fix) {
    if (diagnostics_.size() < kMostDiagnostics) {
      const Span where = span(length);
      diagnostics_.push_back({.where = {source_.file, where.line, where.column},
                              .statement = line_of(source_, where),
                              .message = std::move(message),
                              .types = {},
                              .rule = std::move(rule),
                              .fix = std::move(fix)});
    }
    push(TokenKind::bad, length, 0);
  }

  void comment() {
    const std::size_t begin = at_;
    std::size_t end = std::min(text_.find('\n', at_), text_.size());
    for (std::size_t i = at_; i < end;) {
      const std::size_t length = utf8_length(text_, i);
      const bool control = static_cast<unsigned char>(text_[i]) < 0x20 && text_[i] != '\t';
      if (length == 0 || (control && !is_line_end(i))) {
        at_ = i;
        report_byte();  // its token is dropped: a comment has no tokens
        starts_line_ = out_.tokens.back().starts_line;
        out_.tokens.pop_back();
        break;
      }
      i += length;
    }
    at_ = begin;
    std::string_view body = text_.substr(begin + 1, end - begin - 1);
    while (!body.empty() && (body.back() == ' ' || body.back() == '\t' || body.back() == '\r')) {
      body.remove_suffix(1);
    }
    out_.comments.push_back({.text = std::string(body),
                             .next = out_.tokens.size(),
                             .own_line = starts_line_,
                             .blank_before = starts_line_ && blank_above_ && line_ > 1,
                             .line = line_});
    line_has_content_ = true;
    at_ = end;
  }

  void number() {
    std::size_t end = at_;
    const auto digits = [&] {
      const std::size_t begin = end;
      while (end < text_.size() && is_digit(text_[end])) ++end;
      return end > begin;
    };
    digits();
    bool good = true;
    if (end < text_.size() && text_[end] == '.') {
      ++end;
      good = digits();
    }
    if (good && end < text_.size() && (text_[end] == 'e' || text_[end] == 'E')) {
      ++end;
      if (end < text_.size() && (text_[end] == '+' || text_[end] == '-')) ++end;
      good = digits();
    }
    if (end < text_.size() && (is_letter(text_[end]) || text_[end] == '.')) good = false;
    if (good) return push(TokenKind::number, end - at_, 0);
    while (end < text_.size() &&
           (is_letter(text_[end]) || is_digit(text_[end]) || text_[end] == '.')) {
      ++end;
    }
    const std::string written(text_.substr(at_, end - at_));
    bad(end - at_, "`" + written + "` is neither a number nor a name",
        "a number is digits, with a fraction and an exponent where wanted; a name starts with a "
        "letter or `_`, or with a number and a dot, like `0.wq`",
        "write it like `2`, `0.5` or `1e-5`");
  }

  void string() {
    std::size_t end = at_ + 1;
    while (end < text_.size() && text_[end] != '"' && text_[end] != '\n') {
      const std::size_t length = utf8_length(text_, end);
      const auto byte = static_cast<unsigned char>(text_[end]);
      if (length == 0 || byte < 0x20 || byte == 0x7f) {
        end = std::min(text_.find_first_of("\"\n", end), text_.size());
        if (end < text_.size() && text_[end] == '"') ++end;
        return bad(end - at_, "the string holds a byte that is not printable UTF-8",
                   "a .coda text is printable UTF-8", "write the name of a file in quotes");
      }
      end += length;
    }
    if (end < text_.size() && text_[end] == '"') return push(TokenKind::string, end + 1 - at_, 1);
    bad(end - at_, "the string has no closing `\"`", "a string ends on its line",
        "add the closing `\"`");
  }

  void symbol() {
    const std::string_view rest = text_.substr(at_);
    for (const Foreign& foreign : kForeign) {
      if (!rest.starts_with(foreign.text) || rest.starts_with("!=")) continue;
      return bad(foreign.text.size(),
                 "`" + std::string(foreign.text) + "` is not part of the language", kSymbolRule,
                 std::string(foreign.fix));
    }
    for (const std::string_view symbol : kSymbols) {
      if (rest.starts_with(symbol)) return push(TokenKind::symbol, symbol.size(), 0);
    }
    if (rest[0] == '.' && rest.size() > 1 && is_digit(rest[1])) {
      const std::size_t length = 1 + rest.substr(1).find_first_not_of("0123456789");
      const std::string digits(rest.substr(0, length == 0 ? rest.size() : length));
      return bad(digits.size(), "`" + digits + "` has no digit before the point",
                 "a number starts with a digit", "write `0" + digits + "`");
    }
    report_byte();
  }

  void report_byte() {
    const std::size_t length = utf8_length(text_, at_);
    const auto byte = static_cast<unsigned char>(text_[at_]);
    if (length == 0) {
      return bad(1, "the byte " + hex("0x%02X", byte) + " is not valid UTF-8",
                 "a .coda text is UTF-8", "save the file as UTF-8, or remove the byte");
    }
    if (byte < 0x20 || byte == 0x7f) {
      return bad(1, "the text holds the control character " + hex("0x%02X", byte),
                 "a .coda text is printable UTF-8", "remove it");
    }
    const std::string_view sequence = text_.substr(at_, length);
    const std::string shown = "`" + std::string(sequence) + "`";
    if (length == 1) {
      return bad(
          1, shown + " is not part of the language", kSymbolRule,
          byte == '.' ? "values have no methods: write `sum(v, N)` for `v.sum(N)`" : "remove it");
    }
    bad(length, shown + " (U+" + hex("%04X", code_point(sequence)) + ") cannot stand here",
        "outside comments a text is ASCII: names are letters a-z A-Z, digits, `_` and dots",
        "spell it with ASCII letters, such as `gamma`");
  }

  const Source& source_;
  std::string_view text_;
  std::vector<Diagnostic>& diagnostics_;
  Lexed out_;
  std::size_t at_ = 0, line_start_ = 0, column_at_ = 0;
  int line_ = 1, column_ = 1, column_line_ = 0;
  bool starts_line_ = true, line_has_content_ = false, blank_above_ = false;
};

}  // namespace

bool is_literal(std::string_view name) {
  return name == "true" || name == "false" || name == "inf" || name == "nan";
}

bool is_name(std::string_view text) {
  return !text.empty() && name_length(text) == text.size() && !is_reserved(text);
}

bool is_reserved(std::string_view name) {
  constexpr auto words = std::to_array<std::string_view>(
      {"coda", "use", "def", "program", "block", "return", "as", "pin"});
  return is_literal(name) || dtype_from(name) || std::ranges::find(words, name) != words.end();
}

Lexed lex(const Source& source, std::vector<Diagnostic>& diagnostics) {
  return Lexer(source, diagnostics).run();
}

std::string line_of(const Source& source, const Span& span) {
  const std::string_view text = source.text;
  const std::size_t at = std::min<std::size_t>(span.begin, text.size());
  const std::size_t before = at == 0 ? std::string_view::npos : text.rfind('\n', at - 1);
  std::size_t begin = before == std::string_view::npos ? 0 : before + 1;
  std::size_t end = std::min(text.find('\n', at), text.size());
  const auto space = [&](std::size_t i) {
    return text[i] == ' ' || text[i] == '\t' || text[i] == '\r';
  };
  while (begin < end && space(begin)) ++begin;
  while (end > begin && space(end - 1)) --end;
  constexpr std::size_t longest = 160;
  std::string line(text.substr(begin, std::min(end - begin, longest)));
  if (end - begin > longest) line += " …";
  for (char& c : line) {
    // What a terminal must not see: control characters, and bytes that are no text.
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  for (std::size_t i = 0; i < line.size();) {
    const std::size_t length = utf8_length(line, i);
    if (length == 0) line[i] = '?';
    i += std::max<std::size_t>(length, 1);
  }
  return line;
}

}  // namespace coda::ast
