// coda/program/dim_syntax.cpp: reads dimensions out of expressions, within bounds that keep their
// arithmetic exact.
#include "coda/program/dim_syntax.h"
#include "coda/program/quote.h"

#include <charconv>

namespace coda::ast {
namespace {

// Numbers in one dimension multiply to at most this, so that comparing dimensions cannot overflow
// 64 bits.
constexpr std::int64_t kLargestNumber = std::int64_t{1} << 30;
// Factors and terms of one dimension, and the terms that multiplying its sums out would give.
constexpr int kMostTerms = 64;

const char* const kRule =
    "a dimension is made of names and whole numbers: `H*E`, `E/2`, `E - R`, `blocks(N)`";

class Reader {
 public:
  Dim read(const Expr& expr) {
    if (++size_ > kMostTerms) {
      throw Mistake{expr.span,
                    "the dimension has more than " + std::to_string(kMostTerms) + " parts", kRule,
                    "name a part of it as a dimension of its own"};
    }
    switch (expr.kind) {
      case ExprKind::name:
        if (is_literal(expr.text)) break;
        return coda::dim_of(expr.text);
      case ExprKind::number:
        return Dim{{Factor::number(number(expr))}};
      case ExprKind::call:
        if (expr.text == "blocks") return blocks(expr);
        if (expr.text == "size") {
          throw Mistake{expr.span, quoted(flat(expr)) + " is a number, not a dimension", kRule,
                        "write the dimension itself: " +
                            quoted(expr.args.size() == 1 ? flat(expr.args[0]) : "N")};
        }
        break;
      case ExprKind::binary:
        if (expr.args.size() != 2) break;
        if (expr.text == "*") {
          Dim left = read(expr.args[0]);
          return std::move(left) * read(expr.args[1]);
        }
        if (expr.text == "/") return quotient(expr);
        if (expr.text == "+" || expr.text == "-") return sum(expr);
        break;
      case ExprKind::negate:
        return not_negative(Dim{{Factor::sum({{-1, read(expr.args[0])}})}}, expr);
      case ExprKind::gather:
      case ExprKind::as:
      case ExprKind::pin:
      case ExprKind::list:
      case ExprKind::labelled:
        break;
    }
    throw Mistake{expr.span, quoted(flat(expr)) + " is not a dimension", kRule, "name a dimension"};
  }

 private:
  std::int64_t number(const Expr& expr) {
    std::int64_t value = 0;
    const char* const end = expr.text.data() + expr.text.size();
    const auto [stop, error] = std::from_chars(expr.text.data(), end, value);
    if (error == std::errc() && stop != end) {
      throw Mistake{expr.span, quoted(expr.text) + " is no whole number", kRule,
                    "write a whole number"};
    }
    if (error == std::errc() && value == 0) return 0;
    if (error != std::errc() || value > kLargestNumber / product_) {
      throw Mistake{expr.span,
                    "the numbers in the dimension exceed " + std::to_string(kLargestNumber), kRule,
                    "use a name in place of " + quoted(expr.text)};
    }
    product_ *= value;
    return value;
  }

  std::int64_t positive(const Expr& expr, const char* what) {
    if (expr.kind != ExprKind::number) {
      throw Mistake{expr.span, std::string(what) + " " + quoted(flat(expr)) + " is no number",
                    kRule, "write a whole number there"};
    }
    const std::int64_t value = number(expr);
    if (value < 1) throw Mistake{expr.span, std::string(what) + " is 0", kRule, "write 1 or more"};
    return value;
  }

  Dim quotient(const Expr& expr) {
    Dim whole = read(expr.args[0]);
    return Dim{{Factor::quotient(std::move(whole), positive(expr.args[1], "the divisor"))}};
  }

  Dim sum(const Expr& expr) {
    Dim left = read(expr.args[0]);
    const int sign = expr.text == "-" ? -1 : 1;
    Dim right = read(expr.args[1]);
    return not_negative(Dim{{Factor::sum({{1, std::move(left)}, {sign, std::move(right)}})}}, expr);
  }

  // A sum of nothing but numbers has its extent already.
  static Dim not_negative(Dim dim, const Expr& expr) {
    try {
      extent(dim, {});
    } catch (const ProgramError&) {
      throw Mistake{expr.span, quoted(flat(expr)) + " has no extent of 0 or more", kRule,
                    "axes go by name, not by number: name a dimension, such as N in `bf16[M, N]`"};
    }
    return dim;
  }

  Dim blocks(const Expr& expr) {
    if (expr.args.empty() || expr.args.size() > 2) {
      throw Mistake{expr.span,
                    "`blocks` has " + std::to_string(expr.args.size()) + " arguments here",
                    "`blocks(N)` is the blocks of 64 along N, `blocks(N, 128)` those of 128",
                    "write `blocks(N)`"};
    }
    Dim whole = read(expr.args[0]);
    const std::int64_t block =
        expr.args.size() == 2 ? positive(expr.args[1], "the block size") : 64;
    return Dim{{Factor::blocks(std::move(whole), block)}};
  }

