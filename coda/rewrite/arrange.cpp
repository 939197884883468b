// coda/rewrite/arrange.cpp: rebuilds chains of sums and of adds that nobody else reads.
#include "coda/rewrite/arrange.h"

#include <algorithm>
#include <optional>

#include "coda/algebra/factors.h"
#include "coda/algebra/rebuild.h"
#include "coda/algebra/rule.h"

namespace coda {
namespace {

class Arranger {
 public:
  explicit Arranger(const Program& program) : program_(program), uses_(program), build_(program) {}

  Program run() && {
    return std::move(build_).run([this](const Node& node) -> std::optional<std::vector<Expr>> {
      if (node.op == Op::sum) return ordered_sums(node);
      if (node.op == Op::add) return products_first(node);
      return std::nullopt;
    });
  }

 private:
  const Node* inner_sum(Value v) const {
    const bool once = uses_.of(v).size() == 1 && !uses_.in_result(v);
    return once && is_op(program_, v, Op::sum) ? node_of(program_, v) : nullptr;
  }
  const Node* inner_add(Value v) const {
    const bool once = uses_.of(v).size() == 1 && !uses_.in_result(v);
    return once && is_op(program_, v, Op::add) ? node_of(program_, v) : nullptr;
  }

  // The last factors first.
  std::optional<std::vector<Expr>> ordered_sums(const Node& node) {
    std::vector<Dim> axes{node.attr.axis};
    Value base = node.args[0];
    while (const Node* inner = inner_sum(base)) {
      axes.push_back(inner->attr.axis);
      base = inner->args[0];
    }
    if (axes.size() == 1) return std::nullopt;
    std::ranges::reverse(axes);  // innermost sum first
    const std::vector<Factor> factors = factors_of(program_.type(base));
    const auto place = [&](const Dim& axis) {
      return std::ranges::find(factors, axis.factors[0]) - factors.begin();
    };
    const auto later = [&](const Dim& a, const Dim& b) {
      return place(a) > place(b);
    };
    const bool blocks = std::ranges::any_of(
        axes, [&](const Dim& axis) { return place(axis) == std::ssize(factors); });
    if (blocks || std::ranges::is_sorted(axes, later)) return std::nullopt;
    std::ranges::stable_sort(axes, later);
    Expr sum = build_(base);
    for (const Dim& axis : axes) sum = reduce(Op::sum, sum, axis);
    if (sum.type().dims != program_.type(node.results[0]).dims) return std::nullopt;
    return std::vector{sum};
  }

  void collect_terms(Value v, std::vector<Value>& terms) const {
    if (const Node* add = inner_add(v)) {
      for (const Value arg : add->args) collect_terms(arg, terms);
    } else {
      terms.push_back(v);
    }
  }

  std::optional<std::vector<Expr>> products_first(const Node& node) {
    const Value whole = node.results[0];
    const bool inner = uses_.of(whole).size() == 1 && !uses_.in_result(whole) &&
                       program_.nodes()[static_cast<std::size_t>(uses_.of(whole)[0])].op == Op::add;
    if (inner || is_accumulator(program_, whole)) return std::nullopt;
    std::vector<Value> terms, products, others;
    for (const Value v : node.args) collect_terms(v, terms);
    for (const Value v : terms) {
      const bool product = uses_.of(v).size() == 1 && !uses_.in_result(v) &&
                           is_op(program_, v, Op::product) &&
                           program_.type(v).dims == program_.type(whole).dims;
      (product ? products : others).push_back(v);
    }
    if (products.size() < 2 || others.empty()) return std::nullopt;
    // Left to right, with the accumulator where its first product was.
    const auto first = std::ranges::find(terms, products[0]) - terms.begin();
    Expr accumulator = build_(products[0]);
    for (std::size_t p = 1; p < products.size(); ++p) {
      accumulator = accumulator + build_(products[p]);
    }
    std::optional<Expr> sum;
    const auto add = [&](Expr e) {
      sum = sum ? *sum + e : e;
    };
    for (std::size_t o = 0; o < others.size(); ++o) {
      if (static_cast<std::ptrdiff_t>(o) == first) add(accumulator);
      add(build_(others[o]));
    }
    if (first >= std::ssize(others)) add(accumulator);
    if (sum->type() != program_.type(whole)) return std::nullopt;
    return std::vector{*sum};
  }

  const Program& program_;
  Uses uses_;
  Rebuild build_;
};

}  // namespace

Program arrange(const Program& block) {
  Situation situation;
  return merged_sums(Arranger(block).run(), situation);
}

}  // namespace coda
