// coda/program/print.cpp: Program → syntax tree → canonical text.
//
// A value that is used once, has no name and keeps its statement short stands where it is used; the
// others get a statement, under the author's name or t1, t2, … The short forms of `@`, join and
// spread are printed where inferring from them gives the node back.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "coda/program/ast.h"
#include "coda/program/dim_syntax.h"
#include "coda/program/forms.h"
#include "coda/program/parser.h"
#include "coda/program/printer.h"
#include "coda/program/text.h"
#include "coda/program/typing.h"

namespace coda {
namespace {

using ast::ExprKind;
using Tree = ast::Expr;

// Statements that inlining made longer than this read badly.
constexpr std::size_t kLongest = 90;
// Inlined operations nest no deeper, far from the parser's bound.
constexpr int kDeepest = 24;

Tree tree(ExprKind kind, std::string text, std::vector<Tree> args = {}) {
  Tree expr{.kind = kind, .text = std::move(text), .args = std::move(args), .span = {}};
  for (const Tree& arg : expr.args) expr.depth = std::max(expr.depth, arg.depth + 1);
  return expr;
}

Tree name_tree(std::string name) {
  return tree(ExprKind::name, std::move(name));
}

Tree number_tree(double number) {
  if (std::isnan(number)) return name_tree("nan");
  if (std::signbit(number) && number != 0)
    return tree(ExprKind::negate, "", {number_tree(-number)});
  if (std::isinf(number)) return name_tree("inf");
  if (number == 0) number = 0;  // no -0
  char digits[64];
  // A whole number without an exponent must be exact (2^53), and should be short.
  const bool whole = number == std::floor(number);
  const auto format = whole && number < 1e15 ? std::chars_format::fixed
                      : whole                ? std::chars_format::scientific
                                             : std::chars_format::general;
  std::string text(digits, std::to_chars(digits, digits + sizeof digits, number, format).ptr);
  // 1e-05 → 1e-5, 1e+20 → 1e20
  if (const std::size_t e = text.find('e'); e != std::string::npos) {
    std::size_t zeros = e + 2;
    while (zeros + 1 < text.size() && text[zeros] == '0') ++zeros;
    text = text.substr(0, e + 1) + (text[e + 1] == '-' ? "-" : "") + text.substr(zeros);
  }
  return tree(ExprKind::number, std::move(text));
}

Tree labelled(Tree label, Tree value) {
  std::vector<Tree> args;
  args.push_back(std::move(label));
  args.push_back(std::move(value));
  return tree(ExprKind::labelled, "", std::move(args));
}

Tree list_tree(const std::vector<Dim>& dims) {
  Tree list = tree(ExprKind::list, "");
  for (const Dim& dim : dims) list.args.push_back(ast::expr_of(dim));
  return list;
}

ast::TypeExpr type_tree(const Type& type) {
  ast::TypeExpr expr{.dtype = std::string(name_of(type.dtype)),
                     .has_dims = !type.dims.empty(),
                     .dims = {},
                     .span = {}};
  for (const Dim& dim : type.dims) expr.dims.push_back(ast::expr_of(dim));
  return expr;
}

// Whether `attr` and the result types follow from `given` alone.
bool follows(const Program& program, const Node& node, Attr given) {
  std::vector<Type> args, results;
  for (const Value arg : node.args) args.push_back(program.type(arg));
  for (const Value result : node.results) results.push_back(program.type(result));
  try {
    return infer(node.op, args, given) == results && given == node.attr;
  } catch (const TypeError&) {
    return false;
  }
}

// The node as an expression over the expressions of its operands.
Tree node_tree(const Program& program, const Node& node, std::vector<Tree> args) {
  const Attr& attr = node.attr;
  const std::string word(spelling(node.op));
  const auto axis = [&] {
    return ast::expr_of(attr.axis);
  };
  switch (class_of(node.op)) {
    case OpClass::leaf:
      if (node.op == Op::constant && attr.dtype == DType::boolean) {
        return name_tree(attr.number != 0 ? "true" : "false");
      }
      if (node.op == Op::constant) return number_tree(attr.number);
      args.push_back(node.op == Op::uniform ? list_tree(attr.dims) : axis());
      return tree(ExprKind::call, word, std::move(args));
    case OpClass::product: {
      Tree product = tree(ExprKind::binary, word, std::move(args));
      if (!follows(program, node, {})) {
        for (const Factor& factor : attr.axis.factors)
          product.args.push_back(ast::expr_of(Dim{{factor}}));
      }
      return product;
    }
    case OpClass::unary: {
      if (node.op != Op::neg) return tree(ExprKind::call, word, std::move(args));
      // -2 is a constant, so the negation of one has another form.
      const Node* operand = program.is_param(node.args[0]) ? nullptr : &program.node(node.args[0]);
      const bool literal = operand != nullptr && operand->op == Op::constant;
      return literal ? tree(ExprKind::call, "neg", std::move(args))
                     : tree(ExprKind::negate, "", std::move(args));
    }
    case OpClass::binary:
      if (node.op == Op::minimum || node.op == Op::maximum)
        return tree(ExprKind::call, word, std::move(args));
      return tree(ExprKind::binary, word, std::move(args));
    case OpClass::compare:
      return tree(ExprKind::binary, word, std::move(args));
    case OpClass::select:
      return tree(ExprKind::call, word, std::move(args));
    case OpClass::cast: {
      std::vector<Tree> cast;
      cast.push_back(tree(ExprKind::call, std::string(name_of(attr.dtype)), std::move(args)));
      return node.op == Op::pin ? tree(ExprKind::pin, "", std::move(cast)) : std::move(cast[0]);
    }
    case OpClass::reduce:
      args.push_back(axis());
      return tree(ExprKind::call, word, std::move(args));
    case OpClass::block_reduce:
      args.push_back(axis());
      if (attr.block != kBlock) args.push_back(number_tree(static_cast<double>(attr.block)));
      return tree(ExprKind::call, word, std::move(args));
    case OpClass::indexed:
      if (node.op == Op::gather) return tree(ExprKind::gather, "", std::move(args));
      if (node.op == Op::scatter_sum) args.push_back(axis());
      return tree(ExprKind::call, word, std::move(args));
    case OpClass::opaque: {
      const std::size_t tensors = args.size() - attr.keywords.size();
      for (std::size_t i = tensors; i < args.size(); ++i) {
        args[i] = labelled(name_tree(attr.keywords[i - tensors]), std::move(args[i]));
      }
      return tree(ExprKind::call, word, std::move(args));
    }
    case OpClass::layout:
      break;
  }
  if (node.op == Op::as) {
    for (const Dim& dim : attr.dims) args.push_back(ast::expr_of(dim));
    return tree(ExprKind::as, "", std::move(args));
  }
  if (node.op == Op::spread) {
    args.push_back(follows(program, node, {.axis = attr.axis}) ? axis() : list_tree(attr.dims));
    return tree(ExprKind::call, word, std::move(args));
  }
  if (node.op == Op::join && follows(program, node, {.axis = attr.axis})) {
    args[0] = labelled(axis(), std::move(args[0]));
    return tree(ExprKind::call, word, std::move(args));
  }
  for (std::size_t i = 0; i < attr.dims.size(); ++i) {
    Tree piece = ast::expr_of(attr.dims[i]);
    args.push_back(i == 0 ? labelled(axis(), std::move(piece)) : std::move(piece));
  }
  return tree(ExprKind::call, word, std::move(args));
}

std::vector<ast::Comment> comment_lines(std::string_view rest) {
  std::vector<ast::Comment> lines;
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    std::string line(rest.substr(0, end));
    for (char& c : line) {
      if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
    }
    while (line.ends_with(" ")) line.pop_back();
    lines.push_back({.text = line.empty() ? "" : " " + line});
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return lines;
}

class Printer {
 public:
  explicit Printer(const Program& program)
      : program_(program), uses_(use_counts(program)), result_of_(program.values().size(), -1) {
    names();
  }

