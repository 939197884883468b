// coda/program/unit.h: a file with what its `use` lines bring in, and which definition a name means
// in it.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "coda/program/ast.h"
#include "coda/program/text.h"

namespace coda::ast {

// One parsed file. Its address is stable: everything later points into it.
struct Unit {
  Source source;
  File file;
  std::vector<const Unit*> uses;
  bool of_library = false;
  bool complete = true;  // false: a `use` or item failed, so a name not found may be no mistake
  std::map<std::string, const Item*> own;  // defs, programs, blocks and schedules

  Location at(const Span& span) const { return {source.file, span.line, span.column}; }
};

struct Definition {
  const Unit* unit = nullptr;
  const Item* item = nullptr;
};

// The files of one parse, those that `use` brought in before those that use them.
class Units {
 public:
  Units(const Loader& loader, std::vector<Diagnostic>& diagnostics)
      : loader_(loader), diagnostics_(diagnostics) {}

  // The file that everything starts from.
  const Unit& add(std::string_view text, std::string_view file);
  const std::vector<std::unique_ptr<Unit>>& in_order() const { return done_; }

 private:
  const Unit& load(std::string_view text, std::string_view file, bool of_library);
  void use(Unit& unit, const Item& item);
  void index(Unit& unit);
  void report(const Unit& unit, const Span& at, std::string message, std::string rule,
              std::string fix);

  const Loader& loader_;
  std::vector<Diagnostic>& diagnostics_;
  std::vector<std::unique_ptr<Unit>> done_;
  std::map<std::string, const Unit*> loaded_;
  std::vector<std::string> active_;  // the chain of files that use one another
};

// The file's own definition of `name`, else what its uses define.
std::optional<Definition> find_definition(const Unit& unit, const std::string& name);
// Every name that find_definition knows.
std::vector<std::string> definition_names(const Unit& unit);

// The comment lines that stand directly above the item.
std::string comment_of(const Item& item);

// The file of the standard library that defines `name`, or "".
std::string library_file_of(std::string_view name);

}  // namespace coda::ast
