// coda/rewrite/adjoints.h: the state of one reverse sweep: forward values on demand, adjoints so
// far.
//
// An adjoint of v has factors of v only; their order and grouping may differ until a rule asks for
// v's own with `in_dims`. It may lack factors along which it does not vary: a sum's gradient stays
// one number a row as long as maps read it. A value that no wanted parameter reaches takes no
// adjoint: frozen inputs are free.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "coda/program/builder.h"

namespace coda {

// `e` with all factors of `type`, repeated along those that it lacks.
Expr spread_to(Expr e, const Type& type);
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
  // Adds `e`, summed over factors that `v` lacks, to the adjoint of `v`; nothing where `v` is not
  // wanted.
  void add(Value v, Expr e);
  // The same where `v` was repeated over the factors of `repeated`: what `e` lacks of these counts
  // as often.
  void add_aligned(Value v, Expr e, const Type& repeated);

 private:
  const Program* program_;
  Copier* forward_;
  Builder* builder_;
  std::vector<bool> wanted_;
  std::vector<std::optional<Expr>> adjoints_;
};

}  // namespace coda
