// coda/rewrite/greedy.cpp: places the nodes of a block one by one, in order.
//
// Products start kernels, or stand beside products with an operand of theirs. Every other value
// joins the kernel that made one of its operands, where check() accepts that. What cannot join, or
// reads nothing but parameters, is lazy: the kernel that needs it computes it, and where it must be
// stored (a product's operand, a result) a streaming kernel does.
#include "coda/rewrite/greedy.h"

#include <algorithm>
#include <map>

#include "coda/rewrite/kernels.h"
#include "coda/rewrite/lazy.h"
#include "coda/rewrite/sink.h"

namespace coda {
namespace {

using Kind = Kernels::Kind;
constexpr int kNone = Kernels::kNone;

constexpr std::string_view kLazy = "computed where it is used";
constexpr const char* kDear = "computing it again would move more";

// A product sees its operand through these.
bool is_seen_through(Op op) {
  return op == Op::cast || op == Op::pin || op == Op::as || op == Op::split;
}

bool stands_alone(Op op) {
  return class_of(op) == OpClass::opaque || op == Op::scatter_sum;
}

class Placer {
 public:
  explicit Placer(Greedy& greedy)
      : block_(greedy.kernels.block()),
        kernels_(greedy.kernels),
        reasons_(greedy.reasons),
        inner_(block_.nodes().size()) {
    find_accumulators();
  }

  void run() {
    for (int n = 0; n < static_cast<int>(block_.nodes().size()); ++n) {
      if (inner_[static_cast<std::size_t>(n)]) continue;
      const Op op = block_node(n).op;
      if (terms_.contains(n)) {
        place_products(accumulator(n));
      } else if (stands_alone(op)) {
        place_alone(n);
      } else {
        place(n, kernels_.append(n));
      }
    }
    for (const Result& result : block_.results())
      store(kernels_.work_value(result.value), "it is a result");
    sink(kernels_);
  }

 private:
  const Node& block_node(int n) const { return block_.nodes()[static_cast<std::size_t>(n)]; }
  std::string& reason(int block_node) { return reasons_[static_cast<std::size_t>(block_node)]; }

  // ---- products ----

  // Adds whose operands are products, or such adds, that nobody else reads: one accumulator.
  void find_accumulators() {
    const std::vector<int> uses = use_counts(block_);
    for (int n = 0; n < static_cast<int>(block_.nodes().size()); ++n) {
      const Node& node = block_node(n);
      const auto is_term = [&](Value v) {
        return uses[static_cast<std::size_t>(v.id)] == 1 && terms_.contains(block_.value(v).node);
      };
      const bool sum = node.op == Op::add && std::ranges::all_of(node.args, is_term);
      if (node.op == Op::product || sum) terms_.insert(n);
      if (!sum) continue;
      for (const Value v : node.args) inner_[static_cast<std::size_t>(block_.value(v).node)] = true;
    }
  }

  std::vector<int> accumulator(int root) const {
    std::vector<int> nodes;
    if (block_node(root).op == Op::add) {
      for (const Value v : block_node(root).args) {
        const std::vector<int> terms = accumulator(block_.value(v).node);
        nodes.insert(nodes.end(), terms.begin(), terms.end());
      }
    }
    nodes.push_back(root);
    return nodes;
  }

