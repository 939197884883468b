// cli/sources.cpp: loading program files, choosing a program, sizes, errors as JSON.
#include "cli/sources.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <sstream>

#include "cli/commands.h"
#include "coda/check/bind.h"

namespace coda {

CLI::Validator number_between(double low, double high) {
  const auto shown = [](double number) {
    std::ostringstream text;
    text << number;
    return text.str();
  };
  const std::string range = shown(low) + " to " + shown(high);
  return CLI::Validator(
      [=](std::string& text) {
        double number = 0;
        const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
        const bool whole = error == std::errc() && stop == text.data() + text.size();
        return whole && number >= low && number <= high
                   ? std::string()
                   : "`" + text + "` is not a number from " + range;
      },
      "");
}

Program load_program(const std::string& path, const std::string& name) {
  return parse_file(path).find(name);
}

Sizes sizes_from(const std::vector<std::string>& assignments) {
  Sizes sizes;
  for (const std::string& text : assignments) {
    const std::size_t equals = text.find('=');
    std::int64_t number = -1;
    if (equals != std::string::npos && equals > 0) {
      const char* end = text.data() + text.size();
      const auto [stop, error] = std::from_chars(text.data() + equals + 1, end, number);
      if (error != std::errc() || stop != end) number = -1;
    }
    if (number < 0) {
      throw ProgramError("`" + text + "` is not a size", "write --size NAME=NUMBER, like M=128");
    }
    const std::string name = text.substr(0, equals);
    if (!sizes.emplace(name, number).second) {
      throw ProgramError("the size `" + name + "` is given twice", "give it once");
    }
  }
  return sizes;
}

std::set<std::string> dimensions_of(const Program& program) {
  std::set<std::string> names;
  for (const ValueInfo& value : program.values()) {
    for (const Dim& dim : value.type.dims) collect_names(dim, names);
  }
  return names;
}

Sizes complete_sizes(const Program& program, Sizes given, std::int64_t otherwise) {
  const std::set<std::string> names = dimensions_of(program);
  for (const auto& [name, size] : given) {
    if (names.contains(name)) continue;
    std::string all;
    for (const std::string& each : names) all += (all.empty() ? "" : ", ") + each;
    throw ProgramError("`" + program.name() + "` has no dimension `" + name + "`",
                       "name one of: " + all);
  }
  // A name that is never a whole dimension counts heads or sequences: a few are enough.
  constexpr std::int64_t kFew = 2;
  std::set<std::string> whole;
  const auto collect = [&](const Type& type) {
    for (const Dim& dim : type.dims) {
      for (const Factor& factor : dim.factors) {
        if (dim.factors.size() == 1 || factor.kind() != Factor::Kind::name) {
          collect_names(Dim{{factor}}, whole);
        }
      }
    }
  };
  for (const Param& param : program.params()) collect(param.type);
  for (const Result& result : program.results()) collect(result.type);
  // What the pieces of a split or join add up to follows from them: those come last.
  std::set<std::string> sums;
  for (const Node& node : program.nodes()) {
    if (node.op != Op::split && node.op != Op::join) continue;
    std::set<std::string> pieces;
    for (const Dim& dim : node.attr.dims) collect_names(dim, pieces);
    if (!pieces.contains(node.attr.axis.text())) sums.insert(node.attr.axis.text());
  }
  std::vector<std::string> order(names.begin(), names.end());
  std::ranges::stable_partition(order, [&](const auto& name) { return !sums.contains(name); });
  for (const std::string& name : order) {
    // What is given may already decide the name; then a default would contradict it.
    try {
      return bind_sizes(program, given);
    } catch (const ProgramError&) {
      given.try_emplace(name, whole.contains(name) ? otherwise : kFew);
    }
  }
  return bind_sizes(program, given);
}

std::vector<std::string> names_from(const std::string& list) {
  std::vector<std::string> names;
  std::istringstream stream(list);
  for (std::string name; std::getline(stream, name, ',');) {
    if (!name.empty()) names.push_back(name);
  }
  return names;
}

nlohmann::json errors_json(const ProgramError& error) {
  nlohmann::json errors = nlohmann::json::array();
  for (const Diagnostic& d : error.diagnostics()) {
    errors.push_back({{"file", d.where.file},
                      {"line", d.where.line},
                      {"column", d.where.column},
                      {"statement", d.statement},
                      {"message", d.message},
                      {"types", d.types},
                      {"rule", d.rule},
                      {"fix", d.fix}});
  }
  return {{"errors", errors}};
}

}  // namespace coda
