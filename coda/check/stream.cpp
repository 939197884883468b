// coda/check/stream.cpp: rule 6: programs without products, a row at a time.
//
// Rows are the outermost factors of what results and whole reductions read, up to the first factor
// that some node reads whole. All else is whole in every row, so the rules are about rows only:
// which factors can be rows, and what may look at several of them.

#include <algorithm>

#include "coda/check/draft.h"

namespace coda {
namespace {

const char* const kStreamRule =
    "a program without a product is a streaming kernel: whole-row sums over columns are allowed, "
    "along rows only block sums";

class Stream {
 public:
  Stream(const Program& program, std::span<const char> inputs, std::span<const int> results,
         bool split_vectors, Wording wording)
      : program_(program),
        inputs_(inputs),
        split_vectors_(split_vectors),
        untied_(find_untied()),
        part_(
            program, results, [](Value) { return false; }, untied_),
        extents_(program, part_.nodes()),
        draft_(program, wording) {
    draft_.space.nodes = part_.nodes();
    draft_.space.results.assign(results.begin(), results.end());
  }

  Draft run() {
    for (int i : part_.nodes()) find_crossings(i);
    for (int r : draft_.space.results) require_first(stored(r));
    for (const auto& [set, by] : required_)
      if (const auto crossing = crossed_.find(set); crossing != crossed_.end())
        refuse_crossing(crossing->second);
    if (!draft_.report.empty()) return std::move(draft_);
    choose_rows();
    assign();
    if (!draft_.report.empty()) return std::move(draft_);
    for (int i : part_.nodes()) check_node(i);
    for (int r : draft_.space.results) check_result(r);
    return std::move(draft_);
  }

 private:
  const Node& node(int i) const { return program_.nodes()[static_cast<std::size_t>(i)]; }
  const Type& type(Value value) const { return program_.type(value); }
  bool is_input(Value value) const { return inputs_[static_cast<std::size_t>(value.id)]; }
  Value stored(int r) const { return program_.results()[static_cast<std::size_t>(r)].value; }
  std::string text(int i) const { return draft_.report.text(i); }

  std::set<int> find_untied() const;
  bool joins_rows(int i) const;
  void find_crossings(int i);
  void find_scatter(int i);
  void require_first(Value value);
  void refuse_crossing(int i);
  std::size_t row_count(Value value);
  void choose_rows();
  void name_rows(Value value, Value spelled, std::map<std::size_t, Role>& roles);
  void assign();
  void check_node(int i);
  void check_result(int r);