  int size_ = 0;
  std::int64_t product_ = 1;
};

// How many terms the dimension has once its sums are multiplied out.
int terms_of(const Dim& dim) {
  int product = 1;
  for (const Factor& factor : dim.factors) {
    int terms = factor.kind() == Factor::Kind::quotient ? terms_of(factor.dim()) : 1;
    if (factor.kind() == Factor::Kind::sum) {
      terms = 0;
      for (const Factor::Term& term : factor.terms()) terms += terms_of(term.dim);
    }
    product = std::min(product * terms, 1 << 10);
  }
  return product;
}

Expr number_expr(std::int64_t number) {
  return {.kind = ExprKind::number,
          .text = std::to_string(number),
          .args = {},
          .span = {},
          .is_dim = true};
}

Expr binary(const char* symbol, Expr left, Expr right) {
  Expr expr{.kind = ExprKind::binary, .text = symbol, .args = {}, .span = {}, .is_dim = true};
  expr.args.push_back(std::move(left));
  expr.args.push_back(std::move(right));
  return expr;
}

Expr expr_of(const Factor& factor) {
  switch (factor.kind()) {
    case Factor::Kind::name:
      return {
          .kind = ExprKind::name, .text = factor.text(), .args = {}, .span = {}, .is_dim = true};
    case Factor::Kind::number:
      return number_expr(factor.number());
    case Factor::Kind::quotient:
      return binary("/", ast::expr_of(factor.dim()), number_expr(factor.number()));
    case Factor::Kind::blocks: {
      Expr blocks{.kind = ExprKind::call, .text = "blocks", .args = {}, .span = {}, .is_dim = true};
      blocks.args.push_back(ast::expr_of(factor.dim()));
      if (factor.number() != 64) blocks.args.push_back(number_expr(factor.number()));
      return blocks;
    }
    case Factor::Kind::sum: {
      std::optional<Expr> sum;
      for (const Factor::Term& term : factor.terms()) {
        Expr next = ast::expr_of(term.dim);
        if (!sum && term.sign < 0) {
          Expr negated{
              .kind = ExprKind::negate, .text = {}, .args = {}, .span = {}, .is_dim = true};
          negated.args.push_back(std::move(next));
          next = std::move(negated);
        }
        sum = sum ? binary(term.sign < 0 ? "-" : "+", std::move(*sum), std::move(next))
                  : std::move(next);
      }
      return sum ? std::move(*sum) : number_expr(0);
    }
  }
  throw InternalError("unknown kind of factor");
}

// What `as`, split and join introduce below `expr`.
void introduced(const Expr& expr, std::set<std::string>& names) {
  if (expr.kind == ExprKind::as) {
    for (std::size_t i = 1; i < expr.args.size(); ++i) dim_names(expr.args[i], names);
  }
  if (expr.kind == ExprKind::call && (expr.text == "split" || expr.text == "join")) {
    bool labelled = false;
    for (const Expr& arg : expr.args) {
      labelled = labelled || arg.kind == ExprKind::labelled;
      for (const Expr& part : arg.args) {
        if (arg.kind == ExprKind::labelled && part.is_dim) dim_names(part, names);
      }
      if (labelled && arg.is_dim) dim_names(arg, names);
    }
  }
  for (const Expr& arg : expr.args) introduced(arg, names);
}

}  // namespace

std::variant<Dim, Mistake> dim_of(const Expr& expr) {
  try {
    Dim dim = Reader().read(expr);
    if (terms_of(dim) > kMostTerms) {
      throw Mistake{expr.span, "the dimension multiplies too many sums", kRule,
                    "name a part of it as a dimension of its own"};
    }
    return dim;
  } catch (Mistake& mistake) {
    return std::move(mistake);
  }
}

Expr expr_of(const Dim& dim) {
  std::optional<Expr> product;
  for (const Factor& factor : dim.factors) {
    Expr next = expr_of(factor);
    product = product ? binary("*", std::move(*product), std::move(next)) : std::move(next);
  }
  return product ? std::move(*product) : number_expr(1);
}

void dim_names(const Expr& dim, std::set<std::string>& names) {
  if (dim.kind == ExprKind::name) names.insert(dim.text);
  for (const Expr& arg : dim.args) dim_names(arg, names);
}

const Expr* place_of(const Expr& expr, const std::string& name) {
  if (expr.kind == ExprKind::name && expr.text == name) return &expr;
  for (const Expr& arg : expr.args) {
    if (const Expr* found = place_of(arg, name)) return found;
  }
  return nullptr;
}

std::set<std::string> dim_names(const Item& item) {
  std::set<std::string> names;
  for (const Expr& dim : item.dims) names.insert(dim.text);
  for (const auto* list : {&item.params, &item.results}) {
    for (const Parameter& param : *list) {
      if (!param.type) continue;
      if (param.type->dtype == "dim") names.insert(param.name);
      for (const Expr& dim : param.type->dims) dim_names(dim, names);
    }
  }
  if (item.kind == Item::Kind::def) return names;
  for (const Statement& statement : item.body) {
    for (const Expr& value : statement.values) introduced(value, names);
  }
  return names;
}

}  // namespace coda::ast
