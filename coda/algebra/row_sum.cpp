// coda/algebra/row_sum.cpp: sum(X, M) @ W = sum(X @ W, M), where X @ W, or (r·X) @ W, is there
// anyway: a vector times a weight becomes column sums in the epilogue of a product, with no kernel
// of its own. LayerNorm's β and γ gradients are these.
#include <algorithm>

#include "coda/algebra/factors.h"
#include "coda/algebra/rebuild.h"
#include "coda/algebra/rule.h"

namespace coda {
namespace {

class RowSum {
 public:
  explicit RowSum(const Program& program) : program_(program), build_(program) {}

  Program run() && {
    return std::move(build_).run(
        [this](const Node& node) { return node.op == Op::product ? replace(node) : std::nullopt; });
  }

 private:
  // X @ W there, and X = its left operand · scale.
  struct Found {
    Value product;
    std::vector<Term::Part> scale;
    bool negative = false;
  };

  std::optional<std::vector<Expr>> replace(const Node& node) {
    for (std::size_t side = 0; side < 2; ++side) {
      const Value vector = behind_casts(program_, node.args[side]);
      const Term outer = factorize(program_, vector);
      if (outer.parts.size() != 1 || outer.parts[0].inverse) continue;
      const Value v = outer.parts[0].value;
      if (!is_op(program_, v, Op::sum)) continue;
      const Node& sum = program_.node(v);
      if (has_any(program_.type(sum.args[0]), node.attr.axis) == false) continue;
      const std::optional<Found> found = find(sum, node, node.args[1 - side]);
      if (!found) continue;
      Expr e = build_.times(build_(found->product), found->scale);
      e = reduce(Op::sum, e, sum.attr.axis);
      if (found->negative != outer.negative) e = -e;
      if (e.type().dims != program_.type(node.results[0]).dims) continue;
      return std::vector{e};
    }
    return std::nullopt;
  }

  // A product before now of `weight` with something that is the sum's operand but for row scales.
  std::optional<Found> find(const Node& sum, const Node& node, Value weight) {
    const Term wanted = factorize(program_, sum.args[0]);
    for (const Node& other : program_.nodes()) {
      if (other.op != Op::product || other.attr.axis != node.attr.axis) continue;
      if (!build_.has(other.results[0])) continue;
      for (std::size_t side = 0; side < 2; ++side) {
        if (other.args[1 - side] != weight) continue;
        if (!has_all(program_.type(other.args[side]), sum.attr.axis)) continue;
        Found found{
            .product = other.results[0], .scale = wanted.parts, .negative = wanted.negative};
        const Term there = factorize(program_, other.args[side]);
        found.negative = found.negative != there.negative;
        for (const Term::Part& part : there.parts) cancel(found.scale, part);
        const auto is_row = [&](const Term::Part& part) {
          return !has_any(program_.type(part.value), node.attr.axis);
        };
        if (std::ranges::all_of(found.scale, is_row)) return found;
      }
    }
    return std::nullopt;
  }

  // Divides a list of factors by one.
  static void cancel(std::vector<Term::Part>& parts, const Term::Part& by) {
    const auto same = [&](const Term::Part& part) {
      return part.value == by.value && part.inverse == by.inverse;
    };
    const auto found = std::ranges::find_if(parts, same);
    if (found != parts.end()) {
      parts.erase(found);
    } else {
      parts.push_back({by.value, !by.inverse});
    }
  }

  const Program& program_;
  Rebuild build_;
};

}  // namespace

Program row_sum(const Program& program, Situation&) {
  return RowSum(program).run();
}

}  // namespace coda
