// coda/core/error.h: the three errors of the system, and the diagnostic that authors read.
//
// ProgramError: the author's or the caller's mistake (text, types, sizes, files); says how to fix
// it. Unsupported: this target cannot do it, and why. InternalError: a fault of ours. All are
// std::exception; what() is UTF-8 text for people, without a newline at its end. Nothing in the
// library exits or prints, and nothing returns bool for failure. After an error every object is as
// it was before the call; only the results of a run that failed hold anything.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace coda {

// A place in a source text; lines and columns count from 1, line 0 means that there is no source.
struct Location {
  std::string file;
  int line = 0;
  int column = 0;
  bool operator==(const Location&) const = default;
};

// One mistake, in the parts that a tool wants apart.
struct Diagnostic {
  Location where = {};
  std::string statement = {};           // the statement's source text, empty where there is none
  std::string message = {};             // what is wrong, with the names and values
  std::vector<std::string> types = {};  // the types or sizes on both sides: "x: bf16[M, K]"
  std::string rule = {};                // the rule that was broken
  std::string fix = {};                 // what to write instead
};

// file:line:column: error: message, then the statement, the types, the rule and the fix, a line
// each.
std::string to_string(const Diagnostic& diagnostic);

// what() is the text of every diagnostic, one below the other.
class ProgramError : public std::runtime_error {
 public:
  explicit ProgramError(std::vector<Diagnostic> diagnostics);
  explicit ProgramError(Diagnostic diagnostic);
  // The short form for errors that have no source text: file names, sizes, tensors.
  ProgramError(std::string message, std::string fix);

  const std::vector<Diagnostic>& diagnostics() const { return diagnostics_; }

 private:
  std::vector<Diagnostic> diagnostics_;
};

// what() is the reason alone.
class Unsupported : public std::runtime_error {
 public:
  explicit Unsupported(const std::string& message, std::string fix = "run it on another device")
      : std::runtime_error(message), fix_(std::move(fix)) {}

  const std::string& fix() const { return fix_; }  // empty: the message says what to do

 private:
  std::string fix_;
};

// A report of it helps: what() says which promise was not kept.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

// The name of `candidates` nearest to `name` by edit distance, or "" where none is near.
std::string nearest(std::string_view name, const std::vector<std::string>& candidates);

// The fix for an unknown name: "did you mean `…`?" with the nearest candidate, else `otherwise`.
std::string suggestion(std::string_view name, const std::vector<std::string>& candidates,
                       std::string otherwise);

}  // namespace coda
