// tests/text_test.cpp: text → Program → text, the canonical layout, and what calls are replaced by.
#include "coda/program/text.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <random>

#include "coda/program/builder.h"
#include "coda/program/library.h"
#include "coda/rewrite/halves.h"
#include "coda/rewrite/rewrite.h"

namespace coda {
namespace {

Program read(std::string_view text) {
  return parse(text, "test.coda").find("");
}

// What every Program must satisfy; returns its text.
std::string round_trip(const Program& program) {
  const std::string text = print(program);
  const Program again = read(text);
  EXPECT_TRUE(again == program) << text;
  EXPECT_EQ(again.hash(), program.hash()) << text;
  EXPECT_EQ(again.comment(), program.comment());
  EXPECT_EQ(print(again), text);
  EXPECT_EQ(format(text, "test.coda"), text);
  return text;
}

const char* const kHeader =
    "block f(\n"
    "    x: bf16[M, K], y: bf16[M, K], w: bf16[N, K], v: f32[M, H*E], u: f32[B*S, D], g: f32[K],\n"
    "    t: f32[V, D], ids: i64[M], s: f32, seed: i64, q: bf16[B*S, H*E], k: bf16[B*T, G*E],\n"
    "    ss: f32[M, blocks(K)], b: bool[M], h: f32[M, E/2], pq: f32[M, P + Q]\n"
    ")";

// The statements of `f`, as they are printed.
std::string printed(const std::string& result, const std::string& statements) {
  const std::string head = std::string(kHeader) + " -> (" + result + ") {\n";
  const std::string text = round_trip(read(head + statements + "}\n"));
  const std::size_t body = text.find(" {\n");
  return text.substr(body + 3, text.size() - body - 5);
}

TEST(Text, EveryOpHasOneForm) {
  const struct {
    const char *result, *statements;
  } cases[] = {
      {"r: f32[M, K]", "  r = x + y - 2 * x / y\n"},
      {"r: f32[M, K]", "  r = x - (y - x) / (x * y) * -y\n"},
      {"r: f32[M, K]", "  r = x / (y / x) - (-x) as [M, K] - neg(2) - -2\n"},
      {"r: f32[M, K]",
       "  r = max(min(abs(x), exp(y)), log(sqrt(rsqrt(x)))) + tanh(sigmoid(erf(y)))\n"},
      {"r: f32[M, K]", "  r = where(x < y, x, where(x >= 2, y, 1e-5)) + (x == y)\n"},
      {"r: f32[M, K]", "  r = where((x != y) * (x > 1) * (x <= 3.25), inf, -inf)\n"},
      {"r: f32[M, K]", "  r = bf16(x) * pin f16(y) + pin f8e4m3(x) as [M, K]\n"},
      {"r: f32[M, N]", "  r = s * (x @ w) + (x * y) @ w + (x @ w) / s\n"},
      {"r: f32", "  r = x @[M, K] y\n"},
      {"r: f32[K, D]", "  r = (x as [B*S, K]) @ u\n"},
      {"r: f32[B*S, S2, N]", "  r = (q @ (k as [S2, H*E])) * ((k as [S2, K])[0] @ w)\n"},
      {"r: f32", "  r = sum(sum(v, H*E), M) + size(K) / size(blocks(K)) + size(E/2)\n"},
      {"r: f32[M]", "  r = max(x, K) + logsumexp(y, K) + sum(ss, blocks(K))\n"},
      {"r: f32[M, blocks(K)]",
       "  r = block_sum(x, K) + block_max(x, K) + block_logsumexp(x, K, 64)\n"},
      {"r: f32[M, blocks(H*E, 128)]", "  r = block_sum(v, H*E, 128)\n"},
      {"r: i64[M, K]", "  r = index(M) + index(K) * index(M)\n"},
      {"r: f32[M, K]", "  r = uniform(seed, [M, K]) + uniform(seed + 1, [])\n"},
      {"r: f32[M, H*E]", "  r = spread(sum(v, E), [M, H*E]) + spread(sum(v, H*E), H*E)\n"},
      {"r: f32[M, K]",
       "  r = spread(ss, K) + spread(sum(x, K), K) + spread(block_sum(x, K, 32), K)\n"},
      {"r: f32[M, D]", "  r = t[ids] * (t + 1)[ids + 1]\n"},
      {"r: f32[M]", "  r = pick(x, ids) + where(b, 1, 0) + where(true, s, 0)\n"},
      {"r: f32[V, K]", "  r = scatter_sum(x, ids, V)\n"},
      {"r: f32[M, P]", "  r, _ = split(pq, P + Q: P, Q)\n"},
      {"r: f32[M, H*(E/2)]", "  a, b2 = split(v, E: E/2, E/2)\n  r = a * b2\n"},
      {"r: f32[M, H*E]", "  a, b2, c = split(v, E: E/4, E/4, E/2)\n  r = join(E: c, b2, a)\n"},
      {"r: f32[M, E]", "  r = join(E: h, h + 1)\n"},
      {"r: f32[M*2, K]", "  r = join(M*2: x, y)\n"},
      {"r: f32[M, L]", "  r = join(h, h + 1, L: E/2, E/2)\n"},
      {"r: f32[M, H*(E/2)*2]", "  r = v as [M, H*(E/2)*2]\n"},
      {"r: bf16[B*S, H*E]", "  r, _ = attention(q, k, k)\n"},
      {"r: bf16[B*S, H*E], l: f32[B*S, H]",
       "  r, l = attention(q, k, k, causal: true, window: 128, softcap: 50, scale: s)\n"},
      {"r: bf16[B*S, H*E], dv: bf16[B*T, G*E]",
       "  o, l = attention(q, k, k)\n  r, _, dv = attention_grad(q, q, k, k, o, l)\n"},
      {"r: +f32[N, K]", "  r += (x as [M, N]) @ y\n"},
      {"r: bf16[M, K], p: bf16[K, M], z: f32[M, K]", "  r = x + y\n  p = r\n  z = x\n"},
      {"r: f32[M, K], p: +f32[M, K]", "  r = x + y\n  p += r\n"},
      {"r: +f32[M, K], p: +f32[M, K]", "  t1 = x + y\n  r += t1\n  p += t1\n"},
      {"r: f32, p: f32, z: bool", "  r = 2\n  p = inf\n  z = false\n"},
      {"r: f32[M, K]", "  two = 2\n  r = x * two + two\n"},
  };
  for (const auto& each : cases) {
    // block_logsumexp(x, K, 64) is the one form above that is not the canonical one.
    std::string expected = each.statements;
    if (const auto at = expected.find(", 64"); at != std::string::npos) expected.erase(at, 4);
    EXPECT_EQ(printed(each.result, each.statements), expected);
  }
}

TEST(Text, ParsesToWhatTheBuilderMakes) {
  const Program text = read(
      "# Output projection,\n"
      "# residual.\n"
      "program residual_norm(x: bf16[M, K], w: bf16[N, K], res: bf16[M, N], gamma: bf16[N])\n"
      "    -> (h: bf16[M, N], p: bf16[M, N], ss: f32[M, blocks(N)]) {\n"
      "  h = res + x @ w\n"
      "  p = h * gamma\n"
      "  ss = block_sum(h * h, N)\n"
      "}\n");
  const Dim m = dim_of("M"), n = dim_of("N"), k = dim_of("K");
  Builder builder("residual_norm", Program::Kind::program);
  const Value x = builder.param("x", {DType::bf16, {m, k}});
  const Value w = builder.param("w", {DType::bf16, {n, k}});
  const Value res = builder.param("res", {DType::bf16, {m, n}});
  const Value gamma = builder.param("gamma", {DType::bf16, {n}});
  const Value h = builder.op(Op::add, {res, builder.op(Op::product, {x, w})});
  const Value p = builder.op(Op::mul, {h, gamma});
  const Value ss = builder.op(Op::block_sum, {builder.op(Op::mul, {h, h})}, {.axis = n});
  builder.result("h", {DType::bf16, {m, n}}, h);
  builder.result("p", {DType::bf16, {m, n}}, p);
  builder.result("ss", {DType::f32, {m, Dim{{Factor::blocks(n, 64)}}}}, ss);
  EXPECT_TRUE(text == std::move(builder).finish());
  EXPECT_EQ(text.comment(), "Output projection,\nresidual.");
  EXPECT_EQ(text.where(), (Location{"test.coda", 3, 9}));
  EXPECT_EQ(text.node(text.results()[1].value).where, (Location{"test.coda", 6, 7}));
  EXPECT_EQ(text.value(text.results()[0].value).name, "h");
}

TEST(Text, BindsAsStronglyAsTheTableSays) {
  const auto same = [](const char* a, const char* b) {
    const std::string head =
        "block f(x: f32[M, K], w: f32[K, N], c: f32[N, D], z: f32[M, N]) -> (y: f32[M, N]) {\n  y "
        "= ";
    return read(head + std::string(a) + "\n}\n") == read(head + std::string(b) + "\n}\n");
  };
  EXPECT_TRUE(same("z * x @ w", "z * (x @ w)"));
  EXPECT_TRUE(same("z + z * z - z / z", "(z + (z * z)) - (z / z)"));
  EXPECT_TRUE(same("-x @ w + z", "((-x) @ w) + z"));
  EXPECT_TRUE(same("z < z + 1", "z < (z + 1)"));
  EXPECT_TRUE(same("z - z - z", "(z - z) - z"));
  EXPECT_FALSE(same("z - z - z", "z - (z - z)"));
  EXPECT_TRUE(same("z + (x @ w) as [M, N]", "z + ((x @ w) as [M, N])"));
  EXPECT_TRUE(same("-z as [M, N]", "-(z as [M, N])"));
  EXPECT_TRUE(same("(z +\n    z)", "z + z"));
}

TEST(Text, PrintsValuesThatAreUsedOnceInline) {
  EXPECT_EQ(printed("r: f32[M]", "  a = x * y\n  r = sum(a, K)\n"),
            "  a = x * y\n  r = sum(a, K)\n");
  Builder builder("f", Program::Kind::block);
  Value v = builder.param("x", {DType::f32, {dim_of("M")}});
  for (int i = 0; i < 60; ++i) v = builder.op(Op::add, {builder.op(Op::exp, {v}), v});
  builder.result("t1", {DType::f32, {dim_of("M")}}, v);
  const std::string text = round_trip(std::move(builder).finish());
  EXPECT_NE(text.find("  t2 = exp(x) + x\n  t3 = exp(t2) + t2\n"), std::string::npos) << text;
}

TEST(Text, PrintsLongExpressionsInPieces) {
  Builder builder("f", Program::Kind::block);
  const Value x = builder.param("a_parameter", {DType::f32, {dim_of("M")}});
  Value v = x;
  for (int i = 0; i < 200; ++i)
    v = builder.op(i % 2 ? Op::add : Op::mul, {x, builder.op(Op::exp, {v})});
  builder.result("y", {DType::f32, {dim_of("M")}}, v);
  const std::string text = round_trip(std::move(builder).finish());
  std::size_t longest = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    longest = std::max(longest, end - at);
    at = end + 1;
  }
  EXPECT_LE(longest, 92u);
}

TEST(Text, PrintsProgramsThatNoAuthorWrote) {
  Builder builder("f", Program::Kind::block);
  builder.comment("tabs\tand\x01 bytes\n\nand a gap");
  const Type type{DType::f32, {dim_of("M"), dim_of("E")}};
  const Value x = builder.param("x", type);
  // Names that are taken, that are no names, that are words or dimensions.
  Value v = x;
  for (const char* name : {"x", "E", "bf16", "as", "y", "a.b", "", "t1", "t1", "_", "sum"}) {
    v = builder.op(Op::exp, {v});
    builder.name(v, name);
  }
  const Value nan = builder.constant(std::numeric_limits<double>::quiet_NaN());
  v = builder.op(Op::where,
                 {builder.op(Op::lt, {v, builder.constant(-0.5)}), v, builder.constant(1e300)});
  for (const double number : {-1.0, 1e-300, 123456789012345678.0, 0.1, 1e22, 9007199254740992.0}) {
    v = builder.op(Op::add, {v, builder.op(Op::neg, {builder.constant(number)})});
  }
  const std::vector<Value> parts = builder.ops(
      Op::split, {v},
      {.axis = dim_of("E"),
       .dims = {Dim{{Factor::quotient(dim_of("E"), 2)}}, Dim{{Factor::quotient(dim_of("E"), 2)}}}});
  builder.name(parts[1], "unused");
  builder.result("y", {DType::f32, {dim_of("M"), Dim{{Factor::quotient(dim_of("E"), 2)}}}},
                 parts[0]);
  builder.result("again", {DType::bf16, {Dim{{Factor::quotient(dim_of("E"), 2)}}, dim_of("M")}},
                 parts[0]);
  builder.result("input", type, x);
  const Program program = std::move(builder).finish();
  const std::string text = print(program);
  EXPECT_TRUE(read(text) == program) << text;
  EXPECT_EQ(print(read(text)), text);
  EXPECT_NE(text.find("y, _unused = split("), std::string::npos) << text;
  EXPECT_NE(text.find("# tabs and  bytes\n#\n# and a gap\n"), std::string::npos) << text;
  (void)nan;
}

TEST(Text, NamesMayHaveDots) {
  const std::string text =
      "coda 1\n\n"
      "program 0.f(0.wq: bf16[N, D.1], 12.gamma1: f32[N], d_0.wq: bf16[M, D.1])\n"
      "    -> (d_1.wq.sum: f32[M, N], 3._x: f32[N]) {\n"
      "  0.t = d_0.wq @ 0.wq + 0.5\n"
      "  d_1.wq.sum = 2.5 * 0.t * 12.gamma1 + 1e-5 * 0.t\n"
      "  3._x = 12.gamma1 * 0.1\n"
      "}\n";
  const Module module = parse(text, "f.coda");
  const Program& program = module.programs[0];
  EXPECT_EQ(program.name(), "0.f");
  EXPECT_EQ(program.params()[0].name, "0.wq");
  EXPECT_EQ(program.params()[0].type.text(), "bf16[N, D.1]");
  EXPECT_EQ(program.results()[1].name, "3._x");
  EXPECT_EQ(print(program), text);
  EXPECT_EQ(format(text, "f.coda"), text);
}

TEST(Text, NamesDimensionsThatNoTypeHas) {
  const std::string text =
      "coda 1\n\n"
      "program mean[D, E](s: f32[M]) -> (m: f32[M]) {\n"
      "  m = s / size(D) + size(E)\n"
      "}\n\n"
      "block twice(s: f32[M], t: f32[D, E]) -> (m: f32[M], u: f32[D, E]) {\n"
      "  m = s / size(D) + size(E)\n"
      "  u = t\n"
      "}\n";
  const Module module = parse(text, "f.coda");
  EXPECT_EQ(print(module), text);
  EXPECT_EQ(format(text, "f.coda"), text);
  // Where it is called, the caller's are meant.
  const Module caller =
      parse(text +
                "block c(s: f32[M], t: f32[D, E]) -> (m: f32[M], u: f32[D, E]) {\n"
                "  m = mean(s)\n  u = t\n}\n",
            "f.coda");
  EXPECT_NE(print(caller.find("c")).find("m = s / size(D) + size(E)"), std::string::npos)
      << print(caller.find("c"));
}

TEST(Text, PrintsOneNodeAsItsStatement) {
  const Program program = read(
      "block f(x: f32[M, K], w: f32[N, K]) -> (y: f32[M, N], d: +f32[M]) {\n"
      "  y = 2 * (x @ w)\n"
      "  a, _ = split(x, K: K/2, K/2)\n"
      "  d += sum(a, K/2)\n"
      "}\n");
  std::vector<std::string> statements;
  for (std::size_t n = 0; n < program.nodes().size(); ++n)
    statements.push_back(print_node(program, n));
  EXPECT_EQ(statements,
            (std::vector<std::string>{"2", "x @ w", "y = 2 * (x @ w)",
                                      "a, _ = split(x, K: K/2, K/2)", "d += sum(a, K/2)"}));
}

TEST(Text, OfTheLibraryComesBack) {
  for (const std::string_view file : embedded_programs()) {
    SCOPED_TRACE(file);
    const std::string text(*embedded_program(file));
    EXPECT_EQ(format(text, file), text);
    const Module module = parse(text, file);
    const std::string printed = print(module);
    const Module again = parse(printed, file);
    ASSERT_EQ(again.programs.size(), module.programs.size() - module.imported);
    EXPECT_EQ(again.imported, 0u);
    for (std::size_t i = 0; i < again.programs.size(); ++i) {
      EXPECT_TRUE(again.programs[i] == module.programs[module.imported + i]);
      round_trip(again.programs[i]);
    }
    EXPECT_EQ(print(again), printed);
    EXPECT_EQ(format(printed, file), printed);
  }
}

TEST(Text, OfWhatRewritingMakesComesBack) {
  int kernels = 0;
  for (const std::string_view file : embedded_programs()) {
    const Module module = parse(*embedded_program(file), file);
    for (std::size_t i = module.imported; i < module.programs.size(); ++i) {
      const Program& program = module.programs[i];
      SCOPED_TRACE(std::string(file) + " " + program.name());
      std::vector<Program> blocks = {program};
      std::vector<std::string>
          weights;  // a scalar may be an option of attention, which has no gradient
      for (const Param& param : program.params()) {
        if (is_float(param.type.dtype) && !param.type.is_scalar()) weights.push_back(param.name);
      }
      const auto adds = [](const Result& result) {
        return result.store == Store::accumulate;
      };
      const auto floats = [](const Result& result) {
        return is_float(result.type.dtype);
      };
      if (!weights.empty() && std::ranges::any_of(program.results(), floats) &&
          std::ranges::none_of(program.results(), adds)) {
        blocks.push_back(grad(program, {.wrt = weights}));
        round_trip(blocks.back());
        const Training training = grad_for_training(program, {.wrt = weights});
        round_trip(training.forward);
        round_trip(training.backward);
      }
      for (const Program& block : blocks) {
        for (const Step& step : rewrite(block).forward.schedule.steps) {
          round_trip(step.program);
          ++kernels;
        }
      }
    }
  }
  EXPECT_GT(kernels, 100);
}

// Texts that are one slip away from the library's: each is refused or comes back, and formatting
// keeps its meaning.
TEST(Text, ThatIsAlmostRightIsRefusedOrComesBack) {
  std::mt19937 random(1);
  const std::vector<std::string> slips = {
      "(",       ")",    "[",       "]",  "{",    "}",  ",",         ":",          "=",   "+",
      "-",       "*",    "@",       "\n", "#",    "x",  "M",         "2",          "E/2", "1e-5",
      " as [M]", "pin ", "return ", "_",  "\xff", "\"", "sum(x, N)", "use \"a\"\n"};
  const std::vector<std::string_view> files = embedded_programs();
  int accepted = 0;
  for (int i = 0; i < 600; ++i) {
    const std::string_view file = files[random() % files.size()];
    std::string text(*embedded_program(file));
    const std::size_t at = random() % text.size();
    if (i % 3 == 0) text.erase(at, 1 + random() % 4);
    if (i % 3 == 1) text.insert(at, slips[random() % slips.size()]);
    if (i % 3 == 2) text.insert(at, text.substr(random() % text.size(), random() % 30));
    SCOPED_TRACE(text);
    try {
      const Module module = parse(text, file);
      ++accepted;
      const Module printed = parse(print(module), file);
      const Module formatted = parse(format(text, file), file);
      for (std::size_t p = module.imported; p < module.programs.size(); ++p) {
        EXPECT_TRUE(printed.programs[p - module.imported] == module.programs[p]);
        EXPECT_TRUE(formatted.programs[p] == module.programs[p]);
        EXPECT_EQ(formatted.programs[p].comment(), module.programs[p].comment());
      }
    } catch (const ProgramError& error) {
      EXPECT_FALSE(error.diagnostics().empty());
    }
    try {
      const std::string once = format(text, file);
      EXPECT_EQ(format(once, file), once);
    } catch (const ProgramError& error) {
      EXPECT_FALSE(error.diagnostics().empty());
    }
  }
  EXPECT_GT(accepted, 50);
}

TEST(Text, OfAThousandLinesTakesMilliseconds) {
  std::string text = "block f(x0: f32[M, K]) -> (y: f32[M, K]) {\n";
  for (int i = 0; i < 1000; ++i) {
    const std::string from = "x" + std::to_string(i);
    text += "  x" + std::to_string(i + 1) + " = " + from + " + exp(" + from + ") * max(" + from +
            ", 0.5)\n";
  }
  text += "  y = x1000\n}\n";
  const auto begin = std::chrono::steady_clock::now();
  const std::string printed = print(read(text));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  EXPECT_GT(printed.size(), 40000u);
  EXPECT_LT(took.count(), 1.0);  // about 10 ms; sanitizers and a busy machine included
}

}  // namespace
}  // namespace coda
