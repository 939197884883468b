// coda/program/layout.cpp: the canonical text of a syntax tree.
//
// The layout is a function of the tree alone, so laying out twice changes nothing. What fits stays
// on one line of 100 columns; what does not is broken at its outermost bracket, and an expression
// without brackets gets a pair.
#include <algorithm>
#include <string_view>

#include "coda/program/ast.h"

namespace coda::ast {
namespace {

constexpr std::size_t kColumns = 100;
constexpr std::size_t kIndent = 2;  // of a body
constexpr std::size_t kBreak = 4;   // of a continued line

// How tightly an expression binds; an operand that binds less than its place asks for is put in
// parentheses.
enum Binding : int {
  loosest,
  compared,
  added,
  multiplied,
  contracted,
  negated,
  postfixed,
  bracketed
};

Binding binding(const Expr& expr) {
  switch (expr.kind) {
    case ExprKind::binary:
      if (expr.text == "+" || expr.text == "-") return added;
      if (expr.text == "*" || expr.text == "/") return multiplied;
      return expr.text == "@" ? contracted : compared;
    case ExprKind::negate:
      return negated;
    case ExprKind::labelled:
      return loosest;
    case ExprKind::name:
    case ExprKind::number:
    case ExprKind::call:
    case ExprKind::gather:
    case ExprKind::as:
    case ExprKind::pin:
    case ExprKind::list:
      break;
  }
  return postfixed;
}

// What the operand `side` of `expr` must bind at least.
Binding demanded(const Expr& expr, std::size_t side) {
  const Expr& operand = expr.args[side];
  // `(x as [M, N]) @ w`, for readers who do not know how tightly `as` binds.
  const bool renamed = operand.kind == ExprKind::as;
  if (expr.kind == ExprKind::negate) return renamed ? bracketed : negated;
  if (expr.kind == ExprKind::gather && side == 0) return renamed ? bracketed : postfixed;
  if (expr.kind != ExprKind::binary) return postfixed;
  const Binding own = binding(expr);
  if (expr.is_dim) {
    // H*E*2 needs none wherever it nests; a quotient and a sum are factors of their own: H*(E/2),
    // (H*E)/2.
    const bool product =
        expr.text == "*" && operand.kind == ExprKind::binary && operand.text == "*";
    if (product) return multiplied;
    if (own == multiplied) return negated;
    return side == 0 ? added : multiplied;
  }
  if (renamed && (own == multiplied || own == contracted)) return bracketed;
  // `r * (p @ w)`: readers know languages in which `@` and `*` bind alike.
  if (own == multiplied && binding(operand) == contracted) return negated;
  if (own == compared) return added;
  return side == 0 ? own : static_cast<Binding>(own + 1);
}

std::string operator_text(const Expr& expr) {
  std::string text = expr.text;
  if (expr.args.size() > 2) {
    text += "[";
    for (std::size_t i = 2; i < expr.args.size(); ++i)
      text += (i > 2 ? ", " : "") + flat(expr.args[i]);
    text += "]";
  }
  const bool tight = expr.is_dim && binding(expr) == multiplied;
  return tight ? text : " " + text + " ";
}

std::string operand(const Expr& expr, std::size_t side) {
  const Expr& arg = expr.args[side];
  return binding(arg) < demanded(expr, side) ? "(" + flat(arg) + ")" : flat(arg);
}

template <class Items, class Text>
std::string joined(const Items& items, std::size_t first, Text text) {
  std::string all;
  for (std::size_t i = first; i < items.size(); ++i)
    all += (i > first ? ", " : "") + text(items[i]);
  return all;
}

std::string flat_args(const Expr& expr, std::size_t first) {
  return joined(expr.args, first, [](const Expr& arg) { return flat(arg); });
}

std::string comment_text(const Comment& comment) {
  const bool spaced = comment.text.empty() ||
                      std::string_view(" \t#!").find(comment.text[0]) != std::string_view::npos;
  return (spaced ? "#" : "# ") + comment.text;
}

std::string head(const Statement& statement) {
  if (statement.kind == Statement::Kind::returns) return "return ";
  if (statement.kind == Statement::Kind::loop) {
    const Loop& loop = *statement.loop;
    return "for " + loop.dim.name + " in chunks of " + flat(loop.size) +
           (loop.first ? " from " + loop.first->name : "") + " {";
  }
  const auto name = [](const Target& target) {
    return (target.adds ? "+" : "") + target.name;
  };
  return joined(statement.targets, 0, name) +
         (statement.kind == Statement::Kind::accumulate ? " += " : " = ");
}

class Layout {
 public:
  std::string file(const File& file) {
    comments(file.version_leading, 0);
    emit("coda " + std::to_string(std::max(file.version, 1)));
    finish_line(file.version_trailing);
    for (std::size_t i = 0; i < file.items.size(); ++i) {
      const Item& item = file.items[i];
      const bool first = i == 0;
      if (first || item.blank_before || stands_apart(item) || stands_apart(file.items[i - 1])) {
        blank_line();
      }
      this->item(item);
    }
    if (!file.closing.empty()) blank_line();
    comments(file.closing, 0);
    return std::move(out_);
  }

