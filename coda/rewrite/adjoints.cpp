// coda/rewrite/adjoints.cpp: adjoints are summed to the factors of the value that they belong to.
#include "coda/rewrite/adjoints.h"

#include <algorithm>
#include <utility>

namespace coda {

namespace {

// The factors of `type` that `other` lacks, neighbours together, so that B*S stays one axis that
// block sums can cut.
std::vector<Dim> missing_runs(const Type& type, const Type& other) {
  std::vector<Dim> runs;
  for (const Dim& dim : type.dims) {
    bool open = false;
    for (const Factor& factor : dim.factors) {
      const bool missing = !has_factor(other, factor);
      if (missing && !open) runs.emplace_back();
      if (missing) runs.back().factors.push_back(factor);
      open = missing;
    }
  }
  return runs;
}

}  // namespace

Expr spread_to(Expr e, const Type& type) {
  Dim missing;
  for (const Dim& run : missing_runs(type, e.type())) missing = missing * run;
  return missing.factors.empty() ? e : spread(e, missing, 0, type.dims);
}

Adjoints::Adjoints(const Program& program, const std::vector<Value>& wrt, Copier& forward,
                   Builder& builder)
    : program_(&program),
      uses_(program),
      stored_(storage_dtypes(program)),
      forward_(&forward),
      builder_(&builder),
      wanted_(program.values().size()),
      adjoints_(program.values().size()),
      dots_(program.values().size()) {
  for (const Value v : wrt) wanted_[static_cast<std::size_t>(v.id)] = true;
  for (const Node& node : program.nodes()) {
    const bool any =
        node.op != Op::detach && std::ranges::any_of(node.args, [&](Value v) { return wanted(v); });
    for (const Value v : node.results) {
      wanted_[static_cast<std::size_t>(v.id)] = any && is_float(program.type(v).dtype);
    }
  }
}

void Adjoints::sum_into(std::optional<Expr>& sum, Value v, Expr e) {
  const Type& type = program_->type(v);
  // The last dims first: what is left are rows, which sums over rows add up last.
  const std::vector<Dim> runs = missing_runs(Type(e.type()), type);
  for (auto run = runs.rbegin(); run != runs.rend(); ++run) e = reduce(Op::sum, e, *run);
  if (!sum) {
    sum = e;
    return;
  }
  // NOTE: B*S and S*N would share a factor without aligning: then both take all factors first.
  const bool aligns =
      missing_runs(e.type(), sum->type()).empty() || missing_runs(sum->type(), e.type()).empty();
  sum = aligns ? *sum + e : spread_to(*sum, type) + spread_to(e, type);
}

void Adjoints::add(Value v, Expr e) {
  if (wanted(v)) sum_into(adjoints_[static_cast<std::size_t>(v.id)], v, e);
}

void Adjoints::add_dot(Value v, Expr e) {
  if (wanted(v)) sum_into(dots_[static_cast<std::size_t>(v.id)], v, e);
}

void Adjoints::add_aligned(Value v, Expr e, const Type& repeated) {
  if (!wanted(v)) return;
  for (const Dim& run : missing_runs(repeated, program_->type(v))) {
    Dim uncounted;
    for (const Factor& factor : run.factors) {
      if (!has_factor(e.type(), factor)) uncounted.factors.push_back(factor);
    }
    if (uncounted.factors.empty()) continue;
    Attr size;
    size.axis = uncounted;
    e = e * Expr{builder_, builder_->op(Op::size, {}, std::move(size))};
  }
  add(v, e);
}

}  // namespace coda
