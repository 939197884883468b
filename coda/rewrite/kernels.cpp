// coda/rewrite/kernels.cpp: what a kernel reads, stores and waits for; check() says what it may
// hold.
#include "coda/rewrite/kernels.h"

#include <algorithm>

#include "coda/rewrite/nominal.h"

namespace coda {
namespace {

bool has_bit(const std::vector<std::uint64_t>& bits, int b) {
  const auto word = static_cast<std::size_t>(b) / 64;
  return word < bits.size() && ((bits[word] >> (b % 64)) & 1) != 0;
}

// Whether it was not there.
bool set_bit(std::vector<std::uint64_t>& bits, int b) {
  if (has_bit(bits, b)) return false;
  const auto word = static_cast<std::size_t>(b) / 64;
  if (word >= bits.size()) bits.resize(word + 1);
  bits[word] |= std::uint64_t{1} << (b % 64);
  return true;
}

void unite(std::vector<std::uint64_t>& bits, const std::vector<std::uint64_t>& more) {
  if (bits.size() < more.size()) bits.resize(more.size());
  for (std::size_t w = 0; w < more.size(); ++w) bits[w] |= more[w];
}

}  // namespace

std::set<Value> Kernels::inputs(const std::set<int>& nodes) const {
  std::set<Value> read;
  for (const int n : nodes) {
    for (const Value v : node(n).args) {
      if (!nodes.contains(producer(v))) read.insert(v);
    }
  }
  return read;
}

bool Kernels::runs_after(int a, int b) const {
  return has_bit(kernel(a).before, b);
}

bool Kernels::must_store(Value v, const std::vector<int>& nodes) const {
  const auto outside = [&](int user) {
    return !in_sorted(nodes, user);
  };
  return is_result(v) || pending(v) > 0 || std::ranges::any_of(users(v), outside);
}

std::optional<std::string> Kernels::candidate(int k, const Addition& addition, Part& part) const {
  part.nodes = k == kNone ? std::vector<int>{} : nodes(k);
  const auto old = static_cast<std::ptrdiff_t>(part.nodes.size());
  part.nodes.insert(part.nodes.end(), addition.nodes.begin(), addition.nodes.end());
  std::inplace_merge(part.nodes.begin(), part.nodes.begin() + old, part.nodes.end());
  part.nodes.erase(std::unique(part.nodes.begin(), part.nodes.end()), part.nodes.end());
  for (const int n : part.nodes) {
    for (const Value v : node(n).args) {
      if (!in_sorted(part.nodes, producer(v))) part.reads.push_back(v);
    }
  }
  std::ranges::sort(part.reads);
  part.reads.erase(std::unique(part.reads.begin(), part.reads.end()), part.reads.end());
  for (const Value v : part.reads) {
    if (work().is_param(v) || addition.assumed.contains(v)) continue;
    const int from = owner(v);
    if (from == kNone) throw InternalError("a kernel reads " + name(v) + ": not stored");
    if (k != kNone && (from == k || runs_after(from, k))) {
      return "`" + name(v) + "`, which it reads, comes after that kernel";
    }
  }
  const auto is_in = [](const std::vector<Value>& list, Value v) {
    return std::ranges::find(list, v) != list.end();
  };
  for (const int n : part.nodes) {
    for (const Value v : node(n).results) {
      const bool own =
          (k != kNone && owner(v) == k) || is_in(addition.owned, v) || is_in(addition.stored, v);
      if (!own) continue;
      const auto elsewhere = [&](int reader) {
        return reader != k;
      };
      const bool stored = is_in(addition.stored, v) || asked_.contains(v) ||
                          std::ranges::any_of(readers(v), elsewhere) || must_store(v, part.nodes);
      if (stored) (is_result(v) ? part.results : part.crossing).push_back(v);
    }
  }
  return std::nullopt;
}

bool Kernels::refuses(int k, const Addition& addition) {
  Part part;
  return candidate(k, addition, part).has_value() || !verdicts_.accepts(part);
}

std::optional<std::string> Kernels::refusal(int k, const Addition& addition) {
  Part part;
  if (auto why = candidate(k, addition, part)) return why;
  return verdicts_.refusal(part);
}

// All that waits for `k` waits for `before`, and for what that waits for.
void Kernels::order(int k, int before) {
  std::vector<std::uint64_t> bits = kernel(before).before;
  set_bit(bits, before);
  if (has_bit(kernel(k).before, before)) return;
  for (int later = 0; later < count(); ++later) {
    if (later == k || runs_after(later, k)) {
      unite(kernels_[static_cast<std::size_t>(later)].before, bits);
    }
  }
}

void Kernels::own(Value v, int k) {
  owner_.resize(std::max(owner_.size(), work().values().size()), kNone);
  owner_[static_cast<std::size_t>(v.id)] = k;
  for (const int reader : readers(v)) {
    if (reader != k) order(reader, k);
  }
}

void Kernels::add(int k, const Addition& addition) {
  Kernel& kernel = kernels_[static_cast<std::size_t>(k)];
  std::vector<int> fresh;
  for (const int n : addition.nodes) {
    if (!insert_sorted(kernel.nodes, n)) continue;
    fresh.push_back(n);
    at(holders_, n).push_back(k);
    for (const Value v : node(n).results) {
      if (std::erase(kernel.reads, v) > 0) std::erase(at(readers_, v.id), k);
    }
  }
  for (const int n : fresh) {
    for (const Value v : node(n).args) {
      if (contains(k, producer(v)) || !insert_sorted(kernel.reads, v)) continue;
      at(readers_, v.id).push_back(k);
      if (owner(v) != kNone) order(k, owner(v));
    }
  }
  for (const Value v : addition.owned) own(v, k);
  for (const Value v : addition.stored) own(v, k);
  asked_.insert(addition.stored.begin(), addition.stored.end());
}

void Kernels::start(Kind kind, const Addition& addition) {
  kernels_.push_back({.kind = kind, .nodes = {}, .reads = {}, .before = {}});
  add(count() - 1, addition);
}

std::vector<Part> Kernels::parts(std::vector<int>& numbers) const {
  std::vector<Part> all(kernels_.size());
  std::vector<int> read(work().values().size());  // how many kernels read it
  std::vector<std::vector<Value>> stores(kernels_.size());
  for (std::size_t v = work().params().size(); v < owner_.size(); ++v) {
    const Value value{static_cast<std::int32_t>(v)};
    if (owner(value) != kNone) stores[static_cast<std::size_t>(owner(value))].push_back(value);
  }
  const auto shrink = [&](int k) {  // to what its stores need
    Part& part = all[static_cast<std::size_t>(k)];
    part = {.kind = kind(k)};
    std::vector<int> todo;
    const auto need = [&](Value v) {
      const int n = producer(v);
      if (contains(k, n) && insert_sorted(part.nodes, n)) todo.push_back(n);
    };
    for (const Value v : stores[static_cast<std::size_t>(k)]) {
      if (is_result(v)) part.results.push_back(v);
      if (read[static_cast<std::size_t>(v.id)] > 0) part.crossing.push_back(v);
      if (is_result(v) || read[static_cast<std::size_t>(v.id)] > 0) need(v);
    }
    while (!todo.empty()) {
      const int n = todo.back();
      todo.pop_back();
      for (const Value v : node(n).args) {
        need(v);
        if (!contains(k, producer(v))) insert_sorted(part.reads, v);
      }
    }
  };
  for (int k = 0; k < count(); ++k) {
    for (const Value v : reads(k)) ++read[static_cast<std::size_t>(v.id)];
  }
  std::vector<int> todo;
  std::vector<std::vector<Value>> counted(kernels_.size());  // the reads that `read` counts
  for (int k = 0; k < count(); ++k) {
    counted[static_cast<std::size_t>(k)] = reads(k);
    todo.push_back(k);
  }
  while (!todo.empty()) {
    const int k = todo.back();
    todo.pop_back();
    shrink(k);
    std::vector<Value>& before = counted[static_cast<std::size_t>(k)];
    const std::vector<Value>& now = all[static_cast<std::size_t>(k)].reads;
    for (const Value v : before) {
      if (in_sorted(now, v) || --read[static_cast<std::size_t>(v.id)] > 0) continue;
      if (owner(v) != kNone) todo.push_back(owner(v));
    }
    before = now;
  }
  std::vector<Part> parts;
  numbers.clear();
  for (int k = 0; k < count(); ++k) {
    Part& part = all[static_cast<std::size_t>(k)];
    if (part.nodes.empty()) continue;
    parts.push_back(std::move(part));
    numbers.push_back(k);
  }
  for (std::size_t p = 0; p < work().params().size(); ++p) {  // results that are parameters
    const Value v{static_cast<std::int32_t>(p)};
    if (!is_result(v)) continue;
    parts.push_back({.reads = {v}, .results = {v}});
    numbers.push_back(kNone);
  }
  return parts;
}

double Kernels::weight(Value v) const {
  return nominal_elements(work().type(v));
}

}  // namespace coda
