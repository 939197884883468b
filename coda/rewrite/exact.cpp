// coda/rewrite/exact.cpp: a shortest path from nothing stored to all results stored (A*).
//
// What must still be read, written and multiplied, in one kernel, bounds the rest of a path from
// below. With the incumbent's cost that leaves few of the kernels that could come next.
#include "coda/rewrite/exact.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <map>
#include <queue>

#include "coda/rewrite/ties.h"

namespace coda {
namespace {

constexpr double kLeast = 1e-11;  // seconds: less is no difference
constexpr double kInfinite = std::numeric_limits<double>::infinity();

using Mask = std::uint32_t;

bool has(Mask mask, std::size_t bit) {
  return ((mask >> bit) & 1) != 0;
}
Mask bit(std::size_t b) {
  return Mask{1} << b;
}

// A way to store a value: as results of the block, for others to read, or both in one.
struct Storing {
  Value value;
  bool result = false, readable = false;
  double bytes = 0;
};

class Search {
 public:
  Search(const Working& working, const Verdicts& known, const Sizes& sizes, int& questions)
      : working_(working),
        verdicts_(working, known),
        costs_(working, sizes),
        ties_(working),
        questions_(questions) {
    find_nodes();
    find_stores();
  }

  bool is_small() const {
    return nodes_.size() <= kExactNodes && stores_.size() <= kExactStores && inputs_.size() <= 32;
  }

  // The parts of the cheapest cut below `limit`, which becomes its cost.
  std::optional<std::vector<Part>> run(double& limit) {
    find_kernels();
    const std::size_t sets = std::size_t{1} << stores_.size();
    rest_.assign(sets, {});
    best_.assign(sets, kInfinite);
    from_.assign(sets, {});
    std::priority_queue<Way, std::vector<Way>, std::greater<>> open;
    best_[0] = 0;
    open.push({.bound = rest(0, 0)});
    while (!open.empty()) {
      const Way way = open.top();
      open.pop();
      if (way.kernel >= 0) {  // only now is check() asked
        Kernel& kernel = kernels_[static_cast<std::size_t>(way.kernel)];
        if (way.cost >= best_[way.set] - kLeast || !ask(kernel)) continue;
        if (questions_ <= 0) return std::nullopt;
        const double cost = best_[way.from] + kernel.cost;
        const double bound = cost + rest(way.set, 0);
        if (cost >= best_[way.set] - kLeast || bound >= limit - kLeast) continue;
        best_[way.set] = cost;
        from_[way.set] = {way.from, way.kernel};
        open.push({.bound = bound, .cost = cost, .set = way.set});
        continue;
      }
      if (way.cost > best_[way.set]) continue;  // reached cheaper since
      if ((way.set & results_) == results_) {
        limit = way.cost;
        return path(way.set);
      }
      for (std::size_t k = 0; k < kernels_.size(); ++k) {
        const Kernel& kernel = kernels_[k];
        if (kernel.verdict == 2 || (kernel.needs & ~way.set) != 0 ||
            (kernel.stores & way.set) != 0) {
          continue;
        }
        const Mask next = way.set | kernel.stores;
        const double cost = way.cost + kernel.cost;
        const double bound = cost + rest(next, kernel.unread);
        if (cost >= best_[next] - kLeast || bound >= limit - kLeast) continue;
        open.push({.bound = bound,
                   .cost = cost,
                   .set = next,
                   .from = way.set,
                   .kernel = static_cast<int>(k)});
      }
    }
    return std::nullopt;
  }

 private:
  struct Kernel {
    Mask nodes = 0, needs = 0, stores = 0;
    double cost = 0;    // at least, until it was asked about
    double unread = 0;  // bytes that it stores only for others, who must read them
    char verdict = 0;   // 0: not asked, 1: accepted, 2: refused
  };
  struct Rest {
    bool known = false, done = false;
    double bytes = 0, flops = 0;
  };
  // To a set of stores: reached for `cost`, or (a kernel) perhaps, from another set.
  struct Way {
    double bound = 0, cost = 0;
    Mask set = 0, from = 0;
    int kernel = -1;
    auto operator<=>(const Way&) const = default;
  };
  struct Step {
    Mask set = 0;
    int kernel = -1;
  };

