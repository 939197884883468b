// tests/checked.h: programs from text, accepted or refused, and what check() says of them in one
// line.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "coda/check/check.h"
#include "coda/program/text.h"

namespace coda {

inline Program program_of(const std::string& text) {
  return parse(text, "test.coda").find("");
}

inline Checked accepted(const std::string& text) {
  try {
    return check(program_of(text));
  } catch (const ProgramError& error) {
    ADD_FAILURE() << text << "\nwas refused: " << error.what();
    throw;
  }
}

inline std::string refused(const std::string& text) {
  try {
    check(program_of(text));
  } catch (const ProgramError& error) {
    std::string all;
    for (const Diagnostic& diagnostic : error.diagnostics()) all += to_string(diagnostic) + "\n";
    return all;
  }
  ADD_FAILURE() << text << "\nwas accepted";
  return "";
}

inline void expect_contains(const std::string& text, std::string_view part) {
  EXPECT_NE(text.find(part), std::string::npos) << "no `" << part << "` in:\n" << text;
}

inline std::string text_of(const std::vector<Dim>& dims) {
  std::string text;
  for (const Dim& dim : dims) text += (text.empty() ? "" : ", ") + dim.text();
  return text;
}

// "gemm M x N: 1+1 -> h p | …": each space's rows, columns, terms of its accumulators and results.
inline std::string summary(const Checked& checked) {
  std::string text = checked.kind() == KernelKind::gemm     ? "gemm"
                     : checked.kind() == KernelKind::stream ? "stream"
                                                            : "opaque";
  bool first = true;
  for (const Space& space : checked.spaces()) {
    text += (first ? " " : " | ") + text_of(space.rows) + " x " + text_of(space.columns) + ":";
    first = false;
    for (const Accumulator& accumulator : space.accumulators)
      text += " " + std::to_string(accumulator.terms.size());
    text += " ->";
    for (int r : space.results)
      text += " " + checked.program().results()[static_cast<std::size_t>(r)].name;
  }
  return text;
}

inline Value value_named(const Program& program, std::string_view name) {
  for (std::size_t v = 0; v < program.values().size(); ++v)
    if (program.values()[v].name == name) return {static_cast<std::int32_t>(v)};
  throw InternalError("no value " + std::string(name));
}

// "M:row N:column": the roles of a value in a space, rows with what stands inside them.
inline std::string roles(const Checked& checked, std::size_t space, std::string_view name) {
  const Value value = value_named(checked.program(), name);
  const std::vector<Factor> factors = factors_of(checked.program().type(value));
  std::string text;
  for (std::size_t f = 0; f < checked.roles(space, value).size(); ++f) {
    const Role role = checked.roles(space, value)[f];
    text += (text.empty() ? "" : " ") + factors[f].text() + ":";
    text += role == Role::row      ? "row/" + checked.row_inner(space, value)[f].text()
            : role == Role::column ? "column"
                                   : "local";
  }
  return text;
}

}  // namespace coda
