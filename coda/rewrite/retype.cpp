// coda/rewrite/retype.cpp: rebuilds a program with other dtypes; types of intermediates follow by
// inference.
#include "coda/rewrite/retype.h"

#include "coda/program/builder.h"

namespace coda {

Program retype(const Program& program, DType from, DType to) {
  const auto changed = [&](DType dtype) {
    return dtype == from || (to == DType::f64 && is_float(dtype)) ? to : dtype;
  };
  Builder builder(program.name(), program.kind());
  builder.place(program.where());
  builder.comment(program.comment());
  std::vector<Value> mapped(program.values().size());
  const auto at = [&](Value v) -> Value& {
    return mapped[static_cast<std::size_t>(v.id)];
  };
  for (std::size_t p = 0; p < program.params().size(); ++p) {
    const Param& param = program.params()[p];
    mapped[p] = builder.param(param.name, {changed(param.type.dtype), param.type.dims});
  }
  for (const Node& node : program.nodes()) {
    std::vector<Value> args;
    for (const Value arg : node.args) args.push_back(at(arg));
    Attr attr = node.attr;
    if (class_of(node.op) == OpClass::cast) attr.dtype = changed(attr.dtype);
    builder.place(node.where);
    const std::vector<Value> results = builder.ops(node.op, std::move(args), std::move(attr));
    for (std::size_t i = 0; i < results.size(); ++i) {
      at(node.results[i]) = results[i];
      builder.name(results[i], program.value(node.results[i]).name);
    }
  }
  for (const Result& result : program.results()) {
    builder.result(result.name, {changed(result.type.dtype), result.type.dims}, at(result.value),
                   result.store);
  }
  return std::move(builder).finish();
}

}  // namespace coda