  ast::Item item() {
    ast::Item item{.kind = program_.kind() == Program::Kind::program ? ast::Item::Kind::program
                                                                     : ast::Item::Kind::block,
                   .name = program_.name(),
                   .params = {},
                   .results = {},
                   .body = {},
                   .leading = {},
                   .trailing = {},
                   .closing = {},
                   .span = {}};
    item.leading = comment_lines(program_.comment());
    for (const Param& param : program_.params()) {
      item.params.push_back({.name = param.name,
                             .type = type_tree(param.type),
                             .default_value = {},
                             .leading = {},
                             .trailing = {},
                             .span = {}});
    }
    for (const Result& result : program_.results()) {
      item.results.push_back({.name = result.name,
                              .type = type_tree(result.type),
                              .default_value = {},
                              .accumulate = result.store == Store::accumulate,
                              .leading = {},
                              .trailing = {},
                              .span = {}});
    }
    for (std::size_t n = 0; n < program_.nodes().size(); ++n) node(n);
    for (const Result& result : program_.results()) {
      if (defined_.contains(result.name)) continue;
      assign({result.name}, read(result.value), result.store == Store::accumulate);
    }
    item.body = std::move(body_);
    // What only `size` and the like name; the text must say that it exists.
    std::set<std::string> used;
    for (const Node& node : program_.nodes()) {
      collect_names(node.attr.axis, used);
      for (const Dim& dim : node.attr.dims) collect_names(dim, used);
    }
    const std::set<std::string> known = ast::dim_names(item);
    for (const std::string& name : used) {
      if (!known.contains(name)) item.dims.push_back(name_tree(name));
    }
    return item;
  }

