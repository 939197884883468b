// coda/rewrite/halves.cpp: what depends on an upstream gradient is backward, the rest forward.
#include "coda/rewrite/halves.h"

#include <algorithm>
#include <functional>

#include "coda/program/builder.h"
#include "coda/rewrite/saving.h"

namespace coda {
namespace {

std::size_t at(Value v) {
  return static_cast<std::size_t>(v.id);
}

// A forward value that the backward reads instead of computing it.
struct Given {
  Param param;
  Value value;
};

class Halves {
 public:
  Halves(const Program& joint, std::size_t params, std::size_t results)
      : joint_(joint),
        params_(params),
        results_(results),
        stored_(storage_dtypes(joint)),
        backward_(joint.values().size()) {
    for (std::size_t i = params; i < joint.params().size(); ++i) backward_[i] = 1;
    for (const Node& node : joint.nodes()) {
      const bool any =
          std::ranges::any_of(node.args, [&](Value v) { return backward_[at(v)] != 0; });
      for (const Value v : node.results) backward_[at(v)] = any ? 1 : 0;
    }
    for (const Param& param : joint.params()) taken_.insert(param.name);
    for (const Result& result : joint.results()) taken_.insert(result.name);
  }

  Training run(const Saving& saving) {
    std::vector<Given> given;
    for (const Value v : choose_saved(joint_, needs(saving))) given.push_back(name_saved(v));
    Training training;
    training.again = saving.again;
    training.backward = backward(given);

    Builder forward(joint_.name(), Program::Kind::block);
    forward.comment(joint_.comment());
    forward.place(joint_.where());
    Copier copy(joint_, forward);
    for (std::size_t i = 0; i < params_; ++i) map_param(copy, forward, i);
    for (std::size_t i = 0; i < results_; ++i) {
      const Result& result = joint_.results()[i];
      forward.result(result.name, result.type, copy(result.value), result.store);
    }
    for (const Given& each : given) {
      const std::string& name = each.param.name;
      if (training.backward.find_param(name) < 0) continue;
      training.kept.emplace_back(each.value, each.param.type);
      if (is_result(name)) continue;
      forward.result(name, each.param.type, copy(each.value));
      training.saved.push_back(name);
    }
    training.forward = std::move(forward).finish();
    return training;
  }

 private:
  void map_param(Copier& copy, Builder& builder, std::size_t i) const {
    const Param& param = joint_.params()[i];
    copy.map(Value{static_cast<int>(i)}, builder.param(param.name, param.type));
  }
  bool is_result(const std::string& name) const {
    const int found = joint_.find_result(name);
    return found >= 0 && static_cast<std::size_t>(found) < results_;
  }

  // A parameter seen through casts, ranges and renames costs whoever reads it nothing more.
  Value behind_views(Value v) const {
    Value base = v;
    while (!joint_.is_param(base)) {
      const Node& node = joint_.node(base);
      if (node.op != Op::cast && node.op != Op::split && node.op != Op::as) return v;
      base = node.args[0];
    }
    return base;
  }

