// coda/rewrite/adjoints.cpp: adjoints are summed to the factors of the value that they belong to.
#include "coda/rewrite/adjoints.h"

#include <algorithm>
#include <utility>

namespace coda {

Expr sum_to(Expr e, const Type& type) {
  // Neighbouring factors go in one sum, so that B*S stays one axis that block sums can cut.
  const std::vector<Dim> dims = e.type().dims;
  for (const Dim& dim : dims) {
    Dim run;
    for (const Factor& factor : dim.factors) {
      if (!has_factor(type, factor)) {
        run.factors.push_back(factor);
      } else if (!run.factors.empty()) {
        e = reduce(Op::sum, e, std::exchange(run, {}));
      }
    }
    if (!run.factors.empty()) e = reduce(Op::sum, e, run);
  }
  Dim missing;
  for (const Factor& factor : factors_of(type)) {
    if (!has_factor(e.type(), factor)) missing.factors.push_back(factor);
  }
  return missing.factors.empty() ? e : spread(e, missing, 0, type.dims);
}

Expr in_dims(Expr e, const std::vector<Dim>& dims) {
  return e.type().dims == dims ? e : spread(e, {}, 0, dims);
}

Expr zeros(Builder& builder, const std::vector<Dim>& dims) {
  const Expr zero = cast({&builder, builder.constant(0)}, DType::f32);  // the constant is i64
  Dim all;
  for (const Dim& dim : dims) all = all * dim;
  return dims.empty() ? zero : spread(zero, all, 0, dims);
}

Adjoints::Adjoints(const Program& program, const std::vector<Value>& wrt, Copier& forward,
                   Builder& builder)
    : program_(&program),
      forward_(&forward),
      builder_(&builder),
      wanted_(program.values().size()),
      adjoints_(program.values().size()) {
  for (const Value v : wrt) wanted_[static_cast<std::size_t>(v.id)] = true;
  for (const Node& node : program.nodes()) {
    const bool any = std::ranges::any_of(node.args, [&](Value v) { return wanted(v); });
    for (const Value v : node.results) {
      wanted_[static_cast<std::size_t>(v.id)] = any && is_float(program.type(v).dtype);
    }
  }
}

void Adjoints::add(Value v, Expr e) {
  if (!wanted(v)) return;
  std::optional<Expr>& adjoint = adjoints_[static_cast<std::size_t>(v.id)];
  e = sum_to(e, program_->type(v));
  adjoint = adjoint ? *adjoint + e : e;
}

}  // namespace coda
