// coda/rewrite/improve.cpp: which changes are worth an attempt, and in which order.
#include "coda/rewrite/improve.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "coda/rewrite/cut.h"
#include "coda/rewrite/lazy.h"

namespace coda {
namespace {

constexpr double kTie = 1e-9;  // seconds: less does not decide

template <class T>
std::vector<T> united(const std::vector<T>& a, const std::vector<T>& b) {
  std::vector<T> all;
  std::ranges::set_union(a, b, std::back_inserter(all));
  return all;
}

template <class T>
std::vector<T> without(std::vector<T> list, const T& gone) {
  std::erase(list, gone);
  return list;
}

// What a value needs inside one kernel, and what of it comes from outside.
struct Cone {
  std::vector<int> nodes;     // sorted
  std::vector<Value> inputs;  // sorted
};

class Search {
 public:
  Search(const Working& working, Verdicts& verdicts, const Costs& costs, std::vector<Part> parts)
      : working_(working),
        costs_(costs),
        cut_(working, verdicts, costs, std::move(parts)),
        now_in_(static_cast<std::size_t>(cut_.count())) {
    std::iota(now_in_.begin(), now_in_.end(), 0);
  }

  Improved run() && {
    double before = 0;
    for (const int k : cut_.order()) before += cut_.cost(k);
    for (int sweep = 0; sweep < kSweeps; ++sweep) {
      cut_.sort();
      const std::size_t before = changes_.size();
      using Step = void (Search::*)(int);
      for (const Step step : {Step(&Search::merge), Step(&Search::hoist), Step(&Search::repeat),
                              Step(&Search::narrow), Step(&Search::move)}) {
        const std::vector<int> order = cut_.order();
        for (const int k : order) {
          if (is_open(k)) (this->*step)(k);
        }
      }
      if (changes_.size() == before) break;
    }
    cut_.sort();
    Improved improved{.parts = cut_.parts(),
                      .before = before,
                      .cost = 0,
                      .now_in = {},
                      .changes = std::move(changes_)};
    for (const int k : cut_.order()) improved.cost += cut_.cost(k);
    for (int k : now_in_) {
      while (now_in_[static_cast<std::size_t>(k)] != k) k = now_in_[static_cast<std::size_t>(k)];
      improved.now_in.push_back(cut_.alive(k) ? static_cast<int>(cut_.position(k)) : -1);
    }
    return improved;
  }

 private:
  bool is_open(int k) const { return cut_.alive(k) && cut_.part(k).kind != Part::Kind::alone; }
  bool is_after(int a, int b) const { return a == b || cut_.runs_after(a, b); }

  bool attempt(std::vector<Cut::Change> changes, std::vector<int> nodes, const std::string& what) {
    const double saved = cut_.attempt(std::move(changes));
    if (saved <= 0) return false;
    char text[32];
    std::snprintf(text, sizeof text, ": saves %.2g us", saved * 1e6);
    changes_.push_back({std::move(nodes), what + text});
    return true;
  }

  // The largest value that a kernel stores stands for it in messages.
  std::string name(int k) const {
    const std::vector<Value>& stores = cut_.stores(k);
    const Value largest = *std::ranges::max_element(
        stores, {}, [&](Value v) { return std::pair(costs_.bytes(v), -v.id); });
    return "the kernel of `" + working_.crossing(largest).name + "`";
  }

  // The nearest ones, in the order of kernels.
  void keep_near(int k, std::vector<int>& kernels) const {
    std::erase_if(kernels, [&](int j) { return j == k || !is_open(j); });
    const auto key = [&](int j) {
      const auto a = static_cast<std::ptrdiff_t>(cut_.position(j));
      return std::pair(std::abs(a - static_cast<std::ptrdiff_t>(cut_.position(k))), j);
    };
    std::ranges::sort(kernels, {}, key);
    kernels.erase(std::unique(kernels.begin(), kernels.end()), kernels.end());
    if (kernels.size() > kNeighbours) kernels.resize(kNeighbours);
  }

  // Stored values count as inputs where `stop` says so.
  template <class Stop>
  Cone cone(Value v, int k, const Stop& stop) const {
    Cone cone;
    std::vector<int> todo{working_.producer(v)};
    cone.nodes = todo;
    while (!todo.empty()) {
      const Node& node = working_.node(todo.back());
      todo.pop_back();
      for (const Value arg : node.args) {
        const int n = working_.producer(arg);
        if (n < 0 || !cut_.contains(k, n) || stop(arg)) {
          insert_sorted(cone.inputs, arg);
        } else if (insert_sorted(cone.nodes, n)) {
          todo.push_back(n);
        }
      }
    }
    return cone;
  }

  // ---- merge ----

