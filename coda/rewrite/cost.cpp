// coda/rewrite/cost.cpp: bytes and flops of a kernel that is not a program yet.
#include "coda/rewrite/cost.h"

#include <algorithm>

namespace coda {
namespace {

double& entry(std::vector<double>& known, std::int32_t i) {
  if (static_cast<std::size_t>(i) >= known.size()) {
    known.resize(static_cast<std::size_t>(i) + 64, -1);
  }
  return known[static_cast<std::size_t>(i)];
}

bool is_reduction(Op op) {
  return class_of(op) == OpClass::reduce || class_of(op) == OpClass::block_reduce;
}

double seconds(double bytes, double flops) {
  return std::max(bytes / kBandwidth, flops / kThroughput) + kLaunch;
}

}  // namespace

double Costs::bytes(Value v) const {
  double& bytes = entry(bytes_, v.id);
  if (bytes < 0) {
    const Type type = working_->crossing(v).type;
    bytes = nominal_.elements(type) * static_cast<double>(size_of(type.dtype));
  }
  return bytes;
}

double Costs::stored_bytes(Value v) const {
  double& bytes = entry(stored_, v.id);
  if (bytes < 0) {
    bytes = 0;
    for (const int r : working_->results_of(v)) {
      const Result& result = working_->result(r);
      const double once =
          nominal_.elements(result.type) * static_cast<double>(size_of(result.type.dtype));
      bytes += result.store == Store::accumulate ? 2 * once : once;
    }
  }
  return bytes;
}

double Costs::flops(int n) const {
  double& flops = entry(flops_, n);
  if (flops < 0) {
    const Node& node = working_->node(n);
    flops = node.op != Op::product ? 0
                                   : 2 * nominal_.elements(working_->work().type(node.results[0])) *
                                         nominal_.extent(node.attr.axis);
  }
  return flops;
}

// A table that is only gathered or picked from counts what that touches.
double Costs::bytes_read(Value v, const Part& part) const {
  const double whole = bytes(v);
  if (std::ranges::find(part.results, v) != part.results.end()) return whole;
  double touched = 0;
  const auto size = static_cast<double>(size_of(working_->work().type(v).dtype));
  for (const int n : part.nodes) {
    const Node& node = working_->node(n);
    for (std::size_t i = 0; i < node.args.size(); ++i) {
      if (node.args[i] != v) continue;
      if (i != 0 || (node.op != Op::gather && node.op != Op::pick)) return whole;
      touched += size * nominal_.elements(working_->work().type(node.results[0]));
    }
  }
  return std::min(whole, touched);
}

double Costs::bytes_stored(const Part& part) const {
  double sum = 0;
  for (const Value v : part.results) sum += stored_bytes(v);
  for (const Value v : part.crossing) {
    const std::string& name = working_->is_result(v) ? working_->crossing(v).name : std::string();
    const auto same = [&](int r) {
      return working_->result(r).name == name;
    };
    // Readers take one of the results, where that will do.
    if (std::ranges::none_of(working_->results_of(v), same)) sum += bytes(v);
  }
  return sum;
}

Costs::Amounts Costs::amounts(const Part& part) const {
  Amounts sum;
  bool indexed = false;
  for (const int n : part.nodes) {
    sum.flops += flops(n);
    indexed = indexed || class_of(working_->node(n).op) == OpClass::indexed;
  }
  for (const Value v : part.reads) sum.bytes += indexed ? bytes_read(v, part) : bytes(v);
  sum.bytes += bytes_stored(part);
  return sum;
}

bool Costs::rounds(Value v) const {
  if (working_->work().is_param(v)) return false;
  if (static_cast<std::size_t>(v.id) >= rounds_.size()) {
    rounds_.resize(working_->work().values().size(), -1);
  }
  int& rounds = rounds_[static_cast<std::size_t>(v.id)];
  if (rounds < 0) {
    const DType stored = working_->crossing(v).type.dtype, typed = working_->work().type(v).dtype;
    rounds = is_float(typed) && size_of(stored) < size_of(typed) ? 1 : 0;
  }
  return rounds > 0;
}

const std::vector<int>& Costs::reductions(Value v) const {
  const auto at = static_cast<std::size_t>(v.id);
  if (at >= reductions_.size()) reductions_.resize(working_->work().values().size());
  if (reductions_[at]) return *reductions_[at];
  std::vector<int> found, todo = working_->users(v), seen;
  while (!todo.empty()) {
    const int n = todo.back();
    todo.pop_back();
    if (!insert_sorted(seen, n)) continue;
    const Node& node = working_->node(n);
    if (is_reduction(node.op)) {
      insert_sorted(found, n);
    } else if (node.op != Op::product) {
      for (const Value made : node.results) {
        todo.insert(todo.end(), working_->users(made).begin(), working_->users(made).end());
      }
    }
  }
  reductions_[at] = std::move(found);
  return *reductions_[at];
}

double Costs::rounded(const Part& part) const {
  tainted_.clear();
  for (const Value v : part.reads) {
    if (rounds(v)) tainted_.push_back(v);
  }
  if (tainted_.empty()) return 0;
  const auto is_tainted = [&](Value v) {
    return std::ranges::find(tainted_, v) != tainted_.end();
  };
  const auto is_fresh = [&](Value v) {
    return std::ranges::find(fresh_, v) != fresh_.end();
  };
  double count = 0;
  fresh_.clear();
  for (const int n : part.nodes) {
    const Node& node = working_->node(n);
    if (node.op == Op::product || std::ranges::any_of(node.args, is_fresh)) {
      fresh_.insert(fresh_.end(), node.results.begin(), node.results.end());
      continue;
    }
    if (std::ranges::none_of(node.args, is_tainted)) continue;
    if (is_reduction(node.op)) {
      ++count;
    } else {
      tainted_.insert(tainted_.end(), node.results.begin(), node.results.end());
    }
  }
  const auto visit = [&](Value v) {
    if (working_->work().is_param(v) || rounds(v) || !is_tainted(v)) return;
    for (const int n : reductions(v)) count += in_sorted(part.nodes, n) ? 0 : 1;
  };
  for (const Value v : part.results) visit(v);
  for (const Value v : part.crossing) {
    if (!working_->is_result(v)) visit(v);
  }
  return count * kRounded;
}

double Costs::at_least(const Part& part) const {
  const Amounts amounts = this->amounts(part);
  return seconds(amounts.bytes, amounts.flops) + rounded(part);
}

double Costs::of(const Part& part, Verdicts& verdicts) const {
  const Amounts amounts = this->amounts(part);
  double more = 0, late = 0;
  for (const Again& again : verdicts.again(part)) {
    if (again.whole_rows) {
      late += bytes(again.value) * (kTilesAcross - 1);
    } else {
      more += bytes(again.value);
    }
  }
  // Whole rows come before a tile can start: nothing hides them.
  return seconds(amounts.bytes + more, amounts.flops) + late / kBandwidth + rounded(part);
}

}  // namespace coda
