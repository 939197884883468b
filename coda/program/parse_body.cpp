// coda/program/parse_body.cpp: statements, and the loops of a schedule; comments and recovery.
#include "coda/program/parser.h"
#include "coda/program/quote.h"

namespace coda::ast {

void Parser::body(Item& item) {
  const std::vector<Comment> inner = comments_before(at_);
  item.leading.insert(item.leading.end(), inner.begin(), inner.end());
  const Span opened = token().span;
  take();  // the brace: newlines matter inside, so it is no bracket
  item.trailing = trailing_comment();
  statements(item, opened, quoted(item.name), item.body, item.closing);
}

// Of the body of `item`, or of a loop in it, which the brace `opened` began; closes it.
void Parser::statements(Item& item, const Span& opened, const std::string& of,
                        std::vector<Statement>& list, std::vector<Comment>& closing) {
  while (!is("}")) {
    if (token().kind == TokenKind::end || begins_item(at_)) {
      const std::string end =
          token().kind == TokenKind::end
              ? "the file ends"
              : "the next item begins in line " + std::to_string(token().span.line);
      report(opened, "the `{` of " + of + " is never closed",
             "a body ends with `}`, and " + end + " before there is one",
             "add `}` after the last statement");
      item.complete = false;
      return;
    }
    std::vector<Comment> leading = comments_before(at_);
    const std::size_t begin = begin_ = at_;
    Statement next;
    next.blank_before = blank_before(leading, token());
    try {
      brackets_.clear();
      depth_ = 0;
      name_statement(next);
      const bool blank = next.blank_before;
      next = statement(item);
      next.blank_before = blank;
    } catch (Skip) {
      item.complete = false;
      skip_statement(begin);
      // Its names exist, so that uses of them are no further errors.
      if (next.targets.empty()) continue;
    }
    const std::vector<Comment> within = at_ > 0 ? comments_before(at_ - 1) : std::vector<Comment>();
    leading.insert(leading.end(), within.begin(), within.end());
    next.leading = std::move(leading);
    if (next.kind != Statement::Kind::loop) next.trailing = trailing_comment();
    list.push_back(std::move(next));
  }
  closing = comments_before(at_);
  take();
  if (const auto comment = trailing_comment()) closing.push_back(*comment);
}

// `for V in chunks of 8192 from first { … }`. Where its head does not parse, its body still does.
void Parser::loop(Item& item, Statement& statement) {
  statement.kind = Statement::Kind::loop;
  Loop& loop = *(statement.loop = std::make_shared<Loop>());
  const std::size_t begin = at_;
  const auto word = [&](std::string_view text) {
    if (!ended() && is_name(text)) return void(take());
    fail(token(), "expected " + quoted(text) + " in the loop's head, found " + found(),
         "a loop is written `for V in chunks of 8192 { … }`, or `… of 8192 from first { … }`",
         "write " + quoted(text) + " here");
  };
  if (item.kind != Item::Kind::schedule) {
    report(token().span, "a loop stands in " + quoted(item.name),
           "only a schedule loops: a program says what each element is, for all of them at once",
           "write the statements for the whole dimension");
    item.complete = false;
  }
  if (loops_ > 0) {
    const std::string rule = "loops do not nest: the steps of a loop run once for each chunk";
    if (loops_ > 1) fail(token(), "a loop stands in a loop", rule, "close the loop before it");
    report(token().span, "a loop stands in a loop", rule, "close the loop before it");
    item.complete = false;
  }
  take();
  try {
    loop.dim = {std::string(token().text), token().span};
    new_name("the loop's dimension");
    word("in");
    word("chunks");
    word("of");
    if (ended() || token().kind != TokenKind::number) {
      fail(token(), "expected the number of elements of a chunk, found " + found(),
           "a loop is written `for V in chunks of 8192 { … }`, or `… of 8192 from first { … }`",
           "write a number here");
    }
    loop.size = {.kind = ExprKind::number, .text = std::string(token().text), .span = token().span};
    take();
    if (!ended() && is_name("from")) {
      take();
      loop.first = {std::string(token().text), token().span};
      new_name("the chunk's first element");
    }
    if (ended() || !is("{")) {
      fail(token(), "expected `{` and the loop's steps, found " + found(),
           "a loop is written `for V in chunks of 8192 { … }`, or `… of 8192 from first { … }`",
           "open the loop's body with `{`");
    }
  } catch (Skip) {
    item.complete = false;
    loop.dim.name.clear();
    at_ = std::max(at_, begin + 1);
    while (!ended() && !is("{") && !is("}")) take();
    if (ended() || !is("{")) throw;
  }
  statement.span.end = lexed_.tokens[at_ - 1].span.end;
  const Span opened = token().span;
  take();
  statement.trailing = trailing_comment();
  ++loops_;
  statements(item, opened, "the loop", loop.body, loop.closing);
  --loops_;
}

// The targets alone, without taking them: what a statement that fails still defines.
void Parser::name_statement(Statement& statement) {
  statement.span = token().span;
  if (!begins_statement(at_)) return;
  if (is_name("return") || (is_name("for") && token_at(at_ + 1).kind == TokenKind::name)) return;
  std::size_t at = at_;
  for (;; at += 2) {
    if (token_at(at).text == "+") ++at;
    if (token_at(at).kind != TokenKind::name) return;
    statement.targets.push_back({std::string(token_at(at).text), token_at(at).span});
    if (token_at(at + 1).text != ",") break;
  }
  if (token_at(at + 1).text == "+=") statement.kind = Statement::Kind::accumulate;
}

Statement Parser::statement(Item& item) {
  const Token& first = token();
  Statement statement;
  statement.span = first.span;
  if (first.kind == TokenKind::bad) throw Skip();
  const bool names_dim = is_name("for") && token_at(at_ + 1).kind == TokenKind::name;
  if (names_dim) {
    loop(item, statement);
  } else if (is_name("return")) {
    if (item.kind != Item::Kind::def) {
      fail(first, "`return` stands in a program or block",
           "only a def returns; a program assigns its results",
           "assign the declared result by its name: `y = …`");
    }
    take();
    statement.kind = Statement::Kind::returns;
    statement.values.push_back(expression());
    while (!ended() && accept(",")) statement.values.push_back(expression());
  } else {
    if (first.kind != TokenKind::name && !(item.kind == Item::Kind::schedule && is("+"))) {
      fail(first, "a statement cannot begin with " + shown(first),
           first.kind == TokenKind::symbol &&
                   std::string_view("+-*/@<>").find(first.text[0]) != std::string_view::npos
               ? "a newline ends a statement, but for one inside parentheses"
               : "a statement is `name = expression`",
           "put an expression of several lines in parentheses, or write `name = …`");
    }
    do {
      const bool adds = item.kind == Item::Kind::schedule && accept("+");
      statement.targets.push_back({std::string(token().text), token().span, adds});
      if (token().text == "_") {
        take();
      } else {
        new_name("a value");
      }
    } while (!ended() && accept(","));
    if (!ended() && is(":")) {
      fail(token(), "the statement declares a type",
           "types of values are inferred; only parameters and results declare one",
           "write `" + statement.targets[0].name +
               " = …`, with a cast `bf16(…)` where one is meant");
    }
    if (!ended() && accept("+=")) {
      statement.kind = Statement::Kind::accumulate;
    } else if (ended() || !accept("=")) {
      const bool is_call = !ended() && is("(");
      fail(token(),
           "expected `=` after " + quoted(statement.targets.back().name) + ", found " + found(),
           "a statement is `name = expression`; a call has no effect but its values",
           is_call ? "write `y = " + statement.targets.back().name + "(…)`"
                   : "write `=` and the expression");
    }
    statement.values.push_back(expression());
  }
  if (!ended() && !is("}")) {
    if (token().kind == TokenKind::bad) throw Skip();
    const bool is_loop = statement.kind == Statement::Kind::loop;
    fail(token(),
         (is_loop ? "the loop is followed" : "the expression is followed") + std::string(" by ") +
             found(),
         "a newline ends a statement",
         is_name("if") ? "write `where(condition, a, b)` for `a if condition else b`"
                       : "add the missing operator, or begin a new line");
  }
  if (statement.kind != Statement::Kind::loop) {
    statement.span.end = lexed_.tokens[at_ - 1].span.end;
  }
  return statement;
}

}  // namespace coda::ast
