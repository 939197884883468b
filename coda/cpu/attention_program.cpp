// coda/cpu/attention_program.cpp: a program that is one attention call, as a Kernel.
//
// A tensor's factors are found by name, so each may have any strides, or an axis of its own.
#include <cmath>
#include <string>

#include "coda/check/bind.h"
#include "coda/core/flags.h"
#include "coda/cpu/attention.h"

namespace coda::cpu {
namespace {

// Offsets of every combination of some outer factors, outermost first.
std::vector<std::int64_t> offsets(std::span<const std::int64_t> extents,
                                  std::span<const std::int64_t> strides) {
  std::vector<std::int64_t> all{0};
  for (std::size_t f = 0; f < extents.size(); ++f) {
    std::vector<std::int64_t> next;
    next.reserve(all.size() * static_cast<std::size_t>(extents[f]));
    for (const std::int64_t base : all) {
      for (std::int64_t i = 0; i < extents[f]; ++i) next.push_back(base + i * strides[f]);
    }
    all = std::move(next);
  }
  return all;
}

// Where the factors [batch…, position, head…, element] of one tensor of the call are: indices into
// the factors of the type that is bound.
struct Mapping {
  int tensor = -1;  // of the parameters or of the results; -1: a result that is not stored
  Type type;        // as declared
  std::vector<std::size_t> factors;
  std::vector<std::int64_t> extents;
  std::size_t outer = 0;    // factors before the position
  bool has_element = true;  // lse has none

