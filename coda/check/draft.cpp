// coda/check/draft.cpp: the part of a program that a space evaluates, its roles and its rows.

#include "coda/check/draft.h"

#include <algorithm>

namespace coda {
namespace {

bool is_row(const Draft& draft, const FactorRange& range) {
  const std::vector<Role>& roles = draft.roles[static_cast<std::size_t>(range.value.id)];
  return range.count > 0 && !roles.empty() && roles[range.first] == Role::row;
}

}  // namespace

ProgramPart::ProgramPart(const Program& program, std::span<const int> results,
                         const std::function<bool(Value)>& stop, const std::set<int>& untied)
    : present_(program.values().size()), places_(program) {
  std::vector<Value> stored;
  for (int r : results) stored.push_back(program.results()[static_cast<std::size_t>(r)].value);
  nodes_ = needed_nodes(program, stored, stop);
  const auto add = [&](Value value) {
    if (!present_[static_cast<std::size_t>(value.id)]) values_.push_back(value);
    present_[static_cast<std::size_t>(value.id)] = 1;
  };
  for (Value value : stored) add(value);
  for (int i : nodes_)
    for (Value arg : program.nodes()[static_cast<std::size_t>(i)].args) add(arg);
  for (int i : nodes_)
    for (const Link& link : links_of(program, i)) {
      if (!has(link.to.value)) continue;  // a piece of a split that nothing here reads
      if (link.kind == Link::Kind::blocks && untied.contains(i)) continue;
      links_.push_back(link);
      places_.unite(link.from, link.to);
    }
}

void assign_roles(const Program& program, ProgramPart& part,
                  const std::map<std::size_t, Role>& of_set, Draft& draft) {
  draft.roles.assign(program.values().size(), {});
  draft.row_inner.assign(program.values().size(), {});
  for (Value value : part.values()) {
    const std::size_t n = factor_count(program, value);
    draft.row_inner[static_cast<std::size_t>(value.id)].resize(n);
    for (std::size_t f = 0; f < n; ++f) {
      const auto role = of_set.find(part.places().set_of(value, f));
      draft.roles[static_cast<std::size_t>(value.id)].push_back(
          role == of_set.end() ? Role::local : role->second);
    }
  }
}

void assign_rows(const Program& program, const ProgramPart& part, const EqualExtents& extents,
                 std::span<const FactorRange> seeds, Draft& draft) {
  const std::string rule = "all values of a tile run through its rows in one order";
  const std::string fix = "write two programs, or give the values the same row dimensions";
  std::vector<Link> links;
  std::set<std::string> counts;  // blocks(X) of rows X
  for (const Link& link : part.links()) {
    if (!is_row(draft, link.from) && !is_row(draft, link.to)) continue;
    links.push_back(link);
    if (link.kind != Link::Kind::blocks) continue;
    for (const FactorRange& side : {link.from, link.to}) {
      const Factor factor = factors_of(program.type(side.value))[side.first];
      if (side.count == 1 && factor.kind() == Factor::Kind::blocks) counts.insert(factor.text());
    }
  }
  RowIndex index(program, extents);
  for (const FactorRange& seed : seeds) index.seed(seed, Dim{});
  index.propagate(links);
  std::map<std::string, Dim> by_name;
  const auto each_row = [&](const auto& visit) {
    for (Value value : part.values()) {
      const std::vector<Factor> factors = factors_of(program.type(value));
      for (std::size_t f : factors_with(draft, value, Role::row)) visit(value, f, factors[f]);
    }
  };
  each_row([&](Value value, std::size_t f, const Factor& factor) {
    if (index.inner(value, f)) by_name.try_emplace(factor.text(), *index.inner(value, f));
  });
  each_row([&](Value value, std::size_t f, const Factor& factor) {
    const auto named = by_name.find(factor.text());
    if (!index.inner(value, f) && named != by_name.end()) index.seed({value, f, 1}, named->second);
  });
  index.propagate(links);
  if (index.conflict()) {
    const Value value = *index.conflict();
    draft.report.refuse(program.value(value).node,
                        "the rows of `" + draft.report.text(value) + "` run in two orders", {value},
                        rule, fix);
    return;
  }
  each_row([&](Value value, std::size_t f, const Factor& factor) {
    const std::optional<Dim>& inner = index.inner(value, f);
    if (!inner) {
      draft.report.refuse(program.value(value).node,
                          "`" + factor.text() + "` of `" + draft.report.text(value) +
                              "` is along the rows, but nothing says where",
                          {value}, rule, fix);
      return;
    }
    draft.row_inner[static_cast<std::size_t>(value.id)][f] = *inner;
    for (std::size_t g : factors_with(draft, value, Role::row)) {
      if (g >= f || !index.inner(value, g) || !extents.equal(*index.inner(value, g), *inner))
        continue;
      draft.report.refuse(program.value(value).node,
                          "`" + draft.report.text(value) + "` has both " +
                              factors_of(program.type(value))[g].text() + " and " + factor.text() +
                              " along the rows",
                          {value}, "a value is of single rows or of blocks of rows, not both",
                          "use the block values in another program");
    }
  });
  for (const Link& link : links) {
    if (link.kind != Link::Kind::regroup) continue;
    const std::vector<Factor> factors = factors_of(program.type(link.from.value));
    for (std::size_t f = link.from.first; f < link.from.first + link.from.count; ++f)
      if (counts.contains(factors[f].text()))
        draft.report.refuse(program.value(link.to.value).node,
                            "`as` renames " + factors[f].text() + ", blocks of the rows",
                            {link.from.value}, rule, "rename the block values in another program");
  }
}

std::vector<std::size_t> factors_with(const Draft& draft, Value value, Role role) {
  const std::vector<Role>& roles = draft.roles[static_cast<std::size_t>(value.id)];
  std::vector<std::size_t> factors;
  for (std::size_t f = 0; f < roles.size(); ++f)
    if (roles[f] == role) factors.push_back(f);
  return factors;
}

std::optional<Role> role_of(const Draft& draft, const FactorRange& range) {
  const std::vector<Role>& roles = draft.roles[static_cast<std::size_t>(range.value.id)];
  for (std::size_t f = 1; f < range.count; ++f)
    if (roles[range.first + f] != roles[range.first]) return std::nullopt;
  return range.count == 0 ? Role::local : roles[range.first];
}

bool has_all_rows(const Program& program, const Draft& draft, const EqualExtents& extents,
                  Value value) {
  const std::vector<Factor> factors = factors_of(program.type(value));
  std::set<std::string> plain;
  for (const Dim& dim : draft.space.rows)
    for (const Factor& factor : dim.factors) plain.insert(factor.text());
  Dim covered, rows;
  for (std::size_t f : factors_with(draft, value, Role::row)) {
    const Factor& factor = factors[f];
    const bool counts = factor.kind() == Factor::Kind::blocks && !plain.contains(factor.text());
    covered = covered * (counts ? factor.dim() : dim_of(factor));
  }
  for (const Dim& dim : draft.space.rows) rows = rows * dim;
  return extents.equal(covered, rows);
}

}  // namespace coda
