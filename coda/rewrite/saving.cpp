// coda/rewrite/saving.cpp: the cheapest set of values to save is a minimum cut between what costs
// and what is needed.
//
// Each value v is an edge in(v) → out(v) whose capacity is the price of saving it. Maps lead from
// out(operand) to in(result) without limit; what cannot run again is fed by the source without
// limit. Cutting in(v) → out(v) is saving v.
#include "coda/rewrite/saving.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>

#include "coda/rewrite/nominal.h"

namespace coda {
namespace {

constexpr double kUnlimited = 1e30;
constexpr double kDear = 1e25;  // of a value that the author wants computed again

// A flow network; augmenting paths are shortest ones (Edmonds and Karp).
class Network {
 public:
  explicit Network(std::size_t nodes) : out_(nodes) {}

  void connect(std::size_t from, std::size_t to, double capacity) {
    out_[from].push_back(edges_.size());
    edges_.push_back({to, capacity});
    out_[to].push_back(edges_.size());
    edges_.push_back({from, 0});
  }

  // Saturates, then says for each node whether it can still send something to the sink.
  std::vector<bool> reaches(std::size_t source, std::size_t sink) {
    while (augment(source, sink)) {
    }
    std::vector<bool> reaches(out_.size());
    std::deque<std::size_t> todo{sink};
    reaches[sink] = true;
    while (!todo.empty()) {
      const std::size_t node = todo.front();
      todo.pop_front();
      for (const std::size_t back : out_[node]) {  // its partner leads here
        const std::size_t from = edges_[back].to;
        if (edges_[back ^ 1].capacity <= 0 || reaches[from]) continue;
        reaches[from] = true;
        todo.push_back(from);
      }
    }
    return reaches;
  }

 private:
  struct Edge {
    std::size_t to;
    double capacity;
  };

  bool augment(std::size_t source, std::size_t sink) {
    std::vector<std::size_t> by(out_.size(), edges_.size());
    std::deque<std::size_t> todo{source};
    while (!todo.empty() && by[sink] == edges_.size()) {
      const std::size_t node = todo.front();
      todo.pop_front();
      for (const std::size_t e : out_[node]) {
        const std::size_t to = edges_[e].to;
        if (edges_[e].capacity <= 0 || to == source || by[to] != edges_.size()) continue;
        by[to] = e;
        todo.push_back(to);
      }
    }
    if (by[sink] == edges_.size()) return false;
    double flow = kUnlimited;
    for (std::size_t node = sink; node != source; node = edges_[by[node] ^ 1].to) {
      flow = std::min(flow, edges_[by[node]].capacity);
    }
    if (flow >= kUnlimited) throw InternalError("a backward pass needs what no one can save");
    for (std::size_t node = sink; node != source; node = edges_[by[node] ^ 1].to) {
      edges_[by[node]].capacity -= flow;
      edges_[by[node] ^ 1].capacity += flow;
    }
    return true;
  }