  // Those that results need.
  void find_nodes() {
    std::vector<int> todo;
    const auto need = [&](Value v) {
      const int n = working_.producer(v);
      if (n >= 0 && insert_sorted(nodes_, n)) todo.push_back(n);
    };
    for (const Result& result : working_.block().results()) need(working_.work_value(result.value));
    while (!todo.empty()) {
      const int n = todo.back();
      todo.pop_back();
      for (const Value v : working_.node(n).args) need(v);
    }
  }

  std::size_t index(int node) const {
    return static_cast<std::size_t>(std::ranges::lower_bound(nodes_, node) - nodes_.begin());
  }

  void add_store(Value v, bool result, bool readable) {
    const Part part{.results = result ? std::vector{v} : std::vector<Value>{},
                    .crossing = readable && !result ? std::vector{v} : std::vector<Value>{}};
    if (readable) readable_[static_cast<std::size_t>(v.id)] = static_cast<int>(stores_.size());
    if (result) results_ |= bit(stores_.size());
    stores_.push_back({v, result, readable, costs_.bytes_stored(part)});
  }

  void find_stores() {
    readable_.assign(working_.work().values().size(), -1);
    inputs_of_.resize(nodes_.size());
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      for (const Value v : working_.node(nodes_[i]).args) {
        if (!working_.work().is_param(v)) continue;
        auto at = std::ranges::find(inputs_, v);
        if (at == inputs_.end()) at = inputs_.insert(at, v);
        if (inputs_.size() <= 32) {
          inputs_of_[i] |= bit(static_cast<std::size_t>(at - inputs_.begin()));
        }
      }
    }
    const auto visit = [&](Value v, bool is_read) {
      const bool result = working_.is_result(v), param = working_.work().is_param(v);
      const std::string name = working_.crossing(v).name;
      const bool as_result = result && std::ranges::any_of(working_.results_of(v), [&](int r) {
                               return working_.result(r).name == name;
                             });
      if (stores_.size() > kExactStores) return;
      if (result) add_store(v, true, as_result && !param);
      if (is_read && !as_result && !param) add_store(v, false, true);
    };
    for (std::size_t p = 0; p < working_.work().params().size(); ++p) {
      const Value v{static_cast<std::int32_t>(p)};
      if (working_.is_result(v)) visit(v, false);
    }
    for (const int n : nodes_) {
      for (const Value v : working_.node(n).results) {
        visit(v, std::ranges::any_of(working_.users(v),
                                     [&](int user) { return in_sorted(nodes_, user); }));
      }
    }
    for (std::size_t s = 0; s < stores_.size(); ++s) {
      const int n = working_.producer(stores_[s].value);
      if (n < 0) {
        free_ |= bit(s);
      } else {
        stores_of_.resize(nodes_.size());
        stores_of_[index(n)] |= bit(s);
      }
    }
    stores_of_.resize(nodes_.size());
  }

  // What nodes read: parameters, and what is stored of others. nullopt: something nobody can store.
  struct Reads {
    Mask inputs = 0, needs = 0;
  };
  std::optional<Reads> reads_of(Mask nodes) const {
    Reads reads;
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (!has(nodes, i)) continue;
      reads.inputs |= inputs_of_[i];
      for (const Value v : working_.node(nodes_[i]).args) {
        const int n = working_.producer(v);
        if (n < 0 || has(nodes, index(n))) continue;
        const int store = readable_[static_cast<std::size_t>(v.id)];
        if (store < 0) return std::nullopt;
        reads.needs |= bit(static_cast<std::size_t>(store));
      }
    }
    return reads;
  }

