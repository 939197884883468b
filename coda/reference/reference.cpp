// coda/reference/reference.cpp: the meaning of every op, node by node.
//
// A map is one formula in double. What a dtype does to a value happens in one place, `finish`,
// after the node that made it.
#include "coda/reference/reference.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "coda/check/bind.h"
#include "coda/core/error.h"
#include "coda/reference/ops.h"

namespace coda::reference {
namespace {

// The wider of two float dtypes, by the bits that a value keeps.
DType wider(DType a, DType b) {
  const auto width = [](DType dtype) {
    return dtype == DType::f64 ? 3 : dtype == DType::f32 ? 2 : 1;
  };
  return width(b) > width(a) ? b : a;
}

// What the rounded mode rounds each value to: see Mode::rounded.
std::vector<DType> rounding(const Program& program) {
  std::vector<DType> dtypes = storage_dtypes(program);
  for (std::size_t v = program.params().size(); v < dtypes.size(); ++v) {
    const DType typed = program.values()[v].type.dtype;
    if (!is_float(typed)) dtypes[v] = typed;
  }
  for (const Result& result : program.results()) {
    DType& dtype = dtypes[static_cast<std::size_t>(result.value.id)];
    const bool floats = is_float(dtype) && is_float(result.type.dtype);
    if (floats && !program.is_param(result.value)) dtype = wider(dtype, result.type.dtype);
  }
  return dtypes;
}

class Evaluator {
 public:
  enum class Keep : std::uint8_t { results, all };

  Evaluator(const Program& program, const Sizes& sizes, std::span<const Tensor> params, Mode mode,
            Keep keep)
      : program_(program),
        sizes_(sizes),
        params_(params),
        mode_(mode),
        keep_(keep),
        rounding_(rounding(program)),
        unread_(use_counts(program)),
        values_(program.values().size()) {
    if (params.size() != program.params().size()) {
      throw InternalError("evaluate: " + std::to_string(params.size()) + " tensors for " +
                          std::to_string(program.params().size()) + " parameters of " +
                          program.name());
    }
    for (std::size_t p = 0; p < params.size(); ++p) {
      values_[p] = load(program.params()[p].type, params[p], sizes);
    }
    for (const Node& node : program.nodes()) {
      for (const Value v : node.results) at(v) = zeros(program.type(v), sizes);
      compute(node);
      for (const Value v : node.results) finish(v);
      for (const Value v : node.args) release(v);
    }
  }

  std::vector<Array> results(std::span<const Tensor> before) const {
    std::vector<Array> results;
    for (std::size_t r = 0; r < program_.results().size(); ++r) {
      const Result& result = program_.results()[r];
      const Array& value = at(result.value);
      Array out = zeros(result.type, sizes_);
      const std::vector<std::int64_t> from = aligned(out, value);
      for (std::size_t i = 0; i < from.size(); ++i) {
        out.data[i] = value.data[static_cast<std::size_t>(from[i])];
      }
      if (result.store == Store::accumulate && !before.empty()) {
        const Array earlier = load(result.type, before[r], sizes_);
        for (std::size_t i = 0; i < from.size(); ++i) out.data[i] += earlier.data[i];
      }
      if (mode_ == Mode::rounded || !is_float(result.type.dtype)) {
        for (double& x : out.data) x = round_to(result.type.dtype, x);
      }
      results.push_back(std::move(out));
    }
    return results;
  }

  std::vector<Array> take() { return std::move(values_); }

 private:
  Array& at(Value v) { return values_[static_cast<std::size_t>(v.id)]; }
  const Array& at(Value v) const { return values_[static_cast<std::size_t>(v.id)]; }

  void finish(Value v) {
    const DType dtype = rounding_[static_cast<std::size_t>(v.id)];
    if (mode_ == Mode::exact || !is_float(dtype)) return;
    for (double& x : at(v).data) x = round_to(dtype, x);
  }

  void release(Value v) {
    if (--unread_[static_cast<std::size_t>(v.id)] == 0 && keep_ == Keep::results) at(v) = {};
  }

  Sum sum_of(Value v) const {
    const bool f32 = rounding_[static_cast<std::size_t>(v.id)] == DType::f32;
    return mode_ == Mode::rounded && f32 ? Sum::f32 : Sum::f64;
  }

  template <class Formula>
  void map(const Node& node, Formula formula) {
    Array& out = at(node.results[0]);
    const Array& a = at(node.args[0]);
    const std::vector<std::int64_t> from_a = aligned(out, a);
    for (std::size_t i = 0; i < out.data.size(); ++i) {
      out.data[i] = formula(a.data[static_cast<std::size_t>(from_a[i])]);
    }
  }

