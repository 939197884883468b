// coda/check/products.cpp: products, their operands, and sums of products.

#include "coda/check/products.h"

#include <algorithm>
#include <string>
#include <utility>

namespace coda {
namespace {

const char* const kOperandRule =
    "the operands of a product are inputs, or casts, ranges and renames of inputs";

Operand operand_of(const Program& program, Value value) {
  Operand operand{.input = value, .value = value, .chain = {}};
  while (!program.is_param(operand.input)) {
    operand.chain.push_back(program.value(operand.input).node);
    operand.input = program.node(operand.input).args[0];
  }
  std::ranges::reverse(operand.chain);
  return operand;
}

bool has_any(const Program& program, Value value, const Dim& axis) {
  return std::ranges::any_of(
      axis.factors, [&](const Factor& factor) { return has_factor(program.type(value), factor); });
}

// What to write instead of a product of a computed operand.
std::string operand_fix(const Program& program, const Node& product, std::size_t side,
                        const Mistakes& report) {
  const Value operand = product.args[side], other = product.args[1 - side];
  const Node& node = program.node(operand);
  const std::string store =
      "store it in an earlier program, or declare a `block`, which `coda rewrite` cuts";
  if (node.op != Op::mul && node.op != Op::div) return store;
  for (std::size_t s : {0, 1}) {
    const Value scale = node.args[s], rest = node.args[1 - s];
    if (has_any(program, scale, product.attr.axis) || (node.op == Op::div && s == 0)) continue;
    const std::string a = report.text(rest), b = report.text(other);
    const std::string inner = side == 0 ? a + " @ " + b : b + " @ " + a;
    const std::string scaled = node.op == Op::mul ? report.text(scale) + " * (" + inner + ")"
                                                  : "(" + inner + ") / " + report.text(scale);
    return "write `" + scaled + "`: a row scale commutes with the product; or " + store;
  }
  return store;
}

void refuse_operand(const Program& program, int index, std::size_t side, Mistakes& report) {
  const Node& node = program.nodes()[static_cast<std::size_t>(index)];
  const Value operand = node.args[side];
  report.refuse(index,
                "the " + std::string(side == 0 ? "left" : "right") + " operand of the product, `" +
                    report.text(operand) + "`, is computed in this program",
                {node.args[0], node.args[1]}, kOperandRule,
                operand_fix(program, node, side, report));
}

std::vector<Dim> free_dims(const Type& type, const Dim& contracted) {
  std::vector<Dim> dims;
  for (Dim dim : type.dims) {
    std::erase_if(dim.factors, [&](const Factor& factor) {
      return std::ranges::find(contracted.factors, factor) != contracted.factors.end();
    });
    if (!dim.factors.empty()) dims.push_back(std::move(dim));
  }
  return dims;
}

std::vector<Factor> flat(const std::vector<Dim>& dims) {
  return factors_of(Type{DType::f32, dims});
}

}  // namespace

void turn(Product& product) {
  std::swap(product.rows, product.columns);
  for (Accumulator::Term& term : product.accumulator.terms) std::swap(term.left, term.right);
}

Products find_products(const Program& program, std::span<const char> inputs, Mistakes& report) {
  Products products;
  products.of_value.assign(program.values().size(), -1);
  const std::vector<int> uses = use_counts(program);
  const auto index_of = [&](Value value) -> int& {
    return products.of_value[static_cast<std::size_t>(value.id)];
  };
  std::vector<Product> all;
  for (std::size_t i = 0; i < program.nodes().size(); ++i) {
    const Node& node = program.nodes()[i];
    const Value result = node.results[0];
    if (node.op == Op::product) {
      Accumulator::Term term{.node = static_cast<int>(i), .left = {}, .right = {}};
      for (std::size_t side : {0, 1}) {
        if (inputs[static_cast<std::size_t>(node.args[side].id)]) {
          (side == 0 ? term.left : term.right) = operand_of(program, node.args[side]);
        } else {
          refuse_operand(program, static_cast<int>(i), side, report);
          products.operands_are_inputs = false;
        }
      }
      index_of(result) = static_cast<int>(all.size());
      all.push_back({.accumulator = {.value = result, .terms = {term}},
                     .rows = free_dims(program.type(node.args[0]), node.attr.axis),
                     .columns = free_dims(program.type(node.args[1]), node.attr.axis)});
    } else if (node.op == Op::add) {
      const int a = index_of(node.args[0]), b = index_of(node.args[1]);
      const auto alone = [&](Value value) {
        return uses[static_cast<std::size_t>(value.id)] == 1;
      };
      if (a < 0 || b < 0 || !alone(node.args[0]) || !alone(node.args[1])) continue;
      if (program.type(node.args[0]).dtype != program.type(node.args[1]).dtype) continue;
      Product &sum = all[static_cast<std::size_t>(a)], &other = all[static_cast<std::size_t>(b)];
      if (flat(sum.rows) == flat(other.columns) && flat(sum.columns) == flat(other.rows))
        turn(other);
      if (flat(sum.rows) != flat(other.rows) || flat(sum.columns) != flat(other.columns)) continue;
      auto& terms = sum.accumulator.terms;
      terms.insert(terms.end(), other.accumulator.terms.begin(), other.accumulator.terms.end());
      sum.accumulator.value = result;
      other.accumulator.terms.clear();
      index_of(node.args[0]) = index_of(node.args[1]) = -1;
      index_of(result) = a;
    }
  }
  // What was added to another is no accumulator of its own.
  std::vector<int> kept(all.size(), -1);
  for (std::size_t p = 0; p < all.size(); ++p) {
    if (all[p].accumulator.terms.empty()) continue;
    kept[p] = static_cast<int>(products.all.size());
    products.all.push_back(std::move(all[p]));
  }
  for (int& index : products.of_value)
    if (index >= 0) index = kept[static_cast<std::size_t>(index)];
  return products;
}

}  // namespace coda