  void place_products(const std::vector<int>& block_nodes) {
    std::map<int, int> work;  // of each of block_nodes
    for (const int n : block_nodes) work[n] = kernels_.append(n);
    std::set<int> more;
    std::set<Value> operands;
    std::vector<Value> owned;
    for (const auto& [n, w] : work) {
      more.insert(w);
      owned.push_back(kernels_.node(w).results[0]);
      if (block_node(n).op != Op::product) continue;
      for (const Value v : kernels_.node(w).args) operands.insert(see_through(v, more));
    }
    const std::string whole = "`" + kernels_.name(owned.back()) + "`";
    std::string why;
    std::map<int, Value, std::greater<>> sharing;  // kernels, the last one first
    for (const Value v : operands) {
      for (const int k : as_operand_[v]) sharing.emplace(k, v);
    }
    for (const auto& [k, operand] : sharing) {
      // NOTE: what a weight gives with a vector is small, and epilogues of its other products read
      // it.
      if (makes_vectors(k) != is_vector(owned.back())) {
        why = "not beside " + describe_kernel(k) + ": a vector's product comes first";
        continue;
      }
      if (const auto no = kernels_.refusal(k, {.nodes = more, .owned = owned})) {
        why = "not beside " + describe_kernel(k) + ", which reads `" + kernels_.name(operand) +
              "` too: " + *no;
        continue;
      }
      kernels_.add(k, {.nodes = more, .owned = owned});
      note_operands(k, operands);
      for (const int n : block_nodes) {
        reason(n) = "a product beside those of " + describe_kernel(k) + ", which read `" +
                    kernels_.name(operand) + "` too";
      }
      return;
    }
    std::optional<std::string> no = kernels_.refusal(kNone, {.nodes = more, .owned = owned});
    if (no && block_nodes.size() > 1) {  // not one accumulator after all: one by one
      for (const int n : block_nodes) {
        if (block_node(n).op == Op::product) {
          place_product(n, work[n], "not summed on chip: " + *no);
        } else {
          place(n, work[n]);
        }
      }
      return;
    }
    if (no) return place_product(block_nodes[0], work[block_nodes[0]], *no);
    kernels_.start(Kind::gemm, {.nodes = more, .owned = owned});
    note_operands(kernels_.count() - 1, operands);
    for (const int n : block_nodes) {
      reason(n) = block_nodes.size() > 1 ? "one accumulator, that of " + whole : "a product";
      if (!why.empty()) reason(n) += "; " + why;
    }
  }

  void note_operands(int k, const std::set<Value>& operands) {
    for (const Value v : operands) insert_sorted(as_operand_[v], k);
  }

  // A kernel for one product, its operands stored as they are where it cannot see through to them.
  void place_product(int block_node, int w, const std::string& why) {
    reason(block_node) = "a product of its own: " + why;
    const std::vector<Value> owned = kernels_.node(w).results;
    std::set<int> more{w};
    std::set<Value> operands;
    for (const Value v : kernels_.node(w).args) operands.insert(see_through(v, more));
    if (kernels_.refuses(kNone, {.nodes = more, .owned = owned})) {
      operands.clear();
      for (const Value v : kernels_.node(w).args) {
        store(v, "a product reads it");
        operands.insert(v);
      }
      more = {w};
      if (const auto no = kernels_.refusal(kNone, {.nodes = more, .owned = owned})) {
        throw InternalError("the partition of `" + block_.name() +
                            "` cannot place a product: " + *no);
      }
    }
    kernels_.start(Kind::gemm, {.nodes = more, .owned = owned});
    note_operands(kernels_.count() - 1, operands);
  }

  // The stored value behind an operand; the lazy casts, ranges and renames between go into `more`.
  Value see_through(Value v, std::set<int>& more) {
    std::set<int> chain;
    Value base = v;
    while (kernels_.is_lazy(base) && is_seen_through(kernels_.node(kernels_.producer(base)).op)) {
      if (narrows(kernels_.node(kernels_.producer(base)))) break;  // stored after the cast
      chain.insert(kernels_.producer(base));
      base = kernels_.node(kernels_.producer(base)).args[0];
    }
    store(base, "a product reads it");
    more.merge(chain);
    return base;
  }

  bool is_vector(Value v) const { return kernels_.work().type(v).dims.size() <= 1; }
  bool makes_vectors(int k) const {
    return std::ranges::all_of(kernels_.nodes(k), [&](int n) {
      const Node& node = kernels_.node(n);
      return node.op != Op::product || is_vector(node.results[0]);
    });
  }

