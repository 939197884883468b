// coda/program/parser.cpp: the parser's tokens, reports, recovery and comments.
#include "coda/program/parser.h"

#include <algorithm>

namespace coda::ast {

const Token& Parser::token_at(std::size_t at) const {
  return lexed_.tokens[std::min(at, lexed_.tokens.size() - 1)];
}

bool Parser::ended() const {
  return token().kind == TokenKind::end || (brackets_.empty() && token().starts_line);
}

bool Parser::is(std::string_view symbol) const {
  return token().kind == TokenKind::symbol && token().text == symbol;
}

bool Parser::is_name(std::string_view name) const {
  return token().kind == TokenKind::name && token().text == name;
}

bool Parser::accept(std::string_view symbol) {
  if (!is(symbol)) return false;
  take();
  return true;
}

void Parser::open(std::string_view symbol) {
  if (!is(symbol)) throw InternalError("the parser opens a bracket that is not there");
  brackets_.push_back(token().span);
  take();
}

void Parser::close(std::string_view symbol) {
  if (!is(symbol)) {
    if (token().kind == TokenKind::bad) throw Skip();
    require_open();
    const Span& bracket = brackets_.back();
    fail(token(), "expected `" + std::string(symbol) + "`, found " + found(),
         "the bracket opened at " + std::to_string(bracket.line) + ":" +
             std::to_string(bracket.column) + " is closed by `" + std::string(symbol) + "`",
         is("]") || is(")") ? "write `" + std::string(symbol) + "` in its place"
                            : "add the missing `" + std::string(symbol) +
                                  "`, or the missing operator before this");
  }
  take();
  brackets_.pop_back();
}

void Parser::require_open() {
  if (brackets_.empty()) return;
  const bool over = token().kind == TokenKind::end || is("{") || is("}");
  if (!over && !begins_statement(at_) && !begins_item(at_)) return;
  const Token open{.kind = TokenKind::symbol, .text = {}, .span = brackets_.back()};
  const std::string bracket = source_.text.substr(brackets_.back().begin, 1);
  fail(open, "this `" + bracket + "` is never closed",
       "an open bracket continues a statement over lines until it is closed",
       "add the missing `" + std::string(bracket == "(" ? ")" : "]") + "`");
}

std::string Parser::shown(const Token& token) const {
  switch (token.kind) {
    case TokenKind::end:
      return "the end of the file";
    case TokenKind::string:
      return "the string \"" + std::string(token.text) + "\"";
    case TokenKind::name:
    case TokenKind::number:
    case TokenKind::symbol:
    case TokenKind::bad:
      break;
  }
  return "`" + std::string(token.text) + "`";
}

std::string Parser::found() const {
  if (token().kind != TokenKind::end && ended()) return "the end of the line";
  return shown(token());
}

void Parser::report(const Span& at, std::string message, std::string rule, std::string fix) {
  if (diagnostics_.size() >= kMostDiagnostics) return;
  diagnostics_.push_back({.where = {source_.file, at.line, at.column},
                          .statement = line_of(source_, at),
                          .message = std::move(message),
                          .types = {},
                          .rule = std::move(rule),
                          .fix = std::move(fix)});
}

void Parser::fail(const Token& at, std::string message, std::string rule, std::string fix) {
  if (at.kind == TokenKind::bad) throw Skip();  // the lexer reported it
  // Where a statement ends too early, the place is its end and not the next line.
  Span place = at.span;
  const bool here = at_ < lexed_.tokens.size() && at.span.begin == token().span.begin;
  if (here && at_ > begin_ && ended()) {
    place = lexed_.tokens[at_ - 1].span;
    place.column += static_cast<int>(place.end - place.begin);
    place.begin = place.end > place.begin ? place.end - 1 : place.begin;
  }
  report(place, std::move(message), std::move(rule), std::move(fix));
  throw Skip();
}

// A line that begins `name =`, `name +=`, `a, +b =`, `for N in` or `return` is a statement,
// whatever is open.
bool Parser::begins_statement(std::size_t at) const {
  if (!token_at(at).starts_line) return false;
  if (token_at(at).text == "return") return true;
  if (token_at(at).text == "for" && token_at(at + 2).text == "in") return true;
  const auto skip_plus = [&](std::size_t i) {
    return i + (token_at(i).kind == TokenKind::symbol && token_at(i).text == "+" ? 1 : 0);
  };
  for (at = skip_plus(at); token_at(at).kind == TokenKind::name; at = skip_plus(at + 2)) {
    const Token& after = token_at(at + 1);
    if (after.kind != TokenKind::symbol || after.starts_line) return false;
    if (after.text == "=" || after.text == "+=") return true;
    if (after.text != ",") return false;
  }
  return false;
}

// A line that begins with an item's word and a name, or with `use "`.
bool Parser::begins_item(std::size_t at) const {
  const Token& first = token_at(at);
  const Token& second = token_at(at + 1);
  if (first.kind != TokenKind::name || !first.starts_line || second.starts_line) return false;
  if (first.text == "use") return second.kind == TokenKind::string;
  const bool word = first.text == "def" || first.text == "program" || first.text == "block" ||
                    first.text == "schedule";
  return word && second.kind == TokenKind::name;
}

// To the next line that surely begins something, from the statement whose first token is `begin`.
void Parser::skip_statement(std::size_t begin) {
  brackets_.clear();
  depth_ = 0;
  at_ = std::max(at_, begin);
  if (at_ == begin && token().kind != TokenKind::end && !is("}")) take();
  int nested = 0;
  for (std::size_t i = begin; i < at_; ++i) {
    const std::string_view text = token_at(i).text;
    if (token_at(i).kind != TokenKind::symbol) continue;
    nested += text == "(" || text == "[";
    nested -= text == ")" || text == "]";
  }
  while (token().kind != TokenKind::end && !is("}")) {
    if (begins_statement(at_) || begins_item(at_) || (nested <= 0 && token().starts_line)) break;
    nested += is("(") || is("[");
    nested -= is(")") || is("]");
    take();
  }
}

// From the item that begins at `begin`: over its body, or to the next line where it is no item at
// all.
void Parser::skip_item(std::size_t begin) {
  brackets_.clear();
  depth_ = 0;
  bool has_body = begins_item(begin);
  int braces = 0;
  for (std::size_t i = begin; i < at_; ++i) {
    if (token_at(i).kind == TokenKind::symbol)
      braces += (token_at(i).text == "{") - (token_at(i).text == "}");
  }
  while (token().kind != TokenKind::end) {
    if (at_ > begin && (begins_item(at_) || (token().starts_line && braces <= 0 && !has_body)))
      break;
    braces += is("{") - is("}");
    if (is("}")) has_body = false;
    take();
  }
  while (next_comment_ < lexed_.comments.size() && lexed_.comments[next_comment_].next < at_) {
    ++next_comment_;
  }
}

std::vector<Comment> Parser::comments_before(std::size_t at) {
  std::vector<Comment> taken;
  while (next_comment_ < lexed_.comments.size() && lexed_.comments[next_comment_].next <= at) {
    taken.push_back(std::move(lexed_.comments[next_comment_++]));
  }
  return taken;
}

// The comment on the line of the token before, if there is one.
std::optional<Comment> Parser::trailing_comment() {
  if (next_comment_ >= lexed_.comments.size()) return std::nullopt;
  Comment& comment = lexed_.comments[next_comment_];
  if (comment.next != at_ || comment.own_line) return std::nullopt;
  ++next_comment_;
  return std::move(comment);
}

// Whether a blank line stands above the element that begins with `first` and its comments.
bool Parser::blank_before(const std::vector<Comment>& leading, const Token& first) const {
  if (!leading.empty()) return leading[0].blank_before;
  if (!first.starts_line || at_ == 0) return false;
  const Token& last = lexed_.tokens[at_ - 1];
  return first.span.line > last.span.line + 1;
}

}  // namespace coda::ast
