// coda/rewrite/verdict.h: what check() says of a kernel, asked once for each structure.
//
// Layers of a stack give the same kernels under other names, and a search asks for the same kernel
// again and again. So verdicts are kept by what a kernel is: ops, attributes, wiring, types, what
// is stored; not by what its values are called.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "coda/check/check.h"
#include "coda/rewrite/working.h"

namespace coda {

// A tensor that a kernel reads more than once.
struct Again {
  Value value;
  bool whole_rows = false;  // by each tile of a gemm, to add up whole rows; else by another space
};

class Verdicts {
 public:
  explicit Verdicts(const Working& working)
      : working_(&working), verdicts_(std::make_shared<Known>()) {}
  // Knows, and adds to, what `like` knows; the working program has the same numbers.
  Verdicts(const Working& working, const Verdicts& like)
      : working_(&working), verdicts_(like.verdicts_) {}

  // `part.reads` may be in any order; `part.nodes` must be sorted.
  bool accepts(const Part& part) { return of(part).accepted; }
  // Why not, in the names of this part; nullopt: it is accepted.
  std::optional<std::string> refusal(const Part& part);
  // What an accepted part reads again, once for each time.
  std::vector<Again> again(const Part& part);

  // Nodes that a kernel may have: more make checking slow and gain nothing.
  static constexpr std::size_t kLargest = 256;

 private:
  struct Verdict {
    bool accepted = false;
    std::string message;                      // once somebody asked why not
    std::vector<std::string> names;           // what it calls the values, by local number
    std::vector<std::pair<int, bool>> again;  // values by local number
  };
  struct Hash {
    std::size_t operator()(const std::vector<int>& key) const;
  };

  using Known = std::unordered_map<std::vector<int>, Verdict, Hash>;

  const Verdict& of(const Part& part);
  void make_key(const Part& part);
  bool has_input_operands(const Part& part) const;
  int& local(Value v);
  std::vector<std::string> names(const Part& part);
  std::vector<std::pair<int, bool>> find_again(const Part& part, const Checked& checked);

  const Working* working_;
  std::shared_ptr<Known> verdicts_;
  std::vector<int> key_, locals_, stamps_;  // locals_ of a value counts where its stamp is stamp_
  std::vector<Value> values_;               // by local number
  std::vector<int> result_types_;           // of each result of the block
  int stamp_ = 0;
};

}  // namespace coda
