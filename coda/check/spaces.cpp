// coda/check/spaces.cpp: groups accumulators and results into spaces.

#include "coda/check/spaces.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string>

namespace coda {
namespace {

// For each value, the accumulators that it is computed from.
std::vector<std::set<int>> find_sources(const Program& program, const Products& products) {
  std::vector<std::set<int>> sources(program.values().size());
  for (const Node& node : program.nodes())
    for (Value result : node.results) {
      std::set<int>& of = sources[static_cast<std::size_t>(result.id)];
      const int accumulator = products.of_value[static_cast<std::size_t>(result.id)];
      if (accumulator >= 0) {
        of.insert(accumulator);
      } else if (node.op != Op::product) {
        for (Value arg : node.args)
          of.insert(sources[static_cast<std::size_t>(arg.id)].begin(),
                    sources[static_cast<std::size_t>(arg.id)].end());
      }
    }
  return sources;
}

// Accumulators that one value reads are in one group; groups in the order of their first products.
std::vector<std::vector<int>> group_accumulators(const std::vector<std::set<int>>& sources,
                                                 std::size_t count) {
  std::vector<std::size_t> group(count);
  for (std::size_t a = 0; a < count; ++a) group[a] = a;
  for (const std::set<int>& of : sources) {
    if (of.size() < 2) continue;
    std::set<std::size_t> merged;
    for (int a : of) merged.insert(group[static_cast<std::size_t>(a)]);
    for (std::size_t& g : group)
      if (merged.contains(g)) g = *merged.begin();
  }
  std::vector<std::vector<int>> groups(count);
  for (std::size_t a = 0; a < count; ++a) groups[group[a]].push_back(static_cast<int>(a));
  std::erase_if(groups, [](const std::vector<int>& g) { return g.empty(); });
  return groups;
}

bool share_operand(const Program& program, const Product& a, const Product& b) {
  const auto axis = [&](const Accumulator::Term& term) {
    std::vector<Factor> factors =
        program.nodes()[static_cast<std::size_t>(term.node)].attr.axis.factors;
    std::ranges::sort(factors);
    return factors;
  };
  const auto is_range = [&](const Operand& operand) {
    return std::ranges::any_of(operand.chain, [&](int i) {
      return program.nodes()[static_cast<std::size_t>(i)].op == Op::split;
    });
  };
  const auto same = [&](const Operand& x, const Operand& y) {
    if (x.value == y.value) return true;
    return x.input == y.input && !is_range(x) && !is_range(y) &&
           factors_of(program.type(x.value)) == factors_of(program.type(y.value));
  };
  for (const Accumulator::Term& s : a.accumulator.terms)
    for (const Accumulator::Term& t : b.accumulator.terms) {
      if (axis(s) != axis(t)) continue;
      if (same(s.left, t.left) || same(s.right, t.right) || same(s.left, t.right) ||
          same(s.right, t.left))
        return true;
    }
  return false;
}

// Every group is reachable from the first over operands in common.
void require_related(const Program& program, const Products& products,
                     const std::vector<std::vector<int>>& groups, Mistakes& report) {
  const auto related = [&](const std::vector<int>& a, const std::vector<int>& b) {
    for (int x : a)
      for (int y : b)
        if (share_operand(program, products.all[static_cast<std::size_t>(x)],
                          products.all[static_cast<std::size_t>(y)]))
          return true;
    return false;
  };
  std::set<std::size_t> reached = {0};
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      if (reached.contains(g)) continue;
      for (std::size_t r : reached)
        if (related(groups[g], groups[r])) {
          reached.insert(g);
          moved = true;
          break;
        }
    }
  }
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (reached.contains(g)) continue;
    const auto first = [&](std::size_t of) {
      return products.all[static_cast<std::size_t>(groups[of][0])].accumulator.value;
    };
    report.refuse(program.value(first(g)).node,
                  "`" + report.text(first(g)) + "` has no operand in common with `" +
                      report.text(first(0)) + "`",
                  {first(g), first(0)},
                  "products side by side share an operand, contracted over the same dimensions",
                  "write two programs");
  }
}

bool shares_work(const Program& program, std::span<const char> inputs, const Draft& a,
                 const Draft& b) {
  return std::ranges::any_of(a.space.nodes, [&](int i) {
    const Node& node = program.nodes()[static_cast<std::size_t>(i)];
    return class_of(node.op) != OpClass::leaf &&
           !inputs[static_cast<std::size_t>(node.results[0].id)] &&
           std::ranges::find(b.space.nodes, i) != b.space.nodes.end();
  });
}

