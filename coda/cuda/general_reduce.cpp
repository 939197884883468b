// coda/cuda/general_reduce.cpp: reductions, and what else reads other elements.
#include <set>

#include "coda/cuda/general_phases.h"

namespace coda::cuda {

// In the order of the program, those that the results need.
void GeneralPlanner::reductions() {
  std::set<std::int32_t> needed;
  std::vector<Value> todo;
  for (const Result& result : program_.results()) todo.push_back(representative(result.value));
  while (!todo.empty()) {
    const Value value = todo.back();
    todo.pop_back();
    if (!needed.insert(value.id).second || program_.is_param(value) || kept_.contains(value.id)) {
      continue;
    }
    for (const Value arg : program_.node(value).args) todo.push_back(representative(arg));
  }
  for (const Node& node : program_.nodes()) {
    const Value value = node.results[0];
    if (!needed.contains(value.id)) continue;
    const OpClass own = class_of(node.op);
    if (own == OpClass::reduce || own == OpClass::block_reduce) reduce(value);
    if (node.op == Op::pick) materialise(value);
  }
}

void GeneralPlanner::reduce(Value value) {
  materialise(value);
}

}  // namespace coda::cuda
