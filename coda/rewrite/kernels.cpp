// coda/rewrite/kernels.cpp: what a kernel reads, stores and waits for; check() says what it may
// hold.
#include "coda/rewrite/kernels.h"

#include <algorithm>

#include "coda/check/check.h"
#include "coda/rewrite/nominal.h"

namespace coda {
namespace {

std::size_t at(Value v) {
  return static_cast<std::size_t>(v.id);
}

// Whether a result declared `declared` holds a value at least as well as `stored` would.
bool holds(const Type& declared, const Type& stored) {
  if (declared.dims != stored.dims) return false;
  if (declared.dtype == stored.dtype) return true;
  return is_float(declared.dtype) && is_float(stored.dtype) &&
         size_of(declared.dtype) > size_of(stored.dtype);
}

}  // namespace

Kernels::Kernels(const Program& block)
    : block_(&block),
      builder_(block.name(), Program::Kind::block),
      work_of_(block.values().size()),
      uses_(use_counts(block)),
      dtypes_(storage_dtypes(block)) {
  builder_.place(block.where());
  for (const Result& result : block.results()) taken_.insert(result.name);
  for (std::size_t i = 0; i < block.params().size(); ++i) {
    const Param& param = block.params()[i];
    work_of_[i] = builder_.param(param.name, param.type);
    taken_.insert(param.name);
    owner_.push_back(kNone);
    pending_.push_back(uses_[i]);
    stored_.push_back(param.type.dtype);
    users_.emplace_back();
    results_of_.emplace_back();
    names_.push_back(param.name);
  }
  for (std::size_t r = 0; r < block.results().size(); ++r) {
    const Value v = block.results()[r].value;
    if (block.is_param(v)) results_of_[at(v)].push_back(static_cast<int>(r));
  }
}

int Kernels::append(int block_node) {
  const Node& from = block_->nodes()[static_cast<std::size_t>(block_node)];
  std::vector<Value> args;
  for (const Value v : from.args) {
    args.push_back(work_of_[at(v)]);
    --pending_[at(args.back())];
  }
  const int made = append(block_node, from.op, std::move(args), from.attr);
  for (std::size_t i = 0; i < from.results.size(); ++i) {
    const Value v = node(made).results[i];
    work_of_[at(from.results[i])] = v;
    stored_[at(v)] = dtypes_[at(from.results[i])];
    pending_[at(v)] = uses_[at(from.results[i])];
    for (std::size_t r = 0; r < block_->results().size(); ++r) {
      if (block_->results()[r].value != from.results[i]) continue;
      results_of_[at(v)].push_back(static_cast<int>(r));
      --pending_[at(v)];
    }
    const std::string& name = block_->value(from.results[i]).name;
    if (!name.empty()) builder_.name(v, name);
  }
  return made;
}

int Kernels::append(int block_node, Op op, std::vector<Value> args, Attr attr) {
  const int made = static_cast<int>(work().nodes().size());
  for (const Value v : args) users_[at(v)].push_back(made);
  builder_.place(block_->nodes()[static_cast<std::size_t>(block_node)].where);
  const DType source = args.empty() ? DType::f32 : stored_[at(args[0])];
  for (const Value v : builder_.ops(op, std::move(args), std::move(attr))) {
    // A statistic as it is on chip; a copy like what it copies.
    stored_.push_back(class_of(op) == OpClass::layout ? source : work().type(v).dtype);
    owner_.push_back(kNone);
    pending_.push_back(1);  // by whoever the node is added for
    users_.emplace_back();
    results_of_.emplace_back();
    std::string base = block_
                           ->value(block_->nodes()[static_cast<std::size_t>(block_node)]
                                       .results[static_cast<std::size_t>(work().value(v).slot)])
                           .name;
    if (base.empty() || class_of(op) == OpClass::block_reduce) {
      base += (base.empty() ? "" : "_") + std::string(name_of(op));
    }
    std::string name = base;
    for (int k = 1; !taken_.insert(name).second; ++k) name = base + "_" + std::to_string(k);
    names_.push_back(std::move(name));
  }
  origin_.push_back(block_node);
  return made;
}

void Kernels::substitute(int before, int now) {
  const Value old = node(before).results[0], fresh = node(now).results[0];
  for (Value& v : work_of_) {
    if (v == old) v = fresh;
  }
  for (const Value v : node(now).args) pending_[at(v)] = 0;
  pending_[at(fresh)] = std::exchange(pending_[at(old)], 0);
  results_of_[at(fresh)] = std::exchange(results_of_[at(old)], {});
  names_[at(fresh)].swap(names_[at(old)]);
  drop(before);
}

void Kernels::drop(int n) {
  for (const Value v : node(n).args) std::erase(users_[at(v)], n);
}

bool Kernels::converts(int result, Value v) const {
  const Result& declared = block_->results()[static_cast<std::size_t>(result)];
  return declared.store == Store::accumulate || declared.type.dims != work().type(v).dims;
}

bool Kernels::has_converted_results(Value v) const {
  return std::ranges::any_of(results_of_[at(v)], [&](int r) { return converts(r, v); });
}

void Kernels::redirect_converted_results(Value v, int n) {
  std::vector<int>& results = results_of_[at(v)];
  std::vector<int>& copied = results_of_[at(node(n).results[0])];
  const auto rest = std::ranges::stable_partition(results, [&](int r) { return !converts(r, v); });
  copied.assign(rest.begin(), rest.end());
  results.erase(rest.begin(), rest.end());
}

std::set<Value> Kernels::inputs(const std::set<int>& nodes) const {
  std::set<Value> read;
  for (const int n : nodes) {
    for (const Value v : node(n).args) {
      if (!nodes.contains(producer(v))) read.insert(v);
    }
  }
  return read;
}

bool Kernels::runs_after(int a, int b) const {
  std::vector<int> todo{a};
  std::set<int> seen;
  while (!todo.empty()) {
    const int k = todo.back();
    todo.pop_back();
    for (const Value v : inputs(nodes(k))) {
      const int before = owner(v);
      if (before == b) return true;
      if (before != kNone && seen.insert(before).second) todo.push_back(before);
    }
  }
  return false;
}

bool Kernels::must_store(Value v, const std::set<int>& nodes) const {
  const auto outside = [&](int user) {
    return !nodes.contains(user);
  };
  return !results_of_[at(v)].empty() || pending_[at(v)] > 0 ||
         std::ranges::any_of(users_[at(v)], outside);
}

Kernels::Crossing Kernels::crossing(Value v) const {
  if (work().is_param(v)) return {names_[at(v)], work().type(v)};
  const Type stored{stored_[at(v)], work().type(v).dims};
  for (const int r : results_of_[at(v)]) {
    const Result& result = block_->results()[static_cast<std::size_t>(r)];
    if (result.store == Store::overwrite && holds(result.type, stored)) {
      return {result.name, result.type};
    }
  }
  return {names_[at(v)], stored};
}

Step Kernels::step(const std::string& name, const std::set<Value>& inputs, const Values& results,
                   const Values& crossing_values) const {
  Builder builder(name, Program::Kind::program);
  builder.place(block_->where());
  Copier copy(work(), builder);
  Step step;
  for (const Value v : inputs) {
    const Crossing tensor = crossing(v);
    copy.map(v, builder.param(tensor.name, tensor.type));
    step.inputs.push_back(tensor.name);
  }
  for (const Value v : results) {
    for (const int r : results_of_[at(v)]) {
      const Result& result = block_->results()[static_cast<std::size_t>(r)];
      builder.result(result.name, result.type, copy(v), result.store);
      step.outputs.push_back(result.name);
    }
  }
  for (const Value v : crossing_values) {
    const Crossing tensor = crossing(v);
    if (builder.so_far().find_result(tensor.name) >= 0) continue;
    builder.result(tensor.name, tensor.type, copy(v));
    step.outputs.push_back(tensor.name);
  }
  step.program = std::move(builder).finish();
  return step;
}

std::optional<std::string> Kernels::refusal(int k, const Addition& addition) const {
  std::set<int> all = k == kNone ? std::set<int>{} : nodes(k);
  all.insert(addition.nodes.begin(), addition.nodes.end());
  const std::set<Value> read = inputs(all);
  for (const Value v : read) {
    if (work().is_param(v) || addition.assumed.contains(v)) continue;
    const int from = owner(v);
    if (from == kNone) throw InternalError("a kernel reads " + names_[at(v)] + ": not stored");
    if (k != kNone && (from == k || runs_after(from, k))) {
      return "`" + names_[at(v)] + "`, which it reads, comes after that kernel";
    }
  }
  std::set<Value> stored = asked_, ours(addition.owned.begin(), addition.owned.end());
  ours.insert(addition.stored.begin(), addition.stored.end());
  stored.insert(addition.stored.begin(), addition.stored.end());
  for (int other = 0; other < count(); ++other) {
    if (other != k) stored.merge(inputs(nodes(other)));
  }
  Values results, crossing;
  for (const int n : all) {
    for (const Value v : node(n).results) {
      const bool own = (k != kNone && owner(v) == k) || ours.contains(v);
      if (!own || (!stored.contains(v) && !must_store(v, all))) continue;
      (results_of_[at(v)].empty() ? crossing : results).push_back(v);
    }
  }
  try {
    check(step("candidate", read, results, crossing).program);
  } catch (const ProgramError& error) {
    return error.diagnostics().front().message;
  }
  return std::nullopt;
}

void Kernels::add(int k, const Addition& addition) {
  kernels_[static_cast<std::size_t>(k)].nodes.insert(addition.nodes.begin(), addition.nodes.end());
  for (const Value v : addition.owned) owner_[at(v)] = k;
  for (const Value v : addition.stored) owner_[at(v)] = k;
  asked_.insert(addition.stored.begin(), addition.stored.end());
}

void Kernels::start(Kind kind, const Addition& addition) {
  kernels_.push_back({kind, {}});
  add(count() - 1, addition);
}

std::set<int> Kernels::live(int k, const Values& results, const Values& crossing) const {
  std::set<int> live;
  Values todo = results;
  todo.insert(todo.end(), crossing.begin(), crossing.end());
  while (!todo.empty()) {
    const int n = producer(todo.back());
    todo.pop_back();
    if (n < 0 || !contains(k, n) || !live.insert(n).second) continue;
    todo.insert(todo.end(), node(n).args.begin(), node(n).args.end());
  }
  return live;
}

std::vector<Kernels::Part> Kernels::parts() const {
  // What nobody reads is not stored, and what only that needed is not computed: shrink until
  // stable.
  std::set<Value> read;
  for (const Kernel& kernel : kernels_) read.merge(inputs(kernel.nodes));
  std::vector<Part> parts;
  for (std::size_t before = read.size() + 1; before != read.size();) {
    before = read.size();
    parts.clear();
    std::set<Value> still_read;
    for (int k = 0; k < count(); ++k) {
      Part part{.kernel = k, .nodes = {}, .results = {}, .crossing = {}};
      for (const int n : nodes(k)) {
        for (const Value v : node(n).results) {
          if (owner(v) != k) continue;
          if (!results_of_[at(v)].empty()) part.results.push_back(v);
          if (read.contains(v)) part.crossing.push_back(v);
        }
      }
      if (part.results.empty() && part.crossing.empty()) continue;
      part.nodes = live(k, part.results, part.crossing);
      still_read.merge(inputs(part.nodes));
      parts.push_back(std::move(part));
    }
    read = std::move(still_read);
  }
  // Each after those that store what it reads, else in the order in which they were made.
  std::vector<Part> ordered;
  std::set<int> done;
  while (!parts.empty()) {
    const auto ready = std::ranges::find_if(parts, [&](const Part& part) {
      return std::ranges::all_of(inputs(part.nodes), [&](Value v) {
        return owner(v) == kNone || done.contains(owner(v));
      });
    });
    if (ready == parts.end()) throw InternalError("the kernels of a partition wait in a circle");
    done.insert(ready->kernel);
    ordered.push_back(std::move(*ready));
    parts.erase(ready);
  }
  return ordered;
}

Schedule Kernels::schedule() const {
  Schedule schedule{.name = block_->name(),
                    .params = {block_->params().begin(), block_->params().end()},
                    .results = {block_->results().begin(), block_->results().end()},
                    .steps = {}};
  const auto name = [&](const std::string& what) {
    return block_->name() + "_" + std::to_string(schedule.steps.size() + 1) + "_" + what;
  };
  for (const Part& part : parts()) {
    Values made = part.results;
    made.insert(made.end(), part.crossing.begin(), part.crossing.end());
    const Value largest =
        *std::ranges::max_element(made, {}, [&](Value v) { return std::pair(weight(v), -v.id); });
    const std::vector<int>& results = results_of_[at(largest)];
    const std::string what =
        results.empty() ? crossing(largest).name
                        : block_->results()[static_cast<std::size_t>(results.front())].name;
    schedule.steps.push_back(step(name(what), inputs(part.nodes), part.results, part.crossing));
  }
  for (std::size_t p = 0; p < block_->params().size(); ++p) {  // results that are parameters
    const Value v{static_cast<std::int32_t>(p)};
    if (results_of_[p].empty()) continue;
    schedule.steps.push_back(step(name(names_[p]), {v}, {v}, {}));
  }
  return schedule;
}

std::vector<int> Kernels::steps_of_nodes() const {
  std::vector<int> steps(block_->nodes().size(), -1);
  int index = 0;
  for (const Part& part : parts()) {
    for (const int n : part.nodes) {
      int& step = steps[static_cast<std::size_t>(origin(n))];
      const bool owned = owner(node(n).results.front()) == part.kernel;
      if (step < 0 || (owned && step > index)) step = index;
    }
    ++index;
  }
  return steps;
}

std::vector<int> Kernels::steps_of_kernels() const {
  std::vector<int> steps(kernels_.size(), -1);
  int index = 0;
  for (const Part& part : parts()) steps[static_cast<std::size_t>(part.kernel)] = index++;
  return steps;
}

double Kernels::weight(Value v) const {
  return nominal_elements(work().type(v));
}

}  // namespace coda