  std::vector<Edge> edges_;  // an edge and its reverse are neighbours
  std::vector<std::vector<std::size_t>> out_;
};

// Whether the backward may run the op again: no pass over memory beside its operands', no product.
bool runs_again(Op op) {
  switch (class_of(op)) {
    case OpClass::product:
    case OpClass::reduce:
    case OpClass::block_reduce:
    case OpClass::indexed:
    case OpClass::opaque:
      return false;
    case OpClass::leaf:
    case OpClass::unary:
    case OpClass::binary:
    case OpClass::compare:
    case OpClass::select:
    case OpClass::cast:
    case OpClass::layout:
      return true;
  }
  throw InternalError("an op class that the saving policy does not know");
}

std::set<Value> stored_anyway(const Program& program, const Needs& needs) {
  std::set<Value> stored = needs.results;
  for (const Node& node : program.nodes()) {
    if (!needs.forward.contains(node.results[0])) continue;
    const bool call = class_of(node.op) == OpClass::opaque;
    if (node.op != Op::product && !call) continue;
    stored.insert(node.args.begin(), node.args.end());
    if (call) stored.insert(node.results.begin(), node.results.end());
  }
  return stored;
}

// Residuals: values that forward adds to what products made of them. They wait in memory for that.
std::set<Value> residuals(const Program& program, const Needs& needs) {
  std::set<Value> found;
  for (const Node& node : program.nodes()) {
    if (node.op != Op::add || !needs.forward.contains(node.results[0])) continue;
    for (std::size_t i = 0; i < 2; ++i) {
      const Value v = node.args[i];
      if (program.is_param(v) || program.type(v).dims != program.type(node.results[0]).dims) {
        continue;
      }
      // Back from the other addend to `v`, no further than where `v` was made.
      std::set<Value> seen;
      std::vector<Value> todo{node.args[1 - i]};
      bool product = false, reached = false;
      while (!todo.empty()) {
        const Value at = todo.back();
        todo.pop_back();
        reached = reached || at == v;
        if (program.value(at).node <= program.value(v).node || !seen.insert(at).second) continue;
        product = product || program.node(at).op == Op::product;
        todo.insert(todo.end(), program.node(at).args.begin(), program.node(at).args.end());
      }
      if (product && reached) found.insert(v);
    }
  }
  return found;
}

// The product of which `v` takes both elements and a reduction, as a softmax does: until the
// reduction is known, the product waits in memory.
std::optional<Value> waiting_product(const Program& program, Value v) {
  std::set<Value> elements, reduced;
  const auto collect = [&](auto&& self, Value at, bool below) -> void {
    if (!(below ? reduced : elements).insert(at).second || program.is_param(at)) return;
    const Node& node = program.node(at);
    const OpClass kind = class_of(node.op);
    if (node.op == Op::product || kind == OpClass::opaque || kind == OpClass::indexed) return;
    const bool reduces = kind == OpClass::reduce || kind == OpClass::block_reduce;
    for (const Value arg : node.args) self(self, arg, below || reduces);
  };
  collect(collect, v, false);
  for (const Value at : elements) {
    if (!program.is_param(at) && program.node(at).op == Op::product && reduced.contains(at))
      return at;
  }
  return std::nullopt;
}

}  // namespace

std::vector<Value> choose_saved(const Program& joint, const Needs& needs) {
  const std::size_t count = joint.values().size();
  const std::size_t source = 2 * count, sink = source + 1;
  const auto in = [](Value v) {
    return 2 * static_cast<std::size_t>(v.id);
  };
  const auto out = [&](Value v) {
    return in(v) + 1;
  };
  const std::vector<DType> dtypes = storage_dtypes(joint);
  const std::set<Value> anyway = stored_anyway(joint, needs);
  const std::set<Value> waiting = residuals(joint, needs);
  const auto bytes = [&](Value v) {
    return nominal_elements(joint.type(v)) *
           static_cast<double>(size_of(dtypes[static_cast<std::size_t>(v.id)]));
  };
  const auto price = [&](Value v) {
    if (needs.saved.contains(v)) return 0.0;
    if (needs.recomputed.contains(v)) return kDear;
    // NOTE: computed again, a residual would be computed from the branches of all layers before it.
    if (waiting.contains(v)) return 0.0;
    double all = (joint.is_param(v) || anyway.contains(v) ? 1 : 2) * bytes(v);
    if (!joint.is_param(v) && !needs.forward.contains(v)) {
      if (const auto product = waiting_product(joint, v)) all += bytes(*product);
    }
    return all;
  };

  Network network(sink + 1);
  std::vector<char> needed(count);
  std::vector<Value> todo(needs.values.begin(), needs.values.end());
  while (!todo.empty()) {
    const Value v = todo.back();
    todo.pop_back();
    if (std::exchange(needed[static_cast<std::size_t>(v.id)], 1) != 0 || joint.is_param(v))
      continue;
    const std::vector<Value>& args = joint.node(v).args;
    todo.insert(todo.end(), args.begin(), args.end());
  }
  for (std::size_t id = 0; id < count; ++id) {
    if (needed[id] == 0) continue;
    const Value v{static_cast<std::int32_t>(id)};
    network.connect(in(v), out(v), price(v));
    if (needs.values.contains(v)) network.connect(out(v), sink, kUnlimited);
    if (joint.is_param(v) || !(runs_again(joint.node(v).op) || needs.again.contains(v))) {
      network.connect(source, in(v), kUnlimited);
    } else {
      for (const Value arg : joint.node(v).args) network.connect(out(arg), in(v), kUnlimited);
      // Computed again, it must be written and read once more.
      if (needs.operands.contains(v)) network.connect(source, in(v), 2 * bytes(v));
    }
  }
  const std::vector<bool> reaches = network.reaches(source, sink);
  std::vector<Value> saved;
  for (std::size_t id = joint.params().size(); id < count; ++id) {
    const Value v{static_cast<std::int32_t>(id)};
    if (needed[id] != 0 && !reaches[in(v)] && reaches[out(v)]) saved.push_back(v);
  }
  return saved;
}

}  // namespace coda
