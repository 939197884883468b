// coda/rewrite/adjoints.h: the state of one reverse sweep: forward values on demand, adjoints so
// far.
//
// An adjoint of v has v's factors; their order and grouping may differ until a rule asks for v's
// own with `in_dims`. A value that no wanted parameter reaches takes no adjoint: frozen inputs are
// free.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "coda/program/builder.h"

namespace coda {

// `e` with exactly the factors of `type`: sums what broadcasting repeated, repeats what is missing.
Expr sum_to(Expr e, const Type& type);
// `e`, whose factors are those of `dims`, in that order and grouping.
Expr in_dims(Expr e, const std::vector<Dim>& dims);
Expr zeros(Builder& builder, const std::vector<Dim>& dims);

class Adjoints {
 public:
  // `wrt`: the parameters that want a gradient. `forward` gives forward values in `builder`.
  Adjoints(const Program& program, const std::vector<Value>& wrt, Copier& forward,
           Builder& builder);

  const Program& program() const { return *program_; }
  Builder& builder() const { return *builder_; }
  Expr forward(Value v) const { return {builder_, (*forward_)(v)}; }
  bool wanted(Value v) const { return wanted_[static_cast<std::size_t>(v.id)]; }
  const std::optional<Expr>& of(Value v) const { return adjoints_[static_cast<std::size_t>(v.id)]; }
  // Adds `e` to the adjoint of `v`; nothing where `v` is not wanted.
  void add(Value v, Expr e);

 private:
  const Program* program_;
  Copier* forward_;
  Builder* builder_;
  std::vector<bool> wanted_;
  std::vector<std::optional<Expr>> adjoints_;
};

}  // namespace coda
