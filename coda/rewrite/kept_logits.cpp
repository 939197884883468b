// coda/rewrite/kept_logits.cpp: one more statistic of each row, next to
// that of the unrounded logits.
#include "coda/rewrite/kept_logits.h"

#include <algorithm>
#include <map>

#include "coda/program/builder.h"

namespace coda {
namespace {

// What the block's own results are computed of.
std::set<Value> forward_values(const Program& joint, std::size_t results) {
  std::set<Value> values;
  std::vector<Value> todo;
  for (std::size_t i = 0; i < results; ++i) todo.push_back(joint.results()[i].value);
  while (!todo.empty()) {
    const Value v = todo.back();
    todo.pop_back();
    if (joint.is_param(v) || !values.insert(v).second) continue;
    const Node& node = joint.node(v);
    todo.insert(todo.end(), node.args.begin(), node.args.end());
    todo.insert(todo.end(), node.results.begin(), node.results.end());
  }
  return values;
}

bool is_free(const Node& node) {
  return is_map(node.op) || class_of(node.op) == OpClass::layout;
}

// Values that forward keeps in fewer bits than it has, and in which dtype.
std::map<Value, DType> narrowed(const Program& joint, const Training& training) {
  std::map<Value, DType> kept;
  for (const auto& [v, type] : training.kept) {
    if (is_float(type.dtype) && size_of(type.dtype) < size_of(joint.type(v).dtype)) {
      kept.emplace(v, type.dtype);
    }
  }
  return kept;
}

// Whether the backward would compute `v` from one of `kept`.
bool comes_from(const Program& joint, Value v, const std::map<Value, DType>& kept,
                std::set<Value>& seen) {
  if (joint.is_param(v) || !seen.insert(v).second) return false;
  if (kept.contains(v)) return true;
  return is_free(joint.node(v)) && std::ranges::any_of(joint.node(v).args, [&](Value arg) {
           return comes_from(joint, arg, kept, seen);
         });
}

// Logsumexps of such values that the backward reads.
std::set<Value> misfits(const Program& joint, const std::set<Value>& forward,
                        const std::map<Value, DType>& kept) {
  std::set<Value> found;
  for (const Node& node : joint.nodes()) {
    if (forward.contains(node.results[0])) continue;
    for (const Value v : node.args) {
      if (joint.is_param(v) || joint.node(v).op != Op::logsumexp || !forward.contains(v)) continue;
      std::set<Value> seen;
      if (comes_from(joint, joint.node(v).args[0], kept, seen)) found.insert(v);
    }
  }
  return found;
}

}  // namespace

std::optional<Program> with_logsumexps_of_kept(const Program& joint, std::size_t results,
                                               const Training& training) {
  const std::set<Value> forward = forward_values(joint, results);
  const std::map<Value, DType> kept = narrowed(joint, training);
  const std::set<Value> replaced = misfits(joint, forward, kept);
  if (replaced.empty()) return std::nullopt;
  Builder builder(joint.name(), joint.kind());
  builder.comment(joint.comment());
  builder.place(joint.where());
  // As forward computes it; as backward reads it; the gradients.
  Copier own(joint, builder), read(joint, builder), gradients(joint, builder);
  for (std::size_t i = 0; i < joint.params().size(); ++i) {
    const Param& param = joint.params()[i];
    const Value copy = builder.param(param.name, param.type);
    own.map(Value{static_cast<int>(i)}, copy);
    read.map(Value{static_cast<int>(i)}, copy);
    gradients.map(Value{static_cast<int>(i)}, copy);
  }
  for (const Value v : forward) {
    gradients.map(v, own(v));
    const auto narrow = kept.find(v);
    if (narrow != kept.end()) {
      read.map(v, builder.op(Op::pin, {own(v)}, {.dtype = narrow->second}));
    } else if (!is_free(joint.node(v))) {
      read.map(v, own(v));
    }
  }
  for (const Value v : replaced) {
    const Node& node = joint.node(v);
    gradients.map(v, builder.op(Op::logsumexp, {read(node.args[0])}, node.attr));
  }
  for (std::size_t i = 0; i < joint.results().size(); ++i) {
    const Result& result = joint.results()[i];
    Copier& copy = i < results ? own : gradients;
    builder.result(result.name, result.type, copy(result.value), result.store);
  }
  return std::move(builder).finish();
}

}  // namespace coda
