// tests/partition_exact_test.cpp: small blocks are cut as cheaply as can be.
//
// The rival tries everything: every set of values that the next kernel could store, every way to
// compute it again or read it, on programs of its own making. It shares check() with what it tests,
// and the stated model of cost.h, which it counts by itself.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <map>
#include <set>

#include "coda/check/bind.h"
#include "coda/check/check.h"
#include "coda/program/builder.h"
#include "coda/program/text.h"
#include "coda/rewrite/arrange.h"
#include "coda/rewrite/cost.h"
#include "coda/rewrite/exact.h"
#include "coda/rewrite/ledger.h"
#include "coda/rewrite/partition.h"
#include "coda/rewrite/simplify.h"
#include "tests/random_block.h"

namespace coda {
namespace {

const Sizes kSizes = {{"M", 3000}, {"N", 700}, {"H", 8}, {"E", 64},
                      {"K", 50},   {"P", 512}, {"B", 4}, {"S", 500}};
constexpr double kNever = 1e9;

bool is_reduction(Op op) {
  return class_of(op) == OpClass::reduce || class_of(op) == OpClass::block_reduce;
}

// ---- the model ----

// Whether `v` depends on parameter `p` by a way on which `axis` stays.
bool reaches(const Program& program, Value v, int p, const Dim& axis) {
  const Type& type = program.type(v);
  const bool has_axis = std::ranges::any_of(type.dims, [&](const Dim& dim) {
    return !std::ranges::search(dim.factors, axis.factors).empty();
  });
  if (!has_axis) return false;
  if (program.is_param(v)) return v.id == p;
  return std::ranges::any_of(program.node(v).args,
                             [&](Value arg) { return reaches(program, arg, p, axis); });
}

// Seconds of one kernel; `rounded`: the parameters that were rounded when they were stored.
std::optional<double> seconds(const Program& program, const std::set<int>& rounded) {
  const std::optional<Checked> checked = try_check(program);
  if (!checked) return std::nullopt;
  const Ledger counts = ledger(as_schedule(program), kSizes);
  double bytes = static_cast<double>(counts.total.bytes_read + counts.total.bytes_written);
  double flops = 0, late = 0, accuracy = 0;
  std::set<int> tainted = rounded, fresh;  // values
  const auto is_fresh = [&](Value v) {
    return fresh.contains(v.id);
  };
  for (const Node& node : program.nodes()) {
    if (node.op == Op::product || std::ranges::any_of(node.args, is_fresh)) {
      for (const Value v : node.results) fresh.insert(v.id);
      if (node.op != Op::product) continue;
      flops += 2 * static_cast<double>(elements_of(program.type(node.results[0]), kSizes) *
                                       require_extent(node.attr.axis, kSizes));
      continue;
    }
    if (std::ranges::none_of(node.args, [&](Value v) { return tainted.contains(v.id); })) continue;
    if (is_reduction(node.op)) {
      accuracy += kRounded;
    } else {
      for (const Value v : node.results) tainted.insert(v.id);
    }
  }
  const auto bytes_of = [&](int p) {
    const Type& type = program.params()[static_cast<std::size_t>(p)].type;
    return static_cast<double>(elements_of(type, kSizes)) *
           static_cast<double>(size_of(type.dtype));
  };
  for (int p = 0; p < std::ssize(program.params()); ++p) {
    int spaces = 0;
    for (std::size_t s = 0; s < checked->spaces().size(); ++s) {
      bool read = false;
      for (const int n : checked->spaces()[s].nodes) {
        const Node& node = program.nodes()[static_cast<std::size_t>(n)];
        read = read || std::ranges::find(node.args, Value{p}) != node.args.end();
        if (checked->kind() != KernelKind::gemm || class_of(node.op) != OpClass::reduce) continue;
        if (std::ranges::all_of(node.attr.axis.factors, [](const Factor& factor) {
              return factor.kind() == Factor::Kind::blocks;
            })) {
          continue;
        }
        const std::vector<Factor> factors = factors_of(program.type(node.args[0]));
        const auto at = std::ranges::find(factors, node.attr.axis.factors[0]) - factors.begin();
        if (checked->roles(s, node.args[0])[static_cast<std::size_t>(at)] == Role::local &&
            reaches(program, node.args[0], p, node.attr.axis)) {
          late += bytes_of(p) * (kTilesAcross - 1);
        }
      }
      spaces += read ? 1 : 0;
    }
    if (checked->kind() == KernelKind::stream && spaces > 1) bytes += (spaces - 1) * bytes_of(p);
  }
  return std::max(bytes / kBandwidth, flops / kThroughput) + kLaunch + late / kBandwidth + accuracy;
}

// Without accuracy, which a schedule does not show.
double seconds(const Schedule& schedule) {
  double sum = 0;
  for (const Step& step : schedule.steps) sum += seconds(step.program, {}).value_or(kNever);
  return sum;
}

// ---- the rival ----

class BruteForce {
 public:
  explicit BruteForce(const Program& program)
      : program_(program), dtypes_(storage_dtypes(program)) {
    const std::vector<int> uses = use_counts(program);
    for (std::size_t i = program.params().size(); i < program.values().size(); ++i) {
      const Value v{static_cast<std::int32_t>(i)};
      const bool result = is_result(v);
      const bool both = result && crossing(v).first >= 0;
      if (result) things_.push_back({v, true, both});
      int reads = uses[i];
      for (const Result& r : program.results()) reads -= r.value == v ? 1 : 0;
      if (reads > 0 && !both) things_.push_back({v, false, true});
    }
    for (std::size_t p = 0; p < program.params().size(); ++p) {
      const Value v{static_cast<std::int32_t>(p)};
      if (is_result(v)) things_.push_back({v, true, false});
    }
  }

