// cli/sources.cpp: loading program files, choosing a program, sizes, errors as JSON.
#include "cli/sources.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <sstream>

#include "cli/commands.h"
#include "coda/check/bind.h"
#include "coda/cuda/bundle.h"
#include "coda/rewrite/expose.h"
#include "coda/rewrite/retype.h"

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

namespace {

Runnable runnable_from(Schedule schedule) {
  Program whole = inline_schedule(schedule);
  return {.program = std::move(whole), .schedule = std::move(schedule)};
}

}  // namespace

Runnable load_runnable(const std::string& path, const std::string& name) {
  if (cuda::is_bundle(path)) {
    auto bundle = std::make_shared<const cuda::Bundle>(cuda::read_bundle(path));
    Runnable runnable = runnable_from(bundle->schedule);
    runnable.bundle = std::move(bundle);
    return runnable;
  }
  const Module module = parse_file(path);
  const Schedule* schedule = module.find_schedule(name);
  if (schedule != nullptr) return runnable_from(*schedule);
  return {.program = module.find(name)};
}

Runnable retyped(const Runnable& runnable, DType dtype) {
  if (!runnable.schedule) return {.program = retype(runnable.program, DType::bf16, dtype)};
  Schedule schedule = *runnable.schedule;
  // As retype does with programs.
  const auto change = [&](Type& type) {
    const bool every = dtype == DType::f64 && is_float(type.dtype);
    if (every || type.dtype == DType::bf16) type.dtype = dtype;
  };
  for (Param& param : schedule.params) change(param.type);
  for (Result& result : schedule.results) change(result.type);
  for (Step& step : schedule.steps) step.program = retype(step.program, DType::bf16, dtype);
  return runnable_from(std::move(schedule));
}

Runnable exposed(const Runnable& runnable, const std::string& name) {
  if (!runnable.schedule) return {.program = expose(runnable.program, name)};
  Schedule schedule = *runnable.schedule;
  if (std::ranges::find(schedule.results, name, &Result::name) != schedule.results.end()) {
    return runnable;
  }
  std::vector<std::string> known;
  for (const Step& step : schedule.steps) {
    for (std::size_t r = 0; r < step.outputs.size(); ++r) {
      const Result& result = step.program.results()[r];
      // Of what a loop passes inside there is one chunk at a time.
      if (step.loop >= 0 && result.store != Store::accumulate) continue;
      known.push_back(step.outputs[r]);
      if (step.outputs[r] != name) continue;
      schedule.results.push_back({name, result.type, {}});
      return runnable_from(std::move(schedule));
    }
  }
  std::string all;
  for (const std::string& each : known) all += (all.empty() ? "" : ", ") + each;
  throw ProgramError("no step of `" + schedule.name + "` stores `" + name + "` as a whole",
                     suggestion(name, known, "name one of: " + all));
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
      throw ProgramError("`" + text + "` is not a size",
                         "write --size NAME=NUMBER, like M=128: a whole number, 0 or more");
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
  for (const Node& node : program.nodes()) collect_names(node.attr.axis, names);  // size(N) alone
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
