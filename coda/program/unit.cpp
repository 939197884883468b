// coda/program/unit.cpp: loads files along `use`, once each, and refuses circles.
#include "coda/program/unit.h"

#include <algorithm>

#include "coda/program/forms.h"
#include "coda/program/library.h"
#include "coda/program/quote.h"

namespace coda::ast {
namespace {

// A file uses files that use files; more than this is a mistake.
constexpr std::size_t kDeepestUse = 32;

std::string folder_of(std::string_view file) {
  const std::size_t slash = file.rfind('/');
  return slash == std::string_view::npos ? "" : std::string(file.substr(0, slash + 1));
}

}  // namespace

const Unit& Units::add(std::string_view text, std::string_view file) {
  active_ = {std::string(file)};
  return load(text, file, false);
}

const Unit& Units::load(std::string_view text, std::string_view file, bool of_library) {
  auto unit = std::make_unique<Unit>();
  unit->source = {std::string(file), std::string(text)};
  unit->of_library = of_library;
  unit->file = parse_syntax(unit->source, diagnostics_);
  unit->complete = unit->file.complete;
  for (const Item& item : unit->file.items) {
    if (item.kind == Item::Kind::use) use(*unit, item);
  }
  index(*unit);
  done_.push_back(std::move(unit));
  return *done_.back();
}

void Units::use(Unit& unit, const Item& item) {
  std::vector<std::string> names = {item.name};
  // A file of a folder that was itself used by its path looks beside itself first.
  const std::string folder = active_.size() > 1 ? folder_of(unit.source.file) : "";
  if (!folder.empty()) names.insert(names.begin(), folder + item.name);
  for (const std::string& name : names) {
    // The library means its own files, whatever stands beside the author's.
    const std::optional<std::string_view> library = embedded_program(name);
    const std::optional<std::string> text =
        unit.of_library && library ? std::string(*library) : loader_(name);
    if (!text) continue;
    const bool of_library = library == *text;
    const std::string key = (of_library ? "library " : "") + name;
    if (const auto known = loaded_.find(key); known != loaded_.end()) {
      unit.uses.push_back(known->second);
      unit.complete = unit.complete && known->second->complete;
      return;
    }
    const auto circle = std::ranges::find(active_, key);
    if (circle != active_.end()) {
      std::string chain;
      for (auto file = circle; file != active_.end(); ++file) chain += *file + " → ";
      report(unit, item.span, "the files use one another in a circle: " + chain + name,
             "a file cannot use itself, directly or through others",
             "move what both need into a third file");
      unit.complete = false;
      return;
    }
    if (active_.size() > kDeepestUse) {
      report(unit, item.span, "`use` is more than " + std::to_string(kDeepestUse) + " files deep",
             "files use one another at most so deep", "use what is needed directly");
      unit.complete = false;
      return;
    }
    active_.push_back(key);
    const Unit& used = load(*text, name, of_library);
    active_.pop_back();
    loaded_[key] = &used;
    unit.uses.push_back(&used);
    unit.complete = unit.complete && used.complete;
    return;
  }
  std::vector<std::string> library;
  for (const std::string_view file : embedded_programs()) library.emplace_back(file);
  const std::string near = nearest(item.name, library);
  report(unit, item.span, "there is no file " + quoted(item.name),
         "`use` looks beside the file that uses, then in the standard library",
         near.empty() ? "create it, or correct the name" : "did you mean \"" + near + "\"?");
  unit.complete = false;
}

void Units::index(Unit& unit) {
  for (const Item& item : unit.file.items) {
    if (item.kind == Item::Kind::use) continue;
    if (find_form(item.name) || item.name == "blocks") {
      report(unit, item.span, quoted(item.name) + " is an op of the language",
             "a def, program or block has a name of its own", "choose another name");
      continue;
    }
    const auto [found, fresh] = unit.own.try_emplace(item.name, &item);
    if (fresh) continue;
    report(unit, item.span,
           quoted(item.name) + " is defined twice, first at line " +
               std::to_string(found->second->span.line),
           "a file defines a name once", "rename or remove one of them");
  }
}

void Units::report(const Unit& unit, const Span& at, std::string message, std::string rule,
                   std::string fix) {
  diagnostics_.push_back({.where = unit.at(at),
                          .statement = line_of(unit.source, at),
                          .message = std::move(message),
                          .types = {},
                          .rule = std::move(rule),
                          .fix = std::move(fix)});
}

namespace {

// Depth first: a later `use` hides an earlier one, as a file's own definition hides both.
std::optional<Definition> find(const Unit& unit, const std::string& name,
                               std::set<const Unit*>& seen) {
  if (!seen.insert(&unit).second) return std::nullopt;
  if (const auto own = unit.own.find(name); own != unit.own.end()) {
    return Definition{&unit, own->second};
  }
  for (auto used = unit.uses.rbegin(); used != unit.uses.rend(); ++used) {
    if (const auto found = find(**used, name, seen)) return found;
  }
  return std::nullopt;
}

void names_of(const Unit& unit, std::set<const Unit*>& seen, std::set<std::string>& names) {
  if (!seen.insert(&unit).second) return;
  for (const auto& [name, item] : unit.own) names.insert(name);
  for (const Unit* used : unit.uses) names_of(*used, seen, names);
}

}  // namespace

std::optional<Definition> find_definition(const Unit& unit, const std::string& name) {
  std::set<const Unit*> seen;
  return find(unit, name, seen);
}

std::vector<std::string> definition_names(const Unit& unit) {
  std::set<const Unit*> seen;
  std::set<std::string> names;
  names_of(unit, seen, names);
  return {names.begin(), names.end()};
}

std::string library_file_of(std::string_view name) {
  // The library is part of this program: it is read once.
  static const std::map<std::string, std::string> files = [] {
    std::map<std::string, std::string> all;
    for (const std::string_view file : embedded_programs()) {
      const Source source{std::string(file), std::string(*embedded_program(file))};
      std::vector<Diagnostic> ignored;
      for (const Item& item : parse_syntax(source, ignored).items) {
        if (item.kind != Item::Kind::use) all.try_emplace(item.name, source.file);
      }
    }
    return all;
  }();
  const auto found = files.find(std::string(name));
  return found == files.end() ? "" : found->second;
}

}  // namespace coda::ast
