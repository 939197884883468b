// coda/rewrite/working.cpp: grows the working program, names what crosses, makes steps of kernels.
#include "coda/rewrite/working.h"

#include <algorithm>
#include <bit>

#include "coda/rewrite/nominal.h"

namespace coda {
namespace {

// Whether a result declared `declared` holds a value at least as well as `stored` would.
bool holds(const Type& declared, const Type& stored) {
  if (declared.dims != stored.dims) return false;
  if (declared.dtype == stored.dtype) return true;
  return is_float(declared.dtype) && is_float(stored.dtype) &&
         size_of(declared.dtype) > size_of(stored.dtype);
}

// What to call a value that has no name: by its op, unless the language has that word.
std::string name_for(Op op) {
  return op == Op::pin ? "pinned" : op == Op::as ? "renamed" : std::string(name_of(op));
}

// Kernels that could run next, among which the order chooses.
constexpr std::size_t kLooked = 64;

std::string text_of(Op op, const Attr& attr) {
  std::string text(name_of(op));
  text += ' ' + std::to_string(std::bit_cast<std::uint64_t>(attr.number)) + ' ' +
          std::to_string(static_cast<int>(attr.dtype)) + ' ' + std::to_string(attr.block) + ' ' +
          attr.axis.text();
  for (const Dim& dim : attr.dims) text += ", " + dim.text();
  for (const std::string& keyword : attr.keywords) text += "; " + keyword;
  return text;
}

}  // namespace

Working::Working(const Program& block)
    : block_(&block),
      builder_(block.name(), Program::Kind::block),
      work_of_(block.values().size()),
      uses_(use_counts(block)),
      dtypes_(storage_dtypes(block)),
      block_results_(block.values().size()),
      numbers_(std::make_shared<std::unordered_map<std::string, int>>()) {
  builder_.place(block.where());
  for (std::size_t r = 0; r < block.results().size(); ++r) {
    taken_.insert(block.results()[r].name);
    block_results_[index(block.results()[r].value)].push_back(static_cast<int>(r));
  }
  for (std::size_t i = 0; i < block.params().size(); ++i) {
    const Param& param = block.params()[i];
    work_of_[i] = builder_.param(param.name, param.type);
    taken_.insert(param.name);
    pending_.push_back(uses_[i]);
    stored_.push_back(param.type.dtype);
    users_.emplace_back();
    results_of_.push_back(block_results_[i]);
    block_values_.push_back({{static_cast<std::int32_t>(i)}});
    names_.push_back(param.name);
    crossing_types_.push_back(-1);
  }
}

Working::Working(const Program& block, const Working& like) : Working(block) {
  numbers_ = like.numbers_;
}

int Working::append(int block_node) {
  const Node& from = block_->nodes()[static_cast<std::size_t>(block_node)];
  std::vector<Value> args;
  for (const Value v : from.args) {
    args.push_back(work_of_[index(v)]);
    --pending_[index(args.back())];
  }
  const int made = append(block_node, from.op, std::move(args), from.attr);
  for (std::size_t i = 0; i < from.results.size(); ++i) {
    const Value v = node(made).results[i], source = from.results[i];
    work_of_[index(source)] = v;
    block_values_[index(v)] = {source};
    stored_[index(v)] = dtypes_[index(source)];
    results_of_[index(v)] = block_results_[index(source)];
    pending_[index(v)] =
        uses_[index(source)] - static_cast<int>(block_results_[index(source)].size());
    const std::string& name = block_->value(source).name;
    if (!name.empty()) builder_.name(v, name);
  }
  return made;
}

int Working::append(int block_node, Op op, std::vector<Value> args, Attr attr) {
  const int made = static_cast<int>(work().nodes().size());
  const Node& from = block_->nodes()[static_cast<std::size_t>(block_node)];
  for (const Value v : args) users_[index(v)].push_back(made);
  builder_.place(from.where);
  const DType source = args.empty() ? DType::f32 : stored_[index(args[0])];
  for (const Value v : builder_.ops(op, std::move(args), std::move(attr))) {
    // A statistic as it is on chip; a copy like what it copies.
    stored_.push_back(class_of(op) == OpClass::layout ? source : work().type(v).dtype);
    pending_.push_back(1);  // by whoever the node is added for
    users_.emplace_back();
    results_of_.emplace_back();
    block_values_.emplace_back();
    crossing_types_.push_back(-1);
    const auto slot = static_cast<std::size_t>(work().value(v).slot);
    std::string base = slot < from.results.size() ? block_->value(from.results[slot]).name : "";
    if (base.empty() || class_of(op) == OpClass::block_reduce) {
      base += (base.empty() ? "" : "_") + name_for(op);
    }
    std::string name = base;
    for (int& k = next_name_[base]; !taken_.insert(name).second;) {
      name = base + "_" + std::to_string(++k);
    }
    names_.push_back(std::move(name));
  }
  origin_.push_back(block_node);
  forms_.push_back(number_of(text_of(op, node(made).attr)));
  return made;
}

bool Working::is_divisible(const Program& program, const Node& node) {
  if (node.op != Op::sum && node.op != Op::logsumexp) return false;
  const std::vector<Factor>& axis = node.attr.axis.factors;
  if (axis.size() == 1 && axis[0].kind() == Factor::Kind::blocks) return false;
  return !has_factor(program.type(node.args[0]), Factor::blocks(node.attr.axis, kBlock));
}

Working::Divided Working::divide(int n) {
  const Node whole = node(n);
  const Op op = whole.op == Op::sum ? Op::block_sum : Op::block_logsumexp;
  Divided divided;
  divided.blocks = append(origin(n), op, whole.args, {.axis = whole.attr.axis});
  divided.whole = append(origin(n), whole.op, node(divided.blocks).results,
                         {.axis = dim_of(Factor::blocks(whole.attr.axis, kBlock))});
  substitute(n, divided.whole);
  return divided;
}

void Working::substitute(int before, int now) {
  const Value old = node(before).results[0], fresh = node(now).results[0];
  for (const Value v : block_values_[index(old)]) work_of_[index(v)] = fresh;
  block_values_[index(fresh)] = std::exchange(block_values_[index(old)], {});
  for (const Value v : node(now).args) pending_[index(v)] = 0;
  pending_[index(fresh)] = std::exchange(pending_[index(old)], 0);
  results_of_[index(fresh)] = std::exchange(results_of_[index(old)], {});
  names_[index(fresh)].swap(names_[index(old)]);
  crossing_types_[index(fresh)] = crossing_types_[index(old)] = -1;
  drop(before);
}

void Working::drop(int n) {
  for (const Value v : node(n).args) std::erase(users_[index(v)], n);
}

bool Working::converts(int r, Value v) const {
  return result(r).store == Store::accumulate || result(r).type.dims != work().type(v).dims;
}

bool Working::has_converted_results(Value v) const {
  return std::ranges::any_of(results_of_[index(v)], [&](int r) { return converts(r, v); });
}

void Working::redirect_converted_results(Value v, int n) {
  const Value copy = node(n).results[0];
  std::vector<int>& results = results_of_[index(v)];
  std::vector<int>& copied = results_of_[index(copy)];
  const auto rest = std::ranges::stable_partition(results, [&](int r) { return !converts(r, v); });
  copied.assign(rest.begin(), rest.end());
  results.erase(rest.begin(), rest.end());
  crossing_types_[index(v)] = crossing_types_[index(copy)] = -1;
}

Working::Crossing Working::crossing(Value v) const {
  if (work().is_param(v)) return {names_[index(v)], work().type(v)};
  const Type stored{stored_[index(v)], work().type(v).dims};
  for (const int r : results_of_[index(v)]) {
    if (result(r).store == Store::overwrite && holds(result(r).type, stored)) {
      return {result(r).name, result(r).type};
    }
  }
  return {names_[index(v)], stored};
}

int Working::crossing_type(Value v) const {
  int& number = crossing_types_[index(v)];
  if (number < 0) number = number_of(crossing(v).type);
  return number;
}

int Working::number_of(const std::string& text) const {
  return numbers_->try_emplace(text, static_cast<int>(numbers_->size())).first->second;
}

int Working::number_of(const Type& type) const {
  return number_of(type.text());
}

Step Working::step(const std::string& name, const Part& part) const {
  Builder builder(name, Program::Kind::program);
  builder.place(block_->where());
  Copier copy(work(), builder);
  Step step;
  for (const Value v : part.reads) {
    const Crossing tensor = crossing(v);
    copy.map(v, builder.param(tensor.name, tensor.type));
    step.inputs.push_back(tensor.name);
  }
  for (const Value v : part.results) {
    for (const int r : results_of(v)) {
      builder.result(result(r).name, result(r).type, copy(v), result(r).store);
      step.outputs.push_back(result(r).name);
    }
  }
  for (const Value v : part.crossing) {
    const Crossing tensor = crossing(v);
    if (builder.so_far().find_result(tensor.name) >= 0) continue;
    builder.result(tensor.name, tensor.type, copy(v));
    step.outputs.push_back(tensor.name);
  }
  step.program = std::move(builder).finish();
  return step;
}

std::vector<int> Working::run_order(std::span<const Part> parts) const {
  std::vector<int> owner(work().values().size(), -1), left(owner.size()), waits(parts.size());
  std::vector<std::vector<int>> readers(parts.size());
  for (std::size_t p = 0; p < parts.size(); ++p) {
    for (const Value v : parts[p].crossing) owner[index(v)] = static_cast<int>(p);
  }
  for (std::size_t p = 0; p < parts.size(); ++p) {
    for (const Value v : parts[p].reads) {
      if (owner[index(v)] < 0) continue;
      readers[static_cast<std::size_t>(owner[index(v)])].push_back(static_cast<int>(p));
      ++waits[p];
      ++left[index(v)];
    }
  }
  const auto bytes = [&](Value v) {
    return nominal_elements(work().type(v)) * static_cast<double>(size_of(stored_[index(v)]));
  };
  // What running it adds to what is kept.
  const auto kept = [&](int p) {
    const Part& part = parts[static_cast<std::size_t>(p)];
    double sum = 0;
    for (const Value v : part.crossing) sum += is_result(v) ? 0 : bytes(v);
    for (const Value v : part.reads) {
      if (owner[index(v)] >= 0 && left[index(v)] == 1 && !is_result(v)) sum -= bytes(v);
    }
    return sum;
  };
  std::vector<int> ready, order;
  for (std::size_t p = 0; p < parts.size(); ++p) {
    if (waits[p] == 0 && !(parts[p].results.empty() && parts[p].crossing.empty())) {
      ready.push_back(static_cast<int>(p));
    }
  }
  while (!ready.empty()) {
    // NOTE: work is bounded by looking at no more than a few.
    const auto end = ready.begin() + static_cast<std::ptrdiff_t>(std::min(ready.size(), kLooked));
    const auto next = std::ranges::min_element(ready.begin(), end, {}, kept);
    const int p = *next;
    ready.erase(next);
    order.push_back(p);
    for (const Value v : parts[static_cast<std::size_t>(p)].reads) --left[index(v)];
    for (const int reader : readers[static_cast<std::size_t>(p)]) {
      if (--waits[static_cast<std::size_t>(reader)] == 0) insert_sorted(ready, reader);
    }
  }
  return order;
}

Schedule Working::schedule(std::span<const Part> parts, std::span<const int> order) const {
  Schedule schedule{.name = block_->name(),
                    .params = {block_->params().begin(), block_->params().end()},
                    .results = {block_->results().begin(), block_->results().end()},
                    .steps = {}};
  const auto name = [&](const std::string& what) {
    return block_->name() + "_" + std::to_string(schedule.steps.size() + 1) + "_" + what;
  };
  for (const int p : order) {
    const Part& part = parts[static_cast<std::size_t>(p)];
    std::vector<Value> made = part.results;
    made.insert(made.end(), part.crossing.begin(), part.crossing.end());
    const Value largest = *std::ranges::max_element(
        made, {}, [&](Value v) { return std::pair(nominal_elements(work().type(v)), -v.id); });
    const std::string what =
        is_result(largest) ? result(results_of(largest).front()).name : crossing(largest).name;
    schedule.steps.push_back(step(name(what), part));
  }
  return schedule;
}

}  // namespace coda
