// coda/algebra/shared_scale.cpp: r·A + r·B = r·(A + B), and A + s·(x @ b) = A + (s·x) @ b: products
// that are scaled alike, or through a small operand, share one accumulator.
#include <algorithm>

#include "coda/algebra/factors.h"
#include "coda/algebra/rebuild.h"
#include "coda/algebra/rule.h"

namespace coda {
namespace {

// acc · scales.
struct Scaled {
  Value accumulator;
  std::vector<Term::Part> scales;
};

class SharedScale {
 public:
  explicit SharedScale(const Program& program)
      : program_(program), uses_(program), stored_(storage_dtypes(program)), build_(program) {}

  Program run() && {
    return std::move(build_).run(
        [this](const Node& node) { return node.op == Op::add ? replace(node) : std::nullopt; });
  }

 private:
  std::optional<Scaled> take_apart(Value v) const {
    const Term term = factorize(program_, v);
    if (term.negative) return std::nullopt;
    std::optional<Scaled> scaled;
    std::vector<Term::Part> scales;
    for (const Term::Part& part : term.parts) {
      if (part.inverse || !is_accumulator(program_, part.value)) {
        scales.push_back(part);
      } else if (scaled) {
        return std::nullopt;
      } else {
        scaled = Scaled{.accumulator = part.value, .scales = {}};
      }
    }
    if (!scaled || uses_.of(scaled->accumulator).size() != 1) return std::nullopt;
    scaled->scales = std::move(scales);
    return scaled;
  }

  std::optional<std::vector<Expr>> replace(const Node& node) {
    const auto read_once = [&](Value v) {
      return uses_.of(v).size() == 1 && !uses_.in_result(v);
    };
    if (!std::ranges::all_of(node.args, read_once)) return std::nullopt;
    std::optional<Scaled> a = take_apart(node.args[0]), b = take_apart(node.args[1]);
    if (!a || !b || (a->scales.empty() && b->scales.empty())) return std::nullopt;
    std::vector<Term::Part> common;
    for (const Term::Part& part : std::vector(a->scales)) {
      const auto same = [&](const Term::Part& other) {
        return other.value == part.value && other.inverse == part.inverse;
      };
      const auto found = std::ranges::find_if(b->scales, same);
      if (found == b->scales.end()) continue;
      common.push_back(part);
      b->scales.erase(found);
      a->scales.erase(std::ranges::find_if(a->scales, same));
    }
    if (!moves_inside(*a) || !moves_inside(*b)) return std::nullopt;
    const Expr sum = build_.times(inside(*a) + inside(*b), common);
    return std::vector{in_dims(sum, program_.type(node.results[0]).dims)};
  }

  // The side of the product whose operand can take the scales: made by a kernel for this alone.
  std::optional<std::size_t> side_for(const Scaled& scaled) const {
    const Node& node = program_.node(scaled.accumulator);
    if (node.op != Op::product) return std::nullopt;
    for (std::size_t side = 0; side < 2; ++side) {
      const Value v = behind_casts(program_, node.args[side]);
      const Type& type = program_.type(v);
      if (program_.is_param(v) || uses_.of(v).size() != 1 || uses_.in_result(v)) continue;
      const auto fits = [&](const Term::Part& part) {
        Dim factors;
        factors.factors = factors_of(program_.type(part.value));
        return has_all(type, factors);
      };
      if (std::ranges::all_of(scaled.scales, fits)) return side;
    }
    return std::nullopt;
  }
  bool moves_inside(const Scaled& scaled) const {
    return scaled.scales.empty() || side_for(scaled).has_value();
  }

  Expr inside(const Scaled& scaled) {
    if (scaled.scales.empty()) return build_(scaled.accumulator);
    const Node& node = program_.node(scaled.accumulator);
    const std::size_t side = *side_for(scaled);
    const Value operand = node.args[side];
    Expr x = build_.times(build_(operand), scaled.scales);
    const DType dtype = stored_[static_cast<std::size_t>(operand.id)];
    if (dtype != DType::f64) x = cast(x, dtype);
    const Expr other = build_(node.args[1 - side]);
    return side == 0 ? product(x, other, node.attr.axis) : product(other, x, node.attr.axis);
  }

  const Program& program_;
  const Uses uses_;
  const std::vector<DType> stored_;
  Rebuild build_;
};

}  // namespace

Program shared_scale(const Program& program, Situation&) {
  return SharedScale(program).run();
}

}  // namespace coda
