// coda/reference/draw.cpp: random inputs that make sense to a program.
//
// What a parameter may hold is read off the program itself: what it indexes, whether a root is
// taken of it, whether it is a product's right operand (a weight, scaled so that products stay
// O(1)), whether an exponential grows from it.
#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <utility>

#include "coda/check/bind.h"
#include "coda/program/builder.h"
#include "coda/reference/reference.h"
#include "coda/reference/verify.h"

namespace coda {
namespace {

struct Hint {
  bool positive = false;
  bool weight = false;  // without outliers
  bool steady = false;  // an exponential is taken of it: never huge
  double scale = 1;
  std::int64_t indexes = -1;  // the extent that it indexes; -1: not known
};

class Hints {
 public:
  Hints(const Program& program, const Sizes& sizes)
      : program_(program), hints_(program.params().size()) {
    for (const Node& node : program.nodes()) {
      const auto extent = [&](const Dim& dim) {
        return require_extent(dim, sizes);
      };
      const auto axis_of_index = [&](Value v) -> const Dim* {
        const bool is_index = !program.is_param(v) && program.node(v).op == Op::index;
        return is_index ? &program.node(v).attr.axis : nullptr;
      };
      if (node.op == Op::sqrt || node.op == Op::rsqrt || node.op == Op::log) {
        seen_.assign(program.values().size(), 0);
        mark_positive(node.args[0]);
      } else if (node.op == Op::gather) {
        mark_indexes(node.args[1], extent(program.type(node.args[0]).dims[0]));
      } else if (node.op == Op::pick || node.op == Op::scatter_sum) {
        mark_indexes(node.args[1], extent(node.attr.axis));
      } else if (class_of(node.op) == OpClass::compare) {
        if (const Dim* axis = axis_of_index(node.args[0]))
          mark_indexes(node.args[1], extent(*axis));
        if (const Dim* axis = axis_of_index(node.args[1]))
          mark_indexes(node.args[0], extent(*axis));
      } else if (node.op == Op::product) {
        mark_weight(node.args[1], extent(node.attr.axis));
      } else if (node.op == Op::exp) {
        seen_.assign(program.values().size(), 0);
        mark_steady(node.args[0]);
      } else if (class_of(node.op) == OpClass::opaque) {
        const std::size_t q = node.op == Op::attention_grad ? 1 : 0;
        seen_.assign(program.values().size(), 0);
        mark_steady(node.args[q]);
        mark_steady(node.args[q + 1]);
        mark_weight(node.args[q + 1], 1);
      }
    }
  }
  const Hint& operator[](std::size_t param) const { return hints_[param]; }

 private:
  Hint* hint(Value v) {
    return program_.is_param(v) ? &hints_[static_cast<std::size_t>(v.id)] : nullptr;
  }

  // How often each value that is no product of two stands in a product of many.
  void count_factors(Value v, std::map<Value, int>& counts) const {
    if (!program_.is_param(v) && program_.node(v).op == Op::mul) {
      for (const Value arg : program_.node(v).args) count_factors(arg, counts);
    } else {
      ++counts[v];
    }
  }

  // `v` is to be positive: so must be what it is a sum, a product or a quotient of.
  void mark_positive(Value v) {
    if (std::exchange(seen_[static_cast<std::size_t>(v.id)], 1) != 0) return;
    if (Hint* param = hint(v)) {
      param->positive = true;
      return;
    }
    const Node& node = program_.node(v);
    if (node.op == Op::mul) {
      std::map<Value, int> counts;
      count_factors(v, counts);
      for (const auto& [factor, count] : counts) {
        if (count % 2 != 0) mark_positive(factor);  // a square is positive anyway
      }
    } else if (node.op == Op::add || node.op == Op::div || node.op == Op::maximum ||
               node.op == Op::join) {
      for (const Value arg : node.args) mark_positive(arg);
    } else if (class_of(node.op) == OpClass::layout || class_of(node.op) == OpClass::cast ||
               node.op == Op::sum || node.op == Op::block_sum || node.op == Op::gather) {
      mark_positive(node.args[0]);
    }
  }

