// coda/rewrite/budget.cpp: what is cheapest to have again for each byte is not kept, one kind after
// the other, until the rest fits.
#include "coda/rewrite/budget.h"

#include <algorithm>

#include "coda/check/bind.h"

namespace coda {
namespace {

double flops_of(const Program& program, const Node& product, const Sizes& sizes) {
  return 2.0 * static_cast<double>(elements_of(program.type(product.results[0]), sizes)) *
         static_cast<double>(require_extent(product.attr.axis, sizes));
}

double bytes_of(const Type& type, const Sizes& sizes) {
  return static_cast<double>(elements_of(type, sizes)) * static_cast<double>(size_of(type.dtype));
}

Value behind_casts(const Program& program, Value v) {
  while (!program.is_param(v) && program.node(v).op == Op::cast) v = program.node(v).args[0];
  return v;
}

// The products between `v` and what is kept, from which maps and layout lead to it. False where one
// of them would read what is not kept.
//
// NOTE: a product that runs again must read the very operand that it had in forward. Of another,
// rounded twice, attention's scores would not fit its logsumexp.
bool products_behind(const Program& program, Value v, const std::set<Value>& kept,
                     std::set<Value>& seen, std::set<Value>& products) {
  if (program.is_param(v) || !seen.insert(v).second) return true;
  const Node& node = program.node(v);
  if (node.op == Op::product) {
    products.insert(v);
    return std::ranges::all_of(node.args, [&](Value arg) {
      arg = behind_casts(program, arg);
      return program.is_param(arg) || kept.contains(arg);
    });
  }
  if (!is_map(node.op) && class_of(node.op) != OpClass::layout) return true;
  return std::ranges::all_of(node.args, [&](Value arg) {
    return kept.contains(behind_casts(program, arg)) ||
           products_behind(program, arg, kept, seen, products);
  });
}

// Bytes of what `products` that read `v` make: with `v`, they can make it again.
double bytes_behind(const Program& program, Value v, const std::set<Value>& products,
                    const Sizes& sizes) {
  const std::vector<DType> stored = storage_dtypes(program);
  double bytes = 0;
  for (const Value made : products) {
    const auto is_it = [&](Value arg) {
      return behind_casts(program, arg) == behind_casts(program, v);
    };
    if (std::ranges::none_of(program.node(made).args, is_it)) continue;
    bytes += bytes_of({stored[static_cast<std::size_t>(made.id)], program.type(made).dims}, sizes);
  }
  return bytes;
}

// A kept value, and what it takes not to keep it.
struct Candidate {
  Value value;
  std::set<Value> products;
  double price = 0;  // flops for each byte
};

// Those that are cheapest, layers that are alike together; none: all were tried.
std::vector<Candidate> cheapest(const Program& joint, const Training& training,
                                const Saving& saving, const std::set<Value>& tried,
                                const Sizes& sizes) {
  std::set<Value> kept;
  for (const auto& [v, type] : training.kept) kept.insert(behind_casts(joint, v));
  std::set<Value> seen_of_all, behind_any = saving.again;
  for (const auto& [v, type] : training.kept) {
    products_behind(joint, v, kept, seen_of_all, behind_any);
  }
  std::vector<Candidate> best;
  for (const auto& [v, type] : training.kept) {
    const double freed = bytes_of(type, sizes);
    if (tried.contains(v) || freed <= 0) continue;
    if (bytes_behind(joint, v, behind_any, sizes) >= freed) continue;
    Candidate candidate{.value = v, .products = {}};
    std::set<Value> seen;
    if (!products_behind(joint, v, kept, seen, candidate.products)) continue;
    for (const Value product : candidate.products) {
      if (saving.again.contains(product)) continue;
      candidate.price += flops_of(joint, joint.node(product), sizes) / freed;
    }
    if (!best.empty() && candidate.price > best.front().price) continue;
    if (!best.empty() && candidate.price < best.front().price) best.clear();
    best.push_back(std::move(candidate));
  }
  return best;
}

void give_up(const Candidate& candidate, Saving& saving) {
  saving.again.insert(candidate.products.begin(), candidate.products.end());
  saving.recompute_values.insert(candidate.value);
}

}  // namespace

Sizes assumed_sizes(const Program& program, const Sizes& sizes) {
  constexpr std::int64_t kAssumed = 1024;
  Sizes all = sizes;
  std::set<std::string> names;
  for (const ValueInfo& value : program.values()) {
    for (const Dim& dim : value.type.dims) collect_names(dim, names);
  }
  for (const Node& node : program.nodes()) collect_names(node.attr.axis, names);
  for (const std::string& name : names) all.emplace(name, kAssumed);
  return all;
}

std::int64_t kept_bytes(const Training& training, const Sizes& sizes) {
  std::int64_t bytes = 0;
  for (const auto& [v, type] : training.kept) {
    bytes += elements_of(type, sizes) * static_cast<std::int64_t>(size_of(type.dtype));
  }
  return bytes;
}

Training halves_within(const Program& joint, std::size_t params, std::size_t results, Saving saving,
                       std::int64_t memory, const Sizes& sizes) {
  const Sizes all = assumed_sizes(joint, sizes);
  Training training = halves(joint, params, results, saving);
  std::set<Value> tried;
  for (std::int64_t bytes = kept_bytes(training, all); bytes > memory;) {
    const std::vector<Candidate> best = cheapest(joint, training, saving, tried, all);
    if (best.empty()) break;
    Saving more = saving;
    for (const Candidate& each : best) {
      tried.insert(each.value);
      give_up(each, more);
    }
    Training less = halves(joint, params, results, more);
    const std::int64_t now = kept_bytes(less, all);
    if (now >= bytes) continue;
    if (now < memory && best.size() > 1) {  // some of them may be enough
      more = saving;
      for (const Candidate& each : best) {
        give_up(each, more);
        less = halves(joint, params, results, more);
        if (kept_bytes(less, all) <= memory) return less;
      }
    }
    saving = std::move(more);
    training = std::move(less);
    bytes = now;
  }
  return training;
}

}  // namespace coda
