// tests/every_program.h: the programs of programs/ and of all golden schedules, and sizes for them.
#pragma once

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "coda/check/bind.h"
#include "coda/core/error.h"
#include "coda/program/text.h"

namespace coda::testing {

struct Found {
  std::string where;  // "gated.coda:norm_swiglu"
  Program program;
};

// As a layer of width 2048 has them.
inline const Sizes& layer_sizes() {
  static const Sizes sizes = {{"B", 2},    {"S", 8192}, {"T", 8192},  {"M", 16384},
                              {"D", 2048}, {"H", 16},   {"G", 4},     {"E", 128},
                              {"F", 5632}, {"N", 4096}, {"K", 4096},  {"Q", 2048},
                              {"P", 512},  {"A", 2048}, {"V", 50304}, {"R", 16}};
  return sizes;
}

// Each once, however many texts have it under whatever name.
inline std::vector<Found> every_program() {
  namespace fs = std::filesystem;
  std::vector<std::string> files;
  for (const char* folder : {"/programs", "/tests/golden"}) {
    for (const fs::directory_entry& entry :
         fs::directory_iterator(CODA_SOURCE_DIR + std::string(folder))) {
      if (entry.path().extension() == ".coda") files.push_back(entry.path());
    }
  }
  std::ranges::sort(files);
  std::vector<Found> all;
  std::set<std::string> seen;
  const auto add = [&](const std::string& file, const Program& program) {
    if (program.kind() != Program::Kind::program) return;
    const std::string text = print(program);
    const std::size_t name = text.find("program ");
    if (!seen.insert(text.substr(text.find_first_of("[(", name))).second) return;
    all.push_back({fs::path(file).filename().string() + ":" + program.name(), program});
  };
  for (const std::string& file : files) {
    const Module module = parse_file(file);
    for (std::size_t p = module.imported; p < module.programs.size(); ++p) {
      add(file, module.programs[p]);
    }
    for (const Schedule& schedule : module.schedules) {
      for (const Step& step : schedule.steps) add(file, step.program);
    }
  }
  return all;
}

// All sizes of `program`: those that follow from `known`, the others from there by name. Throws
// ProgramError where they contradict each other.
inline Sizes sizes_from(const Program& program, const Sizes& known) {
  std::set<std::string> names, sums;
  for (const ValueInfo& value : program.values()) {
    for (const Dim& dim : value.type.dims) collect_names(dim, names);
  }
  for (const Result& result : program.results()) {
    for (const Dim& dim : result.type.dims) collect_names(dim, names);
  }
  for (const Node& node : program.nodes()) {
    collect_names(node.attr.axis, names);
    for (const Dim& dim : node.attr.dims) collect_names(dim, names);
    if (node.op == Op::split || node.op == Op::join) collect_names(node.attr.axis, sums);
    // E of a split into E/2, E/2 does not follow from its pieces.
    for (const Dim& dim : node.attr.dims) {
      std::set<std::string> pieces;
      collect_names(dim, pieces);
      for (const std::string& name : pieces) sums.erase(name);
    }
  }
  Sizes sizes;
  const auto take = [&](bool of_sums) {
    for (const std::string& name : names) {
      if (sums.contains(name) == of_sums && known.contains(name)) sizes[name] = known.at(name);
    }
  };
  take(false);
  try {
    return bind_sizes(program, sizes);
  } catch (const ProgramError&) {
    take(true);
    return bind_sizes(program, sizes);
  }
}

inline std::string text_of(const Sizes& sizes) {
  std::string text;
  for (const auto& [name, size] : sizes) {
    text += (text.empty() ? "" : " ") + name + "=" + std::to_string(size);
  }
  return text;
}

}  // namespace coda::testing