  void mark_indexes(Value v, std::int64_t extent) {
    if (Hint* param = hint(v)) {
      param->indexes = extent;
    } else if (is_map(program_.node(v).op) || class_of(program_.node(v).op) == OpClass::layout) {
      for (const Value arg : program_.node(v).args) mark_indexes(arg, extent);
    }
  }

  // NOTE: exp(z - lse) of logits of 1e8 is noise in any arithmetic: a roundoff of z is more than 1.
  void mark_steady(Value v) {
    if (std::exchange(seen_[static_cast<std::size_t>(v.id)], 1) != 0) return;
    if (Hint* param = hint(v)) {
      param->steady = true;
    } else {
      for (const Value arg : program_.node(v).args) mark_steady(arg);
    }
  }

  void mark_weight(Value v, std::int64_t contracted) {
    if (Hint* param = hint(v)) {
      param->weight = true;
      const double scale =
          1 / std::sqrt(static_cast<double>(std::max<std::int64_t>(contracted, 1)));
      param->scale = std::min(param->scale, scale);
    } else if (class_of(program_.node(v).op) == OpClass::layout ||
               class_of(program_.node(v).op) == OpClass::cast) {
      for (const Value arg : program_.node(v).args) mark_weight(arg, contracted);
    }
  }

  const Program& program_;
  std::vector<Hint> hints_;
  std::vector<char> seen_;
};

bool contains(const std::string& name, std::string_view part) {
  return name.find(part) != std::string::npos;
}

// An upstream gradient by its name: d_out, dz, dq.
bool is_upstream(const std::string& name) {
  return name.starts_with("d_") || (name.starts_with("d") && name.size() <= 3);
}

class Source {
 public:
  explicit Source(std::uint64_t seed) : generator_(seed) {}

  double normal() { return normal_(generator_); }
  double between(double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(generator_);
  }
  std::int64_t integer(std::int64_t low, std::int64_t high) {  // both included
    return std::uniform_int_distribution<std::int64_t>(low, high)(generator_);
  }
  // What hides bugs least: zeros, and values that repeat exactly.
  double upstream() {
    static constexpr double kFew[] = {0, -1, 0.5, 3};
    return integer(0, 1) == 0 ? normal() : kFew[integer(0, 3)];
  }
  std::int64_t id(std::int64_t extent) {
    if (integer(0, 9) == 0 || extent == 0) {
      const std::int64_t outside[] = {-1, extent, -100};
      return outside[integer(0, 2)];
    }
    return integer(0, extent - 1);
  }

