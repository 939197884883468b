// coda/rewrite/simplify.cpp: rebuilds a program node by node through a few local rules and a table
// of what exists already.
//
// A rule may only answer with a value of the node's own dims: layouts that follow depend on their
// order.
#include "coda/rewrite/simplify.h"

#include <cmath>
#include <map>
#include <optional>
#include <tuple>

#include "coda/program/builder.h"
#include "coda/program/typing.h"

namespace coda {
namespace {

class Simplifier {
 public:
  Simplifier(const Program& from, Hints hints)
      : from_(from),
        hints_(hints),
        stored_(storage_dtypes(from)),
        to_(from.name(), from.kind()),
        mapped_(from.values().size()) {
    to_.comment(from.comment());
    to_.place(from.where());
    for (std::size_t i = 0; i < from.params().size(); ++i) {
      mapped_[i] = to_.param(from.params()[i].name, from.params()[i].type);
    }
  }

  // Whether run() found anything to do.
  bool changed() const { return changed_; }

  Program run() {
    for (const Node& node : from_.nodes()) {
      std::vector<Value> args;
      for (const Value v : node.args) args.push_back(at(v));
      to_.place(node.where);
      const std::vector<Value> results = make(node, std::move(args));
      for (std::size_t i = 0; i < results.size(); ++i) {
        at(node.results[i]) = results[i];
        const std::string& name = from_.value(node.results[i]).name;
        if (!name.empty() && program().value(results[i]).name.empty()) to_.name(results[i], name);
      }
    }
    for (const Result& result : from_.results()) {
      to_.result(result.name, result.type, at(result.value), result.store);
    }
    return std::move(to_).finish();
  }

 private:
  Value& at(Value v) { return mapped_[static_cast<std::size_t>(v.id)]; }
  const Program& program() const { return to_.so_far(); }
  const Node* node_of(Value v) const {
    return program().is_param(v) ? nullptr : &program().node(v);
  }
  bool is(Value v, Op op) const { return node_of(v) != nullptr && node_of(v)->op == op; }
  const Type& type(Value v) const { return program().type(v); }

  // The number that all elements of `v` have, where that is known.
  std::optional<double> number(Value v) const {
    const Node* node = node_of(v);
    if (node == nullptr) return std::nullopt;
    if (node->op == Op::constant && node->attr.dtype != DType::boolean) return node->attr.number;
    if (node->op == Op::spread || node->op == Op::as) return number(node->args[0]);
    if (node->op != Op::cast || !is_float(node->attr.dtype)) return std::nullopt;
    const std::optional<double> inner = number(node->args[0]);
    return inner ? std::optional(round_to(node->attr.dtype, *inner)) : std::nullopt;
  }

  std::vector<Value> make(const Node& node, std::vector<Value> args) {
    // What a rule made is looked at again: -(-(-x)), x*1*1.
    if (const auto found = layout_rule(node, args)) return note(*found);
    if (drops(node)) return note(std::move(args));
    if (const auto found = arithmetic_rule(node, args)) {
      if (fits(node, *found)) return note({*found});
    }
    return emit(node.op, std::move(args), node.attr);
  }

  std::vector<Value> note(std::vector<Value> made) {
    changed_ = true;
    return made;
  }

  // A plain cast to the dtype in which the value would be stored anyway: kept on chip it need not
  // round.
  bool drops(const Node& node) const {
    return node.op == Op::cast && is_float(node.attr.dtype) && !from_.is_param(node.args[0]) &&
           is_float(from_.type(node.args[0]).dtype) &&
           stored_[static_cast<std::size_t>(node.args[0].id)] == node.attr.dtype;
  }

  // NOTE: a value of another float dtype stands in only where it was widened: bf16 x for f32 x*1.
  bool fits(const Node& node, Value v) const {
    const Type& wanted = from_.type(node.results[0]);
    const Type& got = type(v);
    if (wanted.dims != got.dims) return false;
    if (wanted.dtype == got.dtype) return true;
    return wanted.dtype == DType::f32 &&
           (is_float(got.dtype) ? got.dtype != DType::f64 : number(v).has_value());
  }

  std::optional<std::vector<Value>> layout_rule(const Node& node, const std::vector<Value>& args) {
    const Attr& attr = node.attr;
    switch (node.op) {
      case Op::as:
      case Op::spread:
        if (type(args[0]).dims == attr.dims) return args;
        if (node.op == Op::as && is(args[0], Op::as)) {
          return make(node, {node_of(args[0])->args[0]});
        }
        return std::nullopt;
      case Op::split: {
        const Node* join = node_of(args[0]);
        if (join == nullptr || join->op != Op::join || join->attr.axis != attr.axis ||
            join->attr.dims != attr.dims) {
          return std::nullopt;
        }
        for (std::size_t i = 0; i < attr.dims.size(); ++i) {
          if (type(join->args[i]) != from_.type(node.results[i])) return std::nullopt;
        }
        return join->args;
      }
      case Op::join: {
        const Node* split = node_of(args[0]);
        if (split != nullptr && split->op == Op::split && split->results == args &&
            split->attr.axis == attr.axis && split->attr.dims == attr.dims) {
          return std::vector<Value>{split->args[0]};
        }
        return std::nullopt;
      }
      default:
        return std::nullopt;
    }
  }

