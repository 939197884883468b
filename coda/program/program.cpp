// coda/program/program.cpp: the vocabulary's tables, equality and hash of Programs, storage dtypes.
#include "coda/program/program.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>

namespace coda {
namespace {

struct OpInfo {
  std::string_view name, spelling;
  OpClass op_class;
  int arity;
};

constexpr auto kOps = std::to_array<OpInfo>({
#define CODA_OP(name, spelling, op_class, arity) {#name, spelling, OpClass::op_class, arity},
#include "coda/program/ops.def"
#undef CODA_OP
});

constexpr auto kAllOps = std::to_array<Op>({
#define CODA_OP(name, spelling, op_class, arity) Op::name,
#include "coda/program/ops.def"
#undef CODA_OP
});

const OpInfo& info(Op op) {
  return kOps[static_cast<std::size_t>(op)];
}

}  // namespace

std::string_view spelling(Op op) {
  return info(op).spelling;
}
std::string_view name_of(Op op) {
  return info(op).name;
}
OpClass class_of(Op op) {
  return info(op).op_class;
}
int arity(Op op) {
  return info(op).arity;
}
std::span<const Op> all_ops() {
  return kAllOps;
}

bool is_map(Op op) {
  switch (class_of(op)) {
    case OpClass::unary:
    case OpClass::binary:
    case OpClass::compare:
    case OpClass::select:
    case OpClass::cast:
      return true;
    case OpClass::leaf:
    case OpClass::product:
    case OpClass::layout:
    case OpClass::reduce:
    case OpClass::block_reduce:
    case OpClass::indexed:
    case OpClass::opaque:
      return false;
  }
  throw InternalError("unknown op class");
}

std::string Type::text() const {
  std::string text(name_of(dtype));
  if (dims.empty()) return text;
  text += "[";
  for (std::size_t i = 0; i < dims.size(); ++i) text += (i == 0 ? "" : ", ") + dims[i].text();
  return text + "]";
}

std::vector<Factor> factors_of(const Type& type) {
  std::vector<Factor> factors;
  for (const Dim& dim : type.dims) {
    factors.insert(factors.end(), dim.factors.begin(), dim.factors.end());
  }
  return factors;
}

bool has_factor(const Type& type, const Factor& factor) {
  return std::ranges::any_of(type.dims, [&](const Dim& dim) {
    return std::ranges::find(dim.factors, factor) != dim.factors.end();
  });
}

int Program::find_param(std::string_view name) const {
  const auto found = std::ranges::find(params_, name, &Param::name);
  return found == params_.end() ? -1 : static_cast<int>(found - params_.begin());
}

int Program::find_result(std::string_view name) const {
  const auto found = std::ranges::find(results_, name, &Result::name);
  return found == results_.end() ? -1 : static_cast<int>(found - results_.begin());
}

namespace {

// Pairs the nodes of two programs from the results down; each node has one partner.
class Matcher {
 public:
  Matcher(const Program& a, const Program& b)
      : a_(a), b_(b), to_b_(a.values().size(), -1), to_a_(b.values().size(), -1) {}

  bool same(Value a, Value b) {
    std::vector<std::pair<Value, Value>> open = {{a, b}};  // a stack of ours: programs are deep
    while (!open.empty()) {
      const auto [x, y] = open.back();
      open.pop_back();
      if (!pair(x, y, open)) return false;
    }
    return true;
  }

 private:
  // A constant, a size and an index are the same value wherever and however often they are made.
  static bool is_leaf(const Program& program, Value v) {
    return !program.is_param(v) && program.node(v).args.empty();
  }
  static bool same_leaf(const Node& x, const Node& y) { return x.op == y.op && x.attr == y.attr; }