 private:
  // Items of several lines have a blank line on both sides.
  static bool stands_apart(const Item& item) {
    return item.kind != Item::Kind::use && !item.is_expression;
  }

  void item(const Item& item) {
    comments(item.leading, 0);
    keep_gap(item.leading, item.span);
    if (item.kind == Item::Kind::use) {
      emit("use \"" + item.name + "\"");
      return finish_line(item.trailing);
    }
    const char* const word = item.kind == Item::Kind::def       ? "def "
                             : item.kind == Item::Kind::program ? "program "
                             : item.kind == Item::Kind::block   ? "block "
                                                                : "schedule ";
    const bool is_def = item.kind == Item::Kind::def;
    const std::string free =
        item.dims.empty()
            ? ""
            : "[" + joined(item.dims, 0, [](const Expr& dim) { return flat(dim); }) + "]";
    const std::string name = word + item.name + free;
    const std::string params = flat_list(item.params), results = flat_list(item.results);
    const bool commented = has_comments(item.params) || has_comments(item.results);
    const std::string arrow = is_def ? "" : "-> " + results;
    const std::string tail = item.is_expression ? " =" : " {";
    const std::string one_line = name + params + (is_def ? "" : " " + arrow) + tail;
    if (item.is_expression) {
      const Expr& value = item.body[0].values[0];
      const bool fits = !commented && one_line.size() + 1 + flat(value).size() <= kColumns;
      if (fits || (!commented && one_line.size() <= kColumns / 2)) {
        emit(one_line + " ");
      } else {
        emit(name);
        list(item.params, 0);
        emit(" = ");
      }
      write(value, 0, loosest, 0);
      return finish_line(item.trailing);
    }
    if (!commented && one_line.size() <= kColumns) {
      emit(one_line);
    } else if (!commented && !is_def && name.size() + params.size() <= kColumns &&
               kBreak + arrow.size() + tail.size() <= kColumns) {
      emit(name + params);
      new_line(kBreak);
      emit(arrow + tail);
    } else {
      emit(name);
      list(item.params, 0);
      if (!is_def) {
        emit(" -> ");
        if (has_comments(item.results) || column() + results.size() + tail.size() > kColumns) {
          list(item.results, 0);
        } else {
          emit(results);
        }
      }
      emit(tail);
    }
    finish_line(item.trailing);
    body(item.body, item.closing, 0);
  }

  // To the brace that closes it, which stands at `indent`.
  void body(const std::vector<Statement>& list, const std::vector<Comment>& closing,
            std::size_t indent) {
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (i > 0 && list[i].blank_before) blank_line();
      statement(list[i], indent + kIndent);
    }
    comments(closing, indent + kIndent);
    emit(std::string(indent, ' ') + "}");
    finish_line(std::nullopt);
  }