  template <class Formula>
  void map2(const Node& node, Formula formula) {
    Array& out = at(node.results[0]);
    const Array &a = at(node.args[0]), &b = at(node.args[1]);
    const std::vector<std::int64_t> from_a = aligned(out, a), from_b = aligned(out, b);
    for (std::size_t i = 0; i < out.data.size(); ++i) {
      out.data[i] = formula(a.data[static_cast<std::size_t>(from_a[i])],
                            b.data[static_cast<std::size_t>(from_b[i])]);
    }
  }

  void select(const Node& node) {
    Array& out = at(node.results[0]);
    const Array &c = at(node.args[0]), &a = at(node.args[1]), &b = at(node.args[2]);
    const std::vector<std::int64_t> from_c = aligned(out, c), from_a = aligned(out, a),
                                    from_b = aligned(out, b);
    for (std::size_t i = 0; i < out.data.size(); ++i) {
      const bool first = c.data[static_cast<std::size_t>(from_c[i])] != 0;
      out.data[i] = first ? a.data[static_cast<std::size_t>(from_a[i])]
                          : b.data[static_cast<std::size_t>(from_b[i])];
    }
  }

  void cast(const Node& node) {
    const DType dtype = node.attr.dtype;
    const bool keeps = is_float(dtype);  // a narrower float rounds in finish()
    map(node, [&](double a) { return keeps ? a : round_to(dtype, a); });
  }

  std::int64_t seed(Value v) const {
    if (program_.is_param(v)) {
      const Tensor& tensor = params_[static_cast<std::size_t>(v.id)];
      return load_integer(tensor.dtype, tensor.data, 0);
    }
    return static_cast<std::int64_t>(at(v).data.at(0));
  }

  AttentionOptions options(const Node& node, Value q) const {
    AttentionOptions options;
    const std::size_t inputs = node.args.size() - node.attr.keywords.size();
    for (std::size_t k = 0; k < node.attr.keywords.size(); ++k) {
      const std::string& keyword = node.attr.keywords[k];
      const double value = at(node.args[inputs + k]).data.at(0);
      if (keyword == "causal") {
        options.causal = value != 0;
      } else if (keyword == "window") {
        options.window = static_cast<std::int64_t>(value);
      } else if (keyword == "softcap") {
        options.softcap = value;
      } else if (keyword == "scale") {
        options.scale = value;
      } else {
        throw InternalError("attention has no option " + keyword);
      }
    }
    if (mode_ == Mode::rounded) {
      options.stored = rounding_[static_cast<std::size_t>(q.id)];
      options.sum = *options.stored == DType::f64 ? Sum::f64 : Sum::f32;
    }
    return options;
  }

  void compute(const Node& node);

