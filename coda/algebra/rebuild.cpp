// coda/algebra/rebuild.cpp: names and source places go with the values.
#include "coda/algebra/rebuild.h"

namespace coda {

Rebuild::Rebuild(const Program& from)
    : from_(from), to_(from.name(), from.kind()), values_(from.values().size()) {
  to_.comment(from.comment());
  to_.place(from.where());
  for (std::size_t i = 0; i < from.params().size(); ++i) {
    values_[i] = to_.param(from.params()[i].name, from.params()[i].type);
  }
}

Expr Rebuild::operator()(Value old) {
  const Value v = values_[static_cast<std::size_t>(old.id)];
  if (v.id < 0) throw InternalError("a rule reads " + describe(from_, old) + " before it is made");
  return {&to_, v};
}

Expr Rebuild::times(Expr e, std::span<const Term::Part> parts) {
  for (const Term::Part& part : parts) {
    const Expr scale = (*this)(part.value);
    e = part.inverse ? e / scale : e * scale;
  }
  return e;
}

Program Rebuild::run(const Replace& replace) && {
  for (const Node& node : from_.nodes()) {
    to_.place(node.where);
    std::vector<Value> made;
    if (const auto replaced = replace(node)) {
      for (const Expr& e : *replaced) made.push_back(e.value);
    } else {
      std::vector<Value> args;
      for (const Value v : node.args) args.push_back((*this)(v).value);
      made = to_.ops(node.op, std::move(args), node.attr);
    }
    for (std::size_t i = 0; i < made.size(); ++i) {
      const Value old = node.results[i];
      if (to_.type(made[i]).dims != from_.type(old).dims) {
        throw InternalError("a rule turned " + from_.type(old).text() + " into " +
                            to_.type(made[i]).text());
      }
      values_[static_cast<std::size_t>(old.id)] = made[i];
      const std::string& name = from_.value(old).name;
      if (!name.empty() && to_.so_far().value(made[i]).name.empty()) to_.name(made[i], name);
    }
  }
  for (const Result& result : from_.results()) {
    to_.result(result.name, result.type, (*this)(result.value).value, result.store);
  }
  return std::move(to_).finish();
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

}  // namespace coda