// What a stream's results must share to be one space: the rows, or all dims where there are none.
std::string frame(const Draft& draft) {
  const Space& space = draft.space;
  std::string text;
  for (const Dim& dim : space.rows.empty() ? space.columns : space.rows) text += dim.text() + ", ";
  return (space.rows.empty() ? "columns " : "rows ") + text;
}

// Results with the same dims, in one space where that can be; alone where it cannot.
std::vector<Draft> spaces_by_dims(const Program& program, std::span<const char> inputs,
                                  Mistakes& report) {
  std::map<std::string, std::vector<int>> by_dims;
  std::vector<std::string> order;
  for (std::size_t r = 0; r < program.results().size(); ++r) {
    const Type& type = program.type(program.results()[r].value);
    const std::string dims = Type{DType::f32, type.dims}.text();
    if (!by_dims.contains(dims)) order.push_back(dims);
    by_dims[dims].push_back(static_cast<int>(r));
  }
  std::vector<Draft> drafts;
  for (const std::string& dims : order) {
    const std::vector<int>& results = by_dims[dims];
    if (results.size() > 1) {
      Draft all = stream_space(program, inputs, results, Wording::none);
      if (all.report.empty()) {
        drafts.push_back(std::move(all));
        continue;
      }
    }
    for (const int r : results) {
      drafts.push_back(stream_space(program, inputs, std::span(&r, 1), report.wording()));
      if (drafts.back().report.empty()) continue;
      report.add(drafts.back().report);
      drafts.pop_back();
    }
  }
  return drafts;
}

}  // namespace

std::vector<Draft> gemm_spaces(const Program& program, std::span<const char> inputs,
                               const Products& products, Mistakes& report) {
  const std::vector<std::set<int>> sources = find_sources(program, products);
  const std::vector<std::vector<int>> groups = group_accumulators(sources, products.all.size());
  std::vector<std::vector<int>> results(groups.size());
  std::vector<int> free;  // results that no accumulator reaches
  for (std::size_t r = 0; r < program.results().size(); ++r) {
    const std::set<int>& of = sources[static_cast<std::size_t>(program.results()[r].value.id)];
    if (of.empty()) free.push_back(static_cast<int>(r));
    for (std::size_t g = 0; g < groups.size(); ++g)
      if (!of.empty() && std::ranges::find(groups[g], *of.begin()) != groups[g].end())
        results[g].push_back(static_cast<int>(r));
  }
  if (products.operands_are_inputs) require_related(program, products, groups, report);
  std::vector<Draft> drafts;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    // What only reaches operands of other products broke rule 1, and that was said.
    if (results[g].empty()) continue;
    drafts.push_back(
        tile_space(program, inputs, products, groups[g], results[g], report.wording()));
    report.add(drafts.back().report);
  }
  if (!report.empty()) return drafts;
  for (int r : free) {
    const Result& result = program.results()[static_cast<std::size_t>(r)];
    std::optional<Mistakes> why;
    bool placed = false;
    for (const bool needed : {true, false})
      for (std::size_t g = 0; g < groups.size() && !placed; ++g) {
        const bool has =
            !program.is_param(result.value) &&
            std::ranges::find(drafts[g].space.nodes, program.value(result.value).node) !=
                drafts[g].space.nodes.end();
        if (has != needed) continue;
        std::vector<int> with = results[g];
        with.push_back(r);
        Draft draft = tile_space(program, inputs, products, groups[g], with, report.wording());
        placed = draft.report.empty();
        if (!why) why = draft.report;
        if (!placed) continue;
        results[g] = with;
        drafts[g] = std::move(draft);
      }
    if (!placed && why) report.add(*why);
  }
  return drafts;
}

std::vector<Draft> stream_spaces(const Program& program, std::span<const char> inputs,
                                 Mistakes& report) {
  std::vector<Draft> drafts;
  if (program.results().size() > 1) {  // most programs are one space
    std::vector<int> all(program.results().size());
    std::iota(all.begin(), all.end(), 0);
    Draft draft = stream_space(program, inputs, all, Wording::none);
    if (draft.report.empty() && !draft.space.rows.empty()) {
      drafts.push_back(std::move(draft));
      return drafts;
    }
  }
  for (Draft& next : spaces_by_dims(program, inputs, report)) {
    bool merged = false;
    for (Draft& draft : drafts) {
      if (frame(draft) != frame(next) && !shares_work(program, inputs, draft, next)) continue;
      std::vector<int> with = draft.space.results;
      with.insert(with.end(), next.space.results.begin(), next.space.results.end());
      Draft both = stream_space(program, inputs, with, Wording::none);
      if (!both.report.empty() || both.space.rows.empty() != draft.space.rows.empty()) continue;
      draft = std::move(both);
      merged = true;
      break;
    }
    if (!merged) drafts.push_back(std::move(next));
  }
  return drafts;
}

}  // namespace coda
