// coda/algebra/joined_products.cpp: join(a @ x, b @ x) = join(a, b) @ x, and
// a @ w₁ + b @ w₂ = join(a, b) @ w with w₁, w₂ = split(w): the gradient of a packed weight is one
// product with one operand, as the weight is one tensor.
#include <set>

#include "coda/algebra/factors.h"
#include "coda/algebra/rebuild.h"
#include "coda/algebra/rule.h"

namespace coda {
namespace {

// join(parts[0] @ other, parts[1] @ other, …), or with the operands the other way round.
struct Join {
  std::vector<Value> parts;
  Value other;
  std::size_t side = 0;  // of the parts
  Dim contracted;
  const Node* node = nullptr;
};

// Whether the parts have the same dims, each with its piece in the same place.
bool same_but_for(const Program& program, const std::vector<Value>& parts,
                  const std::vector<Dim>& pieces) {
  const std::vector<Dim>& first = program.type(parts[0]).dims;
  for (std::size_t i = 1; i < parts.size(); ++i) {
    const std::vector<Dim>& dims = program.type(parts[i]).dims;
    if (dims.size() != first.size()) return false;
    for (std::size_t d = 0; d < dims.size(); ++d) {
      const bool piece = dims[d] == pieces[i];
      if (piece != (first[d] == pieces[0]) || (!piece && dims[d] != first[d])) return false;
    }
  }
  return true;
}

std::optional<Join> join_of_products(const Program& program, const Node& node) {
  if (node.op != Op::join) return std::nullopt;
  const Node* first = node_of(program, node.args[0]);
  if (first == nullptr || first->op != Op::product) return std::nullopt;
  for (std::size_t side = 0; side < 2; ++side) {
    Join join{.parts = {},
              .other = first->args[1 - side],
              .side = side,
              .contracted = first->attr.axis,
              .node = &node};
    for (std::size_t i = 0; i < node.args.size(); ++i) {
      const Node* product = node_of(program, node.args[i]);
      const bool alike = product != nullptr && product->op == Op::product &&
                         product->args[1 - side] == join.other &&
                         product->attr.axis == join.contracted &&
                         has_all(program.type(product->args[side]), node.attr.dims[i]);
      if (!alike) break;
      join.parts.push_back(product->args[side]);
    }
    if (join.parts.size() == node.args.size() &&
        same_but_for(program, join.parts, node.attr.dims)) {
      return join;
    }
  }
  return std::nullopt;
}

class Joined {
 public:
  explicit Joined(const Program& program)
      : program_(program), stored_(storage_dtypes(program)), build_(program) {
    for (const Node& node : program.nodes()) {
      if (auto join = join_of_products(program, node)) joins_.push_back(std::move(*join));
    }
  }

  Program run() && {
    if (joins_.empty()) return program_;
    return std::move(build_).run([this](const Node& node) -> std::optional<std::vector<Expr>> {
      for (const Join& join : joins_) {
        if (join.node == &node)
          return product_with(join, build_(join.other), node, join.contracted);
      }
      return node.op == Op::add ? sum_of_products(node) : std::nullopt;
    });
  }

 private:
  std::optional<std::vector<Expr>> product_with(const Join& join, Expr other, const Node& node,
                                                const Dim& contracted) {
    std::vector<Expr> parts;
    for (const Value v : join.parts) parts.push_back(build_(v));
    Expr joined = coda::join(parts, join.node->attr.axis, join.node->attr.dims);
    const DType dtype = stored_[static_cast<std::size_t>(join.parts[0].id)];
    if (dtype != DType::f64) joined = cast(joined, dtype);
    for (const bool first : {join.side == 0, join.side != 0}) {
      const Expr made =
          first ? product(joined, other, contracted) : product(other, joined, contracted);
      if (made.type().dims == program_.type(node.results[0]).dims) return std::vector{made};
    }
    return std::nullopt;
  }

  // Products of the parts of a join, each with its piece of one tensor.
  std::optional<std::vector<Expr>> sum_of_products(const Node& node) {
    std::vector<Value> terms;
    collect(node.results[0], terms);
    for (const Join& join : joins_) {
      if (join.parts.size() != terms.size()) continue;
      std::set<const Node*> splits;
      std::set<std::size_t> slots;
      for (const Value term : terms) {
        const Node* product = node_of(program_, term);
        if (product == nullptr || product->op != Op::product) return std::nullopt;
        for (std::size_t side = 0; side < 2; ++side) {
          const Value piece = product->args[side];
          if (!is_op(program_, piece, Op::split)) continue;
          const auto slot = static_cast<std::size_t>(program_.value(piece).slot);
          const Node& split = program_.node(piece);
          const bool fits = split.attr.dims == join.node->attr.dims &&
                            product->args[1 - side] == join.parts[slot] &&
                            product->attr.axis == split.attr.dims[slot];
          if (!fits) continue;
          splits.insert(&split);
          slots.insert(slot);
        }
      }
      if (splits.size() != 1 || slots.size() != terms.size()) continue;
      const Node& split = **splits.begin();
      return product_with(join, build_(split.args[0]), node, split.attr.axis);
    }
    return std::nullopt;
  }

  void collect(Value v, std::vector<Value>& terms) const {
    if (is_op(program_, v, Op::add)) {
      for (const Value arg : program_.node(v).args) collect(arg, terms);
    } else {
      terms.push_back(v);
    }
  }

  const Program& program_;
  const std::vector<DType> stored_;
  Rebuild build_;
  std::vector<Join> joins_;
};

}  // namespace

Program joined_products(const Program& program, Situation&) {
  return Joined(program).run();
}

}  // namespace coda