  std::size_t size() const { return things_.size(); }
  double cheapest() { return cheapest(0); }

 private:
  // Something to store: a value as results, for others, or both at once.
  struct Thing {
    Value value;
    bool result, readable;
  };
  using Set = std::uint32_t;

  bool is_result(Value v) const {
    return std::ranges::any_of(program_.results(), [&](const Result& r) { return r.value == v; });
  }

  // What others read for `v`: a result of the program that holds it, or (-1) a tensor of its own.
  std::pair<int, Type> crossing(Value v) const {
    const Type stored{dtypes_[static_cast<std::size_t>(v.id)], program_.type(v).dims};
    for (std::size_t r = 0; r < program_.results().size(); ++r) {
      const Result& result = program_.results()[r];
      const bool wider = is_float(result.type.dtype) && is_float(stored.dtype) &&
                         size_of(result.type.dtype) > size_of(stored.dtype);
      if (result.value == v && result.store == Store::overwrite &&
          result.type.dims == stored.dims && (wider || result.type.dtype == stored.dtype)) {
        return {static_cast<int>(r), result.type};
      }
    }
    return {-1, stored};
  }

  double cheapest(Set stored) {
    if (const auto known = known_.find(stored); known != known_.end()) return known->second;
    bool done = true;
    Set open = 0;
    for (std::size_t t = 0; t < things_.size(); ++t) {
      const bool there = ((stored >> t) & 1) != 0;
      done = done && (there || !things_[t].result);
      if (!there) open |= Set{1} << t;
    }
    double best = done ? 0 : kNever;
    for (Set next = open; !done && next != 0; next = (next - 1) & open) {
      const double kernel = cheapest_kernel(stored, next);
      if (kernel < kNever) best = std::min(best, kernel + cheapest(stored | next));
    }
    return known_[stored] = best;
  }

  // Over all ways to read what is stored or compute it again.
  double cheapest_kernel(Set stored, Set next) {
    std::vector<Value> readable;
    for (std::size_t t = 0; t < things_.size(); ++t) {
      if (((stored >> t) & 1) != 0 && things_[t].readable) readable.push_back(things_[t].value);
    }
    double best = kNever;
    for (Set read = 0; read < (Set{1} << readable.size()); ++read) {
      std::set<Value> inputs;
      for (std::size_t i = 0; i < readable.size(); ++i) {
        if (((read >> i) & 1) != 0) inputs.insert(readable[i]);
      }
      best = std::min(best, kernel(inputs, next));
    }
    return best;
  }

