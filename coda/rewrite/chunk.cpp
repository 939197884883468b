// coda/rewrite/chunk.cpp: what has the dimension is the body; sums along it are accumulated.
#include "coda/rewrite/chunk.h"

#include <algorithm>
#include <map>
#include <set>

#include "coda/program/builder.h"

namespace coda {
namespace {

std::size_t at(Value v) {
  return static_cast<std::size_t>(v.id);
}

bool mentions(const Dim& dim, const std::string& name) {
  std::set<std::string> names;
  collect_names(dim, names);
  return names.contains(name);
}
bool mentions(const Type& type, const std::string& name) {
  return std::ranges::any_of(type.dims, [&](const Dim& dim) { return mentions(dim, name); });
}
// Has the dimension, and as its whole first one.
bool leads(const Type& type, const std::string& name) {
  if (type.dims.empty() || type.dims[0] != dim_of(name)) return false;
  return std::none_of(type.dims.begin() + 1, type.dims.end(),
                      [&](const Dim& dim) { return mentions(dim, name); });
}

enum class Part : std::uint8_t { before, body, after };

class Cutter {
 public:
  Cutter(const Program& block, std::string dim)
      : block_(block), dim_(std::move(dim)), part_(block.values().size(), Part::before) {}

  std::optional<Chunked> run(std::string& why) {
    if (!place(why)) return std::nullopt;
    for (const Param& param : block_.params()) taken_.insert(param.name);
    for (const Result& result : block_.results()) taken_.insert(result.name);
    name_crossings();
    Chunked chunked;
    chunked.dim = dim_;
    const auto counts = [&](const Node& node) {
      return node.op == Op::index && node.attr.axis == dim_of(dim_);
    };
    if (std::ranges::any_of(block_.nodes(), counts)) chunked.first = fresh(dim_ + "_first");
    chunked.before = outside(Part::before, "_before");
    chunked.body = body(chunked.first);
    chunked.after = outside(Part::after, "_after");
    return chunked;
  }

 private:
  const Node& node(Value v) const { return block_.node(v); }

  // Whether the node reduces along the dimension: its result lacks it, an operand has it.
  bool sums(const Node& node) const {
    return !mentions(block_.type(node.results[0]), dim_) &&
           std::ranges::any_of(node.args, [&](Value v) { return mentions(block_.type(v), dim_); });
  }

  bool place(std::string& why) {
    for (const Param& param : block_.params()) {
      if (mentions(param.type, dim_) && !leads(param.type, dim_)) {
        why = "`" + param.name + "` is " + param.type.text() + ": chunks are rows";
        return false;
      }
    }
    for (const Node& node : block_.nodes()) {
      bool whole = false, after = false;
      for (const Value v : node.args) {
        whole = whole || mentions(block_.type(v), dim_);
        after = after || part_[at(v)] == Part::after;
      }
      for (const Value v : node.results) whole = whole || mentions(block_.type(v), dim_);
      Part part = after ? Part::after : Part::before;
      const bool outside = node.op == Op::size || (node.op == Op::scatter_sum &&
                                                   std::ranges::none_of(node.args, [&](Value v) {
                                                     return mentions(block_.type(v), dim_);
                                                   }));
      if (whole && !outside) {
        if (after) {
          why = "`" + describe(block_, node.results[0]) + "` needs what all chunks together give";
          return false;
        }
        part = Part::body;
        if (sums(node)) {
          const bool linear = node.op == Op::product || node.op == Op::sum;
          if (!linear || node.attr.axis != dim_of(dim_)) {
            why = "`" + describe(block_, node.results[0]) + "` is no sum over chunks";
            return false;
          }
          accumulated_.insert(node.results[0]);
        } else if (class_of(node.op) == OpClass::layout ||
                   class_of(node.op) == OpClass::block_reduce ||
                   class_of(node.op) == OpClass::opaque || class_of(node.op) == OpClass::indexed ||
                   node.op == Op::uniform) {
          why = "`" + describe(block_, node.results[0]) + "` looks past its chunk";
          return false;
        }
      }
      for (const Value v : node.results) {
        part_[at(v)] = accumulated_.contains(v) ? Part::after : part;
      }
    }
    for (const Result& result : block_.results()) {
      if (mentions(result.type, dim_) && !leads(result.type, dim_)) {
        why = "the result `" + result.name + "` is " + result.type.text() + ": chunks are rows";
        return false;
      }
    }
    return !accumulated_.empty();
  }

  std::string fresh(const std::string& base) {
    std::string name = base;
    for (int k = 1; !taken_.insert(name).second; ++k) name = base + "_" + std::to_string(k);
    return name;
  }

  // Where a value is computed: the body makes what it accumulates.
  Part made_in(Value v) const { return accumulated_.contains(v) ? Part::body : part_[at(v)]; }
  // Whoever needs it computes it: leaves, and maps of one number a row.
  bool is_free(Value v) const {
    if (block_.is_param(v) || accumulated_.contains(v)) return false;
    const Node& made = node(v);
    if (mentions(made.attr.axis, dim_)) return false;  // in the body, size is that of the chunk
    if (class_of(made.op) == OpClass::leaf) return true;
    if (!is_map(made.op) || block_.type(v).dims.size() > 1) return false;
    if (mentions(block_.type(v), dim_)) return false;
    return std::ranges::all_of(made.args,
                               [&](Value arg) { return block_.is_param(arg) || is_free(arg); });
  }

