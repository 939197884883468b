// coda/check/bind.cpp: sizes of names, by solving one equation for one name until nothing is left.
//
// Equations come from tensor axes (K = 128), from splits and joins (E = R/2 + R/2 + rest) and from
// `as` (K = H*E). Each name that gets a size remembers where from, so that a contradiction can name
// both sides. Everything is verified at the end, in exact integers.

#include "coda/check/bind.h"

#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "coda/check/axes.h"
#include "coda/check/equations.h"
#include "coda/program/text.h"

namespace coda {
namespace {

constexpr const char* kAxesRule =
    "a tensor has one axis for each dimension, or one for each factor of it";

struct Bound {
  std::string name;
  const Type* type = nullptr;
  const Tensor* tensor = nullptr;
  std::vector<AxisDims> fits;

  std::string text() const {
    return name + ": " + type->text() + ", bound to " + to_string(*tensor);
  }
};

std::set<std::string> names_in(const Type& type) {
  std::set<std::string> names;
  for (const Dim& dim : type.dims) collect_names(dim, names);
  return names;
}

class Solver {
 public:
  Solver(const Program& program, const Sizes& given);
  void bind_tensors(std::span<const Tensor> params, std::span<const Tensor> results);
  Sizes finish();

 private:
  struct Origin {
    std::string what;
    int tensor = -1;
  };

  // A mistake in statement `node`, or in the program as a whole.
  void fail(std::string message, std::vector<std::string> types, std::string rule, std::string fix,
            int node = -1);
  void bind_one(const std::string& name, const Type& type, const Tensor& tensor);
  void add_axes(int tensor);
  void settle_fits();
  void add_statements();
  bool solve_one(const Equation& equation);
  void require_names();
  void verify_dim(const Dim& dim, int node, const std::string& holder);
  void verify_quotient(const Factor& factor, int node, const std::string& holder);
  void verify_sum(const Factor& factor, int node, const std::string& holder);
  void verify_factors();
  void verify_equation(const Equation& equation);
  void verify_attention(int node);
  // "K = 128 by axis 1 of x, …" for each name that has a size.
  std::string sources(const std::set<std::string>& names) const;
  // The tensors that an equation and its names come from.
  std::vector<std::string> sides(const Equation& equation) const;

