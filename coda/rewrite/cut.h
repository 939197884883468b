// coda/rewrite/cut.h: all kernels of a partition, and changes to them that can be taken back.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <vector>

#include "coda/rewrite/cost.h"
#include "coda/rewrite/ties.h"
#include "coda/rewrite/verdict.h"
#include "coda/rewrite/working.h"

namespace coda {

class Cut {
 public:
  static constexpr int kNone = -1;

  Cut(const Working& working, Verdicts& verdicts, const Costs& costs, std::vector<Part> parts);

  int count() const { return static_cast<int>(kernels_.size()); }
  bool alive(int k) const { return !kernel(k).stores.empty(); }
  const Part& part(int k) const { return kernel(k).part; }
  const std::vector<Value>& stores(int k) const { return kernel(k).stores; }  // sorted
  double cost(int k) const { return kernel(k).cost; }
  // Another number after each change.
  int version(int k) const { return kernel(k).version; }
  // The kernel that stores `v`; kNone for parameters and what is not stored.
  int owner(Value v) const { return owner_[static_cast<std::size_t>(v.id)]; }
  // The kernels that read `v` from where it is stored.
  const std::vector<int>& readers(Value v) const {
    return readers_[static_cast<std::size_t>(v.id)];
  }
  bool is_stored(Value v) const { return working_->work().is_param(v) || owner(v) != kNone; }
  bool contains(int k, int n) const { return in_sorted(part(k).nodes, n); }
  bool runs_after(int a, int b) const;
  // The kernels alive, each after those that store what it reads.
  const std::vector<int>& order() const { return order_; }
  std::size_t position(int k) const { return position_[static_cast<std::size_t>(k)]; }

  // What a kernel becomes: it stores `stores`, and computes what of `nodes` that needs.
  struct Change {
    int kernel = kNone;
    std::vector<int> nodes;  // sorted
    std::vector<Value> stores;
  };
  // Makes the changes if all in all that is cheaper and every kernel is accepted. The caller sees
  // to it that no circle comes of it. What nobody reads any more is dropped. The seconds saved; 0:
  // not made.
  double attempt(std::vector<Change> changes);
  // What attempt() would save; nothing changes.
  double gain(std::vector<Change> changes);

  // The order of kernels, after changes.
  void sort();
  // Those alive, in order.
  std::vector<Part> parts() const;

 private:
  struct Kernel {
    Part part;
    std::vector<Value> stores;
    double cost = 0;
    int version = 1;
  };
  const Kernel& kernel(int k) const { return kernels_[static_cast<std::size_t>(k)]; }
  void set(int k, const std::vector<int>& nodes, std::vector<Value> stores);
  void settle();
  double try_out(std::vector<Change> changes);
  void take_back();
  void touch(int k);
  void own(Value v, int k);
  bool is_needed(Value v) const;
  void precede(int from, int k);
  void update_order();

  const Working* working_;
  Verdicts* verdicts_;
  const Costs* costs_;
  Ties ties_;
  std::vector<Kernel> kernels_;
  std::vector<int> owner_;                          // of each working value
  std::vector<std::vector<int>> readers_;           // of each working value, sorted
  std::vector<std::vector<std::uint64_t>> before_;  // of each kernel: those that run before it
  std::vector<int> order_;
  std::vector<std::size_t> position_;
  std::map<int, Kernel> saved_;  // kernels as they were before the change in progress
  std::vector<int> marks_;       // of each node
  int mark_ = 0;
};

}  // namespace coda
