// tests/text_layout_test.cpp: the canonical layout, `coda fmt`.
#include <gtest/gtest.h>

#include "coda/program/text.h"

namespace coda {
namespace {

std::string laid_out(const std::string& text) {
  const std::string once = format(text, "test.coda");
  EXPECT_EQ(format(once, "test.coda"), once);
  return once;
}

TEST(Layout, SpacesAreAllInOnePlace) {
  EXPECT_EQ(
      laid_out(
          "coda   1\nuse   \"a.coda\"\n\n\n\nuse \"b.coda\"\ndef f( v,g:[ D ],eps=1e-05 )=v*g\n"
          "def g(v)=-v\nprogram p(x:bf16[M,H * E],s:f32)->(y:+f32[ M ]){y+=sum(x , H*E)/s}\ndef "
          "h(v)=v"),
      "coda 1\n"
      "\n"
      "use \"a.coda\"\n"
      "\n"
      "use \"b.coda\"\n"
      "def f(v, g: [D], eps = 1e-05) = v * g\n"
      "def g(v) = -v\n"
      "\n"
      "program p(x: bf16[M, H*E], s: f32) -> (y: +f32[M]) {\n"
      "  y += sum(x, H*E) / s\n"
      "}\n"
      "\n"
      "def h(v) = v\n");
}

// The statement as it is laid out.
std::string statement(const std::string& text) {
  const std::string all = laid_out("block f(x: f32[M]) -> (y: f32[M]) {\n" + text + "\n}\n");
  const std::size_t body = all.find(" {\n") + 3;
  return all.substr(body, all.size() - body - 2);
}

TEST(Layout, KeepsOnlyTheParenthesesThatHelp) {
  EXPECT_EQ(statement("y = ((x) + (x * x)) - (x)"), "  y = x + x * x - x\n");
  EXPECT_EQ(statement("y = x - (x + x) / (x / x)"), "  y = x - (x + x) / (x / x)\n");
  EXPECT_EQ(statement("y = r * x @ w + x @ w"), "  y = r * (x @ w) + x @ w\n");
  EXPECT_EQ(statement("y = (x @ w) as [M, H*(E/2)*2] @ w"),
            "  y = ((x @ w) as [M, H*(E/2)*2]) @ w\n");
  EXPECT_EQ(statement("y = x as [(M), N/2/2, (M*N)/2, M*N/2, M-N, M - (N+K), 2*(M - N)]"),
            "  y = x as [M, (N/2)/2, (M*N)/2, (M*N)/2, M - N, M - (N + K), 2*(M - N)]\n");
  EXPECT_EQ(statement("y = where((x < 1), (x == 2) * x, -(x + 1))"),
            "  y = where(x < 1, (x == 2) * x, -(x + 1))\n");
  EXPECT_EQ(statement("y = (x @ [M ,N] z)[ids] * - -x"), "  y = (x @[M, N] z)[ids] * --x\n");
}

TEST(Layout, TellsDimensionsFromValues) {
  EXPECT_EQ(statement("h = x * x\nz = max(x, H * E) + max(x, h * x) + sum(x, blocks(H * E , 128)) "
                      "+ f(M / 2, x / 2)"),
            "  h = x * x\n  z = max(x, H*E) + max(x, h * x) + sum(x, blocks(H*E, 128)) + f(M/2, x "
            "/ 2)\n");
  EXPECT_EQ(statement("a, b = split(x, E * F: E - F, F / 2)\ny = join(E * F: a * a, b)"),
            "  a, b = split(x, E*F: E - F, F/2)\n  y = join(E*F: a * a, b)\n");
}

TEST(Layout, BreaksLinesAtAHundredColumns) {
  const std::string name(29, 'a');
  EXPECT_EQ(statement("yy = " + name + " + " + name + " + " + name),
            "  yy = " + name + " + " + name + " + " + name + "\n");  // exactly 100
  EXPECT_EQ(statement("yyy = " + name + " + " + name + " - " + name),
            "  yyy = (\n      " + name + "\n      + " + name + "\n      - " + name + "\n  )\n");
  EXPECT_EQ(statement("y = exp(x * " + name + ") * where(" + name + ", " + name + ", " + name +
                      " + x * " + name + ")"),
            "  y = (\n"
            "      exp(x * " +
                name +
                ")\n"
                "      * where(\n"
                "          " +
                name + ", " + name +
                ",\n"
                "          " +
                name + " + x * " + name +
                "\n"
                "      )\n"
                "  )\n");
  EXPECT_EQ(statement("a, b = split(" + name + " @ " + name + ", " + name + ": " + name + ", M)"),
            "  a, b = split(\n      " + name + " @ " + name + ",\n      " + name + ": " + name +
                ", M\n  )\n");
}

TEST(Layout, BreaksHeadersBeforeTheirArrowFirst) {
  const std::string params =
      "(aaaaaaaaaaaaaaaa: bf16[M, K], bbbbbbbbbbbbbbbbbb: bf16[N, K], c: bf16[N])";
  const std::string header = "program f" + params;
  EXPECT_EQ(laid_out(header + " -> (y: f32[M], z: f32[M, blocks(N)]) { y = 1\nz = 2 }"),
            "coda 1\n\n" + header +
                "\n    -> (y: f32[M], z: f32[M, blocks(N)]) {\n  y = 1\n  z = 2\n}\n");
  EXPECT_EQ(laid_out("block f" + params.substr(0, params.size() - 1) +
                     ", dddddddddddd: bf16[N, K], e: f32) -> (y: f32[M]) { y = 1 }"),
            "coda 1\n\nblock f(\n"
            "    aaaaaaaaaaaaaaaa: bf16[M, K], bbbbbbbbbbbbbbbbbb: bf16[N, K], c: bf16[N],\n"
            "    dddddddddddd: bf16[N, K], e: f32\n"
            ") -> (y: f32[M]) {\n  y = 1\n}\n");
}

TEST(Layout, KeepsCommentsWhereTheyWere) {
  const std::string text =
      "# Licence.\n"
      "coda 1  # the version\n"
      "\n"
      "use \"a.coda\"  # why\n"
      "\n"
      "# A comment that stands alone.\n"
      "\n"
      "# About f,\n"
      "#\n"
      "#   indented.\n"
      "def f(v) = v  # f\n"
      "\n"
      "program p(\n"
      "    x: f32[M],  # the rows\n"
      "    # about s\n"
      "    s: f32\n"
      ") -> (\n"
      "    y: f32[M]  # the result\n"
      ") {  # begins\n"
      "  # first\n"
      "\n"
      "  # about t\n"
      "  t = x * s  # t\n"
      "\n"
      "  y = t + t\n"
      "  # last\n"
      "}\n"
      "\n"
      "# The end.\n";
  EXPECT_EQ(laid_out(text), text);
}

TEST(Layout, MovesCommentsOutOfExpressions) {
  EXPECT_EQ(statement("y = (x  # the input\n    + # more\n    z  # z\n)  # all\n"),
            "  # the input\n  # more\n  # z\n  y = x + z  # all\n");
  EXPECT_EQ(laid_out("def f(v) = (v +  #tight\n  v)\n"), "coda 1\n\n# tight\ndef f(v) = v + v\n");
}

TEST(Layout, KeepsOneBlankLine) {
  EXPECT_EQ(statement("\n\n\na = x\n\n\n\n# b\n\n\nb = a\ny = b\n\n\n"),
            "  a = x\n\n  # b\n\n  b = a\n  y = b\n");
}

TEST(Layout, OfAnEmptyTextIsItsVersion) {
  EXPECT_EQ(laid_out(""), "coda 1\n");
  EXPECT_EQ(laid_out("\n\n# nothing\n\n"), "coda 1\n\n# nothing\n");
}

}  // namespace
}  // namespace coda