  const Program& program_;
  Sizes sizes_;
  std::map<std::string, Origin> origin_;
  std::set<std::string> contradicted_;  // names that an error already spoke of
  std::vector<Bound> bound_;
  std::vector<Equation> equations_;
  std::set<std::string> checked_;  // factors already verified
  std::vector<Diagnostic> errors_;
};

Solver::Solver(const Program& program, const Sizes& given) : program_(program), sizes_(given) {
  for (const auto& [name, size] : given) {
    origin_[name] = {.what = "--size"};
    if (size < 0)
      fail("the size of " + name + " is " + std::to_string(size), {}, "a size is 0 or more",
           "--size " + name + "=" + std::to_string(-size));
  }
}

void Solver::fail(std::string message, std::vector<std::string> types, std::string rule,
                  std::string fix, int node) {
  Diagnostic diagnostic;
  diagnostic.where = program_.where();
  if (node >= 0) {
    diagnostic.where = program_.nodes()[static_cast<std::size_t>(node)].where;
    diagnostic.statement = print_node(program_, static_cast<std::size_t>(node));
  }
  diagnostic.message = std::move(message);
  diagnostic.types = std::move(types);
  diagnostic.rule = std::move(rule);
  diagnostic.fix = std::move(fix);
  errors_.push_back(std::move(diagnostic));
}

std::string Solver::sources(const std::set<std::string>& names) const {
  std::string text;
  for (const std::string& name : names) {
    auto size = sizes_.find(name);
    if (size == sizes_.end()) continue;
    text += (text.empty() ? "" : ", ") + name + " = " + std::to_string(size->second) + " by " +
            origin_.at(name).what;
  }
  return text;
}

std::vector<std::string> Solver::sides(const Equation& equation) const {
  std::set<int> tensors;
  if (equation.tensor >= 0) tensors.insert(equation.tensor);
  for (const std::string& name : names_in(equation)) {
    auto origin = origin_.find(name);
    if (origin != origin_.end() && origin->second.tensor >= 0)
      tensors.insert(origin->second.tensor);
  }
  std::vector<std::string> lines;
  for (int t : tensors) lines.push_back(bound_[static_cast<std::size_t>(t)].text());
  return lines;
}

// ---- the equations ----

void Solver::bind_tensors(std::span<const Tensor> params, std::span<const Tensor> results) {
  auto count = [&](const char* what, std::size_t wanted, std::size_t got) {
    if (wanted != got)
      throw ProgramError(program_.name() + " has " + std::to_string(wanted) + " " + what +
                             ", but " + std::to_string(got) + " tensors were bound to them",
                         "bind one tensor to each, in the order of the declaration");
  };
  count("parameters", program_.params().size(), params.size());
  if (!results.empty()) count("results", program_.results().size(), results.size());
  for (std::size_t i = 0; i < params.size(); ++i)
    bind_one(program_.params()[i].name, program_.params()[i].type, params[i]);
  for (std::size_t i = 0; i < results.size(); ++i)
    bind_one(program_.results()[i].name, program_.results()[i].type, results[i]);
}

void Solver::bind_one(const std::string& name, const Type& type, const Tensor& tensor) {
  Bound bound{
      .name = name, .type = &type, .tensor = &tensor, .fits = axis_fits(type, tensor.shape.size())};
  if (tensor.dtype != type.dtype) {
    const std::string declared(name_of(type.dtype)), got(name_of(tensor.dtype));
    fail(name + " is declared " + declared + ", the tensor holds " + got, {bound.text()},
         "a tensor has the dtype that its parameter or result declares",
         "convert the tensor to " + declared + ", or declare " + name + ": " +
             Type{tensor.dtype, type.dims}.text() +
             (type.dtype == DType::bf16 ? "; `coda run --dtype f32` reads bf16 as f32" : ""));
  }
  if (bound.fits.empty()) {
    const std::size_t factors = factors_of(type).size(), dims = type.dims.size();
    std::string axes = std::to_string(dims) + (dims == 1 ? " axis" : " axes");
    if (factors > dims) axes = std::to_string(dims) + " to " + std::to_string(factors) + " axes";
    fail(name + ": " + type.text() + " takes " + axes + ", the tensor has " +
             std::to_string(tensor.shape.size()),
         {bound.text()}, kAxesRule,
         type.is_scalar() ? "give a number, or a tensor without axes" : "reshape the tensor");
    contradicted_.merge(names_in(type));
  }
  bound_.push_back(std::move(bound));
  if (bound_.back().fits.size() == 1) add_axes(static_cast<int>(bound_.size()) - 1);
}

void Solver::add_axes(int tensor) {
  const Bound& bound = bound_[static_cast<std::size_t>(tensor)];
  for (std::size_t a = 0; a < bound.fits[0].size(); ++a)
    equations_.push_back({.left = bound.fits[0][a],
                          .right = {},
                          .value = bound.tensor->shape[a],
                          .what = "axis " + std::to_string(a) + " of " + bound.name,
                          .tensor = tensor});
}

// Of several ways to read the axes keeps those that the known sizes allow; once one is left, it
// holds.
void Solver::settle_fits() {
  for (std::size_t t = 0; t < bound_.size(); ++t) {
    Bound& bound = bound_[t];
    if (bound.fits.size() < 2) continue;
    std::erase_if(bound.fits, [&](const AxisDims& axes) {
      for (std::size_t a = 0; a < axes.size(); ++a) {
        std::optional<std::int64_t> n = known_extent(axes[a], sizes_);
        if (n && *n != bound.tensor->shape[a]) return true;
      }
      return false;
    });
    if (bound.fits.empty()) {
      std::set<std::string> names = names_in(*bound.type);
      fail(
          "the axes of " + bound.name + " do not fit " + bound.type->text() + ": " + sources(names),
          {bound.text()}, kAxesRule, "reshape the tensor");
      contradicted_.merge(names);
    }
    if (bound.fits.size() == 1) add_axes(static_cast<int>(t));
  }
}

void Solver::add_statements() {
  for (std::size_t i = 0; i < program_.nodes().size(); ++i) {
    const Node& node = program_.nodes()[i];
    const int at = static_cast<int>(i);
    if (node.op == Op::split || node.op == Op::join) {
      equations_.push_back({.left = node.attr.axis,
                            .right = node.attr.dims,
                            .value = std::nullopt,
                            .what = "the pieces of " + std::string(spelling(node.op)),
                            .node = at});
    } else if (node.op == Op::as) {
      const std::vector<Dim>& from = program_.type(node.args[0]).dims;
      const std::vector<Dim>& to = program_.type(node.results[0]).dims;
      for (std::size_t d = 0; d < from.size() && d < to.size(); ++d)
        if (!(from[d] == to[d]))
          equations_.push_back({.left = from[d],
                                .right = {to[d]},
                                .value = std::nullopt,
                                .what = "`as`",
                                .node = at});
    }
  }
}

bool Solver::solve_one(const Equation& equation) {
  std::string unknown;
  const std::set<std::string> names = names_in(equation);
  for (const std::string& name : names) {
    if (sizes_.contains(name)) continue;
    if (!unknown.empty() || contradicted_.contains(name)) return false;
    unknown = name;
  }
  if (unknown.empty()) return false;
  std::optional<double> exact = solve_for(equation, unknown, sizes_);
  if (!exact) return false;
  const double size = std::round(*exact);
  if (size < 0 || std::abs(size - *exact) > 1e-6 * std::max(1.0, size)) {
    const std::string known = sources(names);
    const std::string at = equation.value ? equation.what + " is " + right_text(equation)
                                          : equation.left.text() + " = " + right_text(equation);
    fail(at + ": no size of " + unknown + " makes that " + equation.left.text() +
             (known.empty() ? "" : " with " + known),
         sides(equation), "sizes are whole numbers",
         "bind tensors, or give sizes, that agree on " + equation.left.text(), equation.node);
    contradicted_.insert(unknown);
    return false;
  }
  sizes_[unknown] = static_cast<std::int64_t>(size);
  origin_[unknown] = {.what = equation.what, .tensor = equation.tensor};
  return true;
}

// ---- verification ----

void Solver::require_names() {
  std::set<std::string> names;
  for (const ValueInfo& value : program_.values()) names.merge(names_in(value.type));
  for (const Node& node : program_.nodes()) {
    collect_names(node.attr.axis, names);
    for (const Dim& dim : node.attr.dims) collect_names(dim, names);
  }
  for (const std::string& name : names) {
    if (sizes_.contains(name) || contradicted_.contains(name)) continue;
    std::vector<std::string> holders;
    for (const Bound& bound : bound_)
      if (names_in(*bound.type).contains(name)) holders.push_back(bound.text());
    fail("nothing determines the size of " + name, holders,
         "every name gets its size from an axis of a tensor",
         "give it, as in --size " + name + "=8, or bind a tensor with an axis for each factor");
  }
}

void Solver::verify_quotient(const Factor& factor, int node, const std::string& holder) {
  const std::size_t before = errors_.size();
  verify_dim(factor.dim(), node, holder);
  std::optional<std::int64_t> whole = known_extent(factor.dim(), sizes_);
  if (errors_.size() > before || !whole || *whole % factor.number() == 0) return;
  std::set<std::string> names;
  collect_names(factor.dim(), names);
  const std::string divisor = std::to_string(factor.number());
  fail(factor.dim().text() + " is " + std::to_string(*whole) + ", which " + divisor +
           " does not divide: " + sources(names),
       {holder}, factor.text() + " divides without remainder",
       "bind sizes of which " + divisor + " is a divisor", node);
}

void Solver::verify_sum(const Factor& factor, int node, const std::string& holder) {
  const std::size_t before = errors_.size();
  std::int64_t total = 0;
  for (const Factor::Term& term : factor.terms()) {
    verify_dim(term.dim, node, holder);
    std::optional<std::int64_t> part = known_extent(term.dim, sizes_);
    if (!part) return;
    total += term.sign * *part;
  }
  if (errors_.size() > before || total >= 0) return;
  std::set<std::string> names;
  collect_names(dim_of(factor), names);
  fail(factor.text() + " is " + std::to_string(total) + ": " + sources(names), {holder},
       "an extent is 0 or more", "bind sizes with which " + factor.text() + " is not negative",
       node);
}

void Solver::verify_dim(const Dim& dim, int node, const std::string& holder) {
  for (const Factor& factor : dim.factors) {
    if (!checked_.insert(factor.text()).second) continue;
    switch (factor.kind()) {
      case Factor::Kind::name:
      case Factor::Kind::number:
        break;
      case Factor::Kind::blocks:
        verify_dim(factor.dim(), node, holder);
        break;
      case Factor::Kind::quotient:
        verify_quotient(factor, node, holder);
        break;
      case Factor::Kind::sum:
        verify_sum(factor, node, holder);
        break;
    }
  }
}

void Solver::verify_factors() {
  for (const Param& param : program_.params())
    for (const Dim& dim : param.type.dims)
      verify_dim(dim, -1, param.name + ": " + param.type.text());
  for (std::size_t i = 0; i < program_.nodes().size(); ++i) {
    const Node& node = program_.nodes()[i];
    const int at = static_cast<int>(i);
    for (Value v : node.results) {
      const std::string holder = describe(program_, v) + ": " + program_.type(v).text();
      for (const Dim& dim : program_.type(v).dims) verify_dim(dim, at, holder);
      verify_dim(node.attr.axis, at, holder);
      for (const Dim& dim : node.attr.dims) verify_dim(dim, at, holder);
    }
  }
}

void Solver::verify_equation(const Equation& equation) {
  std::optional<std::int64_t> left = known_extent(equation.left, sizes_);
  std::int64_t right = equation.value.value_or(0);
  for (const Dim& dim : equation.right) {
    std::optional<std::int64_t> part = known_extent(dim, sizes_);
    if (!part) return;
    right += *part;
  }
  if (!left || *left == right) return;
  const std::string dim = equation.left.text(), l = std::to_string(*left),
                    r = std::to_string(right), from = sources(names_in(equation));
  if (equation.tensor >= 0) {
    fail(equation.what + " is " + r + ", but " + dim + " is " + l + ": " + from, sides(equation),
         "a name has one size", "bind tensors whose axes agree on " + dim);
    return;
  }
  const bool renames = program_.nodes()[static_cast<std::size_t>(equation.node)].op == Op::as;
  fail(equation.what + ": " + dim + " is " + l + ", but " + right_text(equation) + " is " + r +
           ": " + from,
       sides(equation),
       renames ? "`as` keeps the extent of each dimension" : "the pieces add up to the whole",
       "bind sizes with " + dim + " = " + right_text(equation), equation.node);
}

// Query heads share key heads evenly; batches and head sizes agree.
void Solver::verify_attention(int node) {
  const Node& n = program_.nodes()[static_cast<std::size_t>(node)];
  const std::size_t first = n.op == Op::attention_grad ? 1 : 0;
  const Type& q = program_.type(n.args[first]);
  const Type& k = program_.type(n.args[first + 1]);
  if (q.dims.size() != 2 || k.dims.size() != 2) return;
  auto refuse = [&](const std::string& what, std::int64_t a, std::int64_t b,
                    const std::string& rule) {
    fail("q has " + std::to_string(a) + " " + what + ", k has " + std::to_string(b),
         {"q: " + q.text(), "k: " + k.text()}, rule, "bind sizes of q and k that fit", node);
  };
  auto outer = [&](const Dim& dim) {
    Dim rest = dim;
    if (!rest.factors.empty()) rest.factors.pop_back();
    return known_extent(rest, sizes_).value_or(1);
  };
  auto inner = [&](const Dim& dim) {
    if (dim.factors.empty()) return std::int64_t{1};
    return known_extent(dim_of(dim.factors.back()), sizes_).value_or(1);
  };
  const std::int64_t h = outer(q.dims[1]), g = outer(k.dims[1]);
  if (g == 0 ? h != 0 : h % g != 0)
    refuse("heads", h, g, "the heads of q are a multiple of the heads of k and v");
  const std::int64_t b = outer(q.dims[0]), kb = outer(k.dims[0]);
  if (b != kb) refuse("sequences", b, kb, "q, k and v have one batch");
  const std::int64_t e = inner(q.dims[1]), ke = inner(k.dims[1]);
  if (e != ke) refuse("elements a head", e, ke, "q and k have one head size");
}

Sizes Solver::finish() {
  add_statements();
  for (bool moved = true; moved;) {
    moved = false;
    settle_fits();
    for (const Equation& equation : equations_) moved |= solve_one(equation);
  }
  for (const Bound& bound : bound_) {
    if (bound.fits.size() < 2) continue;
    fail("the axes of " + bound.name + " can be read in several ways", {bound.text()}, kAxesRule,
         "give the tensor one axis for each dimension, or give sizes, as in --size " +
             *names_in(*bound.type).begin() + "=8");
    contradicted_.merge(names_in(*bound.type));
  }
  require_names();
  verify_factors();
  for (const Equation& equation : equations_) verify_equation(equation);
  for (std::size_t i = 0; i < program_.nodes().size(); ++i)
    if (class_of(program_.nodes()[i].op) == OpClass::opaque) verify_attention(static_cast<int>(i));
  if (!errors_.empty()) throw ProgramError(std::move(errors_));
  return std::move(sizes_);
}

}  // namespace

Sizes bind(const Program& program, std::span<const Tensor> params, std::span<const Tensor> results,
           const Sizes& given) {
  Solver solver(program, given);
  solver.bind_tensors(params, results);
  return solver.finish();
}

Sizes bind_sizes(const Program& program, const Sizes& given) {
  return Solver(program, given).finish();
}

}  // namespace coda
