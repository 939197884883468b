// coda/program/rename.cpp: builds a program again, node by node, with every name replaced.
#include "coda/program/rename.h"

#include <algorithm>
#include <set>

#include "coda/program/builder.h"

namespace coda {
namespace {

Type renamed(Type type, const Substitution& dims) {
  if (dims.empty()) return type;
  for (Dim& dim : type.dims) dim = substitute(dim, dims);
  return type;
}

Attr renamed(Attr attr, const Substitution& dims) {
  if (dims.empty()) return attr;
  attr.axis = substitute(attr.axis, dims);
  for (Dim& dim : attr.dims) dim = substitute(dim, dims);
  return attr;
}

}  // namespace

Program renamed(const Program& program, const Names& names) {
  Builder builder(names.program.value_or(program.name()), names.kind.value_or(program.kind()));
  builder.place(program.where());
  builder.comment(program.comment());
  std::vector<Value> made(program.values().size());
  const auto at = [&](Value v) -> Value& {
    return made[static_cast<std::size_t>(v.id)];
  };
  for (std::size_t p = 0; p < program.params().size(); ++p) {
    const Param& param = program.params()[p];
    made[p] = builder.param(names.params.empty() ? param.name : names.params.at(p),
                            renamed(param.type, names.dims));
  }
  for (const Node& node : program.nodes()) {
    builder.place(node.where);
    std::vector<Value> args;
    for (const Value arg : node.args) args.push_back(at(arg));
    const std::vector<Value> results =
        builder.ops(node.op, std::move(args), renamed(node.attr, names.dims));
    for (std::size_t slot = 0; slot < results.size(); ++slot) {
      at(node.results[slot]) = results[slot];
      const std::string& name = program.value(node.results[slot]).name;
      if (!name.empty()) builder.name(results[slot], name);
    }
  }
  for (std::size_t r = 0; r < program.results().size(); ++r) {
    const Result& result = program.results()[r];
    builder.result(names.results.empty() ? result.name : names.results.at(r),
                   renamed(result.type, names.dims), at(result.value), result.store);
  }
  return std::move(builder).finish();
}

bool unify(const Type& pattern, const Type& actual, Substitution& dims) {
  const Substitution before = dims;
  bool good = pattern.dims.size() == actual.dims.size();
  for (std::size_t d = 0; good && d < actual.dims.size(); ++d) {
    good = unify(pattern.dims[d], actual.dims[d], dims);
  }
  if (good) return true;
  dims = before;
  good = !pattern.dims.empty() && !actual.dims.empty() &&
         unify(Dim{factors_of(pattern)}, Dim{factors_of(actual)}, dims);
  if (!good) dims = before;
  return good;
}

Program with_dims(const Program& program, Substitution dims) {
  const auto same = [](const auto& entry) {
    return entry.second == dim_of(entry.first);
  };
  if (std::ranges::all_of(dims, same)) return program;
  std::set<std::string> taken, own, seen;
  for (const auto& [name, dim] : dims) collect_names(dim, taken);
  for (const ValueInfo& value : program.values()) {
    for (const Dim& dim : value.type.dims) collect_names(dim, own);
  }
  for (const Result& result : program.results()) {
    for (const Dim& dim : result.type.dims) collect_names(dim, seen);
  }
  // NOTE: what only `size` names is in no value's type, so it is not among its own.
  for (const std::string& name : own) {
    if (dims.contains(name) || seen.contains(name) || !taken.contains(name)) continue;
    std::string fresh = name;
    for (int n = 2; taken.contains(fresh) || own.contains(fresh); ++n) {
      fresh = name + "_" + std::to_string(n);
    }
    taken.insert(fresh);
    dims[name] = dim_of(fresh);
  }
  return renamed(program, {.dims = std::move(dims)});
}

Program nameless(const Program& program) {
  const auto numbered = [](std::size_t count, const char* what) {
    std::vector<std::string> names;
    for (std::size_t i = 0; i < count; ++i) names.push_back(what + std::to_string(i));
    return names;
  };
  return renamed(program, {.program = "",
                           .kind = Program::Kind::program,
                           .params = numbered(program.params().size(), "parameter "),
                           .results = numbered(program.results().size(), "result ")});
}

}  // namespace coda
