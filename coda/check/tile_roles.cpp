// coda/check/tile_roles.cpp: rows, columns and leading factors of a gemm space, from its
// accumulators.

#include <algorithm>

#include "coda/check/tile.h"

namespace coda {

Tile::Tile(const Program& program, std::span<const char> inputs, const Products& products,
           std::span<const int> members, std::span<const int> results, Wording wording)
    : program_(program),
      inputs_(inputs),
      part_(
          program, results,
          [&](Value value) { return products.of_value[static_cast<std::size_t>(value.id)] >= 0; }),
      extents_(program, part_.nodes()),
      draft_(program, wording),
      frame_(program.values().size()),
      tile_(program.values().size()),
      picked_(program.values().size()),
      leading_(part_.places().size()) {
  for (int m : members) members_.push_back(products.all[static_cast<std::size_t>(m)]);
  draft_.space.nodes = part_.nodes();
  draft_.space.results.assign(results.begin(), results.end());
}

Draft Tile::run() {
  mark_tile_values();
  seed_accumulators();
  if (!draft_.report.empty()) return std::move(draft_);
  infer_roles();
  assign_rows(program_, part_, extents_, row_seeds(), draft_);
  if (!draft_.report.empty()) return std::move(draft_);
  mark_leading();
  for (int i : part_.nodes()) check_node(i);
  if (!draft_.report.empty()) return std::move(draft_);
  for (int r : draft_.space.results) check_result(program_.results()[static_cast<std::size_t>(r)]);
  for (Product& product : members_)
    draft_.space.accumulators.push_back(std::move(product.accumulator));
  return std::move(draft_);
}

void Tile::refuse(int i, std::string message, std::string fix, std::string rule) {
  draft_.report.refuse(i, std::move(message), node(i).args, std::move(rule), std::move(fix));
}

std::optional<std::size_t> Tile::leading(Value value) const {
  const std::vector<std::size_t> columns = factors_with(draft_, value, Role::column);
  if (columns.empty()) return std::nullopt;
  return columns[0];
}
std::string Tile::leading_name(Value value) const {
  const std::optional<std::size_t> first = leading(value);
  return first ? factors_of(program_.type(value))[*first].text() : "";
}
bool Tile::leads(const FactorRange& range) {
  const std::vector<Factor> factors = factors_of(program_.type(range.value));
  for (std::size_t f = range.first; f < range.first + range.count; ++f) {
    if (leading_[part_.places().at(range.value, f)]) return true;
    if (!is_tile(range.value) && leading_names_.contains(factors[f].text())) return true;
  }
  return false;
}
bool Tile::is_all_columns(const FactorRange& range) const {
  const std::vector<std::size_t> columns = factors_with(draft_, range.value, Role::column);
  return columns.size() == range.count && !columns.empty() && columns[0] == range.first;
}

void Tile::mark_tile_values() {
  for (const Product& product : members_)
    tile_[static_cast<std::size_t>(product.accumulator.value.id)] = 1;
  for (int i : part_.nodes())
    if (std::ranges::any_of(node(i).args, [&](Value arg) { return is_tile(arg); }))
      for (Value result : node(i).results) tile_[static_cast<std::size_t>(result.id)] = 1;
}

// Whether the rows of `product` are columns of what it meets; nullopt: it meets nothing yet.
std::optional<bool> Tile::is_turned(const Product& product) {
  std::optional<bool> turned;
  const Value value = product.accumulator.value;
  for (const bool rows : {true, false})
    for (const Dim& dim : rows ? product.rows : product.columns)
      for (const Factor& factor : dim.factors) {
        const FactorRange at = find_axis(program_, value, Dim{{factor}});
        const auto role = role_of_set_.find(part_.places().set_of(value, at.first));
        if (role != role_of_set_.end()) turned = (role->second == Role::row) != rows;
      }
  return turned;
}

void Tile::seed(const Product& product) {
  const Value value = product.accumulator.value;
  for (const bool rows : {true, false})
    for (const Dim& dim : rows ? product.rows : product.columns)
      for (const Factor& factor : dim.factors) {
        const Role role = rows ? Role::row : Role::column;
        const FactorRange at = find_axis(program_, value, Dim{{factor}});
        const auto [known, fresh] =
            role_of_set_.try_emplace(part_.places().set_of(value, at.first), role);
        if (known->second == role) continue;
        draft_.report.refuse(program_.value(value).node,
                             "`" + factor.text() + "` of `" + text(value) +
                                 "` would be a row in one place and a column in another",
                             {value},
                             "a dimension is along the rows of a tile or along its columns",
                             "rename one of the two: `v as [...]`, or write two programs");
      }
}

void Tile::seed_accumulators() {
  const auto total = [](const std::vector<Dim>& dims) {
    Dim all;
    for (const Dim& dim : dims) all = all * dim;
    return all;
  };
  const std::string rule = "products that one value reads have the same rows and columns";
  seed(members_[0]);
  draft_.space.rows = members_[0].rows;
  draft_.space.columns = members_[0].columns;
  std::vector<Product*> pending;
  for (std::size_t m = 1; m < members_.size(); ++m) pending.push_back(&members_[m]);
  for (bool moved = true; moved;) {
    moved = false;
    std::erase_if(pending, [&](Product* product) {
      const std::optional<bool> turned = is_turned(*product);
      if (!turned) return false;
      if (*turned) turn(*product);
      seed(*product);
      return moved = true;
    });
  }
  for (const Product& product : members_) {
    const Value value = product.accumulator.value, first = members_[0].accumulator.value;
    const bool apart = std::ranges::find(pending, &product) != pending.end();
    if (!apart && extents_.equal(total(product.rows), total(draft_.space.rows)) &&
        extents_.equal(total(product.columns), total(draft_.space.columns)))
      continue;
    draft_.report.refuse(
        program_.value(value).node,
        "`" + text(value) + "` and `" + text(first) + "` meet in one value, but their tiles differ",
        {value, first}, rule, "write two programs: store one product, read it in the other");
  }
  if (members_.size() > kMaxPaired)
    draft_.report.refuse(-1,
                         std::to_string(members_.size()) + " products meet in one value, at most " +
                             std::to_string(kMaxPaired) + " fit on chip together",
                         {}, "paired products are on chip together",
                         "store some of them in an earlier program");
}

// From the accumulators by links; then what is read whole is local; then by names.
void Tile::infer_roles() {
  std::map<std::string, std::optional<Role>> by_name;
  for (Value value : part_.values()) {
    const std::vector<Factor> factors = factors_of(program_.type(value));
    for (std::size_t f = 0; f < factors.size(); ++f) {
      const auto role = role_of_set_.find(part_.places().set_of(value, f));
      if (role == role_of_set_.end()) continue;
      const auto [known, fresh] = by_name.try_emplace(factors[f].text(), role->second);
      if (known->second != role->second) known->second = std::nullopt;
    }
  }
  for (int i : part_.nodes()) {
    if (class_of(node(i).op) != OpClass::reduce && class_of(node(i).op) != OpClass::indexed)
      continue;
    for (const FactorRange& range : read_whole(program_, i))
      for (std::size_t f = range.first; f < range.first + range.count; ++f)
        role_of_set_.try_emplace(part_.places().set_of(range.value, f), Role::local);
  }
  for (Value value : part_.values()) {
    const std::vector<Factor> factors = factors_of(program_.type(value));
    for (std::size_t f = 0; f < factors.size(); ++f) {
      const auto named = by_name.find(factors[f].text());
      if (named != by_name.end() && named->second)
        role_of_set_.try_emplace(part_.places().set_of(value, f), *named->second);
    }
  }
  assign_roles(program_, part_, role_of_set_, draft_);
}

std::vector<FactorRange> Tile::row_seeds() const {
  std::vector<FactorRange> seeds;
  for (const Product& product : members_) {
    const Value value = product.accumulator.value;
    if (product.rows.empty() || !part_.has(value)) continue;
    const FactorRange first = find_axis(program_, value, Dim{{product.rows[0].factors[0]}});
    std::size_t count = 0;
    for (const Dim& dim : product.rows) count += dim.factors.size();
    seeds.push_back({value, first.first, count});
  }
  return seeds;
}

// Leading factors of tile values, then of the inputs and values that meet them.
void Tile::mark_leading() {
  for (Value value : part_.values())
    if (is_tile(value))
      if (const std::optional<std::size_t> first = leading(value)) {
        leading_[part_.places().at(value, *first)] = 1;
        leading_names_.insert(leading_name(value));
      }
  for (std::size_t l = part_.links().size(); l-- > 0;) {
    const Link& link = part_.links()[l];
    if (is_tile(link.from.value) || link.from.count == 0 || !leads(link.to)) continue;
    if (role_of(draft_, link.from) == Role::column)
      leading_[part_.places().at(link.from.value, link.from.first)] = 1;
  }
}

Draft tile_space(const Program& program, std::span<const char> inputs, const Products& products,
                 std::span<const int> members, std::span<const int> results, Wording wording) {
  return Tile(program, inputs, products, members, results, wording).run();
}

}  // namespace coda