  double seconds(const Reads& reads, Mask stores, Mask nodes) const {
    double bytes = 0, flops = 0;
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      if (has(reads.inputs, i)) bytes += input_bytes_[i];
    }
    for (std::size_t s = 0; s < stores_.size(); ++s) {
      if (has(reads.needs, s)) bytes += value_bytes_[s];
      if (has(stores, s)) bytes += stores_[s].bytes;
    }
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (has(nodes, i)) flops += flops_[i];
    }
    return std::max(bytes / kBandwidth, flops / kThroughput) + kLaunch;
  }

  // All kernels of which every node is needed by what it stores.
  void find_kernels() {
    for (const Value v : inputs_) input_bytes_.push_back(is_table(v) ? 0 : costs_.bytes(v));
    for (const Storing& store : stores_) {
      value_bytes_.push_back(is_table(store.value) ? 0 : costs_.bytes(store.value));
    }
    for (const int n : nodes_) flops_.push_back(costs_.flops(n));
    std::vector<Mask> users(nodes_.size());
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      for (const Value v : working_.node(nodes_[i]).args) {
        if (working_.producer(v) >= 0) users[index(working_.producer(v))] |= bit(i);
      }
    }
    for (Mask nodes = 0; nodes < bit(nodes_.size()); ++nodes) {
      const std::optional<Reads> reads = reads_of(nodes);
      if (!reads) continue;
      Mask available = free_;
      std::vector<Mask> last;  // stores of nodes that no other of these nodes reads
      for (std::size_t i = 0; i < nodes_.size(); ++i) {
        if (!has(nodes, i)) continue;
        available |= stores_of_[i];
        if ((users[i] & nodes) == 0) last.push_back(stores_of_[i]);
      }
      available = fit_alone(nodes, available);
      for (Mask stores = available; stores != 0; stores = (stores - 1) & available) {
        const auto kept = [&](Mask of_node) {
          return (of_node & stores) != 0;
        };
        if (!std::ranges::all_of(last, kept)) continue;
        Kernel kernel{.nodes = nodes,
                      .needs = reads->needs,
                      .stores = stores,
                      .cost = seconds(*reads, stores, nodes)};
        for (std::size_t s = 0; s < stores_.size(); ++s) {
          if (has(stores, s) && !stores_[s].result) kernel.unread += value_bytes_[s];
        }
        kernels_.push_back(kernel);
      }
    }
  }

  // Without those that a stream could not even store alone: it could not beside others.
  Mask fit_alone(Mask nodes, Mask stores) {
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (has(nodes, i) && working_.node(nodes_[i]).op == Op::product) return stores;
    }
    Mask fit = stores & free_;
    for (std::size_t s = 0; s < stores_.size(); ++s) {
      if (!has(stores & ~free_, s)) continue;
      Mask needed = bit(index(working_.producer(stores_[s].value)));
      for (std::size_t i = nodes_.size(); i-- > 0;) {  // operands come before
        if (!has(needed, i)) continue;
        for (const Value v : working_.node(nodes_[i]).args) {
          const int n = working_.producer(v);
          if (n >= 0) needed |= bit(index(n)) & nodes;
        }
      }
      char& verdict = alone_[{needed, s}];
      if (verdict == 0) {
        const Part alone = part({.nodes = needed, .stores = bit(s)});
        verdict = verdicts_.accepts(alone) ? 1 : 2;
      }
      if (verdict == 1) fit |= bit(s);
    }
    return fit;
  }

  // Tables count what is gathered, which only costs_ knows.
  bool is_table(Value v) const {
    return std::ranges::any_of(working_.users(v), [&](int n) {
      const Node& node = working_.node(n);
      return (node.op == Op::gather || node.op == Op::pick) && node.args[0] == v;
    });
  }

  // No less than what storing the results that `set` lacks still takes, if `unread` bytes must be
  // read beside what is stored already.
  double rest(Mask set, double unread) {
    Rest& rest = rest_[set];
    if (!rest.known) rest = rest_of(set);
    if (rest.done) return 0;
    return std::max((rest.bytes + unread) / kBandwidth, rest.flops / kThroughput) + kLaunch;
  }

  Rest rest_of(Mask set) const {
    Rest rest{.known = true, .done = (results_ & ~set) == 0};
    Mask nodes = 0, inputs = 0;
    std::vector<std::size_t> todo;
    const auto need = [&](Value v) {
      const int n = working_.producer(v);
      if (n < 0) return;
      const int store = readable_[static_cast<std::size_t>(v.id)];
      // NOTE: what is stored counts nothing: it may be computed again instead of read.
      if (store >= 0 && has(set, static_cast<std::size_t>(store))) return;
      if (has(nodes, index(n))) return;
      nodes |= bit(index(n));
      todo.push_back(index(n));
    };
    for (std::size_t s = 0; s < stores_.size(); ++s) {
      if (!has(results_ & ~set, s)) continue;
      rest.bytes += stores_[s].bytes;
      need(stores_[s].value);
    }
    while (!todo.empty()) {
      const std::size_t i = todo.back();
      todo.pop_back();
      rest.flops += flops_[i];
      inputs |= inputs_of_[i];
      for (const Value v : working_.node(nodes_[i]).args) need(v);
    }
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      if (has(inputs, i)) rest.bytes += input_bytes_[i];
    }
    return rest;
  }

  Part part(const Kernel& kernel) const {
    Part part;
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (!has(kernel.nodes, i)) continue;
      part.nodes.push_back(nodes_[i]);
      if (working_.node(nodes_[i]).op == Op::product) part.kind = Part::Kind::gemm;
    }
    for (const int n : part.nodes) {
      for (const Value v : working_.node(n).args) {
        if (!in_sorted(part.nodes, working_.producer(v))) insert_sorted(part.reads, v);
      }
    }
    for (std::size_t s = 0; s < stores_.size(); ++s) {
      if (!has(kernel.stores, s)) continue;
      const Storing& store = stores_[s];
      (store.result ? part.results : part.crossing).push_back(store.value);
      if (working_.producer(store.value) < 0) insert_sorted(part.reads, store.value);
    }
    return part;
  }

  bool ask(Kernel& kernel) {
    if (kernel.verdict == 0) {
      --questions_;
      const Part candidate = part(kernel);
      const bool accepted = ties_.allow(candidate.nodes) && verdicts_.accepts(candidate);
      kernel.verdict = accepted ? 1 : 2;
      if (accepted) kernel.cost = costs_.of(candidate, verdicts_);
    }
    return kernel.verdict == 1;
  }

  std::vector<Part> path(Mask set) const {
    std::vector<Part> parts;
    while (set != 0) {
      const Step& step = from_[set];
      parts.push_back(part(kernels_[static_cast<std::size_t>(step.kernel)]));
      set = step.set;
    }
    std::ranges::reverse(parts);
    for (Part& part : parts) {  // results that others read
      for (const Value v : part.results) {
        const bool read = readable_[static_cast<std::size_t>(v.id)] >= 0 &&
                          std::ranges::any_of(
                              parts, [&](const Part& other) { return in_sorted(other.reads, v); });
        const Storing& store = stores_[static_cast<std::size_t>(
            std::max(0, readable_[static_cast<std::size_t>(v.id)]))];
        if (read && store.value == v && store.result) part.crossing.push_back(v);
      }
    }
    return parts;
  }

  const Working& working_;
  Verdicts verdicts_;
  Costs costs_;
  Ties ties_;
  std::vector<int> nodes_;
  std::vector<Value> inputs_;    // parameters that nodes read
  std::vector<Mask> inputs_of_;  // of each node
  std::vector<Storing> stores_;
  std::vector<Mask> stores_of_;  // of each node
  std::vector<int> readable_;    // of each working value: the store that others read; -1: none
  int& questions_;               // how many may still be asked
  Mask results_ = 0, free_ = 0;  // stores: of results, of parameters
  std::vector<double> input_bytes_, value_bytes_, flops_;
  std::vector<Kernel> kernels_;
  std::map<std::pair<Mask, std::size_t>, char> alone_;  // of a stream's nodes and one store
  std::vector<Rest> rest_;                              // of each set of stores
  std::vector<double> best_;
  std::vector<Step> from_;
};

