// coda/rewrite/lazy.cpp: what to compute again and what to read, by what either moves.
#include "coda/rewrite/lazy.h"

namespace coda {
namespace {

constexpr int kNone = Kernels::kNone;

// Where the elements of a sum are this many times its results, no tile should add them up again.
constexpr double kWideSum = 64;

// Of no cost in whatever kernel needs them: no arithmetic, or scalars.
bool is_free(const Program& program, const Node& node) {
  switch (class_of(node.op)) {
    case OpClass::leaf:
      return node.op != Op::uniform;
    case OpClass::cast:
      return true;
    case OpClass::layout:
      return node.op != Op::join;
    case OpClass::unary:
    case OpClass::binary:
    case OpClass::compare:
    case OpClass::select:
      return program.type(node.results[0]).is_scalar();
    case OpClass::product:
    case OpClass::reduce:
    case OpClass::block_reduce:
    case OpClass::indexed:
    case OpClass::opaque:
      return false;
  }
  throw InternalError("an op class that the partition does not know");
}

// Whether kernel `k` should read lazy `v` instead of computing it: another kernel computes it
// too, and reading what it comes from moves more than storing it; or it is a wide sum, and `k`
// would do it again for each tile.
bool better_stored(const Kernels& kernels, Value v, int k) {
  const int from = kernels.producer(v);
  const Node& node = kernels.node(from);
  if (k != kNone && kernels.kind(k) == Kernels::Kind::gemm &&
      class_of(node.op) == OpClass::reduce &&
      kernels.weight(node.args[0]) > kWideSum * kernels.weight(v)) {
    return true;
  }
  const auto other = [&](int holder) {
    return holder != k;
  };
  if (std::ranges::none_of(kernels.holders(from), other)) return false;
  double again = 0;
  for (const Value source : kernels.inputs(with_lazy(kernels, from))) {
    const bool read = k != kNone && in_sorted(kernels.reads(k), source);
    if (!read) again += kernels.weight(source);
  }
  return again > 2 * kernels.weight(v);
}

void pull_into(const Kernels& kernels, int n, int k, Reading reading, Pulled& pulled) {
  for (const Value v : kernels.node(n).args) {
    if (!kernels.is_lazy(v)) continue;
    const int from = kernels.producer(v);
    if ((k != kNone && kernels.contains(k, from)) || pulled.nodes.contains(from)) continue;
    const bool free = is_free(kernels.work(), kernels.node(from));
    if (!free && (reading == Reading::always || better_stored(kernels, v, k))) {
      pulled.reads.insert(v);
      continue;
    }
    pulled.nodes.insert(from);
    pull_into(kernels, from, k, reading, pulled);
  }
}

}  // namespace

Pulled pull(const Kernels& kernels, int n, int k, Reading reading) {
  Pulled pulled{.nodes = {n}, .reads = {}};
  pull_into(kernels, n, k, reading, pulled);
  return pulled;
}

std::set<int> with_lazy(const Kernels& kernels, int n) {
  std::set<int> nodes{n};
  std::vector<int> todo{n};
  while (!todo.empty()) {
    const Node& node = kernels.node(todo.back());
    todo.pop_back();
    for (const Value v : node.args) {
      if (!kernels.is_lazy(v)) continue;
      if (nodes.insert(kernels.producer(v)).second) todo.push_back(kernels.producer(v));
    }
  }
  return nodes;
}

std::optional<std::string> waits_for(const Kernels& kernels, const std::set<Value>& lazy, int k) {
  for (const Value v : lazy) {
    for (const Value source : kernels.inputs(with_lazy(kernels, kernels.producer(v)))) {
      const int from = kernels.owner(source);
      if (from == kNone || (from != k && !kernels.runs_after(from, k))) continue;
      return "`" + kernels.name(v) + "`, which it reads, comes after that kernel";
    }
  }
  return std::nullopt;
}

}  // namespace coda
