// coda/core/error.cpp: how a diagnostic reads, and which name is near enough to suggest.
#include "coda/core/error.h"

#include <algorithm>
#include <cctype>
#include <utility>

namespace coda {
namespace {

// `text`, each of its lines indented, with a final newline; nothing where it is empty.
void append_indented(std::string& out, std::string_view label, std::string_view text) {
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    out.append(label).append(text.substr(0, end)).append("\n");
    label = "    ";
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  }
}

std::string joined(const std::vector<Diagnostic>& diagnostics) {
  std::string out;
  for (const Diagnostic& diagnostic : diagnostics) {
    if (!out.empty()) out += "\n";
    out += to_string(diagnostic);
  }
  return out;
}

char lower(char c) {
  return static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
}

// Insertions, deletions, replacements and swaps of neighbours that turn a into b; letter case is
// free.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before_last(b.size() + 1);
  std::vector<std::size_t> last(b.size() + 1);
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::swap(before_last, last);
    std::swap(last, row);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const bool same = lower(a[i - 1]) == lower(b[j - 1]);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (same ? 0 : 1)});
      const bool swapped = i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) &&
                           lower(a[i - 2]) == lower(b[j - 1]);
      if (swapped) row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
  }
  return row[b.size()];
}

}  // namespace

std::string to_string(const Diagnostic& diagnostic) {
  const Location& where = diagnostic.where;
  std::string out = where.file;
  if (where.line > 0) {
    out += ":" + std::to_string(where.line) + ":" + std::to_string(where.column);
  }
  if (!out.empty()) out += ": ";
  out += "error: " + diagnostic.message;
  out += "\n";
  append_indented(out, "    ", diagnostic.statement);
  for (const std::string& type : diagnostic.types) append_indented(out, "      ", type);
  append_indented(out, "  rule: ", diagnostic.rule);
  append_indented(out, "  fix: ", diagnostic.fix);
  out.pop_back();  // the last newline: the caller ends the line
  return out;
}

ProgramError::ProgramError(std::vector<Diagnostic> diagnostics)
    : std::runtime_error(joined(diagnostics)), diagnostics_(std::move(diagnostics)) {}

ProgramError::ProgramError(Diagnostic diagnostic)
    : ProgramError(std::vector<Diagnostic>{std::move(diagnostic)}) {}

ProgramError::ProgramError(std::string message, std::string fix)
    : ProgramError(Diagnostic{.where = {},
                              .statement = {},
                              .message = std::move(message),
                              .types = {},
                              .rule = {},
                              .fix = std::move(fix)}) {}

std::string nearest(std::string_view name, const std::vector<std::string>& candidates) {
  std::string best;
  std::size_t best_distance = 0;
  for (const std::string& candidate : candidates) {
    // Near: a third of the letters may differ, but never all of them.
    const std::size_t longer = std::max(name.size(), candidate.size());
    const std::size_t shorter = std::min(name.size(), candidate.size());
    const std::size_t distance = edit_distance(name, candidate);
    if (distance > (longer + 2) / 3 || distance >= shorter) continue;
    if (best.empty() || distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

std::string suggestion(std::string_view name, const std::vector<std::string>& candidates,
                       std::string otherwise) {
  const std::string near = nearest(name, candidates);
  return near.empty() ? std::move(otherwise) : "did you mean `" + near + "`?";
}

}  // namespace coda
