// coda/program/parse_expr.cpp: expressions, loosest binding first: comparison, + -, * /, @, unary
// minus, `as` and [ids].
#include <algorithm>
#include <array>
#include <set>

#include "coda/core/dtype.h"
#include "coda/program/parser.h"

namespace coda::ast {
namespace {

constexpr auto kComparisons = std::to_array<std::string_view>({"==", "!=", "<", "<=", ">", ">="});

const char* const kContinuation =
    "a newline ends a statement: to go on in the next line, put the expression in parentheses";

}  // namespace

Expr Parser::finished(Expr expr, const Token& first) {
  const Token& last = at_ == 0 ? first : lexed_.tokens[at_ - 1];
  expr.span = first.span;
  expr.span.end = std::max(first.span.end, last.span.end);
  expr.depth = 1;
  for (const Expr& arg : expr.args) expr.depth = std::max(expr.depth, arg.depth + 1);
  if (expr.depth > kDeepest) {
    fail(first, "the expression is more than " + std::to_string(kDeepest) + " levels deep",
         "an expression has at most " + std::to_string(kDeepest) + " nested operations",
         "name a part of it in a statement of its own");
  }
  return expr;
}

Expr Parser::binary(std::string_view symbol, Expr left, Expr right, std::vector<Expr> contracted) {
  Expr expr{.kind = ExprKind::binary, .text = std::string(symbol), .args = {}, .span = left.span};
  const Token first{.kind = TokenKind::name, .text = {}, .span = left.span};
  expr.args.push_back(std::move(left));
  expr.args.push_back(std::move(right));
  for (Expr& dim : contracted) expr.args.push_back(std::move(dim));
  return finished(std::move(expr), first);
}

Expr Parser::expression() {
  if (++depth_ > kDeepest) {
    depth_ = 0;  // once is enough: the statement is skipped
    fail(token(), "the brackets are more than " + std::to_string(kDeepest) + " levels deep",
         "an expression has at most " + std::to_string(kDeepest) + " nested operations",
         "name a part of it in a statement of its own");
  }
  Expr left = sum();
  const auto comparison = [&] {
    return !ended() && token().kind == TokenKind::symbol &&
           std::ranges::find(kComparisons, token().text) != kComparisons.end();
  };
  if (comparison()) {
    const std::string_view symbol = take().text;
    left = binary(symbol, std::move(left), sum());
    if (comparison()) {
      fail(token(), "comparisons do not chain", "a comparison has two sides",
           "write `(a < b) * (b < c)` for `a < b < c`");
    }
  }
  if (!ended() && is("=")) {
    require_open();
    fail(token(), "`=` stands inside an expression",
         "`=` assigns, `==` compares, `name: value` names an argument",
         brackets_.empty() ? "write `==` to compare, or begin the new statement on its own line"
                           : "write `:` to name an argument, `==` to compare");
  }
  --depth_;
  return left;
}

Expr Parser::sum() {
  Expr left = term();
  while (!ended() && (is("+") || is("-"))) {
    const std::string_view symbol = take().text;
    left = binary(symbol, std::move(left), term());
  }
  return left;
}

Expr Parser::term() {
  Expr left = product();
  while (!ended() && (is("*") || is("/"))) {
    const std::string_view symbol = take().text;
    left = binary(symbol, std::move(left), product());
  }
  return left;
}

Expr Parser::product() {
  Expr left = unary();
  while (!ended() && is("@")) {
    take();
    std::vector<Expr> contracted;
    if (!ended() && is("[")) {
      const Token& bracket = token();
      contracted = dims();
      if (contracted.empty()) {
        fail(bracket, "`@[]` contracts nothing", "`@[…]` names the contracted dimensions",
             "write `@`, or name one: `@[K]`");
      }
    }
    left = binary("@", std::move(left), unary(), std::move(contracted));
  }
  return left;
}

Expr Parser::unary() {
  if (ended() || !is("-")) return postfix();
  const Token& minus = token();
  if (++depth_ > kDeepest) {
    depth_ = 0;
    fail(minus, "there are more than " + std::to_string(kDeepest) + " minus signs in a row",
         "a value needs at most one", "remove them in pairs");
  }
  take();
  Expr expr{.kind = ExprKind::negate, .text = {}, .args = {}, .span = {}};
  expr.args.push_back(unary());
  --depth_;
  return finished(std::move(expr), minus);
}

Expr Parser::postfix() {
  const Token& first = token();
  Expr value = primary();
  while (!ended()) {
    if (is("[")) {
      Expr gather{.kind = ExprKind::gather, .text = {}, .args = {}, .span = {}};
      gather.args.push_back(std::move(value));
      elements("]", "index", [&] { gather.args.push_back(expression()); });
      if (gather.args.size() != 2) {
        fail(first, "a gather has one index, not " + std::to_string(gather.args.size() - 1),
             "`table[ids]` replaces the first dimension of the table by those of the ids",
             "gather once for each index: `table[a][b]`");
      }
      value = finished(std::move(gather), first);
    } else if (is_name("as")) {
      take();
      Expr renamed{.kind = ExprKind::as, .text = {}, .args = {}, .span = {}};
      renamed.args.push_back(std::move(value));
      if (ended() || !is("[")) {
        fail(token(), "`as` needs the new dimensions, but there is " + found(),
             "`v as [M, H*E]` renames or factors each dimension", "write them in square brackets");
      }
      for (Expr& dim : dims()) renamed.args.push_back(std::move(dim));
      value = finished(std::move(renamed), first);
    } else {
      break;
    }
  }
  return value;
}

Expr Parser::primary() {
  const Token& first = token();
  require_open();
  if (ended()) {
    fail(first, "the statement ends where a value should follow", kContinuation,
         "write the value on this line, or put the whole expression in parentheses");
  }
  if (first.kind == TokenKind::bad) throw Skip();
  if (first.kind == TokenKind::number) {
    take();
    return finished(
        {.kind = ExprKind::number, .text = std::string(first.text), .args = {}, .span = {}}, first);
  }
  if (first.kind == TokenKind::name) {
    if (first.text == "pin") {
      take();
      if (ended() || token().kind != TokenKind::name || !dtype_from(token().text)) {
        fail(first, "`pin` needs a cast, but there is " + found(),
             "`pin bf16(v)` is a cast that rewriting must keep", "write `pin bf16(v)`");
      }
      Expr pin{.kind = ExprKind::pin, .text = {}, .args = {}, .span = {}};
      pin.args.push_back(primary());
      return finished(std::move(pin), first);
    }
    take();
    Expr name{
        .kind = ExprKind::name, .text = std::string(first.text), .args = {}, .span = first.span};
    return !ended() && is("(") ? call(std::move(name)) : finished(std::move(name), first);
  }
  if (is("(")) {
    open("(");
    Expr inner = expression();
    close(")");
    return inner;
  }
  fail(first, "expected a value, found " + shown(first),
       "a value is a name, a number, a call `f(x)` or an expression in parentheses",
       first.kind == TokenKind::symbol && first.text == "+" ? "remove the `+`"
                                                            : "write the missing value here");
}

Expr Parser::call(Expr callee) {
  const Token first{.kind = TokenKind::name, .text = {}, .span = callee.span};
  Expr call{.kind = ExprKind::call, .text = callee.text, .args = {}, .span = {}};
  elements(")", "argument", [&] {
    const Token& begin = token();
    if (!ended() && is("[")) {
      Expr list{.kind = ExprKind::list, .text = {}, .args = {}, .span = {}};
      list.args = dims();
      call.args.push_back(finished(std::move(list), begin));
      return;
    }
    Expr value = expression();
    if (accept(":")) {
      Expr labelled{.kind = ExprKind::labelled, .text = {}, .args = {}, .span = {}};
      labelled.args.push_back(std::move(value));
      labelled.args.push_back(expression());
      value = finished(std::move(labelled), begin);
    }
    call.args.push_back(std::move(value));
  });
  return finished(std::move(call), first);
}

std::vector<Expr> Parser::dims() {
  std::vector<Expr> list;
  elements("]", "dimension", [&] { list.push_back(expression()); });
  const auto mark = [](auto& self, Expr& dim) -> void {
    dim.is_dim = true;
    for (Expr& arg : dim.args) self(self, arg);
  };
  for (Expr& dim : list) mark(mark, dim);
  return list;
}

template <class Element>
void Parser::elements(std::string_view close_symbol, std::string_view what, Element element) {
  open(token().text);
  while (!is(close_symbol)) {
    element();
    if (is(close_symbol)) break;
    if (accept(",")) continue;
    if (token().kind == TokenKind::bad) throw Skip();
    require_open();
    const Span& bracket = brackets_.back();
    fail(token(),
         "expected `,` or `" + std::string(close_symbol) + "` after the " + std::string(what) +
             ", found " + found(),
         "the list opened at " + std::to_string(bracket.line) + ":" +
             std::to_string(bracket.column) + " separates its elements by `,` and ends with `" +
             std::string(close_symbol) + "`",
         "add the missing `,` or `" + std::string(close_symbol) + "`");
  }
  close(close_symbol);
}

namespace {

// Dimension syntax whose names are no values. `has_name`: a bare number says nothing.
bool is_dim_shaped(const Expr& expr, const std::set<std::string>& values, bool& has_name) {
  const auto all = [&] {
    return std::ranges::all_of(
        expr.args, [&](const Expr& arg) { return is_dim_shaped(arg, values, has_name); });
  };
  switch (expr.kind) {
    case ExprKind::name:
      has_name = true;
      return !values.contains(expr.text) && !is_reserved(expr.text);
    case ExprKind::number:
      return true;
    case ExprKind::call:
      return expr.text == "blocks" && all();
    case ExprKind::binary:
      return expr.args.size() == 2 && expr.text.size() == 1 &&
             std::string_view("+-*/").find(expr.text) != std::string_view::npos && all();
    case ExprKind::gather:
    case ExprKind::as:
    case ExprKind::negate:
    case ExprKind::pin:
    case ExprKind::list:
    case ExprKind::labelled:
      return false;
  }
  return false;
}

void mark(Expr& expr) {
  expr.is_dim = true;
  for (Expr& arg : expr.args) mark(arg);
}

void mark_arguments(Expr& expr, const std::set<std::string>& values) {
  const auto visit = [&](Expr& arg) {
    bool has_name = false;
    if (is_dim_shaped(arg, values, has_name) && has_name) {
      mark(arg);
    } else {
      mark_arguments(arg, values);
    }
  };
  for (Expr& arg : expr.args) {
    if (arg.is_dim) continue;
    if (expr.kind == ExprKind::call && arg.kind == ExprKind::labelled) {
      for (Expr& part : arg.args) visit(part);
    } else if (expr.kind == ExprKind::call) {
      visit(arg);
    } else {
      mark_arguments(arg, values);
    }
  }
}

}  // namespace

void mark_dims(Item& item) {
  std::set<std::string> values;
  for (const Parameter& param : item.params) {
    if (!param.type || param.type->dtype != "dim") values.insert(param.name);
  }
  for (const Statement& statement : item.body) {
    for (const Target& target : statement.targets) values.insert(target.name);
  }
  for (Statement& statement : item.body) {
    for (Expr& value : statement.values) mark_arguments(value, values);
  }
}

}  // namespace coda::ast