  // Values that a later part reads, with the tensors that carry them.
  void name_crossings() {
    const std::vector<DType> stored = storage_dtypes(block_);
    const auto cross = [&](Value v) {
      if (block_.is_param(v) || is_free(v) || crossings_.contains(v)) return;
      const std::string& name = block_.value(v).name;
      const bool sum = accumulated_.contains(v);
      crossings_[v] = {fresh(name.empty() ? std::string(name_of(node(v).op)) : name),
                       {sum ? DType::f32 : stored[at(v)], block_.type(v).dims}};
      if (sum && block_.type(v).dtype == DType::f64) crossings_[v].type.dtype = DType::f64;
    };
    for (const Node& each : block_.nodes()) {
      const Part here = made_in(each.results[0]);
      for (const Value v : each.args) {
        if (made_in(v) != here) cross(v);
      }
    }
    for (const Result& result : block_.results()) {
      if (accumulated_.contains(result.value)) cross(result.value);
    }
  }

  // Copies with what other parts make as parameters.
  void parameters(Part part, Builder& builder, Copier& copy,
                  const std::vector<Value>& wanted) const {
    std::set<Value> seen;
    std::vector<Value> todo = wanted;
    while (!todo.empty()) {
      const Value v = todo.back();
      todo.pop_back();
      if (!seen.insert(v).second) continue;
      if (block_.is_param(v) || (made_in(v) != part && !is_free(v))) continue;
      if (part == Part::after && accumulated_.contains(v)) continue;
      const std::vector<Value>& args = node(v).args;
      todo.insert(todo.end(), args.begin(), args.end());
    }
    for (const Value v : seen) {
      if (block_.is_param(v)) {
        const Param& param = block_.params()[at(v)];
        copy.map(v, builder.param(param.name, param.type));
      } else if (made_in(v) != part && !is_free(v)) {
        const Param& crossing = crossings_.at(v);
        copy.map(v, builder.param(crossing.name, crossing.type));
      }
    }
  }

  Program outside(Part part, const std::string& suffix) const {
    Builder builder(block_.name() + suffix, Program::Kind::block);
    builder.place(block_.where());
    Copier copy(block_, builder);
    std::vector<const Result*> results;
    std::vector<Value> wanted;
    for (const Result& result : block_.results()) {
      const bool ours = part == Part::after ? part_[at(result.value)] == Part::after
                                            : part_[at(result.value)] == Part::before;
      if (!ours) continue;
      results.push_back(&result);
      wanted.push_back(result.value);
    }
    std::vector<Value> crossing;
    for (const auto& [v, tensor] : crossings_) {
      if (made_in(v) != part) continue;
      crossing.push_back(v);
      wanted.push_back(v);
    }
    if (wanted.empty()) return Program();
    parameters(part, builder, copy, wanted);
    for (const Result* result : results) {
      builder.result(result->name, result->type, copy(result->value), result->store);
    }
    for (const Value v : crossing) {
      const Param& tensor = crossings_.at(v);
      builder.result(tensor.name, tensor.type, copy(v));
    }
    return std::move(builder).finish();
  }

  Program body(const std::string& first) const {
    Builder builder(block_.name() + "_chunk", Program::Kind::block);
    builder.place(block_.where());
    Copier copy(block_, builder);
    std::vector<Value> wanted;
    for (const Result& result : block_.results()) {
      if (part_[at(result.value)] == Part::body) wanted.push_back(result.value);
    }
    for (const Value v : accumulated_) {
      if (crossings_.contains(v)) wanted.push_back(v);
    }
    parameters(Part::body, builder, copy, wanted);
    Value start;
    if (!first.empty()) start = builder.param(first, {DType::i64, {}});
    for (const Node& each : block_.nodes()) {  // positions count from the chunk's first
      if (each.op != Op::index || each.attr.axis != dim_of(dim_)) continue;
      const Value local = builder.op(Op::index, {}, each.attr);
      copy.map(each.results[0], builder.op(Op::add, {local, start}));
    }
    for (const Result& result : block_.results()) {
      if (part_[at(result.value)] != Part::body) continue;
      builder.result(result.name, result.type, copy(result.value), result.store);
    }
    for (const Value v : accumulated_) {
      if (!crossings_.contains(v)) continue;
      const Param& tensor = crossings_.at(v);
      builder.result(tensor.name, tensor.type, copy(v), Store::accumulate);
    }
    return std::move(builder).finish();
  }

  const Program& block_;
  const std::string dim_;
  std::vector<Part> part_;  // of each value; what is accumulated counts as after
  std::set<Value> accumulated_;
  std::map<Value, Param> crossings_;
  std::set<std::string> taken_;
};

}  // namespace

std::optional<Chunked> chunk(const Program& block, const std::string& dim, std::string& why) {
  return Cutter(block, dim).run(why);
}

}  // namespace coda
