// tests/text_calls_test.cpp: defs, blocks and files: what a call is replaced by, and which
// definition a name means.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "coda/program/library.h"
#include "coda/program/text.h"

namespace coda {
namespace {

Program read(std::string_view text, const Loader& loader = {}) {
  return parse(text, "test.coda", loader).find("");
}

Loader files(std::map<std::string, std::string> texts) {
  return [texts](std::string_view name) -> std::optional<std::string> {
    const auto found = texts.find(std::string(name));
    return found == texts.end() ? std::nullopt : std::optional(found->second);
  };
}

// `with` and `without` calls: the same program.
void expect_same(const std::string& definitions, const std::string& header, const std::string& with,
                 const std::string& without) {
  const Program called = read(definitions + header + " {\n" + with + "}\n");
  const Program written = read(header + " {\n" + without + "}\n");
  EXPECT_TRUE(called == written) << print(called) << print(written);
}

const char* const kRow = "block f(x: bf16[M, D], g: bf16[D], eps: f32) -> (y: f32[M, D])";

TEST(Calls, OfADefAreItsExpression) {
  const std::string norm =
      "def norm(v, g: [D], eps = 1e-5) = v * rsqrt(sum(v * v, D) / size(D) + eps) * g\n";
  expect_same(norm, kRow, "  y = norm(x, g, eps)\n",
              "  y = x * rsqrt(sum(x * x, D) / size(D) + eps) * g\n");
  expect_same(norm, kRow, "  y = norm(x, g)\n",
              "  y = x * rsqrt(sum(x * x, D) / size(D) + 1e-5) * g\n");
  expect_same(norm, kRow, "  y = norm(x, eps: 2, g: g)\n",
              "  y = x * rsqrt(sum(x * x, D) / size(D) + 2) * g\n");
  // An argument is a value, computed once.
  expect_same(norm, kRow, "  y = norm(x * 2, g)\n",
              "  a = x * 2\n  y = a * rsqrt(sum(a * a, D) / size(D) + 1e-5) * g\n");
}

TEST(Calls, GiveDimensionsTheirMeaning) {
  const char* const heads =
      "block f(x: bf16[B*S, H*E], g: bf16[E], c: f32[S, E/2], w: bf16[H*E]) -> (y: f32[B*S, H*E])";
  const std::string norm = "def norm(v, g: [D]) = v / sum(v, D) * g * size(D)\n";
  expect_same(norm, heads, "  y = norm(x, g)\n", "  y = x / sum(x, E) * g * size(E)\n");
  expect_same(norm, heads, "  y = norm(x, w)\n", "  y = x / sum(x, H*E) * w * size(H*E)\n");
  const std::string turn =
      "def turn(v: [M, N*A], c: [T, A/2]) {\n"
      "  a, b = split(v, A: A/2, A/2)\n"
      "  return join(A: a * c, b - index(T))\n"
      "}\n";
  expect_same(turn, heads, "  y = turn(x, c)\n",
              "  a, b = split(x, E: E/2, E/2)\n  y = join(E: a * c, b - index(S))\n");
  const std::string mean = "def mean(v, N: dim) = sum(v, N) / size(N)\n";
  expect_same(mean, heads, "  y = x - mean(x, H*E) - mean(x, N: E)\n",
              "  y = x - sum(x, H*E) / size(H*E) - sum(x, E) / size(E)\n");
  expect_same(mean + "def both(v, N: dim) = mean(v * v, N)\n", heads, "  y = x - both(x, E)\n",
              "  y = x - sum(x * x, E) / size(E)\n");
}

TEST(Calls, OfADefMayGiveSeveralValues) {
  expect_same("def two(v) {\n  a = exp(v)\n  return a, a + v\n}\n", kRow,
              "  a, b = two(x)\n  y = a * b\n", "  a = exp(x)\n  y = a * (a + x)\n");
  expect_same("def halves(v, N: dim) = split(v, N: N/2, N/2)\n", kRow,
              "  a, b = halves(x, D)\n  y = join(D: b, a)\n",
              "  a, b = split(x, D: D/2, D/2)\n  y = join(D: b, a)\n");
}

TEST(Calls, OfABlockRoundWhatItDeclares) {
  const std::string inner =
      "block inner(a: f16[P, Q], s: f32) -> (b: bf16[P, Q], n: i32[P]) {\n  b = a * s\n  n = "
      "index(P)\n}\n";
  expect_same(inner, kRow, "  b, n = inner(x, eps)\n  y = b + n\n",
              "  y = bf16(f16(x) * eps) + index(M)\n");
  expect_same(inner, kRow, "  b, _ = inner(f16(x), 2.5)\n  y = b + 1\n",
              "  y = bf16(f16(x) * 2.5) + 1\n");
  // What is as declared already is left alone.
  expect_same("program inner(a: bf16[P]) -> (b: f32[P]) {\n  b = exp(a)\n}\n", kRow,
              "  y = inner(g) * x\n", "  y = exp(g) * x\n");
}

TEST(Calls, OfABlockKeepItsNamesApart) {
  const std::string inner =
      "block inner(a: bf16[P, Q]) -> (b: bf16[P, Q]) {\n"
      "  t = exp(a)\n"
      "  c = (t * t) as [P, R]\n"
      "  b = a + sum(c, R)\n"
      "}\n";
  const Program program = read(inner +
                               "block f(x: bf16[M, R], q: bf16[R]) -> (y: bf16[M, R]) {\n"
                               "  t = inner(x)\n"
                               "  u = inner(t)\n"
                               "  y = t + u * q\n"
                               "}\n");
  EXPECT_EQ(print(program),
            "coda 1\n\n"
            "block f(x: bf16[M, R], q: bf16[R]) -> (y: bf16[M, R]) {\n"
            "  t_2 = exp(x)\n"
            "  c = (t_2 * t_2) as [M, R_2]\n"
            "  b = x + sum(c, R_2)\n"
            "  t = bf16(b)\n"
            "  t_3 = exp(t)\n"
            "  c_2 = (t_3 * t_3) as [M, R_3]\n"
            "  b_2 = t + sum(c_2, R_3)\n"
            "  u = bf16(b_2)\n"
            "  y = t + u * q\n"
            "}\n");
  EXPECT_TRUE(read(print(program)) == program);
}

TEST(Calls, ShowTheDimensionsOfResults) {
  expect_same(
      "block heads(x: bf16[M, N]) -> (q: bf16[M, H*E], r: bf16[M, L]) {\n  q, r = split(x, N: H*E, "
      "L)\n}\n",
      "block f(x: bf16[T, D], c: f32[H]) -> (y: f32[T, H*E])", "  q, _ = heads(x)\n  y = q * c\n",
      "  q, _ = split(x, D: H*E, L)\n  y = q * c\n");
}

TEST(Calls, MayComeBeforeTheDefinition) {
  const Module module = parse(
      "block outer(x: bf16[M]) -> (y: bf16[M]) {\n  y = inner(twice(x))\n}\n"
      "def twice(v) = 2 * v\n"
      "block inner(x: bf16[M]) -> (y: bf16[M]) {\n  y = exp(x)\n}\n",
      "test.coda");
  ASSERT_EQ(module.programs.size(), 2u);
  EXPECT_EQ(module.programs[0].name(), "outer");
  EXPECT_EQ(module.find("").name(), "inner");
  EXPECT_EQ(module.find("outer").nodes().size(), 5u);  // 2, *, bf16, exp, bf16
}

TEST(Calls, PointAtTheirPlaceInTheCaller) {
  const Program program =
      read("def twice(v) = v + v\nblock f(x: f32[M]) -> (y: f32[M]) {\n  y = exp(twice(x))\n}\n");
  ASSERT_EQ(program.nodes().size(), 2u);
  EXPECT_EQ(program.nodes()[0].where, (Location{"test.coda", 3, 11}));
  EXPECT_EQ(program.nodes()[1].where, (Location{"test.coda", 3, 7}));
}

TEST(Calls, OfBlockSizeCountTheTail) {
  const char* const header = "block f(x: f32[N]) -> (y: i64[blocks(N)], z: i64[blocks(N, 128)])";
  expect_same("", header, "  y = block_size(N)\n  z = block_size(N, 128)\n",
              "  y = min(64, size(N) - 64 * index(blocks(N)))\n"
              "  z = min(128, size(N) - 128 * index(blocks(N, 128)))\n");
}

TEST(Calls, OfUniformMayNameAValueForItsDims) {
  expect_same("", kRow, "  y = uniform(7, x * g)\n", "  y = uniform(7, [M, D])\n");
}

const std::string kCallsG = "block f(x: f32[M]) -> (y: f32[M]) {\n  y = g(x)\n}\n";

std::string used(const Program& program) {
  return print_node(program, program.nodes().size() - 1);
}

TEST(Use, BringsInWhatAFileDefinesAndUses) {
  const Loader loader =
      files({{"a.coda", "use \"b.coda\"\nblock h(x: f32[M]) -> (y: f32[M]) {\n  y = g(x)\n}\n"},
             {"b.coda", "def g(v) = exp(v)\n"}});
  const Module module = parse("use \"a.coda\"\nuse \"b.coda\"\n" + kCallsG, "test.coda", loader);
  ASSERT_EQ(module.programs.size(), 2u);
  EXPECT_EQ(module.imported, 1u);
  EXPECT_EQ(module.programs[0].name(), "h");
  EXPECT_EQ(module.programs[0].where().file, "a.coda");
  EXPECT_EQ(used(module.find("")), "y = exp(x)");
  EXPECT_EQ(print(module), print(module.find("f")));
}

TEST(Use, LetsTheFilesOwnDefinitionWin) {
  const Loader loader = files(
      {{"a.coda", "def g(v) = exp(v)\ndef two(v) = g(g(v))\n"}, {"b.coda", "def g(v) = log(v)\n"}});
  EXPECT_EQ(used(read("use \"a.coda\"\ndef g(v) = tanh(v)\n" + kCallsG, loader)), "y = tanh(x)");
  EXPECT_EQ(used(read("use \"a.coda\"\nuse \"b.coda\"\n" + kCallsG, loader)), "y = log(x)");
  // What the used file meant by the name stays what it meant.
  const Program program = read("use \"a.coda\"\ndef g(v) = two(v)\n" + kCallsG, loader);
  EXPECT_EQ(used(program), "y = exp(exp(x))");
}

TEST(Use, FindsFilesBesideTheFileAndInTheLibrary) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / "coda_text_calls_test";
  std::filesystem::create_directories(folder / "sub");
  const auto write = [&](const char* name, const std::string& text) {
    std::ofstream(folder / name) << text;
  };
  write("main.coda", "use \"sub/g.coda\"\nuse \"prelude.coda\"\n" + kCallsG);
  write("sub/g.coda", "use \"h.coda\"\ndef g(v) = h(v)\n");
  write("sub/h.coda", "use \"prelude.coda\"\ndef h(v) = relu(v)\n");
  EXPECT_EQ(used(parse_file((folder / "main.coda").string()).find("f")), "y = max(x, 0)");
  write("prelude.coda", "def relu(v) = exp(v)\n");
  EXPECT_EQ(used(parse_file((folder / "main.coda").string()).find("f")), "y = exp(x)");
  // The library goes on meaning its own.
  write("main.coda", "use \"attention.coda\"\n");
  EXPECT_EQ(parse_file((folder / "main.coda").string()).imported,
            parse_file("attention.coda").programs.size());
  std::filesystem::remove_all(folder);
  // A name of the library stands for its file.
  EXPECT_EQ(print(parse_file("llama.coda")), print(parse_file("programs/llama.coda")));
  EXPECT_FALSE(parse_file("no/such/folder/llama.coda").programs.empty());
}

TEST(Use, KnowsTheVersionOfAText) {
  EXPECT_EQ(parse("coda 1\n" + std::string("def g(v) = v\n"), "test.coda").version, 1);
  EXPECT_EQ(parse("def g(v) = v\n", "test.coda").version, 1);
  EXPECT_EQ(parse("", "test.coda").version, 1);
}

TEST(Use, AcceptsWhatEditorsWrite) {
  const Program plain = read(kCallsG + "def g(v) = exp(v)  # γ\n");
  std::string crlf = "\xef\xbb\xbf" + kCallsG + "def g(v) = exp(v)";
  for (std::size_t at = 0; (at = crlf.find('\n', at)) != std::string::npos; at += 2)
    crlf.replace(at, 1, "\r\n");
  EXPECT_TRUE(read(crlf) == plain);
  EXPECT_EQ(format(crlf, "test.coda"), "coda 1\n\n" + kCallsG + "\ndef g(v) = exp(v)\n");
}

}  // namespace
}  // namespace coda