  // One node: its statement, or the expression that stands in another's.
  std::string statement(std::size_t index) {
    wanted_ = index;
    item();
    const Node& node = program_.nodes()[index];
    std::string targets;
    for (const Value result : node.results) {
      const std::string& name = names_[at(result)];
      targets += (targets.empty() ? "" : ", ") + name;
    }
    const char* const sign = accumulates(node.results[0]) ? " += " : " = ";
    return (targets.empty() ? "" : targets + sign) +
           ast::flat(is_leaf(node) ? node_tree(program_, node, {}) : wanted_tree_);
  }

 private:
  static bool is_leaf(const Node& node) { return node.args.empty(); }

  std::size_t at(Value v) const { return static_cast<std::size_t>(v.id); }

  bool accumulates(Value v) const {
    const int result = result_of_[at(v)];
    return result >= 0 &&
           program_.results()[static_cast<std::size_t>(result)].store == Store::accumulate;
  }

  // Names of parameters and results stand; authors' names of the rest where they are free.
  void names() {
    for (const Param& param : program_.params()) taken_.insert(param.name);
    for (const Result& result : program_.results()) taken_.insert(result.name);
    for (const ValueInfo& value : program_.values()) {
      for (const Dim& dim : value.type.dims) collect_names(dim, taken_);
    }
    for (const Node& node : program_.nodes()) {
      collect_names(node.attr.axis, taken_);
      for (const Dim& dim : node.attr.dims) collect_names(dim, taken_);
    }
    names_.resize(program_.values().size());
    for (std::size_t p = 0; p < program_.params().size(); ++p)
      names_[p] = program_.params()[p].name;
    for (std::size_t r = 0; r < program_.results().size(); ++r) {
      const Result& result = program_.results()[r];
      // An accumulating result cannot be read, so a value that others read too has a name of its
      // own.
      const bool shared = result.store == Store::accumulate && uses_[at(result.value)] > 1;
      if (program_.is_param(result.value) || shared || result_of_[at(result.value)] >= 0) continue;
      result_of_[at(result.value)] = static_cast<int>(r);
      names_[at(result.value)] = result.name;
    }
    for (std::size_t v = 0; v < program_.values().size(); ++v) {
      const std::string& name = program_.values()[v].name;
      if (!names_[v].empty() || !ast::is_name(name) || name == "_") continue;
      const bool unused = uses_[v] == 0 && !name.starts_with("_");
      names_[v] = fresh(unused ? "_" + name : name);
    }
  }

  std::string fresh(const std::string& wanted) {
    std::string name = wanted;
    for (int n = 2; !taken_.insert(name).second; ++n) name = wanted + "_" + std::to_string(n);
    return name;
  }

