// tests/text_errors_test.cpp: wrong texts and the messages that a stranger gets for them.
//
// The texts and messages stand in text_errors_*.txt; what is generated, or needs several files,
// stands here.
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <map>
#include <sstream>

#include "coda/core/file.h"
#include "coda/program/text.h"

namespace coda {
namespace {

struct Case {
  std::string name, text, message;
};

std::string unescaped(const std::string& text) {
  std::string bytes;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text.compare(i, 2, "\\x") == 0) {
      bytes += static_cast<char>(std::stoi(text.substr(i + 2, 2), nullptr, 16));
      i += 3;
    } else {
      bytes += text[i];
    }
  }
  return bytes;
}

std::vector<Case> read_cases(const std::string& kind) {
  std::ifstream file(CODA_SOURCE_DIR "/tests/text_errors_" + kind + ".txt");
  std::vector<Case> cases;
  bool in_message = false;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("=== ")) {
      cases.push_back({line.substr(4), "", ""});
      in_message = false;
    } else if (line == "---") {
      in_message = true;
    } else if (!cases.empty()) {
      (in_message ? cases.back().message : cases.back().text) += line + "\n";
    }
  }
  return cases;
}

std::string message_of(std::string_view text, const Loader& loader = {}) {
  try {
    return "accepted:\n" + print(parse(text, "f.coda", loader));
  } catch (const ProgramError& error) {
    for (const Diagnostic& diagnostic : error.diagnostics()) {
      if (diagnostic.message.starts_with("there are more mistakes")) continue;
      EXPECT_GT(diagnostic.where.line, 0) << diagnostic.message;
      EXPECT_GT(diagnostic.where.column, 0) << diagnostic.message;
      EXPECT_FALSE(diagnostic.rule.empty()) << diagnostic.message;
      EXPECT_FALSE(diagnostic.fix.empty()) << diagnostic.message;
      EXPECT_FALSE(diagnostic.statement.empty()) << diagnostic.message;
    }
    return std::string(error.what()) + "\n";
  }
}

void check_cases(const std::string& kind, std::size_t at_least, const Loader& loader = {}) {
  const std::vector<Case> cases = read_cases(kind);
  EXPECT_GE(cases.size(), at_least);
  for (const Case& each : cases) {
    EXPECT_EQ(message_of(unescaped(each.text), loader), each.message) << each.name;
  }
}

TEST(TextErrors, OfSyntaxSayHowToFixTheLine) {
  check_cases("syntax", 40);
}
TEST(TextErrors, OfSchedulesSayHowToFixTheLine) {
  check_cases("schedules", 50, [](std::string_view name) -> std::optional<std::string> {
    EXPECT_EQ(name, "steps.coda");
    return read_file(CODA_SOURCE_DIR "/tests/text_errors_steps.coda");
  });
}
TEST(TextErrors, OfNamesSayHowToFixTheLine) {
  check_cases("names", 40);
}
TEST(TextErrors, OfTypesSayHowToFixTheLine) {
  check_cases("types", 35);
}

std::string in_program(const std::string& statements) {
  return "program f(x: f32[M]) -> (y: f32[M]) {\n" + statements + "}\n";
}

std::string repeated(const std::string& text, int count) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

void expect_mistake(const std::string& text, const std::string& message) {
  const auto begin = std::chrono::steady_clock::now();
  const std::string given = message_of(text);
  EXPECT_NE(given.find(message), std::string::npos) << given.substr(0, 2000);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  EXPECT_LT(took.count(), 5.0) << message;
}

TEST(TextErrors, AreAllReportedInOneRun) {
  const std::string text =
      "use \"nothing.coda\"\n"
      "foo\n"
      "progam d() {}\n"
      "y = 3\n"
      "def bad(v) = vv + 1\n"
      "program a(x: bf16[M, K], w: bf16[N, D], N: f32) -> (y: bf16[M, N], z: f32[M]) {\n"
      "  y = x @ w\n"
      "  q = sum(x, N)\n"
      "  r = exp(qq)\n"
      "  s = x * (1 + 2\n"
      "  x = q\n"
      "  u = exp(x, x) ? 2\n"
      "  $\n"
      "  i = M + 1\n"
      "}\n"
      "program b(x: bf16[M, K, w: f32) -> (y: bf16[M, K]) { y = x * w }\n"
      "block c(x: bf16[M, K]) -> (y: bf16[M, K]) {\n"
      "  y = c(x) @ x\n";
  std::vector<int> lines;
  try {
    parse(text, "f.coda");
  } catch (const ProgramError& error) {
    for (const Diagnostic& diagnostic : error.diagnostics()) lines.push_back(diagnostic.where.line);
  }
  // Line 6: N is both; line 12: the second mistake of a statement that does not parse; line 17:
  // never closed.
  EXPECT_EQ(lines, (std::vector<int>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16, 17, 18}))
      << message_of(text);
}

// A thread's stack is small; each of these would overflow it without a bound.
TEST(TextErrors, BoundTheDepthOfExpressions) {
  const int deep = 100000;
  expect_mistake(in_program("y = " + repeated("(", deep) + "x" + repeated(")", deep) + "\n"),
                 "the brackets are more than 200 levels deep");
  expect_mistake(in_program("y = " + repeated("exp(", deep) + "x\n"),
                 "the brackets are more than 200 levels deep");
  expect_mistake(in_program("y = " + repeated("-", deep) + "x\n"),
                 "more than 200 minus signs in a row");
  expect_mistake(in_program("y = x" + repeated(" + x", deep) + "\n"),
                 "the expression is more than 200 levels deep");
  expect_mistake(in_program("y = x" + repeated(" as [M]", deep) + "\n"),
                 "the expression is more than 200 levels deep");
  expect_mistake(in_program("y = " + repeated("pin ", deep) + "x\n"), "`pin` needs a cast");
  expect_mistake(in_program("y = x as [M" + repeated("*M", deep) + "]\n"), "levels deep");
  expect_mistake(in_program("y = x as [M" + repeated("*M", 100) + "]\n"), "more than 64 parts");
}

