// coda/program/text.cpp: the doors of this folder: parse, parse_file, format, Module::find.
#include "coda/program/text.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "coda/program/ast.h"
#include "coda/program/library.h"
#include "coda/program/lower.h"
#include "coda/program/lower_schedule.h"
#include "coda/program/unit.h"

namespace coda {
namespace {

using Diagnostics = std::vector<Diagnostic>;

// In the order of the text, each once.
[[noreturn]] void refuse(Diagnostics diagnostics) {
  std::map<std::string, std::size_t> order;
  for (const Diagnostic& d : diagnostics) order.try_emplace(d.where.file, order.size());
  std::ranges::stable_sort(diagnostics, [&](const Diagnostic& a, const Diagnostic& b) {
    return std::tuple(order[a.where.file], a.where.line, a.where.column) <
           std::tuple(order[b.where.file], b.where.line, b.where.column);
  });
  Diagnostics once;
  for (Diagnostic& d : diagnostics) {
    const auto same = [&](const Diagnostic& other) {
      return other.where == d.where && other.message == d.message;
    };
    if (std::ranges::none_of(once, same)) once.push_back(std::move(d));
    if (once.size() < ast::kMostDiagnostics) continue;
    once.push_back(
        {.where = {once.back().where.file, 0, 0},
         .statement = {},
         .message = "there are more mistakes than these " + std::to_string(ast::kMostDiagnostics),
         .types = {},
         .rule = {},
         .fix = "correct these first"});
    break;
  }
  throw ProgramError(std::move(once));
}

std::optional<std::string> library_text(std::string_view name) {
  const std::optional<std::string_view> text = embedded_program(name);
  return text ? std::optional<std::string>(*text) : std::nullopt;
}

std::optional<std::string> file_text(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return std::nullopt;
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) return std::nullopt;
  return std::move(text).str();
}

}  // namespace

const Program& Module::find(std::string_view name) const {
  if (name.empty()) {
    if (programs.size() > imported) return programs.back();
    throw ProgramError("the text holds no program or block",
                       "add one: `program f(x: f32[N]) -> (y: f32[N]) { y = exp(x) }`");
  }
  const auto found = std::ranges::find(programs.rbegin(), programs.rend(), name, &Program::name);
  if (found != programs.rend()) return *found;
  if (find_schedule(name) != nullptr) {
    throw ProgramError("`" + std::string(name) + "` is a schedule, not a program or block",
                       "run, verify, check and print take schedules; name a program or block here");
  }
  std::vector<std::string> names;
  for (const Program& program : programs) names.push_back(program.name());
  for (const Schedule& schedule : schedules) names.push_back(schedule.name);
  std::string list;
  for (const std::string& each : names) list += (list.empty() ? "" : ", ") + each;
  const std::string near = nearest(name, names);
  throw ProgramError("there is no program or block `" + std::string(name) + "`",
                     !near.empty()   ? "did you mean `" + near + "`?"
                     : !list.empty() ? "name one of " + list
                                     : "the text holds none");
}

const Schedule* Module::find_schedule(std::string_view name) const {
  if (name.empty()) {
    if (schedules.empty()) return nullptr;
    const Schedule& last = schedules.back();
    const bool followed = programs.size() > imported && last.where.line > 0 &&
                          programs.back().where().line > last.where.line;
    return followed ? nullptr : &last;
  }
  const auto found = std::ranges::find(schedules, name, &Schedule::name);
  return found == schedules.end() ? nullptr : &*found;
}

Module parse(std::string_view text, std::string_view file, const Loader& loader) {
  Diagnostics diagnostics;
  const Loader load = loader ? loader : Loader(library_text);
  ast::Units units(load, diagnostics);
  const ast::Unit& root = units.add(text, file);
  ast::Lowerer lowerer(diagnostics);
  for (const auto& unit : units.in_order()) {
    for (const ast::Item& item : unit->file.items) {
      const bool is_code =
          item.kind != ast::Item::Kind::use && item.kind != ast::Item::Kind::schedule;
      if (is_code) lowerer.item({unit.get(), &item});
    }
  }
  std::vector<Schedule> schedules;
  for (const ast::Item& item : root.file.items) {
    if (item.kind != ast::Item::Kind::schedule) continue;
    auto schedule = ast::ScheduleLowerer({&root, &item}, lowerer, diagnostics).run();
    if (schedule) schedules.push_back(std::move(*schedule));
  }
  if (!diagnostics.empty()) refuse(std::move(diagnostics));
  Module module;
  module.version = std::max(root.file.version, 1);
  for (const auto& unit : units.in_order()) {
    if (unit.get() == &root) module.imported = module.programs.size();
    for (const ast::Item& item : unit->file.items) {
      if (const Program* program = lowerer.program(item)) module.programs.push_back(*program);
    }
  }
  module.schedules = std::move(schedules);
  return module;
}

Module parse_file(const std::string& path) {
  const std::filesystem::path place(path);
  std::optional<std::string> text = file_text(place);
  const bool found = text.has_value();
  if (!text) text = library_text(place.filename().string());
  if (!text) {
    std::vector<std::string> library;
    for (const std::string_view name : embedded_programs()) library.emplace_back(name);
    const std::string near = nearest(place.filename().string(), library);
    std::error_code error;
    throw ProgramError(
        std::filesystem::exists(place, error) ? "the file " + path + " cannot be read"
                                              : "there is no file " + path,
        near.empty() ? "give the path of a .coda file, or the name of one of the standard library"
                     : "did you mean \"" + near + "\" of the standard library?");
  }
  const std::filesystem::path folder = place.parent_path();
  return parse(*text, path, [&](std::string_view name) {
    std::optional<std::string> used;
    if (found) used = file_text(folder / name);
    return used ? used : library_text(name);
  });
}

std::string format(std::string_view text, std::string_view file) {
  Diagnostics diagnostics;
  const ast::Source source{std::string(file), std::string(text)};
  const ast::File tree = ast::parse_syntax(source, diagnostics);
  if (!diagnostics.empty()) refuse(std::move(diagnostics));
  return ast::layout(tree);
}

}  // namespace coda
