// coda/program/builder.cpp: makes Programs node by node; a type error becomes a ProgramError with
// its place and operands.
#include "coda/program/builder.h"

#include <algorithm>
#include <set>

#include "coda/program/typing.h"

namespace coda {

Builder::Builder(std::string name, Program::Kind kind) {
  program_.name_ = std::move(name);
  program_.kind_ = kind;
}

Value Builder::param(std::string name, Type type) {
  if (!program_.nodes_.empty()) throw InternalError("parameter `" + name + "` after a node");
  if (program_.find_param(name) >= 0) {
    throw ProgramError(Diagnostic{.where = where_,
                                  .message = "the parameter `" + name + "` is declared twice",
                                  .rule = "parameters have different names",
                                  .fix = "rename one of them"});
  }
  std::set<std::string> seen;
  for (const Factor& factor : factors_of(type)) {
    if (seen.insert(factor.text()).second) continue;
    throw ProgramError(Diagnostic{.where = where_,
                                  .message = "`" + name + ": " + type.text() +
                                             "` has the dimension `" + factor.text() + "` twice",
                                  .types = {name + ": " + type.text()},
                                  .rule = "a tensor may not repeat a dimension name",
                                  .fix = "give the two dimensions different names"});
  }
  const Value value{static_cast<std::int32_t>(program_.values_.size())};
  program_.values_.push_back({.type = type, .name = name});
  program_.params_.push_back({std::move(name), std::move(type)});
  if (program_.where_.line == 0) program_.where_ = where_;
  return value;
}

Value Builder::constant(double number) {
  return op(Op::constant, {}, {.number = number});
}

Value Builder::op(Op op, std::vector<Value> args, Attr attr) {
  const std::vector<Value> results = ops(op, std::move(args), std::move(attr));
  if (results.size() != 1) {
    throw InternalError("`" + std::string(name_of(op)) + "` has several results");
  }
  return results[0];
}

std::vector<Value> Builder::ops(Op op, std::vector<Value> args, Attr attr) {
  std::vector<Type> types;
  for (const Value arg : args) types.push_back(type(arg));
  std::vector<Type> inferred;
  try {
    inferred = infer(op, types, attr);
  } catch (TypeError& error) {
    std::vector<std::string> sides;
    for (const Value arg : args) {
      sides.push_back(describe(program_, arg) + ": " + type(arg).text());
    }
    throw ProgramError(Diagnostic{.where = where_,
                                  .message = std::move(error.message),
                                  .types = std::move(sides),
                                  .rule = std::move(error.rule),
                                  .fix = std::move(error.fix)});
  }
  Node node{.op = op, .args = std::move(args), .attr = std::move(attr), .where = where_};
  const auto index = static_cast<std::int32_t>(program_.nodes_.size());
  for (std::size_t slot = 0; slot < inferred.size(); ++slot) {
    node.results.push_back({static_cast<std::int32_t>(program_.values_.size())});
    program_.values_.push_back({.type = std::move(inferred[slot]),
                                .name = {},
                                .node = index,
                                .slot = static_cast<std::int32_t>(slot)});
  }
  program_.nodes_.push_back(node);
  return node.results;
}

void Builder::name(Value value, std::string name) {
  program_.values_[static_cast<std::size_t>(value.id)].name = std::move(name);
}

void Builder::result(std::string name, Type declared, Value value, Store store) {
  if (program_.find_result(name) >= 0) {
    throw ProgramError(Diagnostic{.where = where_,
                                  .message = "the result `" + name + "` is declared twice",
                                  .rule = "results have different names",
                                  .fix = "rename one of them"});
  }
  try {
    require_storable(declared, type(value));
  } catch (TypeError& error) {
    throw ProgramError(Diagnostic{.where = where_,
                                  .message = std::move(error.message),
                                  .types = {name + ": " + declared.text(),
                                            describe(program_, value) + ": " + type(value).text()},
                                  .rule = std::move(error.rule),
                                  .fix = std::move(error.fix)});
  }
  program_.results_.push_back({std::move(name), std::move(declared), value, store});
}

const Type& Builder::type(Value value) const {
  return program_.type(value);
}

Program Builder::finish() && {
  if (program_.results_.empty()) {
    throw ProgramError(Diagnostic{.where = program_.where_,
                                  .message = "`" + program_.name_ + "` has no result",
                                  .rule = "a program computes at least one result",
                                  .fix = "declare one: `-> (y: bf16[M, N])`"});
  }
  // Nodes are in topological order, so one backward sweep finds what the results need.
  std::vector<char> needed(program_.values_.size());
  const auto need = [&](Value v) -> char& {
    return needed[static_cast<std::size_t>(v.id)];
  };
  for (const Result& result : program_.results_) need(result.value) = 1;
  for (auto node = program_.nodes_.rbegin(); node != program_.nodes_.rend(); ++node) {
    if (!std::ranges::any_of(node->results, need)) continue;
    for (const Value result : node->results) need(result) = 1;
    for (const Value arg : node->args) need(arg) = 1;
  }
  std::vector<Value> renumbered(program_.values_.size());
  std::vector<ValueInfo> values;
  std::vector<Node> nodes;
  const auto keep = [&](Value& v) {
    Value& now = renumbered[static_cast<std::size_t>(v.id)];
    now.id = static_cast<std::int32_t>(values.size());
    values.push_back(std::move(program_.values_[static_cast<std::size_t>(v.id)]));
    v = now;
  };
  for (std::size_t p = 0; p < program_.params_.size(); ++p) {
    Value value{static_cast<std::int32_t>(p)};
    keep(value);
  }
  for (Node& node : program_.nodes_) {
    if (!need(node.results[0])) continue;
    for (Value& arg : node.args) arg = renumbered[static_cast<std::size_t>(arg.id)];
    for (Value& result : node.results) {
      keep(result);
      values.back().node = static_cast<std::int32_t>(nodes.size());
    }
    nodes.push_back(std::move(node));
  }
  for (Result& result : program_.results_) {
    result.value = renumbered[static_cast<std::size_t>(result.value.id)];
  }
  program_.values_ = std::move(values);
  program_.nodes_ = std::move(nodes);
  return std::move(program_);
}

Expr map(Op op, Expr a) {
  return {a.builder, a.builder->op(op, {a.value})};
}
Expr map(Op op, Expr a, Expr b) {
  return {a.builder, a.builder->op(op, {a.value, b.value})};
}

namespace {

Expr number(Expr like, double value) {
  return {like.builder, like.builder->constant(value)};
}

}  // namespace

Expr operator+(Expr a, Expr b) {
  return map(Op::add, a, b);
}
Expr operator-(Expr a, Expr b) {
  return map(Op::sub, a, b);
}
Expr operator*(Expr a, Expr b) {
  return map(Op::mul, a, b);
}
Expr operator/(Expr a, Expr b) {
  return map(Op::div, a, b);
}
Expr operator-(Expr a) {
  return map(Op::neg, a);
}
Expr operator+(Expr a, double b) {
  return a + number(a, b);
}
Expr operator-(Expr a, double b) {
  return a - number(a, b);
}
Expr operator*(Expr a, double b) {
  return a * number(a, b);
}
Expr operator/(Expr a, double b) {
  return a / number(a, b);
}
Expr operator-(double a, Expr b) {
  return number(b, a) - b;
}
Expr operator*(double a, Expr b) {
  return number(b, a) * b;
}

Expr where(Expr condition, Expr a, Expr b) {
  return {a.builder, a.builder->op(Op::where, {condition.value, a.value, b.value})};
}

Expr product(Expr a, Expr b, Dim contracted) {
  return {a.builder,
          a.builder->op(Op::product, {a.value, b.value}, {.axis = std::move(contracted)})};
}

Expr cast(Expr a, DType dtype) {
  return {a.builder, a.builder->op(Op::cast, {a.value}, {.dtype = dtype})};
}

Expr reduce(Op op, Expr a, Dim axis) {
  return {a.builder, a.builder->op(op, {a.value}, {.axis = std::move(axis)})};
}

Expr block_reduce(Op op, Expr a, Dim axis, std::int64_t block) {
  return {a.builder, a.builder->op(op, {a.value}, {.axis = std::move(axis), .block = block})};
}

Expr spread(Expr a, Dim axis, std::int64_t block, std::vector<Dim> dims) {
  return {a.builder,
          a.builder->op(Op::spread, {a.value},
                        {.axis = std::move(axis), .dims = std::move(dims), .block = block})};
}

Expr as(Expr a, std::vector<Dim> dims) {
  return {a.builder, a.builder->op(Op::as, {a.value}, {.dims = std::move(dims)})};
}

std::vector<Expr> split(Expr a, Dim axis, std::vector<Dim> pieces) {
  std::vector<Expr> parts;
  for (const Value value :
       a.builder->ops(Op::split, {a.value}, {.axis = std::move(axis), .dims = std::move(pieces)})) {
    parts.push_back({a.builder, value});
  }
  return parts;
}

Expr join(std::span<const Expr> parts, Dim axis, std::vector<Dim> pieces) {
  std::vector<Value> args;
  for (const Expr& part : parts) args.push_back(part.value);
  return {parts[0].builder,
          parts[0].builder->op(Op::join, std::move(args),
                               {.axis = std::move(axis), .dims = std::move(pieces)})};
}

Copier::Copier(const Program& from, Builder& to)
    : from_(&from), to_(&to), mapped_(from.values().size()) {}

void Copier::map(Value from, Value to) {
  mapped_[static_cast<std::size_t>(from.id)] = to;
}

bool Copier::has(Value from) const {
  return mapped_[static_cast<std::size_t>(from.id)].id >= 0;
}

Value Copier::operator()(Value from) {
  if (has(from)) return mapped_[static_cast<std::size_t>(from.id)];
  if (from_->is_param(from)) {
    throw InternalError("the parameter `" + describe(*from_, from) + "` was not mapped");
  }
  const Node& node = from_->node(from);
  std::vector<Value> args;
  for (const Value arg : node.args) args.push_back((*this)(arg));
  to_->place(node.where);
  const std::vector<Value> results = to_->ops(node.op, std::move(args), node.attr);
  for (std::size_t i = 0; i < results.size(); ++i) {
    map(node.results[i], results[i]);
    const std::string& name = from_->value(node.results[i]).name;
    if (!name.empty()) to_->name(results[i], name);
  }
  return mapped_[static_cast<std::size_t>(from.id)];
}

}  // namespace coda
