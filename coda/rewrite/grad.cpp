// coda/rewrite/grad.cpp: drives the table of gradient rules over a program, last node first.
//
// The gradient is built with every parameter it could need, then copied with those that it does
// need: parameters come before the first node, and only the rules know what they read.
#include "coda/rewrite/grad.h"

#include <algorithm>
#include <set>

#include "coda/rewrite/gradient_rules.h"
#include "coda/rewrite/saving.h"

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
      fail(program, "`" + program.name() + "` has no " + what + " `" + name + "`",
           "gradients are of results with respect to parameters",
           suggestion(name, known, "name one of: " + all));
    }
    const Type& type = declared[static_cast<std::size_t>(index)].type;
    if (!is_float(type.dtype)) {
      fail(program, "the " + what + " `" + name + "` of `" + program.name() + "` is " + type.text(),
           "only floating-point values have gradients", "leave it out");
    }
    if (std::ranges::find(chosen, index) == chosen.end()) chosen.push_back(index);
  }
  if (chosen.empty()) {
    fail(program, "`" + program.name() + "` has no floating-point " + what,
         "only floating-point values have gradients", "there is nothing to differentiate");
  }
  return chosen;
}

// Whether attention takes an option from each parameter: there is no gradient for that.
std::vector<char> feeds_options(const Program& program) {
  std::vector<char> feeds(program.values().size());
  const auto mark = [&](Value v) {
    feeds[static_cast<std::size_t>(v.id)] = 1;
  };
  for (std::size_t n = program.nodes().size(); n-- > 0;) {
    const Node& node = program.nodes()[n];
    const std::size_t options = node.attr.keywords.size();
    for (std::size_t i = node.args.size() - options; i < node.args.size(); ++i) mark(node.args[i]);
    const auto marked = [&](Value v) {
      return feeds[static_cast<std::size_t>(v.id)] != 0;
    };
    if (std::ranges::any_of(node.results, marked)) std::ranges::for_each(node.args, mark);
  }
  return feeds;
}

Request resolve(const Program& program, const GradOptions& options) {
  Request request{.of = select(program, program.results(), options.of, "result"),
                  .wrt = select(program, program.params(), options.wrt, "parameter")};
  if (options.wrt.empty()) {
    const std::vector<char> feeds = feeds_options(program);
    std::erase_if(request.wrt, [&](int i) {
      const auto param = static_cast<std::size_t>(i);
      return feeds[param] != 0 && program.params()[param].type.is_scalar();
    });
  }
  return request;
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

// A name for each given value that no parameter, result or other given value has.
class Names {
 public:
  explicit Names(const Program& program) {
    for (const Param& param : program.params()) taken_.insert(param.name);
    for (const Result& result : program.results()) taken_.insert(result.name);
  }
  std::string operator()(const Program& program, Value v) {
    const std::string& given = program.value(v).name;
    const std::string base = given.empty() ? std::string(name_of(program.node(v).op)) : given;
    std::string name = base;
    for (int k = 1; !taken_.insert(name).second; ++k) name = base + "_" + std::to_string(k);
    return name;
  }

 private:
  std::set<std::string> taken_;
};

// What the backward reads where it may read everything.
Needs needs_of(const Program& program, const Request& request) {
  const std::vector<DType> stored = storage_dtypes(program);
  std::vector<Given> given;
  Names name(program);
  for (const Node& node : program.nodes()) {
    if (class_of(node.op) == OpClass::leaf) continue;
    for (const Value v : node.results) {
      const DType dtype = stored[static_cast<std::size_t>(v.id)];
      given.push_back({{name(program, v), {dtype, program.type(v).dims}}, v});
    }
  }
  const Program backward = reverse(program, request, given);
  const std::size_t first = program.params().size();
  const auto given_by = [&](Value v) {
    const auto id = static_cast<std::size_t>(v.id);
    return id >= first && id < first + given.size() ? given[id - first].value : Value{};
  };
  Needs needs;
  for (const Node& node : backward.nodes()) {
    const bool stores = node.op == Op::product || class_of(node.op) == OpClass::opaque;
    for (const Value arg : node.args) {
      if (given_by(arg).id < 0) continue;
      needs.values.insert(given_by(arg));
      if (stores) needs.operands.insert(given_by(arg));
    }
  }
  for (const Result& result : backward.results()) {
    if (given_by(result.value).id >= 0) needs.values.insert(given_by(result.value));
  }
  return needs;
}

// The saved values by name: that of a result which holds the value well enough, else a new one.
std::vector<Given> name_saved(const Program& program, const std::vector<Value>& saved) {
  const std::vector<DType> stored = storage_dtypes(program);
  std::vector<Given> given;
  Names name(program);
  for (const Value v : saved) {
    const DType dtype = stored[static_cast<std::size_t>(v.id)];
    // A statistic stored in 16 bits, or a transposed result, is saved again in its own form.
    const auto holds = [&](const Result& result) {
      return result.value == v && result.store == Store::overwrite &&
             result.type.dims == program.type(v).dims &&
             size_of(result.type.dtype) >= size_of(dtype) && program.find_param(result.name) < 0;
    };
    const auto result = std::ranges::find_if(program.results(), holds);
    if (result != program.results().end()) {
      given.push_back({{result->name, result->type}, v});
    } else {
      given.push_back({{name(program, v), {dtype, program.type(v).dims}}, v});
    }
  }
  return given;
}

}  // namespace

Program grad(const Program& program, const GradOptions& options) {
  return prune(reverse(program, resolve(program, options), {}), program.params().size());
}

Training grad_for_training(const Program& program, const GradOptions& options) {
  const Request request = resolve(program, options);
  const std::vector<Given> given =
      name_saved(program, choose_saved(program, needs_of(program, request)));
  Training training;
  training.backward =
      prune(reverse(program, request, given), program.params().size() + given.size());

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