  // Whether the node is a cast to fewer bytes of what nobody stores.
  bool narrows(const Node& node) const {
    if (node.op != Op::cast && node.op != Op::pin) return false;
    const auto bytes = [&](Value v) {
      return size_of(kernels_.work().type(v).dtype);
    };
    return kernels_.is_lazy(node.args[0]) && bytes(node.results[0]) < bytes(node.args[0]);
  }

  // ---- calls and scatters: one node a kernel ----

  void place_alone(int n) {
    const int w = kernels_.append(n);
    const Node node = kernels_.node(w);
    std::set<int> more{w};
    for (const Value v : node.args) {
      if (!kernels_.is_lazy(v)) continue;
      const int from = kernels_.producer(v);
      if (kernels_.node(from).op == Op::constant && class_of(node.op) == OpClass::opaque) {
        more.insert(from);
      } else {
        store(v, std::string(name_of(node.op)) + " reads it");
      }
    }
    std::vector<Value> copies;
    for (const Value v : node.results) {  // a call stores its results as they are
      if (class_of(node.op) != OpClass::opaque || !kernels_.has_converted_results(v)) continue;
      const int copy = kernels_.append(n, Op::spread, {v}, {.dims = kernels_.work().type(v).dims});
      kernels_.redirect_converted_results(v, copy);
      copies.push_back(kernels_.node(copy).results[0]);
    }
    if (const auto no = kernels_.refusal(kNone, {.nodes = more, .owned = node.results})) {
      throw InternalError("the partition of `" + block_.name() + "` cannot place " +
                          std::string(name_of(node.op)) + ": " + *no);
    }
    kernels_.start(Kind::alone, {.nodes = more, .owned = node.results});
    reason(n) = std::string(name_of(node.op)) + " is a kernel of its own";
    for (const Value v : copies) store(v, "it is a result");
  }

  // ---- everything else ----

  void place(int n, int w) {
    std::string why;
    for (const int k : homes(w)) {
      const std::string home = describe_kernel(k);
      std::optional<std::string> no = join(k, w);
      if (!no) {
        reason(n) = "joins " + home + why;
        return;
      }
      why += "; not in " + home + ": " + *no;
      if (finish_later(n, w, k)) {
        reason(n) = "block sums in " + home + ", finished where they are read" + why;
        return;
      }
    }
    if (const auto k = join_beside(w)) {
      reason(n) = "joins " + describe_kernel(*k) + ", which reads the same" + why;
      return;
    }
    const bool sum = kernels_.node(w).op == Op::sum || kernels_.node(w).op == Op::logsumexp;
    if (sum && (adds_up_rows(w) || refuses_new(w)) && finish_later(n, w, kNone)) {
      reason(n) = "block sums in a streaming kernel, finished where they are read" + why;
      return;
    }
    reason(n) = std::string(kLazy) + why;
  }

  // Whether the node adds up the rows of a matrix that nobody stores. NOTE: a kernel of its own
  // could, a column at a time, but would need the matrix stored, or would compute it once more.
  bool adds_up_rows(int w) {
    const Node& node = kernels_.node(w);
    const Type& type = kernels_.work().type(node.args[0]);
    return kernels_.is_lazy(node.args[0]) && type.dims.size() > 1 && type.dims[0] == node.attr.axis;
  }

  // Steps have no number yet: it takes the place of #k#.
  static std::string describe_kernel(int k) { return "kernel #" + std::to_string(k) + "#"; }

  // A reduction of what nobody stores goes where what it comes from is read anyway.
  std::optional<int> join_beside(int w) {
    const Node node = kernels_.node(w);
    const bool lazy = !node.args.empty() && kernels_.is_lazy(node.args[0]);
    if (class_of(node.op) != OpClass::reduce || !lazy) return std::nullopt;
    if (kernels_.weight(node.results[0]) * 2 > kernels_.weight(node.args[0])) return std::nullopt;
    const Pulled pulled = pull(kernels_, w, kNone, Reading::where_better);
    if (!pulled.reads.empty()) return std::nullopt;
    const Kernels::Addition addition{.nodes = pulled.nodes, .owned = node.results};
    for (const int k : beside(pulled.nodes)) {
      if (kernels_.refuses(k, addition)) continue;
      kernels_.add(k, addition);
      return k;
    }
    return std::nullopt;
  }