  void merge(int k) {
    std::vector<int> others;
    const auto take = [&](const std::vector<int>& kernels) {
      others.insert(others.end(), kernels.begin(), kernels.end());
    };
    for (const Value v : cut_.part(k).reads) {
      if (!working_.work().type(v).is_scalar()) take(cut_.readers(v));
      if (cut_.owner(v) != Cut::kNone) others.push_back(cut_.owner(v));
    }
    for (const Value v : cut_.stores(k)) take(cut_.readers(v));
    keep_near(k, others);
    for (const int j : others) {
      if (may_merge(k, j)) merge(k, j);
    }
    if (!is_open(k) || cut_.part(k).kind != Part::Kind::stream) return;
    // Whoever runs after what it reads is there, or last: a small kernel costs no more than its
    // launch. The best of them; the nearest of equals.
    std::size_t ready = 0;
    for (const Value v : cut_.part(k).reads) {
      if (cut_.owner(v) != Cut::kNone) ready = std::max(ready, cut_.position(cut_.owner(v)) + 1);
    }
    std::vector<int> near;
    const std::vector<int>& order = cut_.order();
    const auto take_near = [&](std::size_t from, int step) {
      const std::size_t most = near.size() + kNeighbours;
      for (std::size_t i = from; i < order.size() && near.size() < most;
           i += static_cast<std::size_t>(step)) {  // wraps to the largest number below 0
        if (order[i] != k && is_open(order[i])) near.push_back(order[i]);
      }
    };
    take_near(ready, 1);
    take_near(ready - 1, -1);
    take_near(cut_.position(k) + 1, 1);
    int best = Cut::kNone;
    double most = 0;
    for (const int j : near) {
      const double gain = may_merge(k, j) ? cut_.gain(merged(k, j)) : 0;
      if (gain > most + kTie) {
        best = j;
        most = gain;
      }
    }
    if (best != Cut::kNone) merge(k, best);
  }

  // Whether some other kernel runs after `a` and before `b`.
  bool is_between(int a, int b) const {
    return std::ranges::any_of(cut_.part(b).reads, [&](Value v) {
      const int from = cut_.owner(v);
      return from != Cut::kNone && from != a && cut_.runs_after(from, a);
    });
  }

  // Not if something runs between them, and once, as long as neither changes.
  bool may_merge(int k, int j) {
    if (!is_open(k) || !is_open(j) || is_between(k, j) || is_between(j, k)) return false;
    std::pair<int, int>& tried = tried_[std::minmax(k, j)];
    const std::pair now{cut_.version(std::min(k, j)), cut_.version(std::max(k, j))};
    return std::exchange(tried, now) != now;
  }

  // The one that runs first takes the other.
  std::vector<Cut::Change> merged(int k, int j) const {
    const bool later = cut_.position(k) < cut_.position(j);
    const int into = later ? k : j, from = later ? j : k;
    return {{.kernel = into,
             .nodes = united(cut_.part(into).nodes, cut_.part(from).nodes),
             .stores = united(cut_.stores(into), cut_.stores(from))},
            {.kernel = from, .nodes = {}, .stores = {}}};
  }

  void merge(int k, int j) {
    std::vector<Cut::Change> changes = merged(k, j);
    const int into = changes[0].kernel, from = changes[1].kernel;
    const std::string what = "merged with " + name(into);
    const std::vector<int> nodes = cut_.part(from).nodes;
    if (attempt(std::move(changes), nodes, what)) now_in_[static_cast<std::size_t>(from)] = into;
  }

  // ---- hoist ----

  void hoist(int k) {
    const std::vector<int> nodes = cut_.part(k).nodes;
    for (std::size_t i = nodes.size(); i-- > 0 && is_open(k);) {
      const Node& node = working_.node(nodes[i]);
      if (!cut_.contains(k, nodes[i]) || node.results.size() != 1) continue;
      if (node.op == Op::product || class_of(node.op) == OpClass::leaf) continue;
      hoist(node.results[0], k);
    }
  }

  void hoist(Value v, int k) {
    const Cone needed = cone(v, k, [](Value) { return false; });
    double read = 0;
    std::vector<int> homes;
    for (const int n : needed.nodes) {
      if (working_.node(n).op == Op::product) return;
    }
    for (const Value input : needed.inputs) {
      read += costs_.bytes(input);
      if (cut_.owner(input) != Cut::kNone) homes.push_back(cut_.owner(input));
    }
    if (2 * read <= costs_.bytes(v)) return;  // reading it instead gains nothing
    if (cut_.owner(v) != Cut::kNone && cut_.owner(v) != k) homes.push_back(cut_.owner(v));
    keep_near(k, homes);
    for (const int j : homes) {
      const auto too_late = [&](Value input) {
        const int from = cut_.owner(input);
        return from != Cut::kNone && from != j && cut_.runs_after(from, j);
      };
      if (is_after(j, k) || std::ranges::any_of(needed.inputs, too_late)) continue;
      std::vector<Value> stores = cut_.stores(j);
      insert_sorted(stores, v);
      if (attempt({{.kernel = j,
                    .nodes = united(cut_.part(j).nodes, needed.nodes),
                    .stores = std::move(stores)},
                   {.kernel = k,
                    .nodes = without(cut_.part(k).nodes, working_.producer(v)),
                    .stores = without(cut_.stores(k), v)}},
                  needed.nodes, "hoisted into " + name(j))) {
        return;
      }
    }
  }

  // ---- repeat ----