  const Program& program_;
  const Sizes& sizes_;
  std::span<const Tensor> params_;
  Mode mode_;
  Keep keep_;
  std::vector<DType> rounding_;
  std::vector<int> unread_;
  std::vector<Array> values_;
};

void Evaluator::compute(const Node& node) {
  const auto arg = [&](std::size_t i) -> const Array& {
    return at(node.args[i]);
  };
  const Value result = node.results[0];
  Array& out = at(result);
  const Attr& attr = node.attr;
  switch (node.op) {
    case Op::constant:
      out.data[0] = attr.number;
      return;
    case Op::size:
      out.data[0] = static_cast<double>(require_extent(attr.axis, sizes_));
      return;
    case Op::index:
      for (std::size_t i = 0; i < out.data.size(); ++i) out.data[i] = static_cast<double>(i);
      return;
    case Op::uniform:
      return uniform(seed(node.args[0]), out);

    case Op::product:
      return product(arg(0), arg(1), attr.axis, sum_of(result), out);

    case Op::neg:
      return map(node, [](double a) { return -a; });
    case Op::abs:
      return map(node, [](double a) { return std::abs(a); });
    case Op::exp:
      return map(node, [](double a) { return std::exp(a); });
    case Op::log:
      return map(node, [](double a) { return std::log(a); });
    case Op::sqrt:
      return map(node, [](double a) { return std::sqrt(a); });
    case Op::rsqrt:
      return map(node, [](double a) { return 1 / std::sqrt(a); });
    case Op::tanh:
      return map(node, [](double a) { return std::tanh(a); });
    case Op::sigmoid:
      return map(node, [](double a) { return 1 / (1 + std::exp(-a)); });
    case Op::erf:
      return map(node, [](double a) { return std::erf(a); });
    case Op::detach:
    case Op::save:
    case Op::recompute:
      return map(node, [](double a) { return a; });

    case Op::add:
      return map2(node, [](double a, double b) { return a + b; });
    case Op::sub:
      return map2(node, [](double a, double b) { return a - b; });
    case Op::mul:
      return map2(node, [](double a, double b) { return a * b; });
    case Op::div:
      return map2(node, [](double a, double b) { return a / b; });
    case Op::minimum:
      return map2(node, [](double a, double b) { return std::isnan(a) || a < b ? a : b; });
    case Op::maximum:
      return map2(node, [](double a, double b) { return std::isnan(a) || a > b ? a : b; });
    case Op::eq:
      return map2(node, [](double a, double b) { return a == b ? 1.0 : 0.0; });
    case Op::ne:
      return map2(node, [](double a, double b) { return a != b ? 1.0 : 0.0; });
    case Op::lt:
      return map2(node, [](double a, double b) { return a < b ? 1.0 : 0.0; });
    case Op::le:
      return map2(node, [](double a, double b) { return a <= b ? 1.0 : 0.0; });
    case Op::gt:
      return map2(node, [](double a, double b) { return a > b ? 1.0 : 0.0; });
    case Op::ge:
      return map2(node, [](double a, double b) { return a >= b ? 1.0 : 0.0; });
    case Op::where:
      return select(node);
    case Op::cast:
    case Op::pin:
      return cast(node);

    case Op::split: {
      std::vector<Array*> pieces;
      for (const Value v : node.results) pieces.push_back(&at(v));
      return split(arg(0), attr.axis, std::move(pieces));
    }
    case Op::join: {
      std::vector<const Array*> pieces;
      for (const Value v : node.args) pieces.push_back(&at(v));
      return join(pieces, attr.axis, out);
    }
    case Op::as:
      out.data = arg(0).data;  // other names, the same storage order
      return;
    case Op::spread:
      return spread(arg(0), attr.axis, attr.block, out);

    case Op::sum:
    case Op::reduce_max:
    case Op::logsumexp:
      return reduce(node.op, arg(0), attr.axis, 0, sum_of(result), out);
    case Op::block_sum:
    case Op::block_max:
    case Op::block_logsumexp:
      return reduce(node.op, arg(0), attr.axis, attr.block, sum_of(result), out);

    case Op::gather:
      return gather(arg(0), arg(1), out);
    case Op::scatter_sum:
      return scatter_sum(arg(0), arg(1), sum_of(result), out);
    case Op::pick:
      return pick(arg(0), arg(1), attr.axis, out);

    case Op::attention:
      return attention(arg(0), arg(1), arg(2), options(node, node.args[0]), out,
                       at(node.results[1]));
    case Op::attention_grad:
      return attention_grad(arg(0), arg(1), arg(2), arg(3), arg(4), arg(5),
                            options(node, node.args[1]), out, at(node.results[1]),
                            at(node.results[2]));
  }
  throw InternalError("no such op");
}

}  // namespace

Array load(const Type& type, const Tensor& tensor, const Sizes& sizes) {
  Array array = zeros(type, sizes);
  const std::vector<std::int64_t> from =
      strided(array.extents, factor_strides(type, tensor, sizes));
  for (std::size_t i = 0; i < from.size(); ++i) {
    array.data[i] = coda::load(tensor.dtype, tensor.data, from[i]);
  }
  return array;
}

void store(const Array& array, const Tensor& tensor, const Sizes& sizes) {
  const std::vector<std::int64_t> to =
      strided(array.extents, factor_strides(array.type, tensor, sizes));
  for (std::size_t i = 0; i < to.size(); ++i) {
    coda::store(tensor.dtype, tensor.data, to[i], array.data[i]);
  }
}

std::vector<Array> evaluate(const Program& program, const Sizes& sizes,
                            std::span<const Tensor> params, Mode mode,
                            std::span<const Tensor> before) {
  return Evaluator(program, sizes, params, mode, Evaluator::Keep::results).results(before);
}

std::vector<Array> evaluate_all(const Program& program, const Sizes& sizes,
                                std::span<const Tensor> params, Mode mode) {
  Evaluator evaluator(program, sizes, params, mode, Evaluator::Keep::all);
  std::vector<Array> results = evaluator.results({});
  std::vector<Array> all = evaluator.take();
  std::ranges::move(results, std::back_inserter(all));
  return all;
}

}  // namespace coda::reference
