// coda/algebra/centred_squares.cpp: the sum of squares about the mean, from blocks:
//   Σ(x - μ)² = Σ_blocks [ Σ_block (x - μ_b)² + n_b·(μ_b - μ)² ].
// A tile sees blocks, never μ. Each block's squares are about its own mean, so nothing cancels.
#include <set>
#include <string>
#include <utility>

#include "coda/algebra/factors.h"
#include "coda/algebra/rebuild.h"
#include "coda/algebra/rule.h"

namespace coda {
namespace {

// x of sum((x - mean(x, axis))², axis).
std::optional<Value> centred(const Program& program, const Node& node) {
  if (node.op != Op::sum || !is_op(program, node.args[0], Op::mul)) return std::nullopt;
  const Node& square = program.node(node.args[0]);
  if (square.args[0] != square.args[1]) return std::nullopt;
  const Value v = behind_casts(program, square.args[0]);
  if (!is_op(program, v, Op::sub)) return std::nullopt;
  const Node& difference = program.node(v);
  const std::optional<Value> of = mean_of(program, difference.args[1], node.attr.axis);
  if (!of || behind_casts(program, *of) != behind_casts(program, difference.args[0])) {
    return std::nullopt;
  }
  return of;
}

}  // namespace

Program centred_squares(const Program& program, Situation&) {
  // What is squared about its mean, and along what: its plain sum comes from the same blocks.
  std::set<std::pair<Value, std::string>> cut;
  for (const Node& node : program.nodes()) {
    const std::optional<Value> of = centred(program, node);
    if (of && is_made_in_tiles(program, *of)) cut.emplace(*of, node.attr.axis.text());
  }
  Rebuild build(program);
  return std::move(build).run([&](const Node& node) -> std::optional<std::vector<Expr>> {
    if (node.op != Op::sum) return std::nullopt;
    const Dim& axis = node.attr.axis;
    const Dim blocks = dim_of(Factor::blocks(axis, kBlock));
    if (cut.contains({node.args[0], axis.text()})) {
      const Expr x = build(node.args[0]);
      return std::vector{reduce(Op::sum, block_reduce(Op::block_sum, x, axis, kBlock), blocks)};
    }
    const std::optional<Value> of = centred(program, node);
    if (!of || !cut.contains({*of, axis.text()})) return std::nullopt;
    const Expr x = build(*of);
    Builder& to = *x.builder;
    const Expr size{&to, to.op(Op::size, {}, {.axis = axis})};
    const Expr block{&to, to.op(Op::index, {}, {.axis = blocks})};
    const Expr rest = size - block * double{kBlock};
    const Expr count = map(Op::minimum, rest, Expr{&to, to.constant(kBlock)});
    const Expr sums = block_reduce(Op::block_sum, x, axis, kBlock);
    const Expr means = sums / count;
    const Expr c = x - spread(means, axis, kBlock, x.type().dims);
    const Expr squares = block_reduce(Op::block_sum, c * c, axis, kBlock);
    const Expr apart = means - reduce(Op::sum, sums, blocks) / size;
    return std::vector{reduce(Op::sum, squares + apart * apart * count, blocks)};
  });
}

}  // namespace coda