  // The kernels that made operands of the node, those that run last first.
  std::vector<int> homes(int w) {
    std::vector<int> homes;
    for (const Value v : kernels_.node(w).args) {
      const int k = kernels_.owner(v);
      if (k == kNone || kernels_.kind(k) == Kind::alone) continue;
      if (std::ranges::find(homes, k) == homes.end()) homes.push_back(k);
    }
    std::ranges::sort(homes, std::greater{});
    for (std::size_t i = 0; i < homes.size(); ++i) {
      for (std::size_t j = i + 1; j < homes.size(); ++j) {
        if (kernels_.runs_after(homes[j], homes[i])) std::swap(homes[i], homes[j]);
      }
    }
    return homes;
  }

  // sum(v, N) = sum(block_sum(v, N), blocks(N)): the block sums in kernel `k`, the rest where it is
  // read. The same for logsumexp.
  bool finish_later(int n, int w, int k) {
    const Node whole = kernels_.node(w);
    if (!Working::is_divisible(kernels_.work(), whole)) return false;
    const Factor rest = Factor::blocks(whole.attr.axis, kBlock);
    const Op op = whole.op == Op::sum ? Op::block_sum : Op::block_logsumexp;
    const int blocks = kernels_.append(n, op, whole.args, {.axis = whole.attr.axis});
    const Value partial = kernels_.node(blocks).results[0];
    const bool fits = k == kNone ? !refuses_new(blocks) : !join(k, blocks);
    if (!fits) {
      kernels_.drop(blocks);
      return false;
    }
    kernels_.substitute(w, kernels_.append(n, whole.op, {partial}, {.axis = dim_of(rest)}));
    if (k == kNone) store(partial, "its finish reads it");
    return true;
  }

  // Whether not even a new kernel could hold node `w`.
  bool refuses_new(int w) {
    Pulled pulled = pull(kernels_, w, kNone, Reading::where_better);
    return kernels_.refuses(kNone, {.nodes = std::move(pulled.nodes),
                                    .owned = kernels_.node(w).results,
                                    .assumed = std::move(pulled.reads)});
  }

  // Puts node `w` and the lazy values that it needs into kernel `k`, or says why not.
  std::optional<std::string> join(int k, int w) {
    std::optional<std::string> why;
    for (const Reading reading : {Reading::where_better, Reading::always}) {
      const Pulled pulled = pull(kernels_, w, k, reading);
      const std::vector<Value> owned = kernels_.node(w).results;
      std::optional<std::string> no = waits_for(kernels_, pulled.reads, k);
      if (!no) {
        no = kernels_.refusal(k, {.nodes = pulled.nodes, .owned = owned, .assumed = pulled.reads});
      }
      if (!no && !pulled.reads.empty()) {
        for (const Value v : pulled.reads) store(v, kDear);
        no = kernels_.refusal(k, {.nodes = pulled.nodes, .owned = owned});
      }
      if (!no) {
        kernels_.add(k, {.nodes = pulled.nodes, .owned = owned});
        return std::nullopt;
      }
      if (!why) why = std::move(no);
    }
    return why;
  }

  // ---- what must be stored ----