  void repeat(int k) {
    const std::vector<Value> crossing = cut_.part(k).crossing;
    for (const Value v : crossing) {
      if (!is_open(k) || cut_.owner(v) != k) continue;
      const Cone needed = cone(v, k, [&](Value arg) { return cut_.is_stored(arg); });
      const auto dear = [&](int n) {
        return !is_cheap(working_.node(n).op);
      };
      if (needed.nodes.size() > kLongestChain || std::ranges::any_of(needed.nodes, dear)) continue;
      std::vector<int> readers = cut_.readers(v);
      const auto change = [&](int reader) {
        return Cut::Change{.kernel = reader,
                           .nodes = united(cut_.part(reader).nodes, needed.nodes),
                           .stores = cut_.stores(reader)};
      };
      if (std::ranges::all_of(readers, [&](int r) { return is_open(r); })) {
        std::vector<Cut::Change> changes;
        for (const int reader : readers) changes.push_back(change(reader));
        if (attempt(std::move(changes), needed.nodes, "computed again by its readers")) continue;
      }
      for (const int reader : readers) {
        if (readers.size() == 1 || !is_open(reader)) continue;
        attempt({change(reader)}, needed.nodes, "computed again in " + name(reader));
      }
    }
  }

  // ---- narrow ----

  void narrow(int k) {
    const std::vector<Value> crossing = cut_.part(k).crossing;
    for (const Value v : crossing) {
      if (!is_open(k) || cut_.owner(v) != k) continue;
      if (!std::ranges::all_of(cut_.readers(v), [&](int r) { return is_open(r); })) continue;
      const Cone whole = cone(v, k, [](Value) { return false; });
      std::vector<Value> smaller;  // the smallest first
      for (const int n : whole.nodes) {
        const Node& node = working_.node(n);
        const Value u = node.results[0];
        const bool leaf = class_of(node.op) == OpClass::leaf || cut_.is_stored(u);
        if (!leaf && node.results.size() == 1 && 2 * costs_.bytes(u) <= costs_.bytes(v)) {
          smaller.push_back(u);
        }
      }
      std::ranges::stable_sort(smaller, {}, [&](Value u) { return costs_.bytes(u); });
      if (smaller.size() > kNeighbours) smaller.resize(kNeighbours);
      for (const Value u : smaller) {
        if (narrow(v, u, k)) break;
      }
    }
  }

  bool narrow(Value v, Value u, int k) {
    const Cone rest = cone(v, k, [&](Value arg) { return arg == u || cut_.is_stored(arg); });
    const auto dear = [&](int n) {
      return !is_cheap(working_.node(n).op);
    };
    if (rest.nodes.size() > kLongestChain || std::ranges::any_of(rest.nodes, dear)) return false;
    std::vector<Cut::Change> changes = {
        {.kernel = k, .nodes = cut_.part(k).nodes, .stores = united(cut_.stores(k), {u})}};
    for (const int reader : cut_.readers(v)) {
      changes.push_back({.kernel = reader,
                         .nodes = united(cut_.part(reader).nodes, rest.nodes),
                         .stores = cut_.stores(reader)});
    }
    return attempt(std::move(changes), rest.nodes, "computed by its readers, from less");
  }

  // ---- move ----

  void move(int k) {
    const std::vector<Value> stores = cut_.stores(k);
    for (const Value v : stores) {
      if (!is_open(k) || cut_.owner(v) != k) continue;
      const Cone needed = cone(v, k, [](Value) { return false; });
      std::vector<int> homes;
      for (const Value input : needed.inputs) {
        if (working_.work().type(input).is_scalar()) continue;
        homes.insert(homes.end(), cut_.readers(input).begin(), cut_.readers(input).end());
        if (cut_.owner(input) != Cut::kNone) homes.push_back(cut_.owner(input));
      }
      homes.insert(homes.end(), cut_.readers(v).begin(), cut_.readers(v).end());
      keep_near(k, homes);
      for (const int j : homes) {
        const auto too_late = [&](Value input) {
          const int from = cut_.owner(input);
          return from != Cut::kNone && from != j && cut_.runs_after(from, j);
        };
        const auto too_early = [&](int reader) {
          return reader != j && cut_.runs_after(j, reader);
        };
        if (std::ranges::any_of(needed.inputs, too_late) ||
            std::ranges::any_of(cut_.readers(v), too_early)) {
          continue;
        }
        if (attempt(
                {{.kernel = j,
                  .nodes = united(cut_.part(j).nodes, needed.nodes),
                  .stores = united(cut_.stores(j), {v})},
                 {.kernel = k, .nodes = cut_.part(k).nodes, .stores = without(cut_.stores(k), v)}},
                needed.nodes, "moved to " + name(j))) {
          break;
        }
      }
    }
  }

  const Working& working_;
  const Costs& costs_;
  Cut cut_;
  std::vector<int> now_in_;
  std::map<std::pair<int, int>, std::pair<int, int>> tried_;  // merges, at which versions
  std::vector<Improved::Change> changes_;
};

}  // namespace

Improved improve(const Working& working, Verdicts& verdicts, const Costs& costs,
                 std::vector<Part> parts) {
  return Search(working, verdicts, costs, std::move(parts)).run();
}

}  // namespace coda
