// coda/program/parser.h: recursive descent with recovery; the state that parse_items.cpp,
// parse_body.cpp and parse_expr.cpp share.
//
// A mistake is reported where it is seen and thrown as Skip, which the nearest list (of statements,
// of parameters, of items) catches: it skips to where the next element surely begins and goes on.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "coda/program/ast.h"

namespace coda::ast {

class Parser {
 public:
  Parser(const Source& source, Lexed lexed, std::vector<Diagnostic>& diagnostics)
      : source_(source), lexed_(std::move(lexed)), diagnostics_(diagnostics) {}

  File file();

 private:
  struct Skip {};  // thrown after a report

  // The deepest tree, and so the deepest recursion of any stage over it.
  static constexpr int kDeepest = 200;

  // parse_items.cpp
  void version(File& file);
  Item item();
  void use(Item& item);
  void def(Item& item);
  void program(Item& item);
  std::vector<Parameter> parameters(Item& item, Item::Kind kind, std::string_view what);
  Parameter parameter(Item::Kind kind, std::string_view what);
  TypeExpr type(Item::Kind kind);

  // parse_body.cpp
  void body(Item& item);
  void statements(Item& item, const Span& opened, const std::string& of,
                  std::vector<Statement>& list, std::vector<Comment>& closing);
  void loop(Item& item, Statement& statement);
  Statement statement(Item& item);
  void name_statement(Statement& statement);
  std::string new_name(std::string_view what);
  void skip_statement(std::size_t begin);
  void skip_item(std::size_t begin);
  bool begins_statement(std::size_t at) const;
  bool begins_item(std::size_t at) const;

  // parse_expr.cpp
  Expr expression();
  Expr sum();
  Expr term();
  Expr product();
  Expr unary();
  Expr postfix();
  Expr primary();
  Expr call(Expr callee);
  std::vector<Expr> dims();  // `[a, b]`, from its bracket
  Expr binary(std::string_view symbol, Expr left, Expr right, std::vector<Expr> contracted = {});
  Expr finished(Expr expr, const Token& first);
  template <class Element>
  void elements(std::string_view close, std::string_view what, Element element);

  // Tokens. Inside brackets newlines are space; outside they end a statement.
  const Token& token() const { return lexed_.tokens[at_]; }
  const Token& token_at(std::size_t at) const;
  bool ended() const;  // the statement is over: a newline outside brackets, or the end of the text
  bool is(std::string_view symbol) const;
  bool is_name(std::string_view name) const;
  bool accept(std::string_view symbol);
  void open(std::string_view symbol);
  void close(std::string_view symbol);
  void require_open();  // fails where the next statement begins inside brackets
  const Token& take() { return lexed_.tokens[at_ + 1 < lexed_.tokens.size() ? at_++ : at_]; }
  std::string shown(const Token& token) const;  // for "found …"
  std::string found() const;

  [[noreturn]] void fail(const Token& at, std::string message, std::string rule, std::string fix);
  void report(const Span& at, std::string message, std::string rule, std::string fix);

  // Comments before the token `at` that no one has taken.
  std::vector<Comment> comments_before(std::size_t at);
  std::optional<Comment> trailing_comment();
  bool blank_before(const std::vector<Comment>& leading, const Token& first) const;

  const Source& source_;
  Lexed lexed_;
  std::vector<Diagnostic>& diagnostics_;
  std::size_t at_ = 0;
  std::size_t begin_ = 0;  // first token of the statement, parameter or item
  std::size_t next_comment_ = 0;
  std::vector<Span> brackets_;  // open ones
  int depth_ = 0;
  int loops_ = 0;  // open ones
};

// Marks the arguments that can only be dimensions, so that the layout and lowering agree on them.
void mark_dims(Item& item);

}  // namespace coda::ast