  // Sees to it that some kernel stores `v`: one that computes it anyway, a streaming kernel that
  // reads the same, a new one.
  void store(Value v, const std::string& why) {
    if (!kernels_.is_lazy(v)) return;
    const int n = kernels_.producer(v);
    if (store_where_computed(v, n, why)) return;
    Pulled pulled = pull(kernels_, n, kNone, Reading::where_better);
    for (const Value each : pulled.reads) store(each, kDear);
    if (store_in_stream(v, pulled.nodes, why)) return;
    // One node, all that it reads stored.
    for (const Value arg : kernels_.node(n).args) {
      if (kernels_.is_lazy(arg) &&
          class_of(kernels_.node(kernels_.producer(arg)).op) != OpClass::leaf) {
        store(arg, "the kernel after it reads it");
      }
    }
    pulled = pull(kernels_, n, kNone, Reading::where_better);
    if (store_in_stream(v, pulled.nodes, why)) return;
    throw InternalError("the partition of `" + block_.name() + "` cannot place `" +
                        kernels_.name(v) +
                        "`: " + *kernels_.refusal(kNone, {.nodes = pulled.nodes, .stored = {v}}));
  }

  // In a kernel that computes `v` already, or something as large that it comes from.
  bool store_where_computed(Value v, int n, const std::string& why) {
    std::vector<int> homes = kernels_.holders(n);
    for (const int lazy : with_lazy(kernels_, n)) {
      const Value made = kernels_.node(lazy).results[0];
      const bool large = !kernels_.work().type(v).is_scalar() &&
                         kernels_.weight(made) >= kernels_.weight(v) && kernels_.is_lazy(made);
      if (!large) continue;
      homes.insert(homes.end(), kernels_.holders(lazy).begin(), kernels_.holders(lazy).end());
    }
    std::ranges::sort(homes);
    homes.erase(std::unique(homes.begin(), homes.end()), homes.end());
    for (const int k : homes) {
      if (kernels_.kind(k) == Kind::alone) continue;
      const Pulled pulled = pull(kernels_, n, k, Reading::where_better);
      const Kernels::Addition addition{.nodes = pulled.nodes, .stored = {v}};
      if (!pulled.reads.empty() || kernels_.refuses(k, addition)) continue;
      kernels_.add(k, addition);
      explain_store(n, "in " + describe_kernel(k) + ", which computes it anyway, because " + why);
      return true;
    }
    return false;
  }

  void explain_store(int n, const std::string& where) {
    std::string& text = reason(kernels_.origin(n));
    if (text.starts_with(kLazy)) text.replace(0, kLazy.size(), "stored " + where);
  }

  // The streams that read the largest of what these nodes read, the last one first.
  std::vector<int> beside(const std::set<int>& nodes) const {
    const std::set<Value> read = kernels_.inputs(nodes);
    double heaviest = 1;
    for (const Value v : read) heaviest = std::max(heaviest, kernels_.weight(v));
    std::set<int, std::greater<>> streams;
    for (const Value v : read) {
      if (heaviest <= 1 || kernels_.weight(v) != heaviest) continue;
      for (const int k : kernels_.readers(v)) {
        if (kernels_.kind(k) == Kind::stream) streams.insert(k);
      }
    }
    return {streams.begin(), streams.end()};
  }

  bool store_in_stream(Value v, const std::set<int>& more, const std::string& why) {
    const Kernels::Addition addition{.nodes = more, .stored = {v}};
    for (const int k : beside(more)) {
      if (kernels_.refuses(k, addition)) continue;
      kernels_.add(k, addition);
      explain_store(kernels_.producer(v), "in " + describe_kernel(k) + " because " + why);
      return true;
    }
    if (kernels_.refuses(kNone, addition)) return false;
    kernels_.start(Kind::stream, addition);
    explain_store(kernels_.producer(v), "by a streaming kernel because " + why);
    return true;
  }

  const Program& block_;
  Kernels& kernels_;
  std::vector<std::string>& reasons_;
  std::map<Value, std::vector<int>> as_operand_;  // the gemms whose products read it
  std::set<int> terms_;                           // products, and adds that sum nothing else
  std::vector<bool> inner_;  // of each node of the block: a term that another add takes
};

}  // namespace

Greedy::Greedy(const Program& block) : kernels(block), reasons(block.nodes().size()) {
  Placer(*this).run();
}

}  // namespace coda
