// coda/check/graph.cpp: links between the factors of operands and results, op by op.

#include "coda/check/graph.h"

#include <algorithm>

namespace coda {
namespace {

void link_same(std::vector<Link>& links, Value from, std::size_t i, Value to, std::size_t j) {
  links.push_back({.kind = Link::Kind::same, .from = {from, i, 1}, .to = {to, j, 1}});
}

// Factors of the same name.
void link_names(const Program& program, std::vector<Link>& links, Value from, Value to) {
  const std::vector<Factor> a = factors_of(program.type(from)), b = factors_of(program.type(to));
  for (std::size_t i = 0; i < a.size(); ++i)
    for (std::size_t j = 0; j < b.size(); ++j)
      if (a[i] == b[j]) link_same(links, from, i, to, j);
}

// Everything around a part that is replaced in place: [at, at + from_count) by [at, at + to_count).
void link_around(const Program& program, std::vector<Link>& links, Value from, Value to,
                 std::size_t at, std::size_t from_count, std::size_t to_count) {
  for (std::size_t i = 0; i < at; ++i) link_same(links, from, i, to, i);
  const std::size_t n = factor_count(program, from);
  for (std::size_t i = at + from_count; i < n; ++i)
    link_same(links, from, i, to, i - from_count + to_count);
}

void link_as(const Program& program, std::vector<Link>& links, Value from, Value to) {
  std::size_t i = 0, j = 0;
  for (std::size_t d = 0; d < program.type(from).dims.size(); ++d) {
    const std::vector<Factor>& a = program.type(from).dims[d].factors;
    const std::vector<Factor>& b = program.type(to).dims[d].factors;
    std::size_t head = 0, tail = 0;
    const std::size_t least = std::min(a.size(), b.size());
    while (head < least && a[head] == b[head]) ++head;
    while (head + tail < least && a[a.size() - 1 - tail] == b[b.size() - 1 - tail]) ++tail;
    for (std::size_t f = 0; f < head; ++f) link_same(links, from, i + f, to, j + f);
    for (std::size_t f = 0; f < tail; ++f)
      link_same(links, from, i + a.size() - 1 - f, to, j + b.size() - 1 - f);
    const std::size_t n = a.size() - head - tail, m = b.size() - head - tail;
    if (n > 0 || m > 0)
      links.push_back(
          {.kind = Link::Kind::regroup, .from = {from, i + head, n}, .to = {to, j + head, m}});
    i += a.size();
    j += b.size();
  }
}

void link_spread(const Program& program, std::vector<Link>& links, const Node& node) {
  const Value from = node.args[0], to = node.results[0];
  link_names(program, links, from, to);
  if (node.attr.block == 0) return;
  const Factor blocks = Factor::blocks(node.attr.axis, node.attr.block);
  const FactorRange narrow = find_axis(program, from, Dim{{blocks}});
  const FactorRange wide = find_axis(program, to, node.attr.axis);
  if (wide.count > 0)
    links.push_back({.kind = Link::Kind::blocks, .from = narrow, .to = wide});
  else
    for (const Factor& factor : node.attr.axis.factors)
      links.push_back(
          {.kind = Link::Kind::piece, .from = narrow, .to = find_axis(program, to, Dim{{factor}})});
}

}  // namespace

FactorRange find_axis(const Program& program, Value value, const Dim& axis) {
  std::size_t at = 0;
  for (const Dim& dim : program.type(value).dims) {
    const auto found = std::ranges::search(dim.factors, axis.factors);
    if (!axis.factors.empty() && !found.empty())
      return {value, at + static_cast<std::size_t>(found.begin() - dim.factors.begin()),
              axis.factors.size()};
    at += dim.factors.size();
  }
  return {value, 0, 0};
}

std::vector<Link> links_of(const Program& program, int index) {
  const Node& node = program.nodes()[static_cast<std::size_t>(index)];
  std::vector<Link> links;
  const Value to = node.results[0];
  switch (class_of(node.op)) {
    case OpClass::leaf:
    case OpClass::product:
    case OpClass::opaque:
      return links;
    case OpClass::unary:
    case OpClass::binary:
    case OpClass::compare:
    case OpClass::select:
    case OpClass::cast:
      for (Value arg : node.args) link_names(program, links, arg, to);
      return links;
    case OpClass::reduce:
    case OpClass::block_reduce: {
      const FactorRange axis = find_axis(program, node.args[0], node.attr.axis);
      const std::size_t left = class_of(node.op) == OpClass::reduce ? 0 : 1;
      link_around(program, links, node.args[0], to, axis.first, axis.count, left);
      if (left > 0)
        links.push_back({.kind = Link::Kind::blocks, .from = axis, .to = {to, axis.first, 1}});
      return links;
    }
    case OpClass::layout:
      break;
    case OpClass::indexed: {
      if (node.op == Op::pick) {
        for (Value arg : node.args) link_names(program, links, arg, to);
        return links;
      }
      // gather and its inverse: rows [first factors] of one side stand for all of the ids' factors.
      const bool gather = node.op == Op::gather;
      const Value table = gather ? node.args[0] : to, rows = gather ? to : node.args[0];
      const std::size_t ids = factor_count(program, node.args[1]);
      const std::size_t first = program.type(table).dims[0].factors.size();
      for (std::size_t i = 0; i < ids; ++i)
        if (gather) link_same(links, node.args[1], i, to, i);
      for (std::size_t i = first; i < factor_count(program, table); ++i)
        gather ? link_same(links, table, i, rows, i - first + ids)
               : link_same(links, rows, i - first + ids, table, i);
      return links;
    }
  }
  if (node.op == Op::as) {
    link_as(program, links, node.args[0], to);
  } else if (node.op == Op::spread) {
    link_spread(program, links, node);
  } else if (node.op == Op::split) {
    const FactorRange axis = find_axis(program, node.args[0], node.attr.axis);
    for (std::size_t p = 0; p < node.results.size(); ++p) {
      const std::size_t count = node.attr.dims[p].factors.size();
      link_around(program, links, node.args[0], node.results[p], axis.first, axis.count, count);
      links.push_back(
          {.kind = Link::Kind::piece, .from = axis, .to = {node.results[p], axis.first, count}});
    }
  } else {
    const FactorRange axis = find_axis(program, to, node.attr.axis);
    for (std::size_t p = 0; p < node.args.size(); ++p) {
      const std::size_t count = node.attr.dims[p].factors.size();
      link_around(program, links, node.args[p], to, axis.first, count, axis.count);
      links.push_back(
          {.kind = Link::Kind::piece, .from = {node.args[p], axis.first, count}, .to = axis});
    }
  }
  return links;
}

std::vector<FactorRange> read_whole(const Program& program, int index) {
  const Node& node = program.nodes()[static_cast<std::size_t>(index)];
  switch (class_of(node.op)) {
    case OpClass::reduce:
    case OpClass::block_reduce:
      return {find_axis(program, node.args[0], node.attr.axis)};
    case OpClass::layout:
      if (node.op == Op::split) return {find_axis(program, node.args[0], node.attr.axis)};
      if (node.op == Op::join) return {find_axis(program, node.results[0], node.attr.axis)};
      return {};
    case OpClass::indexed: {
      if (node.op == Op::pick) return {find_axis(program, node.args[0], node.attr.axis)};
      if (node.op == Op::gather)
        return {{node.args[0], 0, program.type(node.args[0]).dims[0].factors.size()}};
      return {{node.args[0], 0, factor_count(program, node.args[1])}};
    }
    case OpClass::leaf:
    case OpClass::product:
    case OpClass::unary:
    case OpClass::binary:
    case OpClass::compare:
    case OpClass::select:
    case OpClass::cast:
    case OpClass::opaque:
      return {};
  }
  throw InternalError("unknown op class");
}

std::vector<char> find_inputs(const Program& program) {
  std::vector<char> inputs(program.values().size());
  std::fill_n(inputs.begin(), program.params().size(), 1);
  for (const Node& node : program.nodes()) {
    const bool views =
        class_of(node.op) == OpClass::cast || node.op == Op::split || node.op == Op::as;
    if (!views || !inputs[static_cast<std::size_t>(node.args[0].id)]) continue;
    for (Value result : node.results) inputs[static_cast<std::size_t>(result.id)] = 1;
  }
  return inputs;
}

std::vector<int> needed_nodes(const Program& program, std::span<const Value> values,
                              const std::function<bool(Value)>& stop) {
  std::vector<char> needed(program.nodes().size());
  const auto need = [&](Value value) {
    if (!program.is_param(value) && !stop(value))
      needed[static_cast<std::size_t>(program.value(value).node)] = 1;
  };
  for (Value value : values) need(value);
  std::vector<int> nodes;
  for (std::size_t i = program.nodes().size(); i-- > 0;) {
    if (!needed[i]) continue;
    nodes.push_back(static_cast<int>(i));
    for (Value arg : program.nodes()[i].args) need(arg);
  }
  std::ranges::reverse(nodes);
  return nodes;
}

PlaceSets::PlaceSets(const Program& program) {
  std::size_t total = 0;
  for (const ValueInfo& value : program.values()) {
    offsets_.push_back(total);
    total += factors_of(value.type).size();
  }
  for (std::size_t place = 0; place < total; ++place) parent_.push_back(place);
}

std::size_t PlaceSets::root(std::size_t place) {
  while (parent_[place] != place) place = parent_[place] = parent_[parent_[place]];
  return place;
}

void PlaceSets::unite(const FactorRange& a, const FactorRange& b) {
  std::vector<std::size_t> all;
  for (const FactorRange& range : {a, b})
    for (std::size_t f = 0; f < range.count; ++f)
      all.push_back(root(at(range.value, range.first + f)));
  for (std::size_t place : all) parent_[root(place)] = root(all[0]);
}

}  // namespace coda
