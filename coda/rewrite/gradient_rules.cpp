// coda/rewrite/gradient_rules.cpp: the gradient of every op, a table of short rules.
//
// `d` is the adjoint of the result. What a rule gives may be too large: Adjoints sums what
// broadcasting repeated, and drops what nobody wants, so rules speak of neither.
#include "coda/rewrite/gradient_rules.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "coda/program/typing.h"
#include "coda/rewrite/row_dot.h"

namespace coda {
namespace {

Expr constant(const Expr& like, double number) {
  return {like.builder, like.builder->constant(number)};
}

// c ? a : 0, and the number 1 or 0 for it.
Expr where_or_zero(Expr c, Expr a) {
  return where(c, a, constant(a, 0));
}
Expr indicator(Expr c) {
  return where(c, constant(c, 1), constant(c, 0));
}

// d @ other or other @ d, over the factors that they share, so that the dims come out as those of
// `like`: dx = dz @ w, dw = dz @ x.
Expr contract(Expr d, Expr other, const Type& like) {
  Dim shared;
  for (const Factor& factor : factors_of(d.type())) {
    if (has_factor(other.type(), factor)) shared.factors.push_back(factor);
  }
  const bool d_first = has_factor(d.type(), factors_of(like).front());
  const Expr left = d_first ? d : other;
  const Expr right = d_first ? other : d;
  return shared.factors.empty() ? left * right : product(left, right, shared);
}

// A statistic of the operand, ready to align with its elements: those of blocks are repeated.
Expr over(const Site& s, Expr statistic) {
  const Attr& attr = s.node.attr;
  if (attr.block == 0 || !has_factor(statistic.type(), Factor::blocks(attr.axis, attr.block))) {
    return statistic;
  }
  return spread(spread_to(statistic, s.y_type()), attr.axis, attr.block, s.x_type(0).dims);
}

// Ties share evenly. NOTE: at least 1, because a stored operand may have been rounded away from its
// maximum: then nothing equals it, and the share is 0 instead of NaN.
Expr tied_share(const Site& s, Expr x, Expr y, Expr d) {
  const Attr& attr = s.node.attr;
  const Expr tied = indicator(map(Op::eq, x, over(s, y)));
  const Expr count = attr.block == 0 ? reduce(Op::sum, tied, attr.axis)
                                     : block_reduce(Op::block_sum, tied, attr.axis, attr.block);
  return tied * over(s, d / map(Op::maximum, count, constant(d, 1)));
}

// softmax · d. NOTE: a row of nothing but -inf has y = -inf, and -inf - -inf is NaN.
Expr softmax_share(const Site& s, Expr x, Expr y, Expr d) {
  const Expr infinite = map(Op::eq, y, constant(y, -std::numeric_limits<double>::infinity()));
  return map(Op::exp, x - over(s, where(infinite, constant(y, 0), y))) * over(s, d);
}

// Half of d each where a equals b, as torch.maximum.
Expr winner_share(Expr loses, Expr ties, Expr d) {
  return where(loses, constant(d, 0), where(ties, 0.5 * d, d));
}

Expr join_pieces(const Site& s) {
  std::vector<Expr> pieces;
  for (std::size_t i = 0; i < s.node.results.size(); ++i) {
    const std::vector<Dim>& dims = s.y_type(i).dims;
    pieces.push_back(s.has_d(i) ? in_dims(s.whole_d(i), dims) : zeros(s.adjoints.builder(), dims));
  }
  return join(pieces, s.node.attr.axis, s.node.attr.dims);
}

// d at the element that was picked, 0 elsewhere.
Expr scatter_pick(const Site& s, Expr ids, Expr d) {
  Attr attr;
  for (const Dim& dim : s.x_type(0).dims) {
    for (const Factor& factor : dim.factors) {
      if (!has_factor(ids.type(), factor)) attr.axis.factors.push_back(factor);
    }
  }
  const bool ids_first = s.x_type(0).dims.front() != attr.axis;
  const Expr index{d.builder, d.builder->op(Op::index, {}, std::move(attr))};
  return where_or_zero(ids_first ? map(Op::eq, ids, index) : map(Op::eq, index, ids), d);
}

[[noreturn]] void refuse(const Site& s, std::string message, std::string rule, std::string fix) {
  throw ProgramError(Diagnostic{.where = s.node.where,
                                .statement = {},
                                .message = std::move(message),
                                .types = {},
                                .rule = std::move(rule),
                                .fix = std::move(fix)});
}

// attention(q, k, v, keywords…) → o, lse.
void differentiate_attention(const Site& s) {
  const Program& program = s.adjoints.program();
  for (std::size_t i = 3; i < s.node.args.size(); ++i) {
    if (!s.adjoints.wanted(s.node.args[i])) continue;
    refuse(s,
           "the gradient of attention's `" + s.node.attr.keywords[i - 3] + "` (" +
               describe(program, s.node.args[i]) + ") was asked for, and there is none",
           "attention has gradients for q, k and v only",
           "name the parameters that need gradients in wrt, and leave that one out");
  }
  if (s.has_d(1)) {
    refuse(s,
           "a result that is differentiated depends on attention's lse (" +
               describe(program, s.node.results[1]) + "), which has no gradient",
           "only the first result of attention, o, has a gradient",
           "name in `of` the results that do not depend on lse, or compute them from o");
  }
  std::vector<Value> args{in_dims(s.whole_d(), s.y_type().dims).value};
  for (std::size_t i = 0; i < 3; ++i) args.push_back(s.x(i).value);
  args.push_back(s.y(0).value);
  args.push_back(s.y(1).value);
  for (std::size_t i = 3; i < s.node.args.size(); ++i) args.push_back(s.x(i).value);
  Builder& builder = s.adjoints.builder();
  const std::vector<Value> gradients =
      builder.ops(Op::attention_grad, std::move(args), {.keywords = s.node.attr.keywords});
  for (std::size_t i = 0; i < 3; ++i) s.give(i, {&builder, gradients[i]});
}

Expr two_operands(Op op, Expr a, Expr b, Dim axis = {}) {
  Attr attr;
  attr.axis = std::move(axis);
  return {a.builder, a.builder->op(op, {a.value, b.value}, std::move(attr))};
}

}  // namespace

Expr Site::d() const {
  const Expr d = *adjoints.of(node.results[0]);
  // NOTE: S*K has no place in B*S, N, though both align with B*S, N, K.
  const auto aligns = [&](Value v) {
    try {
      coda::align(d.type().dims, adjoints.program().type(v).dims);
      return true;
    } catch (const TypeError&) {
      return false;
    }
  };
  return std::ranges::all_of(node.args, aligns) ? d : whole_d();
}

void differentiate(const Site& s) {
  switch (s.node.op) {
    // Positions, sizes, random numbers and truth values do not vary with the parameters.
    case Op::constant:
    case Op::size:
    case Op::index:
    case Op::uniform:
    case Op::detach:
    case Op::eq:
    case Op::ne:
    case Op::lt:
    case Op::le:
    case Op::gt:
    case Op::ge:
      return;

    case Op::product: {
      // As an operand it is stored, and no wider than the value that it belongs to.
      const DType stored = s.adjoints.stored(s.node.results[0]);
      Expr d = s.whole_d();
      if (size_of(stored) < size_of(DType::f32) && d.type().dtype != stored) d = cast(d, stored);
      s.give(0, contract(d, s.x(1), s.x_type(0)));
      s.give(1, contract(d, s.x(0), s.x_type(1)));
      return;
    }

    case Op::neg:
      return s.align(0, -s.d());
    case Op::abs: {
      const Expr x = s.x(0), zero = constant(x, 0);  // the sign of 0 is 0, of NaN is NaN
      const Expr sign = where(map(Op::gt, x, zero), constant(x, 1),
                              where(map(Op::lt, x, zero), constant(x, -1), x));
      return s.align(0, s.d() * sign);
    }
    case Op::exp:
      return s.align(0, s.d() * s.y());
    case Op::log:
      return s.align(0, s.d() / s.x(0));
    case Op::sqrt:
      return s.align(0, 0.5 * s.d() / s.y());
    case Op::rsqrt:
      if (const auto& dot = s.adjoints.dot_of(s.node.results[0])) {
        const std::string& scale = s.adjoints.program().value(s.node.results[0]).name;
        if (!scale.empty() && s.adjoints.builder().so_far().value(dot->value).name.empty()) {
          s.adjoints.builder().name(dot->value, "dot_" + scale);
        }
        s.align(0, -0.5 * *dot * (s.y() * s.y()));
      }
      if (s.has_d(0)) s.align(0, -0.5 * s.d() * (s.y() * s.y() * s.y()));
      return;
    case Op::tanh:
      return s.align(0, s.d() * (1 - s.y() * s.y()));
    case Op::sigmoid:
      return s.align(0, s.d() * (s.y() * (1 - s.y())));
    case Op::erf:
      return s.align(0, s.d() * (2 * std::numbers::inv_sqrtpi * map(Op::exp, -(s.x(0) * s.x(0)))));

    case Op::add:
      s.align(0, s.d());
      return s.align(1, s.d());
    case Op::sub:
      s.align(0, s.d());
      return s.align(1, -s.d());
    case Op::mul:
      if (s.node.args[0] == s.node.args[1]) return s.align(0, 2 * s.d() * s.x(0));
      for (std::size_t i = 0; i < 2; ++i) {
        if (const auto scale = scale_on_chip(s.adjoints, s.node, i)) {
          s.adjoints.add_dot(*scale,
                             row_dot(s.adjoints, s.node, s.adjoints.program().type(*scale)));
        } else {
          s.align(i, s.d() * s.x(1 - i));
        }
      }
      return;
    case Op::div:
      s.align(0, s.d() / s.x(1));
      return s.align(1, -(s.d() / s.x(1) * s.y()));
    case Op::maximum:
    case Op::minimum: {
      const Expr a = s.x(0), b = s.x(1), ties = map(Op::eq, a, b);
      const bool larger = s.node.op == Op::maximum;  // wins
      s.align(0, winner_share(map(larger ? Op::lt : Op::gt, a, b), ties, s.d()));
      return s.align(1, winner_share(map(larger ? Op::gt : Op::lt, a, b), ties, s.d()));
    }
    case Op::where:
      s.align(1, where_or_zero(s.x(0), s.d()));
      return s.align(2, where(s.x(0), constant(s.d(), 0), s.d()));

    // A rounding passes the gradient on.
    case Op::save:
    case Op::recompute:
    case Op::cast:
    case Op::pin:
      return s.align(0, s.d());

    case Op::split:
      return s.give(0, join_pieces(s));
    case Op::join: {
      const std::vector<Expr> pieces = split(s.whole_d(), s.node.attr.axis, s.node.attr.dims);
      for (std::size_t i = 0; i < pieces.size(); ++i) s.give(i, pieces[i]);
      return;
    }
    case Op::as:
      return s.give(0, as(in_dims(s.whole_d(), s.y_type().dims), s.x_type(0).dims));
    case Op::spread:
      if (s.node.attr.block == 0) return s.align(0, s.d());
      return s.give(0,
                    block_reduce(Op::block_sum, s.whole_d(), s.node.attr.axis, s.node.attr.block));

    case Op::sum:
    case Op::block_sum:
      return s.give(0, over(s, s.d()));
    case Op::reduce_max:
    case Op::block_max:
      return s.give(0, tied_share(s, s.x(0), s.y(), s.d()));
    case Op::logsumexp:
    case Op::block_logsumexp:
      return s.give(0, softmax_share(s, s.x(0), s.y(), s.d()));

    case Op::gather: {
      const Expr d = in_dims(s.whole_d(), s.y_type().dims);
      return s.give(0, two_operands(Op::scatter_sum, d, s.x(1), s.x_type(0).dims.front()));
    }
    case Op::scatter_sum:
      return s.give(0, two_operands(Op::gather, in_dims(s.whole_d(), s.y_type().dims), s.x(1)));
    case Op::pick:
      return s.give(0, scatter_pick(s, s.x(1), s.d()));

    case Op::attention:
      return differentiate_attention(s);
    case Op::attention_grad:
      refuse(s, "the gradient of attention_grad was asked for, and there is none",
             "second derivatives through attention are not in the language",
             "differentiate the block that holds attention itself, once");
  }
  throw InternalError("an op that no gradient rule knows");
}

}  // namespace coda
