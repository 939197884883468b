// coda/rewrite/grad.cpp: drives the table of gradient rules over a program, last node first.
//
// The gradient is built with every parameter it could need, then copied with those that it does
// need: parameters come before the first node, and only the rules know what they read.
#include "coda/rewrite/grad.h"

#include <algorithm>
#include <set>

#include "coda/rewrite/gradient_rules.h"

namespace coda {
namespace {

// What the gradient speaks of, by name.
struct Request {
  std::vector<int> of;   // results
  std::vector<int> wrt;  // parameters
};

[[noreturn]] void fail(const Program& program, std::string message, std::string rule,
                       std::string fix) {
  throw ProgramError(Diagnostic{.where = program.where(),
                                .statement = {},
                                .message = std::move(message),
                                .types = {},
                                .rule = std::move(rule),
                                .fix = std::move(fix)});
}

// The indices of `names` among `declared` (params or results); empty names: every floating-point
// one.
template <class Declared>
std::vector<int> select(const Program& program, std::span<const Declared> declared,
                        const std::vector<std::string>& names, const std::string& what) {
  std::vector<std::string> known;
  std::vector<int> chosen;
  for (const Declared& each : declared) {
    if (names.empty() && is_float(each.type.dtype)) chosen.push_back(int(known.size()));
    known.push_back(each.name);
  }
  std::string all;
  for (const std::string& name : known) all += (all.empty() ? "" : ", ") + name;
  for (const std::string& name : names) {
    const auto found = std::ranges::find(known, name);
    const int index = static_cast<int>(found - known.begin());
    if (found == known.end()) {
      const std::string near = nearest(name, known);
      fail(program, "'" + program.name() + "' has no " + what + " '" + name + "'",
           "gradients are of results with respect to parameters",
           near.empty() ? "name one of: " + all : "did you mean '" + near + "'?");
    }
    const Type& type = declared[static_cast<std::size_t>(index)].type;
    if (!is_float(type.dtype)) {
      fail(program, "the " + what + " '" + name + "' of '" + program.name() + "' is " + type.text(),
           "only floating-point values have gradients", "leave it out");
    }
    if (std::ranges::find(chosen, index) == chosen.end()) chosen.push_back(index);
  }
  if (chosen.empty()) {
    fail(program, "'" + program.name() + "' has no floating-point " + what,
         "only floating-point values have gradients", "there is nothing to differentiate");
  }
  return chosen;
}

Request resolve(const Program& program, const GradOptions& options) {
  return {.of = select(program, program.results(), options.of, "result"),
          .wrt = select(program, program.params(), options.wrt, "parameter")};
}

// A forward value that the backward reads instead of computing it.
struct Given {
  Param param;
  Value value;
};

// `d_v` for the adjoint of each value that the author named.
void name_adjoints(const Adjoints& adjoints, const Node& node, std::set<std::string>& taken) {
  for (const Value v : node.results) {
    const std::string& name = adjoints.program().value(v).name;
    if (name.empty() || !adjoints.of(v)) continue;
    const Value adjoint = adjoints.of(v)->value;
    const Program& so_far = adjoints.builder().so_far();
    if (so_far.is_param(adjoint) || !so_far.value(adjoint).name.empty()) continue;
    if (taken.insert("d_" + name).second) adjoints.builder().name(adjoint, "d_" + name);
  }
}

// The gradient with all parameters that it could read, used or not.
Program reverse(const Program& program, const Request& request, const std::vector<Given>& given) {
  Builder builder(program.name() + "_grad", Program::Kind::block);
  builder.comment("The gradient of " + program.name() + ".");
  Copier forward(program, builder);
  std::set<std::string> taken;
  const auto declare = [&](const std::string& name, const Type& type) {
    taken.insert(name);
    return builder.param(name, type);
  };
  std::vector<Value> wrt;
  for (std::size_t i = 0; i < program.params().size(); ++i) {
    const Param& param = program.params()[i];
    forward.map(Value{static_cast<int>(i)}, declare(param.name, param.type));
  }
  for (const int i : request.wrt) {
    wrt.push_back(Value{i});
    taken.insert("d_" + program.params()[static_cast<std::size_t>(i)].name);
  }
  for (const Given& each : given) {
    forward.map(each.value, declare(each.param.name, each.param.type));
  }
  std::vector<Value> upstream;
  for (const int i : request.of) {
    const Result& result = program.results()[static_cast<std::size_t>(i)];
    upstream.push_back(declare("d_" + result.name, result.type));
  }

  Adjoints adjoints(program, wrt, forward, builder);
  for (std::size_t i = 0; i < upstream.size(); ++i) {
    const Result& result = program.results()[static_cast<std::size_t>(request.of[i])];
    adjoints.add(result.value, {&builder, upstream[i]});
  }
  for (std::size_t n = program.nodes().size(); n-- > 0;) {
    const Node& node = program.nodes()[n];
    const auto reached = [&](Value v) {
      return adjoints.of(v).has_value();
    };
    if (std::ranges::none_of(node.results, reached)) continue;
    builder.place(node.where);
    name_adjoints(adjoints, node, taken);
    differentiate({adjoints, node});
  }
  for (const int i : request.wrt) {
    const Param& param = program.params()[static_cast<std::size_t>(i)];
    const auto& adjoint = adjoints.of(Value{i});
    builder.result(
        "d_" + param.name, param.type,
        (adjoint ? spread_to(*adjoint, param.type) : zeros(builder, param.type.dims)).value);
  }
  return std::move(builder).finish();
}

// The same without the parameters among the first `optional` that nothing reads.
Program prune(const Program& program, std::size_t optional) {
  const std::vector<int> uses = use_counts(program);
  Builder builder(program.name(), program.kind());
  builder.comment(program.comment());
  Copier copy(program, builder);
  for (std::size_t i = 0; i < program.params().size(); ++i) {
    const Param& param = program.params()[i];
    if (i < optional && uses[i] == 0) continue;
    copy.map(Value{static_cast<int>(i)}, builder.param(param.name, param.type));
  }
  for (const Result& result : program.results()) {
    builder.result(result.name, result.type, copy(result.value), result.store);
  }
  return std::move(builder).finish();
}

// What costs a pass over memory or a product to compute again.
bool is_dear(Op op) {
  switch (class_of(op)) {
    case OpClass::product:
    case OpClass::reduce:
    case OpClass::block_reduce:
    case OpClass::indexed:
    case OpClass::opaque:
      return true;
    case OpClass::leaf:
    case OpClass::unary:
    case OpClass::binary:
    case OpClass::compare:
    case OpClass::select:
    case OpClass::cast:
    case OpClass::layout:
      return false;
  }
  throw InternalError("an op class that the saving policy does not know");
}

// Values that the backward may read: results that hold their value well enough, then the dear ones.
std::vector<Given> givable(const Program& program) {
  const std::vector<DType> stored = storage_dtypes(program);
  std::vector<Given> given;
  std::vector<bool> has(program.values().size());
  std::set<std::string> taken;
  for (const Param& param : program.params()) taken.insert(param.name);
  for (const Result& result : program.results()) {
    const auto id = static_cast<std::size_t>(result.value.id);
    // A statistic stored in 16 bits, or a transposed result, is saved again in its own form.
    const bool whole = size_of(result.type.dtype) >= size_of(stored[id]) &&
                       result.type.dims == program.type(result.value).dims &&
                       result.store == Store::overwrite && !taken.contains(result.name);
    taken.insert(result.name);
    if (!whole || has[id] || program.is_param(result.value)) continue;
    has[id] = true;
    given.push_back({{result.name, result.type}, result.value});
  }
  for (const Node& node : program.nodes()) {
    if (!is_dear(node.op)) continue;
    for (const Value v : node.results) {
      const auto id = static_cast<std::size_t>(v.id);
      if (has[id]) continue;
      const std::string& given_name = program.value(v).name;
      const std::string base = given_name.empty() ? std::string(name_of(node.op)) : given_name;
      std::string name = base;
      for (int k = 1; !taken.insert(name).second; ++k) name = base + "_" + std::to_string(k);
      given.push_back({{name, {stored[id], program.type(v).dims}}, v});
    }
  }
  return given;
}

}  // namespace

Program grad(const Program& program, const GradOptions& options) {
  return prune(reverse(program, resolve(program, options), {}), program.params().size());
}

Training grad_for_training(const Program& program, const GradOptions& options) {
  const std::vector<Given> given = givable(program);
  Training training;
  training.backward = prune(reverse(program, resolve(program, options), given),
                            program.params().size() + given.size());

  Builder forward(program.name(), Program::Kind::block);
  forward.comment(program.comment());
  Copier copy(program, forward);
  for (std::size_t i = 0; i < program.params().size(); ++i) {
    const Param& param = program.params()[i];
    copy.map(Value{static_cast<int>(i)}, forward.param(param.name, param.type));
  }
  for (const Result& result : program.results()) {
    forward.result(result.name, result.type, copy(result.value), result.store);
  }
  for (const Given& each : given) {
    const std::string& name = each.param.name;
    if (program.find_result(name) >= 0 || training.backward.find_param(name) < 0) continue;
    forward.result(name, each.param.type, copy(each.value));
    training.saved.push_back(name);
  }
  training.forward = std::move(forward).finish();
  return training;
}

}  // namespace coda