  const Program& program_;
  std::span<const char> inputs_;
  bool split_vectors_;
  std::set<int> untied_;
  ProgramPart part_;
  EqualExtents extents_;
  Draft draft_;
  std::map<std::size_t, int> crossed_;     // sets that a node reads whole, and the node
  std::map<std::size_t, Value> required_;  // sets that must be rows, and a value that says so
  std::vector<Value> candidates_;          // values that may spell out the rows
  std::optional<Value> main_;
  std::size_t rows_ = 0;  // how many factors of main_ are rows
};

// Dimensions that have factors: one of extent 1 has none.
std::vector<Dim> dims_of(const Type& type) {
  std::vector<Dim> dims = type.dims;
  std::erase_if(dims, [](const Dim& dim) { return dim.factors.empty(); });
  return dims;
}

// Factors before the last dimension.
std::size_t outer_factors(const Type& type) {
  const std::vector<Dim> dims = dims_of(type);
  return dims.empty() ? 0 : factors_of(type).size() - dims.back().factors.size();
}

// Block reductions of an input along factors that are not the last rows: rows of the result read
// their blocks by themselves.
std::set<int> Stream::find_untied() const {
  std::set<int> untied;
  for (std::size_t i = 0; i < program_.nodes().size(); ++i) {
    const Node& n = program_.nodes()[i];
    if (class_of(n.op) != OpClass::block_reduce || !is_input(n.args[0])) continue;
    const FactorRange axis = find_axis(program_, n.args[0], n.attr.axis);
    const std::size_t outer = outer_factors(type(n.args[0]));
    if (axis.first < outer && axis.first + axis.count != outer) untied.insert(static_cast<int>(i));
  }
  return untied;
}

// A join of inputs that is nothing but a result, outside of the last dimension.
bool Stream::joins_rows(int i) const {
  const Node& n = node(i);
  const FactorRange axis = read_whole(program_, i)[0];
  const auto reads = [&](const Node& other) {
    return std::ranges::find(other.args, n.results[0]) != other.args.end();
  };
  return axis.first < outer_factors(type(n.results[0])) &&
         std::ranges::all_of(
             n.args, [&](Value arg) { return is_input(arg); }) &&
         std::ranges::none_of(program_.nodes(), reads);
}

void Stream::require_first(Value value) {
  if (dims_of(type(value)).size() < 2) return;
  required_.try_emplace(part_.places().set_of(value, 0), value);
  candidates_.push_back(value);
}

void Stream::find_crossings(int i) {
  const Node& n = node(i);
  const bool reduces = class_of(n.op) == OpClass::reduce || n.op == Op::pick;
  const bool blocks = class_of(n.op) == OpClass::block_reduce;
  if (blocks && !untied_.contains(i)) return require_first(n.args[0]);
  if (n.op == Op::scatter_sum) return find_scatter(i);
  if (n.op == Op::split && is_input(n.args[0])) return;
  if (n.op == Op::join && joins_rows(i)) return;
  for (const FactorRange& axis : read_whole(program_, i)) {
    for (std::size_t f = axis.first; f < axis.first + axis.count; ++f)
      crossed_.try_emplace(part_.places().set_of(axis.value, f), i);
    if (n.op == Op::gather || blocks) continue;
    if (axis.first > 0) {
      require_first(axis.value);
      if (split_vectors_ && dims_of(type(axis.value)).size() == 1)
        candidates_.push_back(axis.value);
    } else if (dims_of(type(axis.value)).size() >= 2 && !(reduces && is_input(axis.value))) {
      refuse_crossing(i);
    }
  }
}

// Rows are the new axis, each adds up the values that its ids name: nothing else has such rows.
void Stream::find_scatter(int i) {
  const Node& n = node(i);
  if (program_.nodes().size() > 1)
    draft_.report.refuse(i, "`" + text(i) + "` stands beside other work", n.args,
                         "scatter_sum is a program of its own",
                         "store what it reads, and its result, between programs");
  main_ = n.results[0];
  rows_ = find_axis(program_, n.results[0], n.attr.axis).count;
}

void Stream::refuse_crossing(int i) {
  const Node& n = node(i);
  const std::string axis = n.attr.axis.text();
  std::string fix = "write two programs: store what it reads, and run it alone in the next";
  if (class_of(n.op) == OpClass::reduce) {
    const Value result = n.results[0];
    const std::string name = program_.value(result).name.empty() ? "s" : describe(program_, result);
    fix = "store `block_" + text(i) + "` here and finish it with `" + std::string(spelling(n.op)) +
          "(" + name + ", blocks(" + axis + "))` in the next program";
  }
  draft_.report.refuse(i,
                       "`" + text(i) + "` reads " + axis +
                           " whole, but the kernel's rows run along it, one at a time",
                       n.args, kStreamRule, fix);
}

// How many of its outermost factors can be rows.
std::size_t Stream::row_count(Value value) {
  const std::size_t outer =
      type(value).dims.size() > 1 ? outer_factors(type(value)) : factor_count(program_, value);
  std::size_t count = 0;
  while (count < outer && !crossed_.contains(part_.places().set_of(value, count))) ++count;
  return count;
}

void Stream::choose_rows() {
  // blocks(X) of rows X does not spell the rows out.
  std::set<std::string> counts;
  for (const Link& link : part_.links())
    if (link.kind == Link::Kind::blocks)
      for (const FactorRange& side : {link.from, link.to})
        counts.insert(factors_of(type(side.value))[side.first].text());
  for (int i : part_.nodes())
    if (!node(i).attr.axis.factors.empty() && node(i).attr.block > 0)
      for (const Factor& factor : node(i).attr.axis.factors) counts.erase(factor.text());
  std::size_t widest = 0;
  for (Value value : candidates_) {
    const std::vector<Factor> factors = factors_of(type(value));
    const std::size_t count = row_count(value);
    bool plain = true;
    for (std::size_t f = 0; f < count; ++f) plain = plain && !counts.contains(factors[f].text());
    if (!plain || count < rows_ || (count == rows_ && main_ && factors.size() <= widest)) continue;
    main_ = value;
    rows_ = count;
    widest = factors.size();
  }
}

void Stream::name_rows(Value value, Value spelled, std::map<std::size_t, Role>& roles) {
  const std::vector<Factor> factors = factors_of(type(value)), rows = factors_of(type(spelled));
  if (rows_ == 0 || factors.size() < rows_) return;
  for (std::size_t f = 0; f < rows_; ++f)
    if (factors[f] != rows[f] || crossed_.contains(part_.places().set_of(value, f))) return;
  for (std::size_t f = 0; f < rows_; ++f)
    roles.try_emplace(part_.places().set_of(value, f), Role::row);
}

void Stream::assign() {
  std::map<std::size_t, Role> roles;
  Value spelled = stored(draft_.space.results[0]);
  for (int r : draft_.space.results)
    if (factor_count(program_, stored(r)) > factor_count(program_, spelled)) spelled = stored(r);
  if (main_) spelled = *main_;
  for (std::size_t f = 0; f < rows_; ++f) roles[part_.places().set_of(spelled, f)] = Role::row;
  // What no node links to them has the same rows where its outermost factors are the same.
  for (Value value : candidates_) name_rows(value, spelled, roles);
  for (int r : draft_.space.results) name_rows(stored(r), spelled, roles);
  std::size_t at = 0;
  for (const Dim& dim : type(spelled).dims) {
    Dim row, column;
    for (const Factor& factor : dim.factors)
      (at++ < rows_ ? row : column).factors.push_back(factor);
    if (!row.factors.empty()) draft_.space.rows.push_back(row);
    if (!column.factors.empty()) draft_.space.columns.push_back(column);
  }
  std::vector<Value> wide = {spelled};
  for (int r : draft_.space.results) wide.push_back(stored(r));
  for (Value value : wide)
    for (std::size_t f = 0; f < factor_count(program_, value); ++f)
      roles.try_emplace(part_.places().set_of(value, f), Role::column);
  assign_roles(program_, part_, roles, draft_);
  for (const auto& [set, value] : required_) {
    if (roles.contains(set) && roles.at(set) == Role::row) continue;
    draft_.report.refuse(program_.value(value).node,
                         "`" + draft_.report.text(value) + "` and `" + draft_.report.text(spelled) +
                             "` have no rows in common",
                         {value, spelled}, "all of a streaming kernel runs along the same rows",
                         "write two programs");
  }
  if (!draft_.report.empty()) return;
  std::vector<FactorRange> seeds;
  if (rows_ > 0) seeds.push_back({spelled, 0, rows_});
  assign_rows(program_, part_, extents_, seeds, draft_);
}

void Stream::check_node(int i) {
  const Node& n = node(i);
  if (n.op == Op::gather && !program_.is_param(n.args[0]))
    draft_.report.refuse(i, "`" + text(i) + "` gathers from a computed table", n.args,
                         "gathers read inputs", "store the table in an earlier program");
  const bool row_blocks = (class_of(n.op) == OpClass::block_reduce && !untied_.contains(i)) ||
                          (n.op == Op::spread && n.attr.block > 0);
  if (!row_blocks) return;
  const FactorRange axis =
      find_axis(program_, n.op == Op::spread ? n.results[0] : n.args[0], n.attr.axis);
  const std::optional<Role> role = role_of(draft_, axis);
  if (role && *role != Role::row) return;
  if (n.op == Op::spread) {
    if (!is_input(n.args[0]))
      draft_.report.refuse(i, "`" + text(i) + "` needs blocks of rows before their rows", n.args,
                           kStreamRule,
                           "store the block values, and spread them in the next program");
    return;
  }
  const Dim& inner =
      draft_.row_inner[static_cast<std::size_t>(axis.value.id)][axis.first + axis.count - 1];
  const std::vector<std::size_t> rows = factors_with(draft_, axis.value, Role::row);
  if (!role || !extents_.equal(inner, Dim{}) || rows.back() != axis.first + axis.count - 1 ||
      !has_all_rows(program_, draft_, extents_, axis.value))
    draft_.report.refuse(i,
                         "the blocks of `" + text(i) + "` are not neighbouring rows of the kernel",
                         n.args, kStreamRule, "run it alone in the next program");
}

void Stream::check_result(int r) {
  const Result& result = program_.results()[static_cast<std::size_t>(r)];
  if (has_all_rows(program_, draft_, extents_, result.value)) return;
  draft_.report.refuse(
      program_.value(result.value).node,
      "`" + result.name + ": " + result.type.text() + "` repeats over the rows of the kernel",
      {result.value}, "a result of a streaming kernel has all its rows",
      "compute it in a program of its own");
}

}  // namespace

Draft stream_space(const Program& program, std::span<const char> inputs,
                   std::span<const int> results, Wording wording) {
  // A reduction inside a vector of heads has the heads for rows, where nothing else says what rows
  // are.
  Draft draft = Stream(program, inputs, results, false, wording).run();
  if (!draft.report.empty() || !draft.space.rows.empty()) return draft;
  Draft heads = Stream(program, inputs, results, true, wording).run();
  return heads.report.empty() ? std::move(heads) : std::move(draft);
}

}  // namespace coda