// Sums that block sums could finish.
std::vector<int> divisible(const Program& block) {
  std::vector<int> sums;
  for (std::size_t n = 0; n < block.nodes().size(); ++n) {
    if (Working::is_divisible(block, block.nodes()[n])) sums.push_back(static_cast<int>(n));
  }
  return sums;
}

}  // namespace

std::optional<ExactCut> exact(const Program& block, const Sizes& sizes, double incumbent,
                              const Working& like, const Verdicts& known) {
  std::optional<ExactCut> best;
  int questions = kExactQuestions;
  if (block.nodes().size() > kExactNodes) return best;
  const std::vector<int> sums = divisible(block);
  // Each divided sum is one node more.
  const std::size_t most = kExactNodes - block.nodes().size();
  for (Mask divided = 0; divided < bit(sums.size()); ++divided) {
    if (static_cast<std::size_t>(std::popcount(divided)) > most) continue;
    auto working = std::make_unique<Working>(block, like);
    for (std::size_t n = 0; n < block.nodes().size(); ++n) {
      const int w = working->append(static_cast<int>(n));
      const auto at = std::ranges::find(sums, static_cast<int>(n));
      if (at == sums.end() || !has(divided, static_cast<std::size_t>(at - sums.begin()))) continue;
      working->divide(w);
    }
    Search search(*working, known, sizes, questions);
    if (!search.is_small()) continue;
    double cost = best ? best->cost : incumbent;
    if (auto parts = search.run(cost)) {
      best = ExactCut{.working = std::move(working), .parts = std::move(*parts), .cost = cost};
    }
  }
  return best;
}

}  // namespace coda
