// tests/cuda_asm_to_host.h: the text of a file of device/ with each `asm` statement as a call of
// what tests/cuda_ptx_on_host.h has for the instruction.
#pragma once

#include <cctype>
#include <string>
#include <vector>

#include "coda/core/error.h"

namespace coda::cuda {

// One `asm [volatile] (…)`: its instructions and operands.
class AsmStatement {
 public:
  // `text` stands between the parentheses.
  explicit AsmStatement(const std::string& text) {
    int section = 0;
    for (std::size_t at = 0; at < text.size();) {
      const char c = text[at];
      if (c == '"') {
        std::string literal;
        for (++at; text[at] != '"'; ++at) {
          if (text[at] == '\\') {
            literal += text[++at] == 'n' ? '\n' : text[at];
          } else {
            literal += text[at];
          }
        }
        ++at;
        if (section == 0) template_ += literal;
      } else if (c == ':') {
        ++section, ++at;
      } else if (c == '(') {
        const std::size_t end = closing(text, at);
        operands_.push_back(text.substr(at, end - at + 1));
        at = end + 1;
      } else {
        ++at;
      }
    }
  }

  // Where the parenthesis at `open` closes; string literals may hold others.
  static std::size_t closing(const std::string& text, std::size_t open) {
    int depth = 0;
    for (std::size_t at = open; at < text.size(); ++at) {
      if (text[at] == '"') {
        for (++at; text[at] != '"'; ++at) at += text[at] == '\\' ? 1 : 0;
      } else if (text[at] == '(') {
        ++depth;
      } else if (text[at] == ')' && --depth == 0) {
        return at;
      }
    }
    throw InternalError("an asm statement that does not end");
  }

  std::string calls() const {
    if (template_.find("mbarrier.try_wait") != std::string::npos)
      return call("mbarrier.wait %0, %1");
    if (template_.find("st.async") != std::string::npos)
      return call("st.async.remote %0, %1, %2, %3");
    if (template_.find("mapa.") != std::string::npos) return call("mbarrier.arrive.remote %0, %1");
    if (template_.find("elect.sync") != std::string::npos) return call("elect.sync %0");
    std::vector<std::string> calls;
    std::string instruction;
    for (const char c : template_ + ";") {
      if (c != ';' && c != '\n') {
        instruction += c;
        continue;
      }
      if (instruction.find_first_not_of(' ') != std::string::npos)
        calls.push_back(call(instruction));
      instruction.clear();
    }
    if (calls.size() == 1) return calls[0];
    std::string all = "{ ";
    for (const std::string& each : calls) all += each + "; ";
    return all + "}";
  }

 private:
  // "op.a.b %0, [%1, {%2, %3}]" as ptx::op_a_b((…), (…), list((…), (…))).
  std::string call(const std::string& instruction) const {
    const std::size_t space = std::min(instruction.find(' '), instruction.size());
    std::string name = instruction.substr(0, space);
    // How a copy completes, and its hint, are the same everywhere.
    for (const std::string part : {".mbarrier::complete_tx::bytes", ".L2::cache_hint"}) {
      const std::size_t found = name.find(part);
      if (found != std::string::npos) name.erase(found, part.size());
    }
    for (char& c : name) {
      if (c == '.' || c == ':') c = '_';
    }
    std::string arguments;
    for (std::size_t at = space; at < instruction.size(); ++at) {
      const char c = instruction[at];
      if (c == '%') {
        std::size_t number = 0;
        while (at + 1 < instruction.size() &&
               std::isdigit(static_cast<unsigned char>(instruction[at + 1])) != 0) {
          number = number * 10 + static_cast<std::size_t>(instruction[++at] - '0');
        }
        arguments += operands_.at(number);
      } else if (c == '{') {
        arguments += "coda::host::list(";
      } else if (c == '}') {
        arguments += ")";
      } else if (c == '_') {
        arguments += "coda::host::none";
      } else if (instruction.compare(at, 2, "0f") == 0) {
        arguments += "coda::float_of(0x" + instruction.substr(at + 2, 8) + "u)";
        at += 9;
      } else if (c != '[' && c != ']') {
        arguments += c;
      }
    }
    return "coda::host::ptx::" + name + "(" + arguments + ")";
  }

  std::string template_;
  std::vector<std::string> operands_;
};

inline std::string asm_to_host(std::string text) {
  // The products are macros: what they stand for, once.
  const std::size_t first = text.find("#define CODA_REGISTERS_32");
  if (first != std::string::npos) {
    const std::size_t end = text.find("// clang-format on");
    text.replace(first, end - first,
                 "template <bool kA, bool kB, int N, class T>\n"
                 "inline void wgmma(float (&d)[N], u64 a, u64 b, T) {\n"
                 "  coda::host::ptx::wgmma(d, 2 * N, a, b, kA, kB, T());\n}\n");
    for (const char* type : {"Bf16Operands", "F16Operands"}) {
      const std::string empty = "struct " + std::string(type) + " {}";
      text.replace(text.find(empty), empty.size(),
                   "struct " + std::string(type) + " { static constexpr bool kBf16 = " +
                       (type[0] == 'B' ? "true" : "false") + "; }");
    }
  }
  std::string out;
  const auto is_letter = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
  };
  for (std::size_t at = 0; at < text.size();) {
    const bool comment = text.compare(at, 2, "//") == 0;
    if (comment) {
      at = std::min(text.find('\n', at), text.size());
      continue;
    }
    const bool word = text.compare(at, 3, "asm") == 0 && (at == 0 || !is_letter(text[at - 1])) &&
                      !is_letter(text[at + 3]);
    if (!word) {
      out += text[at++];
      continue;
    }
    const std::size_t open = text.find('(', at), end = AsmStatement::closing(text, open);
    out += AsmStatement(text.substr(open + 1, end - open - 1)).calls();
    at = end + 1;
  }
  return out;
}

}  // namespace coda::cuda
