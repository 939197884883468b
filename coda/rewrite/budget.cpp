// coda/rewrite/budget.cpp: one product after the other runs twice until the rest fits.
#include "coda/rewrite/budget.h"

#include <algorithm>

#include "coda/check/bind.h"

namespace coda {
namespace {

double flops_of(const Program& program, const Node& product, const Sizes& sizes) {
  return 2.0 * static_cast<double>(elements_of(program.type(product.results[0]), sizes)) *
         static_cast<double>(require_extent(product.attr.axis, sizes));
}

// The products from which maps and layout lead to `v`.
void products_behind(const Program& program, Value v, std::set<Value>& seen,
                     std::set<Value>& products) {
  if (program.is_param(v) || !seen.insert(v).second) return;
  const Node& node = program.node(v);
  if (node.op == Op::product) {
    products.insert(v);
  } else if (is_map(node.op) || class_of(node.op) == OpClass::layout) {
    for (const Value arg : node.args) products_behind(program, arg, seen, products);
  }
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
    // Of each product behind a kept value: what running it again costs for each byte.
    std::optional<Value> best;
    double least = 0;
    for (const auto& [v, type] : training.kept) {
      std::set<Value> seen, products;
      products_behind(joint, v, seen, products);
      double flops = 0;
      bool again = !products.empty();
      for (const Value product : products) {
        flops += flops_of(joint, joint.node(product), all);
        again = again && !tried.contains(product);
      }
      const double freed =
          static_cast<double>(elements_of(type, all)) * static_cast<double>(size_of(type.dtype));
      if (!again || freed <= 0 || (best && flops / freed >= least)) continue;
      best = v;
      least = flops / freed;
    }
    if (!best) break;
    Saving more = saving;
    std::set<Value> seen, products;
    products_behind(joint, *best, seen, products);
    tried.insert(products.begin(), products.end());
    more.again.insert(products.begin(), products.end());
    more.recompute_values.insert(*best);
    Training less = halves(joint, params, results, more);
    const std::int64_t now = kept_bytes(less, all);
    if (now >= bytes) continue;
    saving = std::move(more);
    training = std::move(less);
    bytes = now;
  }
  return training;
}

}  // namespace coda