  Needs needs(const Saving& saving) const {
    Needs needs;
    const auto need = [&](Value v, bool stores) {
      v = behind_views(v);
      const bool leaf = !joint_.is_param(v) && class_of(joint_.node(v).op) == OpClass::leaf;
      if (backward_[at(v)] != 0 || (leaf && joint_.node(v).args.empty())) return;
      needs.values.insert(v);
      if (stores) needs.operands.insert(v);
    };
    for (const Node& node : joint_.nodes()) {
      if (backward_[at(node.results[0])] == 0) continue;
      const bool stores = node.op == Op::product || class_of(node.op) == OpClass::opaque;
      for (const Value v : node.args) need(v, stores);
    }
    for (std::size_t i = results_; i < joint_.results().size(); ++i) {
      need(joint_.results()[i].value, false);
    }
    std::vector<Value> todo;
    for (std::size_t i = 0; i < results_; ++i) {
      needs.results.insert(joint_.results()[i].value);
      todo.push_back(joint_.results()[i].value);
    }
    while (!todo.empty()) {
      const Value v = todo.back();
      todo.pop_back();
      if (!needs.forward.insert(v).second || joint_.is_param(v)) continue;
      const std::vector<Value>& args = joint_.node(v).args;
      todo.insert(todo.end(), args.begin(), args.end());
    }
    needs.again = saving.again;
    for (std::size_t id = 0; id < joint_.values().size(); ++id) {
      const Value v{static_cast<std::int32_t>(id)};
      if (backward_[id] != 0 || joint_.is_param(v)) continue;
      const std::string& name = joint_.value(v).name;
      if (joint_.node(v).op == Op::save || saving.save.contains(name)) needs.saved.insert(v);
      if (joint_.node(v).op == Op::recompute || saving.recompute.contains(name) ||
          saving.recompute_values.contains(v)) {
        needs.recomputed.insert(v);
      }
      // The marked value under its own name is the same value.
      if (joint_.node(v).op == Op::recompute) needs.recomputed.insert(joint_.node(v).args[0]);
    }
    return needs;
  }

  // By the name of a result that holds the value well enough, else a new one.
  Given name_saved(Value v) {
    const Type type{stored_[at(v)], joint_.type(v).dims};
    for (std::size_t i = 0; i < results_; ++i) {
      const Result& result = joint_.results()[i];
      // A statistic stored in 16 bits, or a transposed result, is saved again in its own form.
      const bool holds =
          result.value == v && result.store == Store::overwrite && result.type.dims == type.dims &&
          size_of(result.type.dtype) >= size_of(type.dtype) && joint_.find_param(result.name) < 0;
      if (holds) return {{result.name, result.type}, v};
    }
    const std::string& named = joint_.value(v).name;
    const std::string base = named.empty() ? std::string(name_of(joint_.node(v).op)) : named;
    std::string name = base;
    for (int k = 1; !taken_.insert(name).second; ++k) name = base + "_" + std::to_string(k);
    return {{name, type}, v};
  }

  Program backward(const std::vector<Given>& given) const {
    // Built with every parameter that it could read, then with those that it does read.
    const auto build = [&](const std::function<bool(const std::string&)>& reads) {
      Builder builder(joint_.name() + "_grad", Program::Kind::block);
      builder.comment("The gradient of " + joint_.name() + ".");
      builder.place(joint_.where());
      Copier copy(joint_, builder);
      for (std::size_t i = 0; i < params_; ++i) {
        if (reads(joint_.params()[i].name)) map_param(copy, builder, i);
      }
      for (const Given& each : given) {
        if (!reads(each.param.name)) continue;
        copy.map(each.value, builder.param(each.param.name, each.param.type));
      }
      for (std::size_t i = params_; i < joint_.params().size(); ++i) map_param(copy, builder, i);
      for (std::size_t i = results_; i < joint_.results().size(); ++i) {
        const Result& result = joint_.results()[i];
        builder.result(result.name, result.type, copy(result.value), result.store);
      }
      return std::move(builder).finish();
    };
    const Program whole = build([](const std::string&) { return true; });
    const std::vector<int> uses = use_counts(whole);
    return build([&](const std::string& name) {
      return uses[static_cast<std::size_t>(whole.find_param(name))] > 0;
    });
  }

  const Program& joint_;
  const std::size_t params_, results_;
  const std::vector<DType> stored_;
  std::vector<char> backward_;  // of each value: does it depend on an upstream gradient?
  std::set<std::string> taken_;
};

}  // namespace

Training halves(const Program& joint, std::size_t params, std::size_t results,
                const Saving& saving) {
  return Halves(joint, params, results).run(saving);
}

Training grad_for_training(const Program& program, const GradOptions& options) {
  return halves(joint(program, options), program.params().size(), program.results().size());
}

}  // namespace coda
