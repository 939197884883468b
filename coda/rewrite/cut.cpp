// coda/rewrite/cut.cpp: keeps owners, readers and order up to date while kernels change.
#include "coda/rewrite/cut.h"

#include <algorithm>

namespace coda {
namespace {

constexpr double kLeast = 1e-11;  // seconds: less is no gain but rounding

}  // namespace

Cut::Cut(const Working& working, Verdicts& verdicts, const Costs& costs, std::vector<Part> parts)
    : working_(&working),
      verdicts_(&verdicts),
      costs_(&costs),
      ties_(working),
      owner_(working.work().values().size(), kNone),
      readers_(owner_.size()),
      marks_(working.work().nodes().size()) {
  for (Part& part : parts) {
    const int k = count();
    Kernel kernel{.part = std::move(part), .stores = {}, .cost = 0};
    kernel.stores = kernel.part.results;
    for (const Value v : kernel.part.crossing) insert_sorted(kernel.stores, v);
    std::ranges::sort(kernel.stores);
    for (const Value v : kernel.stores) own(v, k);
    for (const Value v : kernel.part.reads) {
      insert_sorted(readers_[static_cast<std::size_t>(v.id)], k);
    }
    kernels_.push_back(std::move(kernel));
  }
  for (Kernel& kernel : kernels_) {
    kernel.cost = verdicts.accepts(kernel.part) ? costs.of(kernel.part, verdicts)
                                                : costs.at_least(kernel.part);
  }
  sort();
}

bool Cut::runs_after(int a, int b) const {
  const std::vector<std::uint64_t>& bits = before_[static_cast<std::size_t>(a)];
  return ((bits[static_cast<std::size_t>(b) / 64] >> (b % 64)) & 1) != 0;
}

void Cut::sort() {
  const std::size_t words = kernels_.size() / 64 + 1;
  before_.assign(kernels_.size(), std::vector<std::uint64_t>(words));
  position_.assign(kernels_.size(), 0);
  order_.clear();
  std::vector<Part> parts;
  for (const Kernel& kernel : kernels_) parts.push_back(kernel.part);
  order_ = working_->run_order(parts);
  for (std::size_t i = 0; i < order_.size(); ++i) {
    const auto k = static_cast<std::size_t>(order_[i]);
    position_[k] = i;
    for (const Value v : part(order_[i]).reads) {
      if (owner(v) == kNone) continue;
      const auto from = static_cast<std::size_t>(owner(v));
      for (std::size_t w = 0; w < words; ++w) before_[k][w] |= before_[from][w];
      before_[k][from / 64] |= std::uint64_t{1} << (from % 64);
    }
  }
  const auto living =
      std::ranges::count_if(kernels_, [](const Kernel& kernel) { return !kernel.stores.empty(); });
  if (std::ssize(order_) != living) {
    throw InternalError("the kernels of a partition wait in a circle");
  }
}

void Cut::own(Value v, int k) {
  if (!working_->work().is_param(v)) owner_[static_cast<std::size_t>(v.id)] = k;
}

bool Cut::is_needed(Value v) const {
  return working_->is_result(v) || !readers(v).empty();
}

void Cut::touch(int k) {
  saved_.try_emplace(k, kernel(k));
}

// Kernel `k` becomes what `stores` needs of `nodes`.
void Cut::set(int k, const std::vector<int>& nodes, std::vector<Value> stores) {
  touch(k);
  Kernel& kernel = kernels_[static_cast<std::size_t>(k)];
  for (const Value v : kernel.part.reads) {
    std::erase(readers_[static_cast<std::size_t>(v.id)], k);
  }
  for (const Value v : kernel.stores) {
    if (owner(v) == k) owner_[static_cast<std::size_t>(v.id)] = kNone;
  }
  ++mark_;
  std::vector<int> todo, live;
  const auto need = [&](Value v) {
    const int n = working_->producer(v);
    if (n < 0 || !in_sorted(nodes, n)) return false;
    if (marks_[static_cast<std::size_t>(n)] != mark_) {
      marks_[static_cast<std::size_t>(n)] = mark_;
      todo.push_back(n);
    }
    return true;
  };
  std::vector<Value> reads;
  for (const Value v : stores) {
    if (!need(v)) reads.push_back(v);
    own(v, k);
  }
  while (!todo.empty()) {
    const int n = todo.back();
    todo.pop_back();
    live.push_back(n);
    for (const Value v : working_->node(n).args) {
      if (!need(v)) reads.push_back(v);
    }
  }
  std::ranges::sort(live);
  std::ranges::sort(reads);
  reads.erase(std::unique(reads.begin(), reads.end()), reads.end());
  for (const Value v : reads) insert_sorted(readers_[static_cast<std::size_t>(v.id)], k);
  kernel.part.nodes = std::move(live);
  kernel.part.reads = std::move(reads);
  kernel.stores = std::move(stores);
}

// Drops what nobody reads, in the touched kernels and in those that stored for them.
void Cut::settle() {
  for (bool moved = true; moved;) {
    moved = false;
    std::vector<int> storing;
    const auto visit = [&](Value v) {
      const int from = owner(v);
      if (from == kNone || saved_.contains(from)) return;
      const std::vector<Value>& crossing = part(from).crossing;
      const bool crosses = std::ranges::find(crossing, v) != crossing.end();
      if (crosses == readers(v).empty()) storing.push_back(from);
    };
    for (const auto& [k, before] : saved_) {
      for (const Value v : before.part.reads) visit(v);
      for (const Value v : part(k).reads) visit(v);
    }
    for (const int k : storing) touch(k);
    std::vector<int> touched;
    for (const auto& [k, before] : saved_) touched.push_back(k);
    for (const int k : touched) {
      const auto dropped = [&](Value v) {
        return !is_needed(v);
      };
      if (std::ranges::none_of(stores(k), dropped)) continue;
      std::vector<Value> kept = stores(k);
      std::erase_if(kept, dropped);
      set(k, std::vector<int>(part(k).nodes), std::move(kept));
      moved = true;
    }
  }
  for (const auto& [k, before] : saved_) {
    Kernel& kernel = kernels_[static_cast<std::size_t>(k)];
    kernel.part.results.clear();
    kernel.part.crossing.clear();
    bool product = false;
    for (const int n : kernel.part.nodes) product = product || working_->node(n).op == Op::product;
    if (kernel.part.kind != Part::Kind::alone) {
      kernel.part.kind = product ? Part::Kind::gemm : Part::Kind::stream;
    }
    for (const Value v : kernel.stores) {
      if (working_->is_result(v)) kernel.part.results.push_back(v);
      if (owner(v) == k && !readers(v).empty()) kernel.part.crossing.push_back(v);
    }
  }
}

// Makes the changes, and says what they save; 0: something is refused.
double Cut::try_out(std::vector<Change> changes) {
  saved_.clear();
  for (Change& change : changes) set(change.kernel, change.nodes, std::move(change.stores));
  settle();
  double before = 0, now = 0;
  for (const auto& [k, saved] : saved_) {
    before += saved.stores.empty() ? 0 : saved.cost;
    now += alive(k) ? costs_->at_least(part(k)) : 0;
  }
  if (now >= before - kLeast) return 0;
  now = 0;
  for (const auto& [k, saved] : saved_) {
    if (!alive(k)) continue;
    // Who reads a value must not be asked to compute it from what it does not have.
    const auto is_there = [&](Value v) {
      return is_stored(v) && owner(v) != k;
    };
    if (!std::ranges::all_of(part(k).reads, is_there)) return 0;
    if (!ties_.allow(part(k).nodes)) return 0;
    if (part(k).kind != Part::Kind::alone && !verdicts_->accepts(part(k))) return 0;
    kernels_[static_cast<std::size_t>(k)].cost = costs_->of(part(k), *verdicts_);
    now += cost(k);
  }
  return now < before - kLeast ? before - now : 0;
}

void Cut::take_back() {
  for (const auto& [k, saved] : saved_) {
    for (const Value v : part(k).reads) std::erase(readers_[static_cast<std::size_t>(v.id)], k);
    for (const Value v : stores(k)) own(v, kNone);
  }
  for (auto& [k, saved] : saved_) {
    for (const Value v : saved.part.reads) {
      insert_sorted(readers_[static_cast<std::size_t>(v.id)], k);
    }
    for (const Value v : saved.stores) own(v, k);
    kernels_[static_cast<std::size_t>(k)] = std::move(saved);
  }
}

double Cut::gain(std::vector<Change> changes) {
  const double gain = try_out(std::move(changes));
  take_back();
  return gain;
}

double Cut::attempt(std::vector<Change> changes) {
  const double gain = try_out(std::move(changes));
  if (gain > 0) {
    for (const auto& [k, saved] : saved_) ++kernels_[static_cast<std::size_t>(k)].version;
    update_order();
  } else {
    take_back();
  }
  return gain;
}

// `k` runs after `from`, and so does all that runs after `k`.
void Cut::precede(int from, int k) {
  std::vector<std::uint64_t> more = before_[static_cast<std::size_t>(from)];
  more[static_cast<std::size_t>(from) / 64] |= std::uint64_t{1} << (from % 64);
  const auto knows = [&](const std::vector<std::uint64_t>& bits) {
    for (std::size_t w = 0; w < more.size(); ++w) {
      if ((more[w] & ~bits[w]) != 0) return false;
    }
    return true;
  };
  if (knows(before_[static_cast<std::size_t>(k)])) return;
  for (int later = 0; later < count(); ++later) {
    if (later != k && !runs_after(later, k)) continue;
    std::vector<std::uint64_t>& bits = before_[static_cast<std::size_t>(later)];
    for (std::size_t w = 0; w < more.size(); ++w) bits[w] |= more[w];
  }
}

// What ran before still counts as before, until sort(): that forbids more than it must, never less.
void Cut::update_order() {
  for (const auto& [k, saved] : saved_) {
    for (const Value v : part(k).reads) {
      if (owner(v) != kNone) precede(owner(v), k);
    }
    for (const Value v : stores(k)) {
      for (const int reader : readers(v)) precede(k, reader);
    }
  }
}

std::vector<Part> Cut::parts() const {
  std::vector<Part> parts;
  for (const int k : order_) {
    if (alive(k)) parts.push_back(part(k));
  }
  return parts;
}

}  // namespace coda