  // The value's name; one is made where it has none.
  const std::string& called(Value v) {
    std::string& name = names_[at(v)];
    if (name.empty() && uses_[at(v)] == 0) name = "_";
    while (name.empty()) {
      std::string next = "t" + std::to_string(++temporaries_);
      if (taken_.insert(next).second) name = std::move(next);
    }
    return name;
  }

  // A waiting expression in the place where it is used, or the value's name.
  Tree read(Value v) {
    if (!program_.is_param(v) && is_leaf(program_.node(v)) && names_[at(v)].empty()) {
      return node_tree(program_, program_.node(v), {});
    }
    if (const auto waiting = waiting_.find(v); waiting != waiting_.end()) {
      Tree expr = std::move(waiting->second);
      waiting_.erase(waiting);
      return expr;
    }
    return name_tree(called(v));
  }

  // Columns before the expression. A name that is not made yet counts as a long one, so that
  // printing the printed text again breaks at the same places.
  std::size_t head(const Node& node) const {
    constexpr std::size_t made = 6;  // t99999
    std::size_t length = 1;          // a, b = …
    for (const Value result : node.results) length += std::max(names_[at(result)].size(), made) + 2;
    return length;
  }

  void node(std::size_t index) {
    const Node& node = program_.nodes()[index];
    const Value first = node.results[0];
    const bool unnamed = node.results.size() == 1 && names_[at(first)].empty();
    if (is_leaf(node) && unnamed) return;  // stands wherever it is used
    // The longest operands get statements of their own until the rest fits on a line.
    Tree expr;
    for (;;) {
      std::vector<Tree> args;
      std::map<Value, Tree> given;
      Value longest;
      std::size_t length = 0;
      for (const Value arg : node.args) {
        const auto waiting = waiting_.find(arg);
        if (waiting != waiting_.end()) {
          if (const std::size_t size = ast::flat(waiting->second).size(); size > length) {
            length = size;
            longest = arg;
          }
          args.push_back(waiting->second);
        } else {
          args.push_back(read(arg));
        }
      }
      expr = node_tree(program_, node, std::move(args));
      const bool fits = head(node) + ast::flat(expr).size() <= kLongest && expr.depth <= kDeepest;
      if (fits || length == 0) break;
      Tree own = read(longest);
      assign({called(longest)}, std::move(own), false);
    }
    for (const Value arg : node.args) waiting_.erase(arg);
    if (index == wanted_) wanted_tree_ = expr;
    if (unnamed && uses_[at(first)] == 1) {
      waiting_.emplace(first, std::move(expr));
      return;
    }
    std::vector<std::string> targets;
    for (const Value result : node.results) targets.push_back(called(result));
    assign(std::move(targets), std::move(expr), accumulates(first));
  }

  void assign(std::vector<std::string> targets, Tree expr, bool adds) {
    ast::Statement statement;
    statement.kind = adds ? ast::Statement::Kind::accumulate : ast::Statement::Kind::assign;
    for (std::string& target : targets) {
      defined_.insert(target);
      statement.targets.push_back({std::move(target), {}});
    }
    statement.values.push_back(std::move(expr));
    body_.push_back(std::move(statement));
  }

  const Program& program_;
  std::vector<int> uses_;
  std::vector<int> result_of_;  // for each value: the result whose statement defines it, or -1
  std::vector<std::string> names_;
  std::set<std::string> taken_, defined_;
  std::map<Value, Tree> waiting_;
  std::vector<ast::Statement> body_;
  int temporaries_ = 0;
  std::size_t wanted_ = static_cast<std::size_t>(-1);  // the node that statement() is about
  Tree wanted_tree_;
};

}  // namespace

ast::Item ast::item_of(const Program& program) {
  return Printer(program).item();
}

ast::TypeExpr ast::type_of(const Type& type) {
  return type_tree(type);
}

std::vector<ast::Comment> ast::comments_of(std::string_view text) {
  return comment_lines(text);
}

std::string print(const Program& program) {
  ast::File file{.version = kLanguageVersion, .items = {}};
  file.items.push_back(Printer(program).item());
  return ast::layout(file);
}

std::string print_node(const Program& program, std::size_t node) {
  return Printer(program).statement(node);
}

}  // namespace coda