  double kernel(const std::set<Value>& inputs, Set next) {
    // What is computed, from the end; and which inputs that reads.
    std::set<Value> needed, read;
    for (std::size_t t = 0; t < things_.size(); ++t) {
      if (((next >> t) & 1) == 0) continue;
      if (inputs.contains(things_[t].value)) return kNever;  // stored again as it is: never cheaper
      needed.insert(things_[t].value);
    }
    for (std::size_t i = program_.values().size(); i-- > 0;) {
      const Value v{static_cast<std::int32_t>(i)};
      if (!needed.contains(v)) continue;
      if (program_.is_param(v)) {
        read.insert(v);
        continue;
      }
      for (const Value arg : program_.node(v).args) {
        (inputs.contains(arg) ? read : needed).insert(arg);
      }
      for (const Value sibling : program_.node(v).results) needed.insert(sibling);
    }
    for (const Value v : inputs) {
      if (!read.contains(v)) return kNever;  // another set of inputs is this kernel
    }
    std::string key;
    for (const Value v : inputs) key += std::to_string(v.id) + " ";
    key += ":" + std::to_string(next);
    if (const auto known = kernels_.find(key); known != kernels_.end()) return known->second;
    Builder builder("kernel", Program::Kind::program);
    Copier copy(program_, builder);
    std::set<int> rounded;
    int count = 0;
    for (const Value v : read) {
      const Type type = program_.is_param(v) ? program_.type(v) : crossing(v).second;
      copy.map(v, builder.param("p" + std::to_string(count), type));
      if (is_float(type.dtype) && size_of(type.dtype) < size_of(program_.type(v).dtype)) {
        rounded.insert(count);
      }
      ++count;
    }
    for (std::size_t t = 0; t < things_.size(); ++t) {
      const Thing& thing = things_[t];
      if (((next >> t) & 1) == 0) continue;
      for (const Result& result : program_.results()) {
        if (!thing.result || result.value != thing.value) continue;
        builder.result(result.name, result.type, copy(thing.value), result.store);
      }
      if (!thing.result) {
        builder.result("c" + std::to_string(t), crossing(thing.value).second, copy(thing.value));
      }
    }
    const double time = seconds(std::move(builder).finish(), rounded).value_or(kNever);
    return kernels_[key] = time + kRounded * late_reductions(inputs, needed, next);
  }

  bool rounds(Value v) const {
    return !program_.is_param(v) && is_float(program_.type(v).dtype) &&
           size_of(crossing(v).second.dtype) < size_of(program_.type(v).dtype);
  }

  // Reductions outside of a kernel that read what it stores in full width, made of rounded values.
  int late_reductions(const std::set<Value>& inputs, const std::set<Value>& computed, Set next) {
    const auto made_of = [&](const std::set<Value>& from, bool in_kernel) {
      std::set<Value> all = from, fresh;
      for (const Node& node : program_.nodes()) {
        if (in_kernel && !computed.contains(node.results[0])) continue;
        const auto is_fresh = [&](Value v) {
          return in_kernel && fresh.contains(v);
        };
        if (node.op == Op::product || std::ranges::any_of(node.args, is_fresh)) {
          if (in_kernel) fresh.insert(node.results.begin(), node.results.end());
          continue;
        }
        if (is_reduction(node.op)) continue;
        const auto is_in = [&](Value v) {
          return all.contains(v);
        };
        if (std::ranges::any_of(node.args, is_in)) {
          all.insert(node.results.begin(), node.results.end());
        }
      }
      return all;
    };
    std::set<Value> rounded;
    for (const Value v : inputs) {
      if (rounds(v)) rounded.insert(v);
    }
    const std::set<Value> tainted = made_of(rounded, true);
    int count = 0;
    for (std::size_t t = 0; t < things_.size(); ++t) {
      const Value v = things_[t].value;
      if (((next >> t) & 1) == 0 || program_.is_param(v) || rounds(v) || !tainted.contains(v)) {
        continue;
      }
      if (!things_[t].result && is_result(v)) continue;
      const std::set<Value> after = made_of({v}, false);
      for (const Node& node : program_.nodes()) {
        const bool reads =
            std::ranges::any_of(node.args, [&](Value arg) { return after.contains(arg); });
        count += is_reduction(node.op) && reads && !computed.contains(node.results[0]) ? 1 : 0;
      }
    }
    return count;
  }

