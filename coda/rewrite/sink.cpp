// coda/rewrite/sink.cpp: undoes stores that maps of other stored values make needless.
#include "coda/rewrite/sink.h"

#include <algorithm>

namespace coda {
namespace {

constexpr std::size_t kLongest = 12;  // maps that a reader computes again for one value

bool is_cheap(Op op) {
  return is_map(op) || class_of(op) == OpClass::layout || class_of(op) == OpClass::leaf;
}

// The way from what is stored anyway to a value: its nodes, and where it starts.
struct Chain {
  std::set<int> nodes;
  std::set<Value> sources;
};

// Extends `chain` by what makes `v` in kernel `home`, where others read `read` of it; false where
// that is more than a few maps and layouts.
bool trace(const Kernels& kernels, Value v, int home, const std::set<Value>& read, Chain& chain) {
  const int n = kernels.producer(v);
  if (!is_cheap(kernels.node(n).op) || chain.nodes.size() >= kLongest) return false;
  if (!chain.nodes.insert(n).second) return true;
  for (const Value arg : kernels.node(n).args) {
    const bool stored = kernels.work().is_param(arg) || kernels.is_result(arg) ||
                        (!kernels.is_lazy(arg) && kernels.owner(arg) != home) || read.contains(arg);
    if (stored) {
      chain.sources.insert(arg);
    } else if (!trace(kernels, arg, home, read, chain)) {
      return false;
    }
  }
  return true;
}

void sink_value(Kernels& kernels, Value v) {
  const int home = kernels.owner(v);
  if (home == Kernels::kNone || kernels.is_result(v)) return;
  std::vector<int> readers;
  std::set<Value> read;  // of `home`, beside v
  for (int k = 0; k < kernels.count(); ++k) {
    const std::set<Value> inputs = kernels.inputs(kernels.nodes(k));
    if (inputs.contains(v)) readers.push_back(k);
    for (const Value each : inputs) {
      if (each != v && kernels.owner(each) == home) read.insert(each);
    }
  }
  Chain chain;
  if (readers.empty() || !trace(kernels, v, home, read, chain)) return;
  double now = kernels.weight(v), then = 0;
  for (const int k : readers) {
    now += kernels.weight(v);
    const std::set<Value> inputs = kernels.inputs(kernels.nodes(k));
    for (const Value each : chain.sources) {
      if (!inputs.contains(each)) then += kernels.weight(each);
    }
  }
  const auto refuses = [&](int k) {
    return kernels.kind(k) == Kernels::Kind::alone ||
           kernels.refusal(k, {.nodes = chain.nodes}).has_value();
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