 private:
  std::mt19937_64 generator_;
  std::normal_distribution<double> normal_;
};

double float_scalar(const std::string& name, Source& source) {
  if (contains(name, "eps")) return 1e-5;
  if (name == "p" || contains(name, "drop") || contains(name, "prob")) return 0.1;
  if (is_upstream(name)) return source.upstream();
  return source.between(0.25, 0.95);  // a rate, a decay, a scale
}

std::int64_t integer_scalar(const std::string& name, Source& source) {
  if (contains(name, "seed")) return source.integer(INT64_MIN, INT64_MAX);
  if (contains(name, "ignore")) return -100;
  return source.integer(1, 8);
}

// NOTE: through memory, not through a double: a seed has 64 bits.
void put_integer(const Tensor& tensor, std::int64_t index, std::int64_t value) {
  if (tensor.dtype == DType::i64) {
    static_cast<std::int64_t*>(tensor.data)[index] = value;
  } else {
    store(tensor.dtype, tensor.data, index, static_cast<double>(value));
  }
}

void draw_floats(const Param& param, const Hint& hint, const Tensor& tensor, Inputs inputs,
                 bool repeats, Source& source) {
  const std::int64_t columns = tensor.shape.empty() ? 1 : tensor.shape.back();
  const bool has_outliers =
      inputs == Inputs::outliers && !hint.weight && tensor.shape.size() > 1 && columns > 0;
  const bool huge = inputs == Inputs::huge && !hint.steady;
  const double magnitude = inputs == Inputs::tiny ? 1e-4 : huge ? 1e4 : 1;
  const std::int64_t outlier = has_outliers ? 7 % columns : 0;
  const bool few = repeats || is_upstream(param.name);
  for (std::int64_t i = 0; i < tensor.elements(); ++i) {
    double x = few ? source.upstream() : source.normal();
    if (hint.positive) x = std::abs(x) + 0.05;
    if (has_outliers && i % columns % 512 == outlier) x *= 40;
    store(tensor.dtype, tensor.data, i, x * hint.scale * magnitude);
  }
}

void draw_param(const Param& param, const Hint& hint, const Tensor& tensor, Inputs inputs,
                bool repeats, Source& source) {
  if (is_float(param.type.dtype)) {
    if (!param.type.is_scalar()) {
      draw_floats(param, hint, tensor, inputs, repeats, source);
    } else {
      store(tensor.dtype, tensor.data, 0, float_scalar(param.name, source));
    }
    return;
  }
  for (std::int64_t i = 0; i < tensor.elements(); ++i) {
    if (param.type.dtype == DType::boolean) {
      store(tensor.dtype, tensor.data, i, static_cast<double>(source.integer(0, 1)));
    } else if (hint.indexes >= 0) {
      const bool scalar_code = param.type.is_scalar() && contains(param.name, "ignore");
      put_integer(tensor, i, scalar_code ? -100 : source.id(hint.indexes));
    } else if (param.type.is_scalar()) {
      put_integer(tensor, i, integer_scalar(param.name, source));
    } else {
      put_integer(tensor, i, source.integer(0, 15));
    }
  }
}

// The o and lse that an attention_grad takes are those of its q, k and v: with others, exp(s - lse)
// would be far from a probability.
void follow_attention(const Program& program, const Sizes& sizes,
                      const std::vector<OwnedTensor>& drawn) {
  for (const Node& node : program.nodes()) {
    if (node.op != Op::attention_grad) continue;
    const std::span<const Value> args = node.args;  // do, q, k, v, o, lse, keywords
    if (!program.is_param(args[4]) || !program.is_param(args[5])) continue;
    Builder builder("forward", Program::Kind::block);
    Copier copy(program, builder);
    std::vector<Tensor> tensors;
    for (std::size_t p = 0; p < drawn.size(); ++p) {
      const Param& param = program.params()[p];
      copy.map({static_cast<std::int32_t>(p)}, builder.param(param.name, param.type));
      tensors.push_back(drawn[p].tensor());
    }
    std::vector<Value> inputs;
    for (const Value v : args.subspan(1, 3)) inputs.push_back(copy(v));
    for (const Value v : args.subspan(6)) inputs.push_back(copy(v));
    const std::vector<Value> made = builder.ops(Op::attention, inputs, node.attr);
    for (std::size_t i = 0; i < 2; ++i) {
      builder.result("made" + std::to_string(i), program.type(args[4 + i]), made[i]);
    }
    const Program forward = std::move(builder).finish();
    const auto values = reference::evaluate(forward, sizes, tensors, reference::Mode::exact);
    for (std::size_t i = 0; i < 2; ++i) {
      reference::store(values[i], tensors[static_cast<std::size_t>(args[4 + i].id)], sizes);
    }
  }
}

}  // namespace

std::vector<OwnedTensor> random_inputs(const Program& program, const Sizes& sizes,
                                       std::uint64_t seed, Inputs inputs) {
  const Hints hints(program, sizes);
  std::vector<OwnedTensor> tensors;
  for (std::size_t p = 0; p < program.params().size(); ++p) {
    const Param& param = program.params()[p];
    tensors.emplace_back(param.type.dtype, shape_of(param.type, sizes));
    Source source(seed * 1000003 + p);
    const bool repeats = (seed + p) % 4 == 3;
    draw_param(param, hints[p], tensors.back().tensor(), inputs, repeats, source);
  }
  follow_attention(program, sizes, tensors);
  return tensors;
}

}  // namespace coda
