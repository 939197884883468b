// coda/rewrite/ties.cpp: finds maxima whose operand is rounded where it crosses, and their ==.
#include "coda/rewrite/ties.h"

#include <algorithm>

namespace coda {

Ties::Ties(const Working& working) {
  for (std::size_t n = 0; n < working.work().nodes().size(); ++n) {
    const Node& node = working.node(static_cast<int>(n));
    if (node.op != Op::reduce_max && node.op != Op::block_max) continue;
    const Value v = node.args[0];
    const DType stored = working.crossing(v).type.dtype;
    if (working.work().is_param(v) || size_of(stored) >= size_of(working.work().type(v).dtype)) {
      continue;
    }
    Tie tie{.elements = working.producer(v), .maximum = static_cast<int>(n), .compared = {}};
    for (const int user : working.users(v)) {
      if (working.node(user).op != Op::eq) continue;
      const auto is_maximum = [&](Value arg) {
        while (!working.work().is_param(arg) &&
               class_of(working.work().node(arg).op) == OpClass::layout) {
          arg = working.work().node(arg).args[0];
        }
        return arg == node.results[0];
      };
      if (std::ranges::any_of(working.node(user).args, is_maximum)) tie.compared.push_back(user);
    }
    if (!tie.compared.empty()) ties_.push_back(std::move(tie));
  }
}

bool Ties::allow(const std::vector<int>& nodes) const {
  return std::ranges::all_of(ties_, [&](const Tie& tie) {
    if (!in_sorted(nodes, tie.elements)) return true;
    const auto has = [&](int n) {
      return in_sorted(nodes, n);
    };
    return has(tie.maximum) ? std::ranges::all_of(tie.compared, has)
                            : std::ranges::none_of(tie.compared, has);
  });
}

}  // namespace coda
