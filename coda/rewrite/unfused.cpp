// coda/rewrite/unfused.cpp: the sequence of library calls that computes a block, one op each.
//
// Views (renames, ranges, repetition) and scalars cost nothing: they go with whoever reads them.
#include <numeric>

#include "coda/rewrite/kernels.h"
#include "coda/rewrite/partition.h"

namespace coda {
namespace {

bool is_view(const Program& program, const Node& node) {
  switch (class_of(node.op)) {
    case OpClass::leaf:
      return node.op != Op::uniform;
    case OpClass::layout:
      return node.op != Op::join;
    case OpClass::unary:
    case OpClass::binary:
    case OpClass::compare:
    case OpClass::select:
    case OpClass::cast:
      for (const Value v : node.args) {
        if (!program.type(v).is_scalar()) return false;
      }
      return true;
    case OpClass::product:
    case OpClass::reduce:
    case OpClass::block_reduce:
    case OpClass::indexed:
    case OpClass::opaque:
      return false;
  }
  throw InternalError("an op class that the unfused sequence does not know");
}

// The views that node `n` reads through.
void pull(const Kernels& kernels, int n, std::set<int>& more) {
  for (const Value v : kernels.node(n).args) {
    if (!kernels.is_lazy(v) || !more.insert(kernels.producer(v)).second) continue;
    pull(kernels, kernels.producer(v), more);
  }
}

void call(Kernels& kernels, int n) {
  std::set<int> more{n};
  pull(kernels, n, more);
  kernels.start(Kernels::Kind::alone, {.nodes = more, .owned = kernels.node(n).results});
}

}  // namespace

Schedule unfused(const Program& block) {
  Kernels kernels(block);
  for (int n = 0; n < static_cast<int>(block.nodes().size()); ++n) {
    const int w = kernels.append(n);
    if (!is_view(kernels.work(), kernels.node(w))) call(kernels, w);
  }
  for (const Result& result : block.results()) {
    const Value v = kernels.work_value(result.value);
    if (kernels.is_lazy(v)) call(kernels, kernels.producer(v));
  }
  std::vector<int> numbers;
  const std::vector<Part> parts = kernels.parts(numbers);
  std::vector<int> order(parts.size());
  std::iota(order.begin(), order.end(), 0);
  return kernels.schedule(parts, order);
}

}  // namespace coda