  void statement(const Statement& statement, std::size_t indent) {
    comments(statement.leading, indent);
    keep_gap(statement.leading, statement.span);
    emit(std::string(indent, ' ') + head(statement));
    if (statement.kind == Statement::Kind::loop) {
      finish_line(statement.trailing);
      return body(statement.loop->body, statement.loop->closing, indent);
    }
    if (statement.values.size() == 1) {
      write(statement.values[0], indent, loosest, 0);
    } else {
      emit(joined(statement.values, 0, [](const Expr& value) { return flat(value); }));
    }
    finish_line(statement.trailing);
  }

  static bool has_comments(const std::vector<Parameter>& list) {
    return std::ranges::any_of(
        list, [](const Parameter& p) { return !p.leading.empty() || p.trailing.has_value(); });
  }

  static std::string flat_list(const std::vector<Parameter>& list) {
    return "(" + joined(list, 0, [](const Parameter& p) { return flat(p); }) + ")";
  }

  // A broken list: as many as fit on a line, or one a line where one of them has a comment.
  void list(const std::vector<Parameter>& list, std::size_t indent) {
    const bool commented = has_comments(list);
    emit("(");
    for (std::size_t i = 0; i < list.size(); ++i) {
      const bool last = i + 1 == list.size();
      const std::string text = flat(list[i]) + (last ? "" : ",");
      if (commented || i == 0 || column() + 1 + text.size() > kColumns) {
        if (i == 0 || !list[i - 1].trailing) new_line(indent + kBreak);
        for (const Comment& comment : list[i].leading) {
          emit(comment_text(comment));
          new_line(indent + kBreak);
        }
      } else {
        emit(" ");
      }
      emit(text);
      if (list[i].trailing) {
        emit("  " + comment_text(*list[i].trailing));
        new_line(last ? indent : indent + kBreak);
      }
    }
    if (list.empty() || !list.back().trailing) new_line(indent);
    emit(")");
  }

  // Writes `expr` at the current column. `after` columns of the line are spoken for by what
  // follows; lines that it breaks into are indented beyond `indent`.
  void write(const Expr& expr, std::size_t indent, Binding least, std::size_t after,
             bool in_brackets = false) {
    const std::string text = flat(expr);
    const bool brackets = binding(expr) < least;
    if (column() + text.size() + (brackets ? 2 : 0) + after <= kColumns) {
      return emit(brackets ? "(" + text + ")" : text);
    }
    if (brackets || (!in_brackets && binding(expr) < postfixed && binding(expr) > loosest)) {
      emit("(");
      new_line(indent + kBreak);
      broken(expr, indent + kBreak, after + 1);
      new_line(indent);
      return emit(")");
    }
    broken(expr, indent, after);
  }

  void broken(const Expr& expr, std::size_t indent, std::size_t after) {
    switch (expr.kind) {
      case ExprKind::binary: {
        // a + b - c breaks before each operator of the chain.
        std::vector<const Expr*> chain = {&expr};
        while (chain.back()->args[0].kind == ExprKind::binary &&
               binding(chain.back()->args[0]) == binding(expr) && binding(expr) != compared) {
          chain.push_back(&chain.back()->args[0]);
        }
        write(chain.back()->args[0], indent, demanded(*chain.back(), 0), 0, true);
        for (auto link = chain.rbegin(); link != chain.rend(); ++link) {
          new_line(indent);
          emit(operator_text(**link).substr((*link)->is_dim ? 0 : 1));
          write((*link)->args[1], indent, demanded(**link, 1), link + 1 == chain.rend() ? after : 0,
                true);
        }
        return;
      }
      case ExprKind::call:
        emit(expr.text);
        return arguments(expr, "(", ")", 0, indent);
      case ExprKind::list:
        return arguments(expr, "[", "]", 0, indent);
      case ExprKind::gather:
        write(expr.args[0], indent, demanded(expr, 0), 1, true);
        return arguments(expr, "[", "]", 1, indent);
      case ExprKind::as: {
        const std::string dims = " as [" + flat_args(expr, 1) + "]";
        return write(expr.args[0], indent, postfixed, dims.size() + after, true), emit(dims);
      }
      case ExprKind::negate:
      case ExprKind::pin:
        emit(expr.kind == ExprKind::pin ? "pin " : "-");
        return write(expr.args[0], indent, demanded(expr, 0), after, true);
      case ExprKind::labelled:
        emit(flat(expr.args[0]) + ": ");
        return write(expr.args[1], indent, loosest, after, true);
      case ExprKind::name:
      case ExprKind::number:
        return emit(flat(expr));
    }
  }

