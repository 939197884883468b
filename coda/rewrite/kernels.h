// coda/rewrite/kernels.h: the kernels of a partition while it grows.
//
// A kernel is a set of working nodes. A value has at most one owner, the kernel that stores it
// where others read it; a value without an owner is lazy: whoever needs it computes it again from
// parameters and owned values. What a kernel reads, who reads a value and which kernels run before
// another are kept up to date, so that nothing walks the graph.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coda/rewrite/verdict.h"
#include "coda/rewrite/working.h"

namespace coda {

class Kernels : public Working {
 public:
  using Kind = Part::Kind;
  static constexpr int kNone = -1;  // no kernel; the one that would be new

  explicit Kernels(const Program& block) : Working(block), verdicts_(*this) {}

  int count() const { return static_cast<int>(kernels_.size()); }
  const std::vector<int>& nodes(int k) const { return kernel(k).nodes; }    // sorted
  const std::vector<Value>& reads(int k) const { return kernel(k).reads; }  // sorted
  Kind kind(int k) const { return kernel(k).kind; }
  bool contains(int k, int n) const { return in_sorted(nodes(k), n); }
  // The kernels that compute working node `n`, that read `v` without computing it.
  const std::vector<int>& holders(int n) const { return at(holders_, n); }
  const std::vector<int>& readers(Value v) const { return at(readers_, v.id); }

  // The kernel that stores `v`; kNone where it is lazy or a parameter.
  int owner(Value v) const {
    const auto i = static_cast<std::size_t>(v.id);
    return i < owner_.size() ? owner_[i] : kNone;
  }
  bool is_lazy(Value v) const { return !work().is_param(v) && owner(v) == kNone; }
  // Values that `nodes` read and do not make.
  std::set<Value> inputs(const std::set<int>& nodes) const;
  // Whether kernel `a` must run after kernel `b`.
  bool runs_after(int a, int b) const;

  // What a kernel is asked to take. It stores what it owns as soon as a node outside of it reads
  // that, or is still to come; what it is asked to store, in any case.
  struct Addition {
    std::set<int> nodes = {};
    std::vector<Value> owned = {};
    std::vector<Value> stored = {};  // owned, too
    std::set<Value> assumed = {};    // read, and still to be stored by some earlier kernel
  };
  bool refuses(int k, const Addition& addition);
  // Why kernel `k` (kNone: a new one) cannot take that; nullopt: it can.
  std::optional<std::string> refusal(int k, const Addition& addition);
  void add(int k, const Addition& addition);
  void start(Kind kind, const Addition& addition);  // a new kernel, with the next number

  // The kernels as they will run: what nobody needs is not stored, and what only that needed is not
  // computed. `kernels` is set to their numbers.
  std::vector<Part> parts(std::vector<int>& kernels) const;

  // A stand-in for bytes before sizes are known.
  double weight(Value v) const;

  Verdicts& verdicts() { return verdicts_; }

 private:
  struct Kernel {
    Kind kind = Kind::stream;
    std::vector<int> nodes;
    std::vector<Value> reads;
    std::vector<std::uint64_t> before;  // kernels that run before it, a bit each
  };

  template <class T, class I>
  static T& at(std::vector<T>& list, I index) {  // grows with the working program
    if (static_cast<std::size_t>(index) >= list.size()) {
      list.resize(static_cast<std::size_t>(index) + 1);
    }
    return list[static_cast<std::size_t>(index)];
  }
  template <class T, class I>
  static const T& at(const std::vector<T>& list, I index) {
    static const T none{};
    return static_cast<std::size_t>(index) < list.size() ? list[static_cast<std::size_t>(index)]
                                                         : none;
  }
  const Kernel& kernel(int k) const { return kernels_[static_cast<std::size_t>(k)]; }
  // The candidate that `addition` would make of `k`; a reason where its order would be wrong.
  std::optional<std::string> candidate(int k, const Addition& addition, Part& part) const;
  bool must_store(Value v, const std::vector<int>& nodes) const;
  void own(Value v, int k);
  void order(int k, int before);

  Verdicts verdicts_;
  std::vector<Kernel> kernels_;
  std::vector<int> owner_;                 // of each working value
  std::vector<std::vector<int>> holders_;  // of each working node
  std::vector<std::vector<int>> readers_;  // of each working value
  std::set<Value> asked_;                  // values that a kernel was asked to store
};

}  // namespace coda