  std::optional<Value> arithmetic_rule(const Node& node, const std::vector<Value>& args) {
    if (const auto folded = fold(node.op, args)) return to_.constant(*folded);
    const auto is_number = [&](std::size_t i, double wanted) {
      return number(args[i]) == wanted;
    };
    const auto inner = [&](std::size_t i) {
      return node_of(args[i])->args[0];
    };
    switch (node.op) {
      case Op::neg:
        if (is(args[0], Op::neg)) return inner(0);
        return std::nullopt;
      case Op::add:
        if (is_number(1, 0)) return args[0];
        if (is_number(0, 0)) return args[1];
        if (is(args[1], Op::neg)) return one(Op::sub, {args[0], inner(1)}, node);
        if (is(args[0], Op::neg)) return one(Op::sub, {args[1], inner(0)}, node);
        return std::nullopt;
      case Op::sub:
        if (is_number(1, 0)) return args[0];
        if (is_number(0, 0)) return one(Op::neg, {args[1]}, node);
        if (is(args[1], Op::neg)) return one(Op::add, {args[0], inner(1)}, node);
        return std::nullopt;
      case Op::mul:
        if (is_number(1, 1)) return args[0];
        if (is_number(0, 1)) return args[1];
        if (is_number(1, -1)) return one(Op::neg, {args[0]}, node);
        if (is_number(0, -1)) return one(Op::neg, {args[1]}, node);
        return std::nullopt;
      case Op::div:
        if (is_number(1, 1)) return args[0];
        return std::nullopt;
      case Op::where:
        if (args[1] == args[2]) return args[1];
        return std::nullopt;
      case Op::cast:
        if (type(args[0]).dtype == node.attr.dtype) return args[0];
        return std::nullopt;
      case Op::detach:
      case Op::save:
      case Op::recompute:
        if (hints_ == Hints::drop) return args[0];
        return std::nullopt;
      default:
        return std::nullopt;
    }
  }

  // Arithmetic of two numbers. Functions of one number stay: their last bit belongs to whoever runs
  // them.
  std::optional<double> fold(Op op, const std::vector<Value>& args) const {
    std::vector<double> numbers;
    for (const Value v : args) {
      const Node* node = node_of(v);
      if (node == nullptr || node->op != Op::constant || !number(v)) return std::nullopt;
      numbers.push_back(*number(v));
    }
    std::optional<double> folded;
    if (numbers.size() == 1 && op == Op::neg) folded = -numbers[0];
    if (numbers.size() == 2) {
      if (op == Op::add) folded = numbers[0] + numbers[1];
      if (op == Op::sub) folded = numbers[0] - numbers[1];
      if (op == Op::mul) folded = numbers[0] * numbers[1];
      if (op == Op::div) folded = numbers[0] / numbers[1];
    }
    if (!folded || std::isnan(*folded)) return std::nullopt;
    return folded;
  }

  std::optional<Value> one(Op op, std::vector<Value> args, const Node& node) {
    try {
      align(type(args[0]).dims, type(args.back()).dims);
    } catch (const TypeError&) {  // the order of operands decides whether S and B*S align
      return std::nullopt;
    }
    const Node replacement{.op = op, .results = node.results, .where = node.where};
    const Value made = make(replacement, std::move(args))[0];
    return fits(node, made) ? std::optional(made) : std::nullopt;
  }

  // The node, or one that computes the same.
  std::vector<Value> emit(Op op, std::vector<Value> args, const Attr& attr) {
    // NOTE: keyed by what a node is asked for; the builder may complete the attributes, always in
    // the same way.
    const auto key = [&](const std::vector<Value>& operands) {
      std::string text = std::to_string(attr.number) + "|" + attr.axis.text() + "|" +
                         std::to_string(attr.block) + "|" + std::to_string(int(attr.dtype));
      for (const Dim& dim : attr.dims) text += "|" + dim.text();
      for (const std::string& keyword : attr.keywords) text += "|" + keyword;
      return std::tuple(op, operands, attr.number, std::move(text));
    };
    const auto found = made_.find(key(args));
    if (found != made_.end()) return note(found->second);
    const bool commutes = op == Op::add || op == Op::mul || op == Op::minimum || op == Op::maximum;
    if (commutes) {
      const auto swapped = made_.find(key({args[1], args[0]}));
      if (swapped != made_.end() &&  // only the order of the dims can differ
          align(type(args[0]).dims, type(args[1]).dims) == type(swapped->second[0]).dims) {
        return note(swapped->second);
      }
    }
    auto identity = key(args);
    std::vector<Value> results = to_.ops(op, std::move(args), attr);
    return made_.emplace(std::move(identity), std::move(results)).first->second;
  }

  const Program& from_;
  const Hints hints_;
  const std::vector<DType> stored_;
  Builder to_;
  std::vector<Value> mapped_;
  bool changed_ = false;
  std::map<std::tuple<Op, std::vector<Value>, double, std::string>, std::vector<Value>> made_;
};

}  // namespace

Program simplify(const Program& program, Hints hints) {
  Simplifier first(program, hints);
  Program simple = first.run();
  for (bool more = first.changed(); more;) {
    Simplifier again(simple, hints);
    Program simpler = again.run();
    more = again.changed();
    simple = std::move(simpler);
  }
  return simple;
}

}  // namespace coda
