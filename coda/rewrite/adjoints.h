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

#include "coda/algebra/factors.h"
#include "coda/algebra/rebuild.h"

namespace coda {

// `e` with all factors of `type`, repeated along those that it lacks.
Expr spread_to(Expr e, const Type& type);

class Adjoints {
 public:
  // `wrt`: the parameters that want a gradient. `forward` gives forward values in `builder`.
  Adjoints(const Program& program, const std::vector<Value>& wrt, Copier& forward,
           Builder& builder);

  const Program& program() const { return *program_; }
  const Uses& uses() const { return uses_; }
  DType stored(Value v) const { return stored_[static_cast<std::size_t>(v.id)]; }
  Builder& builder() const { return *builder_; }
  Expr forward(Value v) const { return {builder_, (*forward_)(v)}; }
  bool wanted(Value v) const { return wanted_[static_cast<std::size_t>(v.id)]; }
  const std::optional<Expr>& of(Value v) const { return adjoints_[static_cast<std::size_t>(v.id)]; }
  // Adds `e`, summed over factors that `v` lacks, to the adjoint of `v`; nothing where `v` is not
  // wanted.
  void add(Value v, Expr e);
  // v · (adjoint of v), where that is what a rule has at hand: the share of a scale r in z = r·S is
  // ⟨dz, S⟩ = ⟨dz, z⟩ / r. It counts beside of().
  const std::optional<Expr>& dot_of(Value v) const { return dots_[static_cast<std::size_t>(v.id)]; }
  void add_dot(Value v, Expr e);
  bool reached(Value v) const { return of(v).has_value() || dot_of(v).has_value(); }
  // The same where `v` was repeated over the factors of `repeated`: what `e` lacks of these counts
  // as often.
  void add_aligned(Value v, Expr e, const Type& repeated);

 private:
  void sum_into(std::optional<Expr>& sum, Value v, Expr e);

  const Program* program_;
  Uses uses_;
  std::vector<DType> stored_;
  Copier* forward_;
  Builder* builder_;
  std::vector<bool> wanted_;
  std::vector<std::optional<Expr>> adjoints_, dots_;
};

}  // namespace coda
