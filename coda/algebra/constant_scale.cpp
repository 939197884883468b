// coda/algebra/constant_scale.cpp: 2·((-0.5·t)·r / n) = -t·r / n: constants of one chain of scales
// meet, and are one number.
#include <algorithm>

#include "coda/algebra/factors.h"
#include "coda/algebra/rebuild.h"
#include "coda/algebra/rule.h"

namespace coda {
namespace {

std::optional<double> number(const Program& program, Value v) {
  if (!is_op(program, v, Op::constant)) return std::nullopt;
  const Attr& attr = program.node(v).attr;
  return attr.dtype == DType::boolean ? std::nullopt : std::optional(attr.number);
}

class ConstantScale {
 public:
  explicit ConstantScale(const Program& program)
      : program_(program), uses_(program), build_(program) {}

  Program run() && {
    return std::move(build_).run([this](const Node& node) -> std::optional<std::vector<Expr>> {
      if (node.op != Op::mul) return std::nullopt;
      for (std::size_t i = 0; i < 2; ++i) {
        const std::optional<double> scale = number(program_, node.args[i]);
        if (!scale || !meets(node.args[1 - i])) continue;
        const Expr made = scaled(node.args[1 - i], *scale);
        if (made.type().dims == program_.type(node.results[0]).dims) return std::vector{made};
      }
      return std::nullopt;
    });
  }

 private:
  // Whether a chain of scales that nothing else reads leads from `v` to a constant.
  bool meets(Value v) const {
    const Node* node = node_of(program_, v);
    if (node == nullptr || uses_.of(v).size() != 1 || uses_.in_result(v)) return false;
    if (node->op != Op::mul && node->op != Op::div) return false;
    if (number(program_, node->args[0])) return true;
    if (node->op == Op::mul && number(program_, node->args[1])) return true;
    return meets(node->args[0]);
  }

  Expr scaled(Value v, double scale) {
    const Node& node = program_.node(v);
    for (std::size_t i = 0; i < (node.op == Op::mul ? 2u : 1u); ++i) {
      const std::optional<double> inner = number(program_, node.args[i]);
      if (!inner) continue;
      const Expr product = build_.constant(scale * *inner);
      const Expr other = build_(node.args[1 - i]);
      return node.op == Op::mul ? product * other : product / other;
    }
    const Expr left = scaled(node.args[0], scale), right = build_(node.args[1]);
    return node.op == Op::mul ? left * right : left / right;
  }

  const Program& program_;
  const Uses uses_;
  Rebuild build_;
};

}  // namespace

Program constant_scale(const Program& program, Situation&) {
  return ConstantScale(program).run();
}

}  // namespace coda
