// coda/rewrite/ledger.cpp: counts what a kernel must move and compute, whoever runs it.
#include "coda/rewrite/ledger.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <set>

#include "coda/check/bind.h"

namespace coda {
namespace {

// NOTE: counts of absurd sizes stop at the largest number instead of turning negative.
std::int64_t times(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  const bool overflows = __builtin_mul_overflow(a, b, &product);
  return overflows ? std::numeric_limits<std::int64_t>::max() : product;
}

void add(std::int64_t& sum, std::int64_t term) {
  if (__builtin_add_overflow(sum, term, &sum)) sum = std::numeric_limits<std::int64_t>::max();
}

std::int64_t bytes_of(const Type& type, const Sizes& sizes) {
  return times(elements_of(type, sizes), static_cast<std::int64_t>(size_of(type.dtype)));
}

// A parameter that is only a table is read by rows (gather) or elements (pick), never more than all
// of it.
std::int64_t bytes_read(const Program& program, std::size_t param, const Sizes& sizes) {
  const Type& type = program.params()[param].type;
  const std::int64_t whole = bytes_of(type, sizes);
  std::int64_t touched = 0;
  for (const Result& result : program.results()) {
    if (result.value.id == static_cast<int>(param)) return whole;
  }
  for (const Node& node : program.nodes()) {
    for (std::size_t i = 0; i < node.args.size(); ++i) {
      if (node.args[i].id != static_cast<int>(param)) continue;
      if (i != 0 || (node.op != Op::gather && node.op != Op::pick)) return whole;
      add(touched, times(elements_of(program.type(node.results[0]), sizes),
                         static_cast<std::int64_t>(size_of(type.dtype))));
    }
  }
  return std::min(whole, touched);
}

bool is_causal(const Program& program, const Node& node) {
  const std::size_t tensors = node.args.size() - node.attr.keywords.size();
  for (std::size_t i = 0; i < node.attr.keywords.size(); ++i) {
    if (node.attr.keywords[i] != "causal") continue;
    const Value v = node.args[tensors + i];
    return !program.is_param(v) && program.node(v).op == Op::constant &&
           program.node(v).attr.number != 0;
  }
  return false;
}

// Scores and weighted values: two products of S × T for each head, five with their gradients; half
// of them where causal.
std::int64_t attention_flops(const Program& program, const Node& node, const Sizes& sizes) {
  const std::size_t first = node.op == Op::attention ? 0 : 1;
  const Type& q = program.type(node.args[first]);
  const Type& k = program.type(node.args[first + 1]);
  const Type& v = program.type(node.args[first + 2]);
  const auto last = [&](const Dim& dim) {
    return require_extent(dim.factors.back(), sizes);
  };
  const std::int64_t scores =
      times(elements_of(q, sizes) / std::max<std::int64_t>(1, last(q.dims[1])), last(k.dims[0]));
  const std::int64_t query = times(times(2, scores), last(q.dims[1]));
  const std::int64_t value = times(times(2, scores), last(v.dims[1]));
  std::int64_t flops = node.op == Op::attention ? query : times(3, query);
  add(flops, node.op == Op::attention ? value : times(2, value));
  return is_causal(program, node) ? flops / 2 : flops;
}

std::int64_t flops_of(const Program& program, const Node& node, const Sizes& sizes) {
  const Type& type = program.type(node.results[0]);
  switch (class_of(node.op)) {
    case OpClass::product:
      return times(times(2, elements_of(type, sizes)), require_extent(node.attr.axis, sizes));
    case OpClass::unary:
    case OpClass::binary:
    case OpClass::compare:
    case OpClass::select:
      return elements_of(type, sizes);
    case OpClass::reduce:
    case OpClass::block_reduce:
      return elements_of(program.type(node.args[0]), sizes);
    case OpClass::indexed:
      return node.op == Op::scatter_sum ? elements_of(program.type(node.args[0]), sizes) : 0;
    case OpClass::opaque:
      return attention_flops(program, node, sizes);
    case OpClass::leaf:
    case OpClass::cast:
    case OpClass::layout:
      return 0;
  }
  throw InternalError("an op class that the ledger does not know");
}

std::string kind_of(const Program& program) {
  bool product = false;
  for (const Node& node : program.nodes()) {
    if (class_of(node.op) == OpClass::opaque) return "opaque";
    product = product || node.op == Op::product;
  }
  return product ? "gemm" : "stream";
}

// Of a step that runs once.
Cost cost_once(const Step& step, const Sizes& sizes) {
  const Program& program = step.program;
  Cost cost;
  std::set<std::string> seen;
  for (std::size_t i = 0; i < step.inputs.size(); ++i) {
    if (seen.insert(step.inputs[i]).second) add(cost.bytes_read, bytes_read(program, i, sizes));
  }
  for (const Result& result : program.results()) {
    const std::int64_t bytes = bytes_of(result.type, sizes);
    add(cost.bytes_written, bytes);
    if (result.store == Store::accumulate) add(cost.bytes_read, bytes);
  }
  for (const Node& node : program.nodes()) add(cost.flops, flops_of(program, node, sizes));
  return cost;
}

Cost scaled(Cost cost, std::int64_t factor) {
  cost.bytes_read = times(cost.bytes_read, factor);
  cost.bytes_written = times(cost.bytes_written, factor);
  cost.flops = times(cost.flops, factor);
  return cost;
}

}  // namespace

Cost& operator+=(Cost& sum, const Cost& cost) {
  add(sum.bytes_read, cost.bytes_read);
  add(sum.bytes_written, cost.bytes_written);
  add(sum.flops, cost.flops);
  return sum;
}

std::int64_t bytes_moved(const Cost& cost) {
  std::int64_t bytes = cost.bytes_read;
  add(bytes, cost.bytes_written);
  return bytes;
}

Ledger ledger(const Schedule& schedule, const Sizes& sizes) {
  Ledger ledger;
  ledger.total.step = "total";
  for (const Step& step : schedule.steps) {
    Cost cost{.step = step.program.name(), .kind = kind_of(step.program)};
    if (step.loop < 0) {
      cost += cost_once(step, sizes);
    } else {
      const Loop& loop = schedule.loops[static_cast<std::size_t>(step.loop)];
      const std::int64_t size = require_extent(dim_of(loop.dim), sizes);
      Sizes chunk = sizes;
      chunk[loop.dim] = loop.size;
      cost += scaled(cost_once(step, chunk), size / loop.size);
      chunk[loop.dim] = size % loop.size;
      if (chunk[loop.dim] > 0) cost += cost_once(step, chunk);
    }
    ledger.total += cost;
    ledger.steps.push_back(std::move(cost));
  }
  return ledger;
}

Cost ideal(const Program& block, const Sizes& sizes) {
  Cost cost{.step = "ideal", .kind = ""};
  for (std::size_t i = 0; i < block.params().size(); ++i) {
    add(cost.bytes_read, bytes_read(block, i, sizes));
  }
  for (const Result& result : block.results()) {
    add(cost.bytes_written, bytes_of(result.type, sizes));
    if (result.store == Store::accumulate) add(cost.bytes_read, bytes_of(result.type, sizes));
  }
  return cost;
}

Cost ideal(const Program& block, const Program& backward, const Sizes& sizes) {
  Cost cost = ideal(block, sizes);
  for (std::size_t i = 0; i < backward.params().size(); ++i) {
    const std::string& name = backward.params()[i].name;
    const bool upstream = name.starts_with("d_") && block.find_result(name.substr(2)) >= 0;
    if (upstream) add(cost.bytes_read, bytes_read(backward, i, sizes));
  }
  for (const Result& result : backward.results()) {
    add(cost.bytes_written, bytes_of(result.type, sizes));
    if (result.store == Store::accumulate) add(cost.bytes_read, bytes_of(result.type, sizes));
  }
  return cost;
}

std::string amount(std::int64_t count, std::string_view unit) {
  const char* const prefixes[] = {"", "k", "M", "G", "T", "P"};
  double value = static_cast<double>(count);
  int prefix = 0;
  while (value >= 1000 && prefix < 5) {
    value /= 1000;
    ++prefix;
  }
  char text[32];
  std::snprintf(text, sizeof text, prefix == 0 ? "%.0f " : "%.2f ", value);
  return std::string(text) + prefixes[prefix] + std::string(unit);
}

Schedule as_schedule(const Program& program) {
  Schedule schedule{.name = program.name(),
                    .params = {program.params().begin(), program.params().end()},
                    .results = {program.results().begin(), program.results().end()},
                    .steps = {}};
  Step step{.program = program, .inputs = {}, .outputs = {}};
  for (const Param& param : program.params()) step.inputs.push_back(param.name);
  for (const Result& result : program.results()) step.outputs.push_back(result.name);
  schedule.steps.push_back(std::move(step));
  return schedule;
}

}  // namespace coda
