// coda/rewrite/grad.cpp: drives the table of gradient rules over a program, last node first.
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

// The type of a gradient's result, and how it is stored.
Result declare(const Param& param, const GradOptions& options) {
  Result result{.name = "d_" + param.name, .type = param.type, .value = {}};
  const auto into = options.accumulate.find(param.name);
  if (into != options.accumulate.end()) {
    result.type.dtype = into->second;
    result.store = Store::accumulate;
  }
  return result;
}

void require_known(const Program& program, const GradOptions& options, const Request& request) {
  for (const auto& [name, dtype] : options.accumulate) {
    const int index = program.find_param(name);
    if (index < 0 || std::ranges::find(request.wrt, index) == request.wrt.end()) {
      std::vector<std::string> known;
      for (const int i : request.wrt) {
        known.push_back(program.params()[static_cast<std::size_t>(i)].name);
      }
      fail(program, "no gradient with respect to `" + name + "` is computed, so none accumulates",
           "a gradient that accumulates is one of those asked for",
           suggestion(name, known, "leave it out"));
    }
    if (dtype != DType::f32 && dtype != DType::bf16 && dtype != DType::f16) {
      fail(program,
           "the gradient of `" + name + "` cannot accumulate in " + std::string(name_of(dtype)),
           "gradients accumulate in f32, bf16 or f16", "name one of these");
    }
  }
}

// Without plain casts to the dtype that a value would be stored in: differentiation makes them
// wherever an operand might be wider.
Program without_idle_casts(const Program& program) {
  const std::vector<DType> stored = storage_dtypes(program);
  Rebuild build(program);
  return std::move(build).run([&](const Node& node) -> std::optional<std::vector<Expr>> {
    if (node.op != Op::cast || program.is_param(node.args[0])) return std::nullopt;
    const bool idle = is_float(program.type(node.args[0]).dtype) &&
                      stored[static_cast<std::size_t>(node.args[0].id)] == node.attr.dtype;
    return idle ? std::optional(std::vector{build(node.args[0])}) : std::nullopt;
  });
}

// The whole of a training step: results of `program` first where they are asked for, then
// d_<param>.
Program reverse(const Program& program, const Request& request, const GradOptions& options,
                std::string name, std::string comment, bool with_results) {
  Builder builder(std::move(name), Program::Kind::block);
  builder.comment(std::move(comment));
  builder.place(program.where());
  Copier forward(program, builder);
  std::set<std::string> taken;
  const auto take = [&](const std::string& param, const Type& type) {
    taken.insert(param);
    return builder.param(param, type);
  };
  std::vector<Value> wrt;
  for (std::size_t i = 0; i < program.params().size(); ++i) {
    const Param& param = program.params()[i];
    forward.map(Value{static_cast<int>(i)}, take(param.name, param.type));
  }
  for (const int i : request.wrt) {
    wrt.push_back(Value{i});
    taken.insert("d_" + program.params()[static_cast<std::size_t>(i)].name);
  }
  std::vector<Value> upstream;
  for (const int i : request.of) {
    const Result& result = program.results()[static_cast<std::size_t>(i)];
    upstream.push_back(take("d_" + result.name, result.type));
  }
  if (with_results) {
    for (const Result& result : program.results()) {
      builder.result(result.name, result.type, forward(result.value), result.store);
    }
  }

  Adjoints adjoints(program, wrt, forward, builder);
  for (std::size_t i = 0; i < upstream.size(); ++i) {
    const Result& result = program.results()[static_cast<std::size_t>(request.of[i])];
    adjoints.add(result.value, {&builder, upstream[i]});
  }
  for (std::size_t n = program.nodes().size(); n-- > 0;) {
    const Node& node = program.nodes()[n];
    const auto reached = [&](Value v) {
      return adjoints.reached(v);
    };
    if (std::ranges::none_of(node.results, reached)) continue;
    builder.place(node.where);
    name_adjoints(adjoints, node, taken);
    differentiate({adjoints, node});
  }
  for (const int i : request.wrt) {
    const Result declared = declare(program.params()[static_cast<std::size_t>(i)], options);
    const auto& adjoint = adjoints.of(Value{i});
    builder.result(
        declared.name, declared.type,
        (adjoint ? spread_to(*adjoint, declared.type) : zeros(builder, declared.type.dims)).value,
        declared.store);
  }
  return without_idle_casts(std::move(builder).finish());
}

}  // namespace

Program grad(const Program& program, const GradOptions& options) {
  const Request request = resolve(program, options);
  require_known(program, options, request);
  const Program whole = reverse(program, request, options, program.name() + "_grad",
                                "The gradient of " + program.name() + ".", false);
  // Without the parameters that no gradient reads; the upstream ones stay.
  const std::vector<int> uses = use_counts(whole);
  Builder builder(whole.name(), whole.kind());
  builder.comment(whole.comment());
  Copier copy(whole, builder);
  for (std::size_t i = 0; i < whole.params().size(); ++i) {
    const Param& param = whole.params()[i];
    if (i < program.params().size() && uses[i] == 0) continue;
    copy.map(Value{static_cast<int>(i)}, builder.param(param.name, param.type));
  }
  for (const Result& result : whole.results()) {
    builder.result(result.name, result.type, copy(result.value), result.store);
  }
  return std::move(builder).finish();
}

Program joint(const Program& program, const GradOptions& options) {
  const Request request = resolve(program, options);
  require_known(program, options, request);
  return reverse(program, request, options, program.name(), program.comment(), true);
}

}  // namespace coda
