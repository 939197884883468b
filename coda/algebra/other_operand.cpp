// coda/algebra/other_operand.cpp: dZᵀ @ (r·P) = (r·dZ)ᵀ @ P, where r·dZ is there anyway: the
// gradient of a weight reads the P that forward stored, and no scaled copy of it.
//
// Differentiating what row_scale made gives this form by itself. The rule is for backward passes
// that are written by hand.
#include <algorithm>

#include "coda/algebra/factors.h"
#include "coda/algebra/rebuild.h"
#include "coda/algebra/rule.h"

namespace coda {
namespace {

class OtherOperand {
 public:
  explicit OtherOperand(const Program& program)
      : program_(program), uses_(program), build_(program) {}

  Program run() && {
    return std::move(build_).run(
        [this](const Node& node) { return node.op == Op::product ? replace(node) : std::nullopt; });
  }

 private:
  std::optional<std::vector<Expr>> replace(const Node& node) {
    for (std::size_t side = 0; side < 2; ++side) {
      const Value scaled = node.args[side], other = node.args[1 - side];
      const Term term = factorize(program_, scaled);
      if (term.parts.size() < 2 || uses_.of(scaled).size() != 1) continue;
      // Everything but one part runs along the contraction alone.
      const auto is_scale = [&](const Term::Part& part) {
        const std::vector<Factor> factors = factors_of(program_.type(part.value));
        return std::ranges::all_of(factors, [&](const Factor& factor) {
          return std::ranges::find(node.attr.axis.factors, factor) != node.attr.axis.factors.end();
        });
      };
      const auto core = std::ranges::find_if_not(term.parts, is_scale);
      if (core == term.parts.end() || core->inverse) continue;
      if (std::ranges::count_if(term.parts, is_scale) + 1 !=
          static_cast<std::ptrdiff_t>(term.parts.size())) {
        continue;
      }
      if (program_.type(core->value).dims != program_.type(scaled).dims) continue;
      const std::optional<Value> there = times(other, term, core->value);
      if (!there) continue;
      const Expr p = build_(core->value), dz = build_(*there);
      const Expr made = side == 0 ? product(p, dz, node.attr.axis) : product(dz, p, node.attr.axis);
      if (made.type().dims == program_.type(node.results[0]).dims) return std::vector{made};
    }
    return std::nullopt;
  }

  // A value made before now that is `v` times all parts of `term` but `core`.
  std::optional<Value> times(Value v, const Term& term, Value core) {
    const Term wanted_of = factorize(program_, v);
    const auto has = [](const std::vector<Term::Part>& parts, const Term::Part& part) {
      return std::ranges::any_of(parts, [&](const Term::Part& each) {
        return each.value == part.value && each.inverse == part.inverse;
      });
    };
    std::vector<Term::Part> wanted = wanted_of.parts;
    for (const Term::Part& part : term.parts) {
      if (part.value != core) wanted.push_back(part);
    }
    for (const Node& node : program_.nodes()) {
      if (node.op != Op::mul && node.op != Op::cast) continue;
      const Value made = node.results[0];
      if (!build_.has(made) || program_.type(made).dims != program_.type(v).dims) continue;
      const Term there = factorize(program_, made);
      const bool same = there.parts.size() == wanted.size() &&
                        there.negative == (wanted_of.negative != term.negative) &&
                        std::ranges::all_of(
                            wanted, [&](const Term::Part& part) { return has(there.parts, part); });
      if (same) return made;
    }
    return std::nullopt;
  }

  const Program& program_;
  const Uses uses_;
  Rebuild build_;
};

}  // namespace

Program other_operand(const Program& program, Situation&) {
  return OtherOperand(program).run();
}

}  // namespace coda