  // Whether a and b may be partners, if the operands that it adds to `open` are.
  bool pair(Value a, Value b, std::vector<std::pair<Value, Value>>& open) {
    if (is_leaf(a_, a) && is_leaf(b_, b)) return same_leaf(a_.node(a), b_.node(b));
    std::int32_t& partner = to_b_[static_cast<std::size_t>(a.id)];
    std::int32_t& back = to_a_[static_cast<std::size_t>(b.id)];
    if (partner >= 0 || back >= 0) return partner == b.id && back == a.id;
    partner = b.id;
    back = a.id;
    if (a_.type(a) != b_.type(b) || a_.is_param(a) != b_.is_param(b)) return false;
    if (a_.is_param(a)) return a == b;
    if (a_.value(a).slot != b_.value(b).slot) return false;
    const Node &x = a_.node(a), &y = b_.node(b);
    if (x.op != y.op || !(x.attr == y.attr) || x.args.size() != y.args.size()) return false;
    for (std::size_t i = 0; i < x.args.size(); ++i) open.push_back({x.args[i], y.args[i]});
    return true;
  }

  const Program &a_, &b_;
  std::vector<std::int32_t> to_b_, to_a_;
};

}  // namespace

bool Program::operator==(const Program& other) const {
  const auto same_param = [](const Param& a, const Param& b) {
    return a.name == b.name && a.type == b.type;
  };
  const auto same_result = [](const Result& a, const Result& b) {
    return a.name == b.name && a.type == b.type && a.store == b.store;
  };
  if (name_ != other.name_ || kind_ != other.kind_ ||
      !std::ranges::equal(params_, other.params_, same_param) ||
      !std::ranges::equal(results_, other.results_, same_result)) {
    return false;
  }
  Matcher matcher(*this, other);
  for (std::size_t i = 0; i < results_.size(); ++i) {
    if (!matcher.same(results_[i].value, other.results_[i].value)) return false;
  }
  return true;
}

std::size_t Program::hash() const {
  const auto mix = [](std::size_t& seed, std::size_t value) {
    seed ^= value + 0x9e3779b97f4a7c15u + (seed << 6) + (seed >> 2);
  };
  const auto text = [](const std::string& s) {
    return std::hash<std::string>{}(s);
  };
  std::vector<std::size_t> hashes(values_.size());
  for (std::size_t v = 0; v < values_.size(); ++v) {
    std::size_t& hash = hashes[v];
    if (v < params_.size()) {
      hash = text(params_[v].name);
    } else {
      const Node& node = nodes_[static_cast<std::size_t>(values_[v].node)];
      mix(hash, static_cast<std::size_t>(node.op));
      mix(hash, static_cast<std::size_t>(values_[v].slot));
      mix(hash, std::hash<double>{}(node.attr.number));
      mix(hash, text(node.attr.axis.text()));
      for (const Value arg : node.args) mix(hash, hashes[static_cast<std::size_t>(arg.id)]);
    }
    mix(hash, text(values_[v].type.text()));
  }
  std::size_t hash = text(name_);
  for (const Result& result : results_) {
    mix(hash, text(result.name + result.type.text()));
    mix(hash, hashes[static_cast<std::size_t>(result.value.id)]);
  }
  return hash;
}

std::vector<int> use_counts(const Program& program) {
  std::vector<int> counts(program.values().size());
  for (const Node& node : program.nodes()) {
    for (const Value arg : node.args) ++counts[static_cast<std::size_t>(arg.id)];
  }
  for (const Result& result : program.results()) {
    ++counts[static_cast<std::size_t>(result.value.id)];
  }
  return counts;
}

namespace {

// The dtype that a library would give an op on tensors stored in these dtypes.
DType promote_storage(DType a, DType b) {
  const auto wide = [](DType d) {
    return d == DType::f8e4m3 || d == DType::f8e5m2 ? DType::bf16 : d;
  };
  a = wide(a);
  b = wide(b);
  if (a == b) return a;
  if (a == DType::f64 || b == DType::f64) return DType::f64;
  if (!is_float(a)) return b;
  if (!is_float(b)) return a;
  return DType::f32;
}

}  // namespace

std::vector<DType> storage_dtypes(const Program& program) {
  std::vector<DType> dtypes(program.values().size());
  const auto of = [&](Value v) -> DType& {
    return dtypes[static_cast<std::size_t>(v.id)];
  };
  for (std::size_t p = 0; p < program.params().size(); ++p) {
    dtypes[p] = program.params()[p].type.dtype;
  }
  // Among the float operands that have all of the result's dimensions; failing these, among all.
  const auto promoted = [&](const Node& node, Value result) {
    const std::size_t full = factors_of(program.type(result)).size();
    for (const bool full_only : {true, false}) {
      std::optional<DType> dtype;
      for (const Value arg : node.args) {
        const Type& type = program.type(arg);
        const bool counts = !full_only || (full > 0 && factors_of(type).size() == full);
        if (!is_float(type.dtype) || !counts) continue;
        dtype = dtype ? promote_storage(*dtype, of(arg)) : promote_storage(of(arg), of(arg));
      }
      if (dtype) return *dtype;
    }
    return DType::f32;
  };
  for (const Node& node : program.nodes()) {
    for (const Value result : node.results) {
      const DType typed = program.type(result).dtype;
      DType dtype = typed;
      switch (class_of(node.op)) {
        case OpClass::leaf:
        case OpClass::compare:
        case OpClass::cast:
        case OpClass::reduce:
        case OpClass::block_reduce:
          break;
        case OpClass::product:
        case OpClass::unary:
        case OpClass::binary:
        case OpClass::select:
        case OpClass::layout:
          if (is_float(typed) && typed != DType::f64) dtype = promoted(node, result);
          break;
        case OpClass::indexed:
          if (node.op != Op::pick && is_float(typed) && typed != DType::f64) {
            dtype = of(node.args[0]);
          } else if (node.op == Op::pick && is_float(typed) && typed != DType::f64) {
            dtype = DType::f32;
          }
          break;
        case OpClass::opaque: {
          // Results have the dtype of q, k, v in turn; attention's second is a statistic.
          const bool grad = node.op == Op::attention_grad;
          const auto slot = static_cast<std::size_t>(program.value(result).slot);
          if (grad || slot == 0) dtype = of(node.args[grad ? slot + 1 : 0]);
          break;
        }
      }
      of(result) = dtype;
    }
  }
  // What only reductions read is their own work: no library stores it in between.
  std::vector<char> only_reduced(dtypes.size(), 1);
  for (const Node& node : program.nodes()) {
    const OpClass op_class = class_of(node.op);
    if (op_class == OpClass::reduce || op_class == OpClass::block_reduce) continue;
    for (const Value arg : node.args) only_reduced[static_cast<std::size_t>(arg.id)] = 0;
  }
  for (const Result& result : program.results()) {
    only_reduced[static_cast<std::size_t>(result.value.id)] = 0;
  }
  for (const Node& node : program.nodes()) {
    if (!is_map(node.op) || class_of(node.op) == OpClass::cast) continue;
    const Value v = node.results[0];
    if (only_reduced[static_cast<std::size_t>(v.id)] != 0) of(v) = program.type(v).dtype;
  }
  return dtypes;
}

DType storage_dtype(const Program& program, Value v) {
  return storage_dtypes(program)[static_cast<std::size_t>(v.id)];
}

std::string describe(const Program& program, Value v) {
  const ValueInfo& value = program.value(v);
  if (program.is_param(v)) return program.params()[static_cast<std::size_t>(v.id)].name;
  if (!value.name.empty()) return value.name;
  const Node& node = program.node(v);
  if (node.op == Op::constant) return "the constant";
  if (node.op == Op::cast) return std::string(name_of(node.attr.dtype)) + "(…)";
  if (node.op == Op::gather) return "the gather";
  return "the result of `" + std::string(spelling(node.op)) + "`";
}

}  // namespace coda
