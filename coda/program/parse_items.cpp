// coda/program/parse_items.cpp: the version line, use, and the headers of def, program, block and
// schedule; their bodies stand in parse_body.cpp.
#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "coda/core/dtype.h"
#include "coda/program/parser.h"
#include "coda/program/quote.h"
#include "coda/program/text.h"

namespace coda::ast {
namespace {

constexpr auto kItems =
    std::to_array<std::string_view>({"use", "def", "program", "block", "schedule"});

const char* const kItemRule =
    "a file holds `use`, `def`, `program`, `block` and `schedule` items; statements stand inside "
    "their braces";

const char* form_of(Item::Kind kind) {
  switch (kind) {
    case Item::Kind::use:
    case Item::Kind::def:
      return "a def is written `def f(x, g: [D]) = expression`";
    case Item::Kind::schedule:
      return "a schedule is written `schedule name(x: bf16[M, K]) -> (y: bf16[M, N]) { … }`";
    case Item::Kind::program:
    case Item::Kind::block:
      break;
  }
  return "a program is written `program name(x: bf16[M, K]) -> (y: bf16[M, N]) { … }`";
}

// What frameworks call a dtype, or the nearest spelling.
std::string near_dtype(std::string_view text, const std::vector<std::string>& dtypes) {
  constexpr std::pair<std::string_view, const char*> kForeign[] = {{"float", "f32"},
                                                                   {"float32", "f32"},
                                                                   {"fp32", "f32"},
                                                                   {"double", "f64"},
                                                                   {"float64", "f64"},
                                                                   {"half", "f16"},
                                                                   {"float16", "f16"},
                                                                   {"fp16", "f16"},
                                                                   {"bfloat16", "bf16"},
                                                                   {"int", "i64"},
                                                                   {"int64", "i64"},
                                                                   {"long", "i64"},
                                                                   {"int32", "i32"},
                                                                   {"uint8", "u8"},
                                                                   {"float8_e4m3fn", "f8e4m3"},
                                                                   {"float8_e5m2", "f8e5m2"},
                                                                   {"boolean", "bool"}};
  for (const auto& [foreign, ours] : kForeign) {
    if (text == foreign) return ours;
  }
  return nearest(text, dtypes);
}

}  // namespace

File parse_syntax(const Source& source, std::vector<Diagnostic>& diagnostics) {
  std::vector<Diagnostic> characters, mistakes;
  File file = Parser(source, lex(source, characters), mistakes).file();
  // What is no token may only follow from a mistake before it on its line.
  for (Diagnostic& character : characters) {
    const auto before = [&](const Diagnostic& mistake) {
      return mistake.where.line == character.where.line &&
             mistake.where.column < character.where.column;
    };
    if (std::ranges::none_of(mistakes, before)) diagnostics.push_back(std::move(character));
  }
  for (Diagnostic& mistake : mistakes) diagnostics.push_back(std::move(mistake));
  return file;
}

File Parser::file() {
  File file;
  try {
    version(file);
  } catch (Skip) {
    skip_item(0);
  }
  while (token().kind != TokenKind::end) {
    brackets_.clear();
    depth_ = 0;
    std::vector<Comment> leading = comments_before(at_);
    const bool blank = blank_before(leading, token());
    begin_ = at_;
    const std::size_t begin = at_;
    try {
      Item next = item();
      mark_dims(next);
      next.leading.insert(next.leading.begin(), leading.begin(), leading.end());
      next.blank_before = blank;
      file.items.push_back(std::move(next));
    } catch (Skip) {
      file.complete = false;
      skip_item(begin);
    }
  }
  file.closing = comments_before(at_);
  return file;
}

void Parser::version(File& file) {
  if (!is_name("coda") || token_at(at_ + 1).kind != TokenKind::number) return;
  file.version_leading = comments_before(at_);
  take();
  const Token& number = take();
  const auto [end, error] =
      std::from_chars(number.text.data(), number.text.data() + number.text.size(), file.version);
  const bool whole = error == std::errc() && end == number.text.data() + number.text.size();
  if (!whole || file.version < 1 || file.version > kLanguageVersion) {
    const std::string known = std::to_string(kLanguageVersion);
    report(
        number.span,
        "this coda does not know version " + std::string(number.text) + " of the language",
        "the first line names the version of the language: `coda " + known + "` is the newest here",
        "write `coda " + known + "`, or use a newer coda");
    file.version = kLanguageVersion;
  }
  if (!ended()) {
    fail(token(), "the version line goes on with " + found(), "the version stands on its own line",
         "begin a new line after `coda " + std::to_string(kLanguageVersion) + "`");
  }
  file.version_trailing = trailing_comment();
}

Item Parser::item() {
  const Token& first = token();
  if (first.kind == TokenKind::bad) throw Skip();
  Item item;
  if (is_name("use")) {
    use(item);
  } else if (is_name("def")) {
    def(item);
  } else if (is_name("program") || is_name("block") ||
             (is_name("schedule") && !begins_statement(at_))) {
    program(item);
  } else if (is_name("coda")) {
    fail(first, "the version line does not come first", "`coda 1` is the first line of a file",
         "move it to the top, or remove it");
  } else if (is("}")) {
    fail(first, "this `}` closes nothing", kItemRule, "remove it");
  } else if (begins_statement(at_)) {
    fail(first, "the statement stands outside any program", kItemRule,
         "put it inside the braces of a program, block or def");
  } else {
    const std::string near =
        nearest(first.text, std::vector<std::string>(kItems.begin(), kItems.end()));
    fail(first, "expected `use`, `def`, `program`, `block` or `schedule`, found " + shown(first),
         kItemRule,
         first.kind == TokenKind::name && !near.empty() ? "did you mean " + quoted(near) + "?"
                                                        : "begin an item here, or remove this");
  }
  return item;
}

void Parser::use(Item& item) {
  item.kind = Item::Kind::use;
  take();
  if (ended() || token().kind != TokenKind::string) {
    fail(token(), "`use` needs a file name in quotes, but there is " + found(),
         "`use \"prelude.coda\"` brings in the defs, programs and blocks of a file",
         "write the name in double quotes");
  }
  item.span = token().span;
  item.name = std::string(take().text);
  if (!ended()) {
    fail(token(), "`use` goes on with " + found(), "each `use` stands on its own line",
         "begin a new line after the file name");
  }
  item.trailing = trailing_comment();
}

void Parser::def(Item& item) {
  item.kind = Item::Kind::def;
  take();
  item.span = token().span;
  item.name = new_name("the def");
  item.params = parameters(item, Item::Kind::def, "parameter");
  if (is("{")) return body(item);
  if (is("->")) {
    fail(token(), "a def declares no results", "a def gives what its expression or `return` gives",
         "write `def f(x) = expression`, or return the values in braces; types of parameters and "
         "results make it a `program` or a `block`");
  }
  if (!accept("=")) {
    fail(token(), "expected `=` or `{` after the def's parameters, found " + found(),
         "a def is written `def f(x, g: [D]) = expression` or `def f(x) { …; return a, b }` on "
         "several lines",
         "write `=` and the expression");
  }
  item.is_expression = true;
  Statement result{.kind = Statement::Kind::returns,
                   .targets = {},
                   .values = {},
                   .leading = {},
                   .trailing = {},
                   .span = {}};
  result.span = token().span;
  result.values.push_back(expression());
  if (!ended()) {
    fail(token(), "the def goes on with " + found(), "a newline ends a def's expression",
         "add the missing operator or comma, or begin a new line");
  }
  result.span.end = lexed_.tokens[at_ - 1].span.end;
  const std::vector<Comment> inner = comments_before(at_ - 1);
  item.leading.insert(item.leading.end(), inner.begin(), inner.end());
  item.trailing = trailing_comment();
  item.body.push_back(std::move(result));
}

void Parser::program(Item& item) {
  item.kind = is_name("program")    ? Item::Kind::program
              : is_name("schedule") ? Item::Kind::schedule
                                    : Item::Kind::block;
  const std::string what = "the " + std::string(take().text);
  item.span = token().span;
  item.name = new_name(what);
  if (!ended() && is("[") && item.kind != Item::Kind::schedule) {
    item.dims = dims();
    for (const Expr& dim : item.dims) {
      if (dim.kind == ExprKind::name && !is_reserved(dim.text)) continue;
      report(dim.span, quoted(flat(dim)) + " is no name of a dimension",
             "`program f[D](…)` names dimensions that no type has, for `size(D)`", "write a name");
      item.complete = item.declares_all = false;
    }
  }
  item.params = parameters(item, item.kind, "parameter");
  if (!accept("->")) {
    fail(token(), "expected `->` and the results, found " + found(), form_of(item.kind),
         "declare the results: `-> (y: bf16[M, N])`");
  }
  item.results = parameters(item, item.kind, "result");
  if (!is("{")) {
    fail(token(), "expected `{` and the statements of " + quoted(item.name) + ", found " + found(),
         form_of(item.kind), "open the body with `{`");
  }
  body(item);
}

std::vector<Parameter> Parser::parameters(Item& item, Item::Kind kind, std::string_view what) {
  if (!is("(")) {
    fail(token(),
         "expected `(` and the " + std::string(what) + "s of " + quoted(item.name) + ", found " +
             found(),
         form_of(kind), "write them in parentheses, `()` where there are none");
  }
  const std::vector<Comment> before = comments_before(at_);
  item.leading.insert(item.leading.end(), before.begin(), before.end());
  open("(");
  std::vector<Parameter> list;
  while (!is(")")) {
    std::vector<Comment> leading = comments_before(at_);
    const std::size_t begin = begin_ = at_;
    Parameter next;
    try {
      next = parameter(kind, what);
      if (!is(")") && !is(",")) {
        fail(token(),
             "expected `,` or `)` after the " + std::string(what) + " " + quoted(next.name) +
                 ", found " + found(),
             std::string(what) + "s are separated by `,`", "add the missing `,` or `)`");
      }
    } catch (Skip) {
      // To the comma or bracket that ends this parameter; past a brace or arrow there is none.
      brackets_.resize(1);
      depth_ = 0;
      item.complete = item.declares_all = false;
      int nested = 0;
      at_ = std::max(at_, begin);
      while (token().kind != TokenKind::end && !is("{") && !is("->") && !begins_item(at_)) {
        if (nested <= 0 && (is(",") || is(")"))) break;
        if (is("(") || is("[")) ++nested;
        if (is(")") || is("]")) --nested;
        take();
      }
      if (!is(",") && !is(")")) break;
      next.name.clear();
    }
    std::vector<Comment> inner = comments_before(at_ - 1);
    leading.insert(leading.end(), inner.begin(), inner.end());
    next.leading = std::move(leading);
    const bool more = accept(",");
    if (const auto comment = trailing_comment()) next.trailing = comment;
    if (!next.name.empty()) list.push_back(std::move(next));
    if (!more) break;
  }
  const std::vector<Comment> after = comments_before(at_);
  item.leading.insert(item.leading.end(), after.begin(), after.end());
  if (is(")")) {
    close(")");
  } else if (item.complete) {
    close(")");  // fails
  } else {
    brackets_.clear();
  }
  return list;
}

Parameter Parser::parameter(Item::Kind kind, std::string_view what) {
  const bool is_def = kind == Item::Kind::def;
  Parameter param;
  const Token& first = token();
  param.span = first.span;
  param.name = new_name("the " + std::string(what));
  if (accept(":")) {
    if (is("+")) {
      if (what != "result") {
        fail(token(), "the parameter " + quoted(param.name) + " is marked `+`",
             "only a result accumulates: `-> (dw: +f32[N, K])`", "remove the `+`");
      }
      take();
      param.accumulate = true;
    }
    param.type = type(kind);
  } else if (!is_def) {
    fail(token(), "the " + std::string(what) + " " + quoted(param.name) + " has no type",
         "every " + std::string(what) + " of a program or block has a type",
         "write `" + param.name + ": bf16[M, N]`, or `" + param.name + ": f32` for a scalar");
  }
  if (is("=")) {
    if (!is_def) {
      fail(token(), "the " + std::string(what) + " " + quoted(param.name) + " has a default value",
           "only a def's parameters have defaults",
           "remove it, and give the value where it is called");
    }
    take();
    param.default_value = expression();
  }
  param.span.end = lexed_.tokens[at_ - 1].span.end;
  return param;
}

TypeExpr Parser::type(Item::Kind kind) {
  TypeExpr type;
  const Token& first = token();
  type.span = first.span;
  const bool is_def = kind == Item::Kind::def;
  const char* const rule =
      is_def ? "a def takes any dtype; its annotations name dimensions: `g: [D]`"
             : "a type is a dtype and dimensions: `bf16[M, K]`, or `f32` for a scalar";
  if (is_def && is_name("dim")) {
    type.dtype = take().text;
    return type;
  }
  if (first.kind == TokenKind::name && dtype_from(first.text)) {
    if (is_def) {
      fail(first, "the annotation names the dtype " + quoted(first.text), rule, "remove the dtype");
    }
    type.dtype = take().text;
  } else if (!is_def || !is("[")) {
    if (first.kind == TokenKind::bad) throw Skip();
    std::vector<std::string> dtypes;
    for (const char* name :
         {"f32", "f64", "bf16", "f16", "f8e4m3", "f8e5m2", "i32", "i64", "u8", "bool"}) {
      dtypes.emplace_back(name);
    }
    const std::string near = first.kind == TokenKind::name ? near_dtype(first.text, dtypes) : "";
    fail(first, "expected a " + std::string(is_def ? "`[`" : "dtype") + ", found " + shown(first),
         rule,
         is_def         ? "write the dimensions in square brackets"
         : near.empty() ? "use one of f32 f64 bf16 f16 f8e4m3 f8e5m2 i32 i64 u8 bool"
                        : "did you mean " + quoted(near) + "?");
  }
  if (is("[")) {
    type.has_dims = true;
    type.dims = dims();
  }
  type.span.end = lexed_.tokens[at_ - 1].span.end;
  return type;
}

std::string Parser::new_name(std::string_view what) {
  const Token& name = token();
  if (name.kind == TokenKind::bad) throw Skip();
  if (name.kind != TokenKind::name) {
    fail(name, "expected the name of " + std::string(what) + ", found " + shown(name),
         "a name is letters, digits, `_` and dots inside; it starts with a letter, `_` or a number "
         "and a "
         "dot, like `0.wq`",
         "write a name here");
  }
  if (is_reserved(name.text)) {
    fail(name, quoted(name.text) + " cannot be the name of " + std::string(what),
         quoted(name.text) + " is a word of the language", "choose another name");
  }
  take();
  return std::string(name.text);
}

}  // namespace coda::ast
