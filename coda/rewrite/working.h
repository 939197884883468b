// coda/rewrite/working.h: the program that a partition cuts, and what crosses between its kernels.
//
// The block's nodes are copied one by one into a working program, where cutting may add nodes of
// its own (a block sum and its finish for a whole sum).
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "coda/program/builder.h"
#include "coda/program/schedule.h"

namespace coda {

// A kernel as it runs: nodes in order, what they read and do not make, what it stores as results of
// the block, and what it stores for other kernels.
struct Part {
  enum class Kind : std::uint8_t { gemm, stream, alone };
  Kind kind = Kind::stream;
  std::vector<int> nodes = {};
  std::vector<Value> reads = {};
  std::vector<Value> results = {};
  std::vector<Value> crossing = {};
};

// Adds to a sorted list what it lacks; whether it lacked it.
template <class T>
bool insert_sorted(std::vector<T>& list, const T& value) {
  const auto place = std::lower_bound(list.begin(), list.end(), value);
  if (place != list.end() && *place == value) return false;
  list.insert(place, value);
  return true;
}
template <class T>
bool in_sorted(const std::vector<T>& list, const T& value) {
  return std::binary_search(list.begin(), list.end(), value);
}

class Working {
 public:
  explicit Working(const Program& block);
  // Its numbers of forms and types are those of `like`.
  Working(const Program& block, const Working& like);

  const Program& block() const { return *block_; }
  const Program& work() const { return builder_.so_far(); }
  const Node& node(int n) const { return work().nodes()[static_cast<std::size_t>(n)]; }

  // Copies a node of the block; its operands have been copied before. Returns the working node.
  int append(int block_node);
  // Adds a node that the block does not have, on behalf of `block_node`.
  int append(int block_node, Op op, std::vector<Value> args, Attr attr);
  // sum(v, N) = sum(block_sum(v, N), blocks(N)), the same for logsumexp: the two nodes instead of
  // working node `n`.
  struct Divided {
    int blocks = -1, whole = -1;
  };
  Divided divide(int n);
  // Not what finishes block sums already. NOTE: not max: its gradient compares the operand with it,
  // which only works if both come from the same rounding.
  static bool is_divisible(const Program& program, const Node& node);
  // From now on the value that working node `now` makes stands for that of `before`, which is gone.
  void substitute(int before, int now);
  // No one will use what working node `n` makes.
  void drop(int n);

  // Whether a result of the block wants `v` accumulated or in another order of dims.
  bool has_converted_results(Value v) const;
  // Those results come from working node `n`, a copy of `v`, instead.
  void redirect_converted_results(Value v, int n);

  // What stands for a value of the block, once its node is appended.
  Value work_value(Value v) const { return work_of_[index(v)]; }
  bool is_result(Value v) const { return !results_of_[index(v)].empty(); }
  // The results of the block that `v` is stored as.
  std::span<const int> results_of(Value v) const { return results_of_[index(v)]; }
  const Result& result(int r) const { return block_->results()[static_cast<std::size_t>(r)]; }
  const std::string& name(Value v) const { return names_[index(v)]; }
  int producer(Value v) const { return work().value(v).node; }
  // The block's node on behalf of which working node `n` is there.
  int origin(int n) const { return origin_[static_cast<std::size_t>(n)]; }
  // The working nodes that read `v`, so far.
  const std::vector<int>& users(Value v) const { return users_[index(v)]; }
  // Uses of `v` by nodes that are still to be appended.
  int pending(Value v) const { return pending_[index(v)]; }

  // What a value is called and stored as between kernels.
  struct Crossing {
    std::string name;
    Type type;
  };
  Crossing crossing(Value v) const;
  // A number for the type of crossing(v): equal numbers, equal types.
  int crossing_type(Value v) const;
  // A number for the op and attributes of a node.
  int form(int n) const { return forms_[static_cast<std::size_t>(n)]; }
  // Numbers for types.
  int number_of(const Type& type) const;

  // The program of a kernel, as a step.
  Step step(const std::string& name, const Part& part) const;
  // An order to run kernels in: each after those that store what it reads; of those that can run
  // the one after which the least is kept for later ones; else as given.
  std::vector<int> run_order(std::span<const Part> parts) const;
  // All kernels in the order given.
  Schedule schedule(std::span<const Part> parts, std::span<const int> order) const;

 private:
  static std::size_t index(Value v) { return static_cast<std::size_t>(v.id); }
  bool converts(int result, Value v) const;
  int number_of(const std::string& text) const;

  const Program* block_;
  Builder builder_;
  std::vector<Value> work_of_;  // of each value of the block
  std::vector<int> origin_;     // of each working node: the block's node
  std::vector<int> forms_;
  std::vector<int> uses_;                        // use_counts of the block
  std::vector<DType> dtypes_;                    // storage_dtypes of the block
  std::vector<std::vector<int>> block_results_;  // of each value of the block: its results
  std::vector<DType> stored_;            // of each working value: its dtype where it crosses
  std::vector<int> pending_;             // of each working value: uses by nodes not appended yet
  std::vector<std::vector<int>> users_;  // of each working value: nodes that read it
  std::vector<std::vector<int>> results_of_;      // of each working value: the block's results
  std::vector<std::vector<Value>> block_values_;  // of each working value: what it stands for
  std::vector<std::string> names_;                // of each working value, where it crosses
  std::set<std::string> taken_;
  std::map<std::string, int> next_name_;     // of a base name: the number to try next
  mutable std::vector<int> crossing_types_;  // -1: not asked for yet
  std::shared_ptr<std::unordered_map<std::string, int>> numbers_;
};

}  // namespace coda
