// coda/rewrite/kernels.h: the kernels of a partition while it grows.
//
// The block's nodes are copied one by one into a working program, where cutting may add nodes of
// its own (a block sum and its finish for a whole sum). A kernel is a set of working nodes. A value
// has at most one owner, the kernel that stores it where others read it; a value without an owner
// is lazy: whoever needs it computes it again from parameters and owned values.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coda/program/builder.h"
#include "coda/program/schedule.h"

namespace coda {

class Kernels {
 public:
  using Values = std::vector<Value>;
  enum class Kind : std::uint8_t { gemm, stream, alone };
  static constexpr int kNone = -1;  // no kernel; the one that would be new

  explicit Kernels(const Program& block);

  const Program& block() const { return *block_; }
  const Program& work() const { return builder_.so_far(); }
  const Node& node(int n) const { return work().nodes()[static_cast<std::size_t>(n)]; }
  int count() const { return static_cast<int>(kernels_.size()); }
  const std::set<int>& nodes(int k) const { return kernel(k).nodes; }
  Kind kind(int k) const { return kernel(k).kind; }

  // Copies a node of the block; its operands have been copied before. Returns the working node.
  int append(int block_node);
  // Adds a node that the block does not have, on behalf of `block_node`.
  int append(int block_node, Op op, std::vector<Value> args, Attr attr);
  // From now on the value that working node `now` makes stands for that of `before`, which is gone.
  void substitute(int before, int now);
  // No one will use what working node `n` makes.
  void drop(int n);

  // Whether a result of the block wants `v` accumulated or in another order of dims.
  bool has_converted_results(Value v) const;
  // Those results come from working node `n`, a copy of `v`, instead.
  void redirect_converted_results(Value v, int n);

  // What stands for a value of the block, once its node is appended.
  Value work_value(Value v) const { return work_of_[static_cast<std::size_t>(v.id)]; }
  bool is_result(Value v) const { return !results_of_[static_cast<std::size_t>(v.id)].empty(); }
  const std::string& name(Value v) const { return names_[static_cast<std::size_t>(v.id)]; }

  // The block's node on behalf of which working node `n` is there.
  int origin(int n) const { return origin_[static_cast<std::size_t>(n)]; }

  // The kernel that stores `v`; kNone where it is lazy or a parameter.
  int owner(Value v) const { return owner_[static_cast<std::size_t>(v.id)]; }
  bool is_lazy(Value v) const { return !work().is_param(v) && owner(v) == kNone; }
  int producer(Value v) const { return work().value(v).node; }
  bool contains(int k, int n) const { return nodes(k).contains(n); }
  // Values that `nodes` read and do not make.
  std::set<Value> inputs(const std::set<int>& nodes) const;
  // Whether kernel `a` must run after kernel `b`.
  bool runs_after(int a, int b) const;

  // What a kernel is asked to take. It stores what it owns as soon as a node outside of it reads
  // that, or is still to come; what it is asked to store, in any case.
  struct Addition {
    std::set<int> nodes = {};
    Values owned = {};
    Values stored = {};            // owned, too
    std::set<Value> assumed = {};  // read, and still to be stored by some earlier kernel
  };
  // Why kernel `k` (kNone: a new one) cannot take that; nullopt: it can.
  std::optional<std::string> refusal(int k, const Addition& addition) const;
  void add(int k, const Addition& addition);
  void start(Kind kind, const Addition& addition);  // a new kernel, with the next number

  // The cut that this amounts to.
  Schedule schedule() const;
  // For each node of the block the first step of schedule() that computes it; -1: none does.
  std::vector<int> steps_of_nodes() const;
  // For each kernel its step; -1: nobody needs what it stores.
  std::vector<int> steps_of_kernels() const;

  // A stand-in for bytes before sizes are known: every name counts as 1024.
  double weight(Value v) const;

 private:
  struct Kernel {
    Kind kind = Kind::stream;
    std::set<int> nodes;
  };
  // What a value is called and stored as between kernels.
  struct Crossing {
    std::string name;
    Type type;
  };
  // A kernel as it will run: what it computes for others, and its place.
  struct Part {
    int kernel = kNone;
    std::set<int> nodes;
    Values results;   // stored as results of the block
    Values crossing;  // stored for later kernels
  };

  bool converts(int result, Value v) const;
  const Kernel& kernel(int k) const { return kernels_[static_cast<std::size_t>(k)]; }
  Crossing crossing(Value v) const;
  bool must_store(Value v, const std::set<int>& nodes) const;
  Step step(const std::string& name, const std::set<Value>& inputs, const Values& results,
            const Values& crossing) const;
  std::set<int> live(int k, const Values& results, const Values& crossing) const;
  std::vector<Part> parts() const;

  const Program* block_;
  Builder builder_;
  std::vector<Kernel> kernels_;
  std::vector<Value> work_of_;           // of each value of the block
  std::vector<int> origin_;              // of each working node: the block's node
  std::vector<int> uses_;                // use_counts of the block
  std::vector<DType> dtypes_;            // storage_dtypes of the block
  std::vector<DType> stored_;            // of each working value: its dtype where it crosses
  std::vector<int> owner_;               // of each working value
  std::vector<int> pending_;             // of each working value: uses by nodes not appended yet
  std::vector<std::vector<int>> users_;  // of each working value: nodes that read it
  std::vector<std::vector<int>> results_of_;  // of each working value: the block's results
  std::vector<std::string> names_;            // of each working value, where it crosses
  std::set<Value> asked_;                     // values that a kernel was asked to store
  std::set<std::string> taken_;
};

}  // namespace coda