  const Program& program_;
  std::vector<DType> dtypes_;
  std::vector<Thing> things_;
  std::map<Set, double> known_;
  std::map<std::string, double> kernels_;
};

// The program with the sums of `divided` finished from block sums.
Program with_divided(const Program& program, std::uint32_t divided) {
  Builder builder(program.name(), Program::Kind::block);
  std::map<Value, Value> now;
  for (std::size_t p = 0; p < program.params().size(); ++p) {
    now[{static_cast<std::int32_t>(p)}] =
        builder.param(program.params()[p].name, program.params()[p].type);
  }
  for (std::size_t n = 0; n < program.nodes().size(); ++n) {
    const Node& node = program.nodes()[n];
    std::vector<Value> args;
    for (const Value v : node.args) args.push_back(now.at(v));
    Attr attr = node.attr;
    if (((divided >> n) & 1) != 0) {
      const Op op = node.op == Op::sum ? Op::block_sum : Op::block_logsumexp;
      args = {builder.op(op, args, {.axis = attr.axis})};
      attr.axis = dim_of(Factor::blocks(attr.axis, kBlock));
    }
    const std::vector<Value> made = builder.ops(node.op, args, attr);
    for (std::size_t i = 0; i < made.size(); ++i) now[node.results[i]] = made[i];
  }
  for (const Result& result : program.results()) {
    builder.result(result.name, result.type, now.at(result.value), result.store);
  }
  return std::move(builder).finish();
}

double optimum(const Program& program, std::size_t most_nodes) {
  std::uint32_t sums = 0;
  for (std::size_t n = 0; n < program.nodes().size(); ++n) {
    const Node& node = program.nodes()[n];
    if (node.op != Op::sum && node.op != Op::logsumexp) continue;
    if (node.attr.axis.text().starts_with("blocks(")) continue;
    const Factor blocks = Factor::blocks(node.attr.axis, kBlock);
    if (!has_factor(program.type(node.args[0]), blocks)) sums |= 1u << n;
  }
  double best = kNever;
  for (std::uint32_t divided = sums;; divided = (divided - 1) & sums) {
    if (program.nodes().size() + static_cast<std::size_t>(std::popcount(divided)) <= most_nodes) {
      const Program variant = with_divided(program, divided);
      best = std::min(best, BruteForce(variant).cheapest());
    }
    if (divided == 0) return best;
  }
}

// Blocks of `least` to `most` nodes, each sum that may be divided counted twice, and no more than
// `stores` values that could be stored.
void expect_optimal(int count, std::uint64_t first, std::size_t least, std::size_t most,
                    std::size_t stores) {
  for (std::uint64_t seed = first; count > 0; ++seed) {
    ASSERT_LT(seed, first + 3000);
    const int nodes = static_cast<int>(least + seed % (most - least + 1));
    const Program program = arrange(simplify(testing::RandomBlock(seed).make(nodes)));
    std::size_t size = program.nodes().size();
    for (const Node& node : program.nodes()) size += is_reduction(node.op) ? 1 : 0;
    if (size < least || size > most || BruteForce(program).size() > stores) continue;
    --count;
    const double best = optimum(program, kExactNodes);
    ASSERT_LT(best, kNever);
    const Partition partition = coda::partition(program, kSizes);
    const double got = partition.seconds, moved = seconds(partition.schedule);
    const double rounded = std::round((got - moved) / kRounded) * kRounded;
    EXPECT_NEAR(got, moved + rounded, 1e-9 * got + 2e-11);
    EXPECT_NEAR(got, best, 1e-9 * best + 2e-11) << "seed " << seed << "\n" << print(program);
    if (::testing::Test::HasFailure()) return;
  }
}

#ifdef __SANITIZE_ADDRESS__  // twenty times slower: a sample will do
constexpr int kShare = 10;
#else
constexpr int kShare = 1;
#endif

TEST(PartitionExact, SmallBlocksAreCutAsCheaplyAsBruteForceFinds) {
  expect_optimal(300 / kShare, 1, 3, 7, 7);
}

TEST(PartitionExact, SoAreSomeOfTenNodes) {
  expect_optimal(20 / kShare, 5000, 9, 10, 9);
}

}  // namespace
}  // namespace coda