  // args[first…] between brackets, filled into lines of their own.
  void arguments(const Expr& expr, std::string_view open, std::string_view close, std::size_t first,
                 std::size_t indent) {
    emit(open);
    for (std::size_t i = first; i < expr.args.size(); ++i) {
      const bool last = i + 1 == expr.args.size();
      const std::size_t length = flat(expr.args[i]).size() + (last ? 0 : 1);
      if (i == first || column() + 1 + length > kColumns) {
        new_line(indent + kBreak);
      } else {
        emit(" ");
      }
      write(expr.args[i], indent + kBreak, loosest, last ? 0 : 1, true);
      if (!last) emit(",");
    }
    new_line(indent);
    emit(close);
  }

  void comments(const std::vector<Comment>& list, std::size_t indent) {
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (i > 0 && list[i].blank_before) blank_line();
      emit(std::string(indent, ' ') + comment_text(list[i]));
      finish_line(std::nullopt);
    }
  }

  // A comment that stands apart from what follows it goes on doing so.
  void keep_gap(const std::vector<Comment>& leading, const Span& follows) {
    if (!leading.empty() && leading.back().line + 1 < follows.line) blank_line();
  }

  void finish_line(const std::optional<Comment>& trailing) {
    if (trailing) emit("  " + comment_text(*trailing));
    new_line(0);
  }

  void blank_line() {
    if (!out_.empty() && !out_.ends_with("\n\n")) new_line(0);
  }

  void new_line(std::size_t indent) {
    out_ += "\n";
    line_start_ = out_.size();
    out_.append(indent, ' ');
  }

  void emit(std::string_view text) { out_ += text; }
  std::size_t column() const { return out_.size() - line_start_; }

  std::string out_;
  std::size_t line_start_ = 0;
};

}  // namespace

std::string layout(const File& file) {
  return Layout().file(file);
}

std::string flat(const Expr& expr) {
  switch (expr.kind) {
    case ExprKind::name:
    case ExprKind::number:
      return expr.text;
    case ExprKind::call:
      return expr.text + "(" + flat_args(expr, 0) + ")";
    case ExprKind::gather:
      return operand(expr, 0) + "[" + flat_args(expr, 1) + "]";
    case ExprKind::as:
      return operand(expr, 0) + " as [" + flat_args(expr, 1) + "]";
    case ExprKind::negate:
      return "-" + operand(expr, 0);
    case ExprKind::pin:
      return "pin " + operand(expr, 0);
    case ExprKind::binary:
      return operand(expr, 0) + operator_text(expr) + operand(expr, 1);
    case ExprKind::list:
      return "[" + flat_args(expr, 0) + "]";
    case ExprKind::labelled:
      return flat(expr.args[0]) + ": " + flat(expr.args[1]);
  }
  throw InternalError("unknown kind of expression");
}

std::string flat(const TypeExpr& type) {
  if (!type.has_dims) return type.dtype;
  return type.dtype + "[" + joined(type.dims, 0, [](const Expr& dim) { return flat(dim); }) + "]";
}

std::string flat(const Parameter& parameter) {
  std::string text = parameter.name;
  if (parameter.type) text += (parameter.accumulate ? ": +" : ": ") + flat(*parameter.type);
  if (parameter.default_value) text += " = " + flat(*parameter.default_value);
  return text;
}

std::string flat(const Statement& statement) {
  return head(statement) +
         joined(statement.values, 0, [](const Expr& value) { return flat(value); });
}

}  // namespace coda::ast
