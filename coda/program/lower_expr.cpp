// coda/program/lower_expr.cpp: expressions → nodes; one case an op.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "coda/program/dim_syntax.h"
#include "coda/program/lower.h"
#include "coda/program/quote.h"

namespace coda::ast {
namespace {

std::optional<Op> binary_op(std::string_view symbol) {
  for (const Op op : all_ops()) {
    const OpClass c = class_of(op);
    if (c != OpClass::binary && c != OpClass::compare && c != OpClass::product) continue;
    if (spelling(op) == symbol) return op;
  }
  return std::nullopt;
}

}  // namespace

Lowerer::MaybeValue Lowerer::value(const Expr& expr, Frame& frame) {
  const std::optional<Values> given = values(expr, frame);
  if (!given) return std::nullopt;
  if (given->size() == 1) return given->front();
  std::vector<std::string> types;
  for (const Value v : *given) types.push_back(root_.builder->type(v).text());
  report(frame, expr.span,
         quoted(shortened(flat(expr), kPiece)) + " gives " + std::to_string(given->size()) +
             " values where one is needed",
         types, "a call with several values stands alone on the right of a statement",
         given->size() == 0 ? "call something that gives a value"
                            : "give them names in a statement of their own: `a, b = …`");
  return std::nullopt;
}

std::optional<Lowerer::Values> Lowerer::values(const Expr& expr, Frame& frame) {
  const auto one = [](MaybeValue value) {
    return value ? std::optional<Values>(Values{*value}) : std::nullopt;
  };
  switch (expr.kind) {
    case ExprKind::name:
      return one(name(expr, frame));
    case ExprKind::number:
      return one(number(expr, 1, frame));
    case ExprKind::call:
      if (const Form* form = find_form(expr.text)) return op_call(*form, expr, frame);
      return call(expr, frame);
    case ExprKind::negate: {
      const Expr& arg = expr.args[0];
      if (arg.kind == ExprKind::number) return one(number(arg, -1, frame));
      if (arg.kind == ExprKind::name && arg.text == "inf") {
        return emit(Op::constant, {}, {}, {.number = -std::numeric_limits<double>::infinity()},
                    expr, frame);
      }
      const MaybeValue operand = value(arg, frame);
      if (!operand) return std::nullopt;
      return emit(Op::neg, {*operand}, {&arg}, {}, expr, frame);
    }
    case ExprKind::pin: {
      const Expr& cast = expr.args[0];
      const MaybeValue operand = cast.args.size() == 1 ? value(cast.args[0], frame) : std::nullopt;
      if (!operand) return std::nullopt;
      return emit(Op::pin, {*operand}, {&cast.args[0]}, {.dtype = *dtype_from(cast.text)}, expr,
                  frame);
    }
    case ExprKind::gather:
    case ExprKind::binary: {
      const MaybeValue left = value(expr.args[0], frame);
      const MaybeValue right = value(expr.args[1], frame);
      if (!left || !right) return std::nullopt;
      const std::vector<const Expr*> args = {&expr.args[0], &expr.args[1]};
      if (expr.kind == ExprKind::gather)
        return emit(Op::gather, {*left, *right}, args, {}, expr, frame);
      Attr attr;
      const std::optional<std::vector<Dim>> contracted = dims(expr, 2, frame);
      if (!contracted) return std::nullopt;
      for (const Dim& each : *contracted) attr.axis = std::move(attr.axis) * each;
      return emit(*binary_op(expr.text), {*left, *right}, args, std::move(attr), expr, frame);
    }
    case ExprKind::as: {
      const MaybeValue operand = value(expr.args[0], frame);
      std::optional<std::vector<Dim>> to = dims(expr, 1, frame);
      if (!operand || !to) return std::nullopt;
      return emit(Op::as, {*operand}, {&expr.args[0]}, {.dims = std::move(*to)}, expr, frame);
    }
    case ExprKind::list:
    case ExprKind::labelled:
      break;
  }
  return std::nullopt;  // the resolver reported it
}

Lowerer::MaybeValue Lowerer::name(const Expr& expr, Frame& frame) {
  const std::string& text = expr.text;
  if (text == "true" || text == "false") {
    return emit_one(Op::constant, {}, {},
                    {.number = text == "true" ? 1.0 : 0.0, .dtype = DType::boolean}, expr, frame);
  }
  if (text == "inf" || text == "nan") {
    using Limits = std::numeric_limits<double>;
    return emit_one(Op::constant, {}, {},
                    {.number = text == "inf" ? Limits::infinity() : Limits::quiet_NaN()}, expr,
                    frame);
  }
  const auto found = frame.values.find(text);
  return found == frame.values.end() ? std::nullopt : MaybeValue(found->second);
}

Lowerer::MaybeValue Lowerer::number(const Expr& expr, double sign, Frame& frame) {
  double value = 0;
  const std::string& text = expr.text;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = text.find_first_not_of("0123456789") == std::string::npos;
  if (error != std::errc() || end != text.data() + text.size()) {
    report(frame, expr.span, "the number " + quoted(shortened(text, kPiece)) + " does not fit", {},
           "numbers are double precision, up to 1.8e308 and down to 4.9e-324",
           "write `inf`, or 0, where that is meant");
    return std::nullopt;
  }
  if (whole && value >= 0x1p53) {
    report(frame, expr.span,
           "the whole number " + quoted(shortened(text, kPiece)) + " is not exact", {},
           "a whole number in a text is less than 9007199254740992 (2^53)",
           "pass it as an i64 parameter, or write it with an exponent where an approximation is "
           "meant");
    return std::nullopt;
  }
  return emit_one(Op::constant, {}, {}, {.number = sign * value}, expr, frame);
}

std::optional<Lowerer::Values> Lowerer::op_call(const Form& form, const Expr& expr, Frame& frame) {
  const std::vector<Expr>& args = expr.args;
  if (form.op == Op::split || form.op == Op::join) return split_or_join(form, expr, frame);
  if (class_of(form.op) == OpClass::opaque) return opaque(form, expr, frame);
  if (form.name == "block_size") {
    const MaybeValue size = block_size(expr, frame);
    return size ? std::optional<Values>(Values{*size}) : std::nullopt;
  }
  Op op = form.op;
  Attr attr;
  Values operands;
  std::vector<const Expr*> operand_args;
  bool good = true;
  const auto operand = [&](const Expr& arg) {
    const MaybeValue given = value(arg, frame);
    good = good && given.has_value();
    if (given) operands.push_back(*given);
    operand_args.push_back(&arg);
  };
  const auto axis = [&](const Expr& arg) {
    std::optional<Dim> given = dim(arg, frame);
    good = good && given.has_value();
    if (given) attr.axis = std::move(*given);
  };
  const auto shape = [&](const Expr& list) {
    std::optional<std::vector<Dim>> given = dims(list, 0, frame);
    good = good && given.has_value();
    if (given) attr.dims = std::move(*given);
  };
  if (op == Op::cast) attr.dtype = *dtype_from(form.name);
  for (std::size_t i = 0; i < args.size(); ++i) {
    const Expr& arg = args[i];
    switch (form.role(i)) {
      case Role::value:
        operand(arg);
        break;
      case Role::dim:
        axis(arg);
        break;
      case Role::value_or_dim:
        if (arg.is_dim) op = Op::reduce_max;
        arg.is_dim ? axis(arg) : operand(arg);
        break;
      case Role::dim_or_list:
        arg.kind == ExprKind::list ? shape(arg) : axis(arg);
        break;
      case Role::value_or_list:
        if (arg.kind == ExprKind::list) {
          shape(arg);
        } else if (const MaybeValue like = value(arg, frame)) {
          attr.dims = root_.builder->type(*like).dims;  // its values are not read
        } else {
          good = false;
        }
        break;
      case Role::number: {
        const std::variant<Dim, Mistake> number = dim_of(arg);
        if (const Mistake* mistake = std::get_if<Mistake>(&number)) {
          report(frame, *mistake);
          good = false;
        } else if (attr.block = std::get<Dim>(number).factors[0].number(); attr.block < 1) {
          report(frame, {arg.span, "the block size is 0", "a block has at least one element",
                         "write 1 or more"});
          good = false;
        }
        break;
      }
      case Role::pieces:
      case Role::options:
        break;
    }
  }
  if (!good) return std::nullopt;
  return emit(op, std::move(operands), std::move(operand_args), std::move(attr), expr, frame);
}

// split(v, E: pieces…), join(E: values…) and join(values…, E: pieces…).
std::optional<Lowerer::Values> Lowerer::split_or_join(const Form& form, const Expr& expr,
                                                      Frame& frame) {
  Attr attr;
  Values operands;
  std::vector<const Expr*> operand_args;
  const bool pieces_after = form.op == Op::split || expr.args[0].kind != ExprKind::labelled;
  bool good = true, after = false;
  for (const Expr& arg : expr.args) {
    const bool labelled = arg.kind == ExprKind::labelled;
    const Expr& content = labelled ? arg.args[1] : arg;
    if (labelled) {
      std::optional<Dim> axis = dim(arg.args[0], frame);
      good = good && axis.has_value();
      if (axis) attr.axis = std::move(*axis);
      after = true;
    }
    if (pieces_after && after) {
      std::optional<Dim> piece = dim(content, frame);
      good = good && piece.has_value();
      if (piece) attr.dims.push_back(std::move(*piece));
    } else {
      const MaybeValue operand = value(content, frame);
      good = good && operand.has_value();
      if (operand) operands.push_back(*operand);
      operand_args.push_back(&content);
    }
  }
  if (!good) return std::nullopt;
  return emit(form.op, std::move(operands), std::move(operand_args), std::move(attr), expr, frame);
}

std::optional<Lowerer::Values> Lowerer::opaque(const Form& form, const Expr& expr, Frame& frame) {
  Attr attr;
  Values operands;
  std::vector<const Expr*> operand_args;
  for (const Expr& arg : expr.args) {
    const bool labelled = arg.kind == ExprKind::labelled;
    if (labelled) attr.keywords.push_back(flat(arg.args[0]));
    const Expr& content = labelled ? arg.args[1] : arg;
    const MaybeValue operand = value(content, frame);
    if (operand) operands.push_back(*operand);
    operand_args.push_back(&content);
  }
  if (operands.size() != operand_args.size()) return std::nullopt;
  return emit(form.op, std::move(operands), std::move(operand_args), std::move(attr), expr, frame);
}

// min(B, size(N) - B * index(blocks(N, B))).
Lowerer::MaybeValue Lowerer::block_size(const Expr& expr, Frame& frame) {
  const std::optional<Dim> axis = dim(expr.args[0], frame);
  std::int64_t block = kBlock;
  if (expr.args.size() > 1) {
    const std::variant<Dim, Mistake> number = dim_of(expr.args[1]);
    if (const Mistake* mistake = std::get_if<Mistake>(&number)) {
      report(frame, *mistake);
      return std::nullopt;
    }
    block = std::get<Dim>(number).factors[0].number();
  }
  if (!axis || block < 1) return std::nullopt;
  const auto node = [&](Op op, Values operands, Attr attr = {}) {
    return *emit_one(op, std::move(operands), {}, std::move(attr), expr, frame);
  };
  const Attr whole{.number = static_cast<double>(block)};
  const Value size = node(Op::size, {}, {.axis = *axis});
  const Value first = node(Op::constant, {}, whole);
  const Value index = node(Op::index, {}, {.axis = Dim{{Factor::blocks(*axis, block)}}});
  const Value left = node(Op::sub, {size, node(Op::mul, {first, index})});
  return node(Op::minimum, {node(Op::constant, {}, whole), left});
}

std::optional<Dim> Lowerer::dim(const Expr& expr, const Frame& frame) {
  std::variant<Dim, Mistake> read = dim_of(expr);
  if (const Mistake* mistake = std::get_if<Mistake>(&read)) {
    report(frame, *mistake);
    return std::nullopt;
  }
  return substitute(std::get<Dim>(read), frame.dims);
}

std::optional<std::vector<Dim>> Lowerer::dims(const Expr& list, std::size_t first,
                                              const Frame& frame) {
  std::vector<Dim> all;
  bool good = true;
  for (std::size_t i = first; i < list.args.size(); ++i) {
    std::optional<Dim> each = dim(list.args[i], frame);
    good = good && each.has_value();
    if (each) all.push_back(std::move(*each));
  }
  return good ? std::optional(std::move(all)) : std::nullopt;
}

std::optional<Lowerer::Values> Lowerer::emit(Op op, Values operands, std::vector<const Expr*> args,
                                             Attr attr, const Expr& at, Frame& frame) {
  Builder& builder = *root_.builder;
  if (builder.so_far().nodes().size() >= kMostNodes) throw TooLarge();
  const Frame* outer = &frame;
  const Expr* place = &at;
  for (; outer->caller != nullptr; outer = outer->caller) place = outer->call;
  builder.place(outer->unit->at(place->span));
  try {
    return builder.ops(op, operands, std::move(attr));
  } catch (const ProgramError& error) {
    const Diagnostic& d = error.diagnostics()[0];
    std::vector<std::string> types;
    for (std::size_t i = 0; i < args.size() && i < operands.size(); ++i) {
      std::string side =
          shortened(flat(*args[i]), kPiece) + ": " + builder.type(operands[i]).text();
      if (std::ranges::find(types, side) == types.end()) types.push_back(std::move(side));
    }
    report(frame, at.span, d.message, std::move(types), d.rule, d.fix);
    return std::nullopt;
  }
}

Lowerer::MaybeValue Lowerer::emit_one(Op op, Values operands, std::vector<const Expr*> args,
                                      Attr attr, const Expr& at, Frame& frame) {
  const std::optional<Values> all =
      emit(op, std::move(operands), std::move(args), std::move(attr), at, frame);
  return all ? MaybeValue(all->front()) : std::nullopt;
}

}  // namespace coda::ast