  HeadsView view(std::span<const Tensor> tensors, const Sizes& sizes) const {
    HeadsView view;
    if (tensor < 0) return view;
    const Tensor& bound = tensors[static_cast<std::size_t>(tensor)];
    const std::vector<std::int64_t> declared = factor_strides(type, bound, sizes);
    std::vector<std::int64_t> strides;
    for (const std::size_t f : factors) strides.push_back(declared[f]);
    const std::span<const std::int64_t> n(extents), s(strides);
    const std::size_t heads = n.size() - outer - 1 - (has_element ? 1 : 0);
    view.data = bound.data;
    view.dtype = bound.dtype;
    view.batch = offsets(n.first(outer), s.first(outer));
    view.position = s[outer];
    view.head = offsets(n.subspan(outer + 1, heads), s.subspan(outer + 1, heads));
    if (has_element) view.element = s.back();
    return view;
  }
};

Mapping mapping(int tensor, const Type& declared, const Type& meant, bool has_element,
                const Sizes& sizes) {
  Mapping map;
  map.tensor = tensor;
  map.type = declared;
  map.has_element = has_element;
  map.outer = meant.dims[0].factors.size() - 1;
  const std::vector<Factor> there = factors_of(declared);
  std::vector<bool> used(there.size());
  for (const Factor& factor : factors_of(meant)) {
    std::size_t f = 0;
    while (f < there.size() && (used[f] || !(there[f] == factor))) ++f;
    if (f == there.size()) {
      throw Unsupported("attention of a tensor " + declared.text() + " that has no factor " +
                        factor.text());
    }
    used[f] = true;
    map.factors.push_back(f);
    map.extents.push_back(require_extent(factor, sizes));
  }
  return map;
}

// The tensors of the call by the names that AttentionArguments has.
struct Plan {
  bool gradient = false;
  AttentionSizes sizes;
  AttentionOptions fixed;
  std::vector<std::pair<std::string, int>> given;  // options that are scalar parameters
  std::vector<std::pair<HeadsView AttentionArguments::*, Mapping>> inputs, outputs;
};

void set_option(AttentionOptions& options, const std::string& name, double value) {
  if (name == "causal") options.causal = value != 0;
  if (name == "window") options.window = static_cast<std::int64_t>(value);
  if (name == "softcap") options.softcap = value;
  if (name == "scale") options.scale = value;
}

Plan plan_of(const Program& program, const Node& call, const Sizes& sizes) {
  using A = AttentionArguments;
  Plan plan;
  plan.gradient = call.op == Op::attention_grad;
  const std::size_t first = plan.gradient ? 1 : 0;
  const Type& q = program.type(call.args[first]);
  const Type& k = program.type(call.args[first + 1]);
  const Type& v = program.type(call.args[first + 2]);
  Dim heads = q.dims[1];
  heads.factors.pop_back();
  const Type o{q.dtype, {q.dims[0], heads * Dim{{v.dims[1].factors.back()}}}};
  Type lse{DType::f32, {q.dims[0]}};
  if (!heads.factors.empty()) lse.dims.push_back(heads);

  const auto input = [&](HeadsView A::* member, std::size_t arg, const Type& meant) {
    const Value value = call.args[arg];
    if (!program.is_param(value)) {
      throw Unsupported("attention of `" + describe(program, value) +
                        "`, which is no input of its program");
    }
    plan.inputs.emplace_back(
        member, mapping(value.id, program.type(value), meant, member != &A::lse, sizes));
  };
  const auto output = [&](HeadsView A::* member, std::size_t slot, const Type& meant) {
    for (std::size_t r = 0; r < program.results().size(); ++r) {
      const Result& result = program.results()[r];
      if (result.value != call.results[slot]) continue;
      if (result.store == Store::accumulate) {
        throw Unsupported("the result `" + result.name + "` of attention accumulates");
      }
      plan.outputs.emplace_back(
          member, mapping(static_cast<int>(r), result.type, meant, member != &A::lse, sizes));
    }
  };
  input(&A::q, first, q);
  input(&A::k, first + 1, k);
  input(&A::v, first + 2, v);
  if (plan.gradient) {
    input(&A::d_o, 0, o);
    input(&A::o, 4, o);
    input(&A::lse, 5, lse);
    output(&A::dq, 0, q);
    output(&A::dk, 1, k);
    output(&A::dv, 2, v);
  } else {
    output(&A::o, 0, o);
    output(&A::lse, 1, lse);
  }

  const auto outer = [&](Dim dim) {
    dim.factors.pop_back();
    return require_extent(dim, sizes);
  };
  plan.sizes = {.batch = outer(q.dims[0]),
                .heads = outer(q.dims[1]),
                .key_heads = outer(k.dims[1]),
                .queries = require_extent(q.dims[0].factors.back(), sizes),
                .keys = require_extent(k.dims[0].factors.back(), sizes),
                .width = require_extent(q.dims[1].factors.back(), sizes),
                .value_width = require_extent(v.dims[1].factors.back(), sizes)};
  plan.fixed.scale = 1 / std::sqrt(static_cast<double>(plan.sizes.width));
  const std::size_t options = call.args.size() - call.attr.keywords.size();
  for (std::size_t i = 0; i < call.attr.keywords.size(); ++i) {
    const Value value = call.args[options + i];
    if (program.is_param(value)) {
      plan.given.emplace_back(call.attr.keywords[i], value.id);
    } else if (program.node(value).op == Op::constant) {
      set_option(plan.fixed, call.attr.keywords[i], program.node(value).attr.number);
    } else {
      throw Unsupported("the option `" + call.attr.keywords[i] +
                        "` of attention is neither a number nor a parameter");
    }
  }
  return plan;
}

}  // namespace

Kernel compile_attention(const Checked& checked, const Sizes& sizes, int threads) {
  const Program& program = checked.program();
  const Node* call = nullptr;
  for (const Node& node : program.nodes()) {
    if (class_of(node.op) == OpClass::opaque) call = &node;
  }
  if (call == nullptr) throw InternalError(program.name() + " holds no attention");
  if (threads <= 0) threads = flags::threads();
  Plan plan = plan_of(program, *call, sizes);
  const std::size_t bytes = attention_scratch_bytes(plan.sizes, threads);
  const auto run = [plan = std::move(plan), sizes, threads](std::span<const Tensor> params,
                                                            std::span<const Tensor> results,
                                                            std::span<std::byte> scratch) {
    AttentionArguments a;
    a.sizes = plan.sizes;
    a.options = plan.fixed;
    for (const auto& [name, param] : plan.given) {
      const Tensor& scalar = params[static_cast<std::size_t>(param)];
      set_option(a.options, name, load(scalar.dtype, scalar.data, 0));
    }
    for (const auto& [member, map] : plan.inputs) a.*member = map.view(params, sizes);
    for (const auto& [member, map] : plan.outputs) a.*member = map.view(results, sizes);
    (plan.gradient ? attention_grad : attention)(a, threads, scratch);
  };
  return Kernel(run, bytes, "blocks of 64 queries and 64 keys, f32");
}

}  // namespace coda::cpu
