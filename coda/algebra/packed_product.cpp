// coda/algebra/packed_product.cpp: split(x @ w, N: A, B) = x @ w₁, x @ w₂ with w₁, w₂ = split(w, N:
// A, B).
//
// Column j of one piece is not column j of the other, so no tile holds both where they meet (a
// packed gate and up). As two products they are paired on chip.
#include <algorithm>
#include <map>
#include <set>

#include "coda/algebra/factors.h"
#include "coda/algebra/rebuild.h"
#include "coda/algebra/rule.h"

namespace coda {
namespace {

// What leads from a product to the split of its columns: scales that lack them, biases, casts.
struct Chain {
  const Node* product = nullptr;
  std::size_t weight = 0;          // which operand has the columns
  std::vector<const Node*> steps;  // the product's side first
};

class Packed {
 public:
  explicit Packed(const Program& program) : program_(program), uses_(program), build_(program) {}

  Program run() && {
    return std::move(build_).run(
        [this](const Node& node) { return node.op == Op::split ? replace(node) : std::nullopt; });
  }

 private:
  std::optional<Chain> chain_of(const Node& split) const {
    Chain chain;
    const Dim& axis = split.attr.axis;
    Value v = split.args[0];
    for (;;) {
      if (program_.is_param(v) || uses_.of(v).size() != 1 || uses_.in_result(v)) {
        return std::nullopt;
      }
      const Node& node = program_.node(v);
      if (node.op == Op::product) {
        chain.product = &node;
        break;
      }
      if (node.op != Op::mul && node.op != Op::add && node.op != Op::cast) return std::nullopt;
      if (program_.type(node.args[0]).dims != program_.type(v).dims) return std::nullopt;
      if (node.op == Op::mul && has_any(program_.type(node.args[1]), axis)) return std::nullopt;
      if (node.op == Op::add && program_.type(node.args[1]).dims != std::vector{axis}) {
        return std::nullopt;
      }
      chain.steps.push_back(&node);
      v = node.args[0];
    }
    std::ranges::reverse(chain.steps);
    for (std::size_t side = 0; side < 2; ++side) {
      const Type& type = program_.type(chain.product->args[side]);
      const bool columns = std::ranges::find(type.dims, axis) != type.dims.end();
      if (!columns || !program_.is_param(chain.product->args[side])) continue;
      chain.weight = side;
      return chain;
    }
    return std::nullopt;
  }

  // Whether maps lead from two pieces to one value.
  bool pieces_meet(const Node& split) const {
    std::map<Value, std::size_t> piece;
    for (std::size_t i = 0; i < split.results.size(); ++i) {
      std::vector<Value> todo{split.results[i]};
      while (!todo.empty()) {
        const Value v = todo.back();
        todo.pop_back();
        const auto [at, is_new] = piece.emplace(v, i);
        if (at->second != i) return true;
        if (!is_new) continue;
        for (const int user : uses_.of(v)) {
          const Node& node = program_.nodes()[static_cast<std::size_t>(user)];
          if (is_map(node.op)) todo.push_back(node.results[0]);
        }
      }
    }
    return false;
  }

  std::optional<std::vector<Expr>> replace(const Node& split) {
    const std::optional<Chain> chain = chain_of(split);
    if (!chain || !pieces_meet(split)) return std::nullopt;
    const Attr& attr = split.attr;
    const Node& node = *chain->product;
    const std::vector<Expr> weights =
        coda::split(build_(node.args[chain->weight]), attr.axis, attr.dims);
    std::vector<Expr> pieces;
    for (const Expr& weight : weights) {
      const Expr other = build_(node.args[1 - chain->weight]);
      pieces.push_back(chain->weight == 1 ? product(other, weight, node.attr.axis)
                                          : product(weight, other, node.attr.axis));
    }
    for (const Node* step : chain->steps) {
      if (step->op == Op::add) {
        const std::vector<Expr> biases = coda::split(build_(step->args[1]), attr.axis, attr.dims);
        for (std::size_t i = 0; i < pieces.size(); ++i) pieces[i] = pieces[i] + biases[i];
      } else {
        for (Expr& piece : pieces) {
          piece =
              step->op == Op::cast ? cast(piece, step->attr.dtype) : piece * build_(step->args[1]);
        }
      }
    }
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      if (pieces[i].type().dims != program_.type(split.results[i]).dims) return std::nullopt;
    }
    return pieces;
  }

  const Program& program_;
  const Uses uses_;
  Rebuild build_;
};

}  // namespace

Program packed_product(const Program& program, Situation&) {
  return Packed(program).run();
}

}  // namespace coda
