// tests/shrink_block.h: the smallest block that still fails, of one that does.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coda/program/builder.h"

namespace coda::testing {

// One way to make a block smaller.
struct Cut {
  int result = -1;           // a result that goes
  Value from = {}, to = {};  // a value that is replaced; no `to`: by a new parameter
};

// nullopt where the rest is ill-typed.
inline std::optional<Program> apply(const Program& program, const Cut& cut) {
  try {
    Builder builder(program.name(), Program::Kind::block);
    Copier copy(program, builder);
    const std::vector<int> uses = use_counts(program);
    for (std::size_t i = 0; i < program.params().size(); ++i) {
      if (uses[i] == 0) continue;
      const Param& param = program.params()[i];
      copy.map(Value{static_cast<int>(i)}, builder.param(param.name, param.type));
    }
    if (cut.from.id >= 0 && cut.to.id < 0) {
      const std::string name =
          "cut" + std::to_string(cut.from.id) + "_" + std::to_string(program.params().size());
      copy.map(cut.from, builder.param(name, program.type(cut.from)));
    } else if (cut.from.id >= 0) {
      copy.map(cut.from, copy(cut.to));
    }
    for (std::size_t r = 0; r < program.results().size(); ++r) {
      if (static_cast<int>(r) == cut.result) continue;
      const Result& result = program.results()[r];
      builder.result(result.name, result.type, copy(result.value), result.store);
    }
    return std::move(builder).finish();
  } catch (const ProgramError&) {
    return std::nullopt;
  }
}

inline std::vector<Cut> cuts_of(const Program& program) {
  std::vector<Cut> cuts;
  if (program.results().size() > 1) {
    for (std::size_t r = 0; r < program.results().size(); ++r) {
      cuts.push_back({.result = static_cast<int>(r)});
    }
  }
  for (const Node& node : program.nodes()) {
    for (const Value v : node.results) {
      for (const Value arg : node.args) {
        if (program.type(arg).dims == program.type(v).dims) {
          cuts.push_back({.from = v, .to = arg});
        }
      }
      if (class_of(node.op) != OpClass::leaf) cuts.push_back({.from = v});
    }
  }
  return cuts;
}

inline Program shrink(Program program, const std::function<bool(const Program&)>& fails) {
  for (bool smaller = true; smaller;) {
    smaller = false;
    for (const Cut& cut : cuts_of(program)) {
      std::optional<Program> next = apply(program, cut);
      const auto size = [](const Program& each) {
        return each.nodes().size() + each.results().size();
      };
      if (!next || size(*next) >= size(program) || !fails(*next)) continue;
      program = std::move(*next);
      smaller = true;
      break;
    }
  }
  return program;
}

}  // namespace coda::testing
