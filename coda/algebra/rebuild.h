// coda/algebra/rebuild.h: a program built again node by node, some of them replaced.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "coda/algebra/factors.h"
#include "coda/program/builder.h"

namespace coda {

class Rebuild {
 public:
  explicit Rebuild(const Program& from);

  const Program& from() const { return from_; }
  // What stands for a value of the old program; its node has been passed.
  Expr operator()(Value old);
  bool has(Value old) const { return values_[static_cast<std::size_t>(old.id)].id >= 0; }
  Expr constant(double number) { return {&to_, to_.constant(number)}; }
  // `e` times what stands for the parts.
  Expr times(Expr e, std::span<const Term::Part> parts);

  // Asked for each node in turn: values in place of its results, or nullopt to keep it. They must
  // have the results' dims.
  using Replace = std::function<std::optional<std::vector<Expr>>(const Node& node)>;
  Program run(const Replace& replace) &&;

 private:
  const Program& from_;
  Builder to_;
  std::vector<Value> values_;
};

// `e`, whose factors are those of `dims`, in that order and grouping.
Expr in_dims(Expr e, const std::vector<Dim>& dims);
// f32.
Expr zeros(Builder& builder, const std::vector<Dim>& dims);

}  // namespace coda
