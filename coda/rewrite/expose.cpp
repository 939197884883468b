// coda/rewrite/expose.cpp: copies a program and adds one result.
#include "coda/rewrite/expose.h"

#include "coda/program/builder.h"

namespace coda {

Program expose(const Program& program, std::string_view name) {
  if (program.find_result(name) >= 0) return program;
  Value wanted;
  std::vector<std::string> names;
  for (std::size_t v = 0; v < program.values().size(); ++v) {
    const std::string& candidate = program.values()[v].name;
    if (candidate.empty()) continue;
    names.push_back(candidate);
    if (candidate == name) wanted.id = static_cast<std::int32_t>(v);
  }
  if (wanted.id < 0) {
    throw ProgramError("`" + program.name() + "` has no value `" + std::string(name) + "`",
                       suggestion(name, names, "name a value of `coda print`"));
  }
  Builder builder(program.name(), program.kind());
  builder.place(program.where());
  Copier copy(program, builder);
  for (std::size_t p = 0; p < program.params().size(); ++p) {
    const Param& param = program.params()[p];
    copy.map({static_cast<std::int32_t>(p)}, builder.param(param.name, param.type));
  }
  for (const Node& node : program.nodes()) copy(node.results[0]);
  for (const Result& result : program.results()) {
    builder.result(result.name, result.type, copy(result.value), result.store);
  }
  builder.result(std::string(name), program.type(wanted), copy(wanted));
  return std::move(builder).finish();
}

}  // namespace coda