TEST(TextErrors, BoundTheSizeOfSums) {
  expect_mistake(in_program("y = x as [" + repeated("(A + B)*", 12) + "M]\n"),
                 "the dimension multiplies too many sums");
}

TEST(TextErrors, BoundTheDepthOfCalls) {
  std::string defs = "def f0(v) = v\n";
  for (int i = 1; i < 2000; ++i) {
    defs += "def f" + std::to_string(i) + "(v) = f" + std::to_string(i - 1) + "(v)\n";
  }
  expect_mistake(defs + in_program("y = f1999(x)\n"), "calls stand more than 64 deep");
}

TEST(TextErrors, BoundTheSizeOfAnExpandedProgram) {
  for (const char* body : {"f0(v) = v", "f0(v) = exp(v)"}) {
    std::string defs = std::string("def ") + body + "\n";
    for (int i = 1; i < 60; ++i) {
      const std::string below = "f" + std::to_string(i - 1);
      defs += "def f" + std::to_string(i) + "(v) = " + below + "(" + below + "(v))\n";
    }
    expect_mistake(defs + in_program("y = f59(x)\n"), "has more than 100000 operations");
  }
}

TEST(TextErrors, BoundTheNumberOfMistakes) {
  const std::string many = message_of(in_program(repeated("  y = ?\n", 100000)));
  EXPECT_NE(many.find("f.coda:2:7: error: `?` is not part of the language"), std::string::npos);
  EXPECT_LT(many.size(), 100000u);
}

TEST(TextErrors, SayThatThereAreMore) {
  const std::string text = in_program(repeated("  y = z\n", 1000));
  try {
    parse(text, "f.coda");
    FAIL();
  } catch (const ProgramError& error) {
    ASSERT_EQ(error.diagnostics().size(), 101u);
    EXPECT_EQ(error.diagnostics().back().message, "there are more mistakes than these 100");
  }
}

Loader files(std::map<std::string, std::string> texts) {
  return [texts](std::string_view name) -> std::optional<std::string> {
    const auto found = texts.find(std::string(name));
    return found == texts.end() ? std::nullopt : std::optional(found->second);
  };
}

TEST(TextErrors, OfACircleOfFilesNameTheCircle) {
  const Loader loader = files({{"a.coda", "use \"b.coda\"\n"}, {"b.coda", "use \"a.coda\"\n"}});
  EXPECT_EQ(message_of("use \"a.coda\"\n", loader),
            "b.coda:1:5: error: the files use one another in a circle: a.coda → b.coda → a.coda\n"
            "    use \"a.coda\"\n"
            "  rule: a file cannot use itself, directly or through others\n"
            "  fix: move what both need into a third file\n");
}

TEST(TextErrors, OfAUsedFileStandAtItsOwnPlace) {
  const Loader loader = files({{"a.coda", "# broken\ndef g(v) = v +\n"}});
  const std::string message = message_of("use \"a.coda\"\n" + in_program("y = g(x)\n"), loader);
  EXPECT_TRUE(message.starts_with("a.coda:2:15: error: the statement ends")) << message;
  EXPECT_EQ(message.find("f.coda"), std::string::npos) << message;
}

TEST(TextErrors, OfAMissingFileHideTheNamesItMayHaveHad) {
  const std::string message =
      message_of("use \"nothing_like_it.txt\"\n" + in_program("y = g(x)\n"), files({}));
  EXPECT_NE(message.find("there is no file `nothing_like_it.txt`"), std::string::npos);
  EXPECT_EQ(message.find("unknown op"), std::string::npos) << message;
}

TEST(TextErrors, OfAPathNameTheNearestFileOfTheLibrary) {
  try {
    parse_file("no/such/lama.coda");
    FAIL();
  } catch (const ProgramError& error) {
    EXPECT_STREQ(error.what(),
                 "error: there is no file no/such/lama.coda\n"
                 "  fix: did you mean \"llama.coda\" of the standard library?");
  }
  EXPECT_THROW(parse_file(CODA_SOURCE_DIR), ProgramError);
  EXPECT_THROW(parse_file(""), ProgramError);
}

TEST(TextErrors, OfFindNameTheNearestProgram) {
  const Module module = parse(in_program("y = exp(x)\n"), "f.coda");
  EXPECT_EQ(module.find("").name(), "f");
  try {
    module.find("g");
    FAIL();
  } catch (const ProgramError& error) {
    EXPECT_STREQ(error.what(), "error: there is no program or block `g`\n  fix: name one of f");
  }
  EXPECT_THROW(parse("coda 1\n", "f.coda").find(""), ProgramError);
}

TEST(TextErrors, OfFormatAreOfSyntaxOnly) {
  EXPECT_EQ(format("def f(x) = nothing( x )", "f.coda"), "coda 1\n\ndef f(x) = nothing(x)\n");
  EXPECT_THROW(format("def f(x) = (", "f.coda"), ProgramError);
}

}  // namespace
}  // namespace coda
