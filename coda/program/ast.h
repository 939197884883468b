// coda/program/ast.h: the syntax tree of a .coda text, comments and places included.
//
// It holds what the author wrote, sugar and all; it knows no types. Dimensions are expressions here
// (`H*(E/2)`, `blocks(N)`): only lowering, which knows the ops, turns them into Dims.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coda/program/lex.h"

namespace coda::ast {

enum class ExprKind : std::uint8_t {
  name,      // text
  number,    // text, as spelled
  call,      // text(args…): ops, casts, defs, blocks
  gather,    // args[0][args[1]]
  as,        // args[0] as [args[1], …]
  negate,    // -args[0]
  pin,       // pin args[0], which is a cast
  binary,    // args[0] text args[1]; of `@[…]`: args[2] and on are what is contracted
  list,      // [args…]
  labelled,  // args[0]: args[1], an argument
};

struct Expr {
  ExprKind kind = ExprKind::name;
  std::string text;
  std::vector<Expr> args;
  Span span;
  int depth = 1;        // levels of the tree, this one included
  bool is_dim = false;  // it names a dimension: `H*E` rather than `a * b`
};

struct TypeExpr {
  std::string dtype;  // empty in a def's annotation; "dim": the parameter is a dimension
  bool has_dims = false;
  std::vector<Expr> dims;
  Span span;
};

// A parameter of a def, program, block or schedule, or a result.
struct Parameter {
  std::string name;
  std::optional<TypeExpr> type;       // absent: anything (a def's)
  std::optional<Expr> default_value;  // a def's
  bool accumulate = false;            // a result's: `dw: +f32[N, K]`
  std::vector<Comment> leading;
  std::optional<Comment> trailing;
  Span span;
};

struct Target {
  std::string name;
  Span span;
  bool adds = false;  // `+name`, in a schedule
};

struct Loop;

struct Statement {
  enum class Kind : std::uint8_t { assign, accumulate, returns, loop };
  Kind kind = Kind::assign;
  std::vector<Target> targets;  // none where it returns
  std::vector<Expr> values;     // one, but where it returns; none where it did not parse
  std::vector<Comment> leading;
  std::optional<Comment> trailing;
  std::shared_ptr<Loop> loop;  // of a loop, which has no targets and values
  bool blank_before = false;
  Span span;  // of a loop: its head
};

// `for V in chunks of 8192 from first { … }`, in a schedule.
struct Loop {
  Target dim;                   // without a name where the head did not parse
  Expr size;                    // a number
  std::optional<Target> first;  // the name of the chunk's first element
  std::vector<Statement> body;
  std::vector<Comment> closing;  // before its `}`
};

struct Item {
  enum class Kind : std::uint8_t { use, def, program, block, schedule };
  Kind kind = Kind::def;
  std::string name;        // of a use: the file
  std::vector<Expr> dims;  // of a program or block: names of dimensions that no type has
  std::vector<Parameter> params;
  std::vector<Parameter> results;
  std::vector<Statement> body;  // of a def: its last statement returns
  bool is_expression = false;   // def f(x) = expression
  bool complete = true;         // false: some part did not parse, so absences mean nothing
  bool declares_all = true;     // false: that part is among the parameters or results
  std::vector<Comment> leading;
  std::optional<Comment> trailing;  // of its header's line
  std::vector<Comment> closing;     // before its `}`
  bool blank_before = false;
  Span span;  // of the name
};

struct File {
  int version = 0;  // 0: the text has no version line
  std::vector<Comment> version_leading;
  std::optional<Comment> version_trailing;
  std::vector<Item> items;
  bool complete = true;  // false: an item did not parse and is missing
  std::vector<Comment> closing;
};

// Parses what it can, reports the rest. Never throws for a wrong text.
File parse_syntax(const Source& source, std::vector<Diagnostic>& diagnostics);

// The canonical text, which is what `coda fmt` writes. Same file, same text.
std::string layout(const File& file);
// On one line, without comments.
std::string flat(const Expr& expr);
std::string flat(const Statement& statement);
std::string flat(const Parameter& parameter);
std::string flat(const TypeExpr& type);

}  // namespace coda::ast
