// coda/rewrite/sink.cpp: undoes stores that maps of other stored values make needless.
#include "coda/rewrite/sink.h"

#include <algorithm>

#include "coda/rewrite/lazy.h"

namespace coda {
namespace {

// The way from what is stored anyway to a value: its nodes, and where it starts.
struct Chain {
  std::set<int> nodes;
  std::set<Value> sources;
};

// Extends `chain` by what makes `v` in kernel `home`, as far as nothing is stored anyway; false
// where that is more than a few maps and layouts.
bool trace(const Kernels& kernels, Value v, int home, Chain& chain) {
  const int n = kernels.producer(v);
  if (!is_cheap(kernels.node(n).op) || chain.nodes.size() >= kLongestChain) return false;
  if (!chain.nodes.insert(n).second) return true;
  for (const Value arg : kernels.node(n).args) {
    const bool stored = kernels.work().is_param(arg) || kernels.is_result(arg) ||
                        (!kernels.is_lazy(arg) && kernels.owner(arg) != home) ||
                        (!kernels.is_lazy(arg) && !kernels.readers(arg).empty());
    if (stored) {
      chain.sources.insert(arg);
    } else if (!trace(kernels, arg, home, chain)) {
      return false;
    }
  }
  return true;
}

void sink_value(Kernels& kernels, Value v) {
  const int home = kernels.owner(v);
  if (home == Kernels::kNone || kernels.is_result(v)) return;
  const std::vector<int> readers = kernels.readers(v);
  Chain chain;
  if (readers.empty() || !trace(kernels, v, home, chain)) return;
  double now = kernels.weight(v), then = 0;
  for (const int k : readers) {
    now += kernels.weight(v);
    for (const Value each : chain.sources) {
      if (!in_sorted(kernels.reads(k), each)) then += kernels.weight(each);
    }
  }
  const auto refuses = [&](int k) {
    return kernels.kind(k) == Kernels::Kind::alone || kernels.refuses(k, {.nodes = chain.nodes});
  };
  if (then >= now || std::ranges::any_of(readers, refuses)) return;
  for (const int k : readers) kernels.add(k, {.nodes = chain.nodes});
}

}  // namespace

void sink(Kernels& kernels) {
  for (int n = static_cast<int>(kernels.work().nodes().size()); n-- > 0;) {
    if (!is_cheap(kernels.node(n).op)) continue;
    for (const Value v : kernels.node(n).results) sink_value(kernels, v);
  }
}

}  // namespace coda
