// tests/fuzz/judge_text.cpp: parse, print, format and check on any text.
#include <stdexcept>
#include <string>
#include <string_view>

#include "coda/check/check.h"
#include "coda/core/error.h"
#include "coda/program/text.h"
#include "tests/fuzz/judges.h"

namespace coda::testing {
namespace {

constexpr const char* kFile = "fuzz.coda";

void require(bool holds, const std::string& what) {
  if (!holds) throw std::logic_error(what);
}

// Whoever gets the error can act on it.
void judge(const ProgramError& error) {
  require(!error.diagnostics().empty(), "an error says nothing");
  for (const Diagnostic& each : error.diagnostics()) {
    require(!each.message.empty(), "an error has no message");
    if (each.message.starts_with("there are more mistakes")) continue;
    require(!each.fix.empty(), "an error has no fix: " + each.message);
    require(each.where.line > 0 && each.where.column > 0, "an error has no place: " + each.message);
  }
}

void judge_check(const Program& program) {
  const bool accepted = try_check(program).has_value();
  try {
    check(program);
    require(accepted, "check accepts what try_check refuses:\n" + print(program));
  } catch (const ProgramError& error) {
    require(!accepted, "try_check accepts what check refuses:\n" + print(program));
    judge(error);
  }
}

void require_same(const Module& module, const std::string& printed, const char* made_by) {
  const Module again = parse(printed, made_by);
  require(again.programs.size() - again.imported == module.programs.size() - module.imported &&
              again.schedules.size() == module.schedules.size(),
          std::string(made_by) + " loses an item:\n" + printed);
  for (std::size_t i = module.imported; i < module.programs.size(); ++i) {
    require(again.programs[again.imported + i - module.imported] == module.programs[i],
            std::string(made_by) + " changes " + module.programs[i].name() + ":\n" + printed);
  }
  for (std::size_t i = 0; i < module.schedules.size(); ++i) {
    require(again.schedules[i] == module.schedules[i],
            std::string(made_by) + " changes " + module.schedules[i].name + ":\n" + printed);
  }
}

}  // namespace

void judge_text(Bytes bytes) {
  const std::string text(bytes.begin(), bytes.end());
  try {
    const Module module = parse(text, kFile);
    for (std::size_t i = module.imported; i < module.programs.size(); ++i) {
      judge_check(module.programs[i]);
    }
    const std::string printed = print(module);
    require_same(module, printed, "print");
    require(format(printed, "print") == printed, "print has another layout:\n" + printed);
    const std::string formatted = format(text, kFile);
    require_same(module, formatted, "format");
    require(format(formatted, "format") == formatted, "format moves its own text:\n" + formatted);
  } catch (const ProgramError& error) {
    judge(error);
  }
}

}  // namespace coda::testing
