// coda/program/lower_call.cpp: a call is replaced by the body of what it calls; arguments give its
// dimensions their meaning.
#include <algorithm>

#include "coda/program/dim_syntax.h"
#include "coda/program/lower.h"
#include "coda/program/quote.h"

namespace coda::ast {
std::optional<Lowerer::Values> Lowerer::call(const Expr& expr, Frame& frame) {
  const std::optional<Definition> found = find_definition(*frame.unit, expr.text);
  if (!found) return std::nullopt;
  const auto state = states_.find(found->item);
  if (state == states_.end() || !state->second.good) return std::nullopt;  // reported there
  if (++root_.calls > static_cast<int>(kMostNodes)) throw TooLarge();
  const Item& item = *found->item;
  Frame inner{.unit = found->unit, .item = &item, .caller = &frame, .call = &expr};
  if (!bind(item, expr, frame, inner)) return std::nullopt;
  if (item.kind != Item::Kind::def) rename_inner_dims(item, inner);
  for (const Statement& each : item.body) {
    if (each.kind == Statement::Kind::returns) break;
    if (!statement(each, inner)) return std::nullopt;
  }
  return item.kind == Item::Kind::def ? def_values(item, inner) : results(item, expr, frame, inner);
}

// Arguments → the inner frame's values and dimensions.
bool Lowerer::bind(const Item& item, const Expr& expr, Frame& frame, Frame& inner) {
  std::vector<const Expr*> bound;
  if (bind_arguments(item, expr, bound)) return false;  // the resolver reported it
  bool good = true;
  std::vector<MaybeValue> given(bound.size());
  for (std::size_t i = 0; i < bound.size(); ++i) {
    const Parameter& param = item.params[i];
    if (param.type && param.type->dtype == "dim") {
      std::optional<Dim> axis = bound[i] == nullptr ? std::nullopt : dim(*bound[i], frame);
      good = good && axis.has_value();
      if (axis) inner.dims[param.name] = std::move(*axis);
      continue;
    }
    // A default is a number: it means the same in every frame.
    given[i] = value(bound[i] == nullptr ? *param.default_value : *bound[i], frame);
    good = good && given[i].has_value();
  }
  if (!good) return false;
  for (std::size_t i = 0; i < bound.size(); ++i) {
    if (!given[i]) continue;
    const Parameter& param = item.params[i];
    const Expr& arg = bound[i] == nullptr ? *param.default_value : *bound[i];
    MaybeValue value = given[i];
    if (param.type && !bind_dims(param, arg, *value, frame, inner)) return false;
    if (item.kind != Item::Kind::def) value = converted(param, *value, arg, frame);
    if (!value) return false;
    inner.values[param.name] = *value;
  }
  return true;
}

bool Lowerer::bind_dims(const Parameter& param, const Expr& arg, Value value, Frame& frame,
                        Frame& inner) {
  const Type& actual = root_.builder->type(value);
  const Substitution before = inner.dims;
  bool fits = param.type->dims.size() == actual.dims.size();
  for (std::size_t d = 0; fits && d < actual.dims.size(); ++d) {
    const std::variant<Dim, Mistake> pattern = dim_of(param.type->dims[d]);
    if (const Mistake* mistake = std::get_if<Mistake>(&pattern)) {
      report(inner, *mistake);
      return false;
    }
    fits = unify(std::get<Dim>(pattern), actual.dims[d], inner.dims);
  }
  if (fits) return true;
  // The parameter's dimensions as the caller would write them, where earlier arguments gave them a
  // meaning.
  std::string own, here;
  for (const Expr& dim : param.type->dims) {
    const std::string joint = own.empty() ? "" : ", ";
    own += joint + flat(dim);
    here += joint + substitute(std::get<Dim>(dim_of(dim)), before).text();
  }
  const std::string argument = shortened(flat(arg), kPiece);
  const bool same_rank = param.type->dims.size() == actual.dims.size() && here.size() > 0;
  report(
      frame, arg.span,
      "the argument " + quoted(argument) + " does not fit the parameter " + quoted(flat(param)) +
          " of " + quoted(inner.item->name),
      {"parameter " + flat(param) + (here == own ? "" : ", here [" + here + "]"),
       "argument " + argument + ": " + actual.text()},
      "an argument has the dimensions of its parameter, each name with one meaning in all of them",
      (here.empty() ? "give a scalar"
                    : "give a value with the dimensions [" + here + "]" +
                          (same_rank ? ", or rename: `v as [" + here + "]`" : "")) +
          "; the call has the form " + call_form(*inner.item));
  return false;
}

// A value of another dtype than a program's parameter declares is cast; integers keep their width.
Lowerer::MaybeValue Lowerer::converted(const Parameter& param, Value value, const Expr& arg,
                                       Frame& frame) {
  const DType declared = *dtype_from(param.type->dtype);
  const DType actual = root_.builder->type(value).dtype;
  if (declared == actual || (is_integer(declared) && is_integer(actual))) return value;
  if (is_float(declared) && actual != DType::boolean) {
    return emit_one(Op::cast, {value}, {&arg}, {.dtype = declared}, arg, frame);
  }
  report(frame, arg.span,
         "the argument " + quoted(shortened(flat(arg), kPiece)) + " does not fit the parameter " +
             quoted(flat(param)),
         {"parameter " + flat(param),
          "argument " + shortened(flat(arg), kPiece) + ": " + root_.builder->type(value).text()},
         "only floating-point parameters convert what they are given",
         "cast it: " + quoted(param.type->dtype + "(…)"));
  return std::nullopt;
}

std::optional<Lowerer::Values> Lowerer::def_values(const Item& item, Frame& inner) {
  Values all;
  const std::vector<Expr>& returned = item.body.back().values;
  if (returned.size() == 1) return values(returned[0], inner);
  for (const Expr& expr : returned) {
    const MaybeValue each = value(expr, inner);
    if (!each) return std::nullopt;
    all.push_back(*each);
  }
  return all;
}

// The declared results of a program or block, rounded as their store would round them.
std::optional<Lowerer::Values> Lowerer::results(const Item& item, const Expr& expr, Frame& frame,
                                                Frame& inner) {
  Values all;
  for (const Parameter& result : item.results) {
    if (result.accumulate) {
      report(frame, expr.span, quoted(item.name) + " accumulates into " + quoted(flat(result)), {},
             "a call gives values; only the program that runs may add into a result",
             "call a program that writes " + quoted(result.name + " = …") + ", and add here");
      return std::nullopt;
    }
    MaybeValue value = inner.values.at(result.name);
    const Type declared = type(*result.type, inner);
    if (declared.dims != root_.builder->type(*value).dims) {
      report(frame, expr.span,
             quoted(item.name) + " stores " + quoted(result.name) +
                 " in another order than it computes it",
             {"declared " + result.name + ": " + declared.text(),
              "computed " + result.name + ": " + root_.builder->type(*value).text()},
             "only a store reorders dimensions, and a call stores nothing",
             "declare the result in the order in which it is computed");
      return std::nullopt;
    }
    const DType actual = root_.builder->type(*value).dtype;
    if (declared.dtype != actual && is_float(declared.dtype)) {
      value = emit_one(Op::cast, {*value}, {}, {.dtype = declared.dtype}, expr, frame);
    }
    if (!value) return std::nullopt;
    all.push_back(*value);
  }
  return all;
}

// Dimensions that the callee makes for itself (`as`, split) must not meet the caller's of the same
// name. Those in the types of its results, and those that it names because no type has them, are
// the caller's to see, and keep their names.
void Lowerer::rename_inner_dims(const Item& item, Frame& inner) {
  std::set<std::string> seen;
  for (const Expr& dim : item.dims) seen.insert(dim.text);
  for (const Parameter& result : item.results) {
    for (const Expr& dim : result.type->dims) dim_names(dim, seen);
  }
  for (const std::string& name : dim_names(item)) {
    if (inner.dims.contains(name) || seen.contains(name)) continue;
    std::string fresh = name;
    for (int n = 2; root_.dims.contains(fresh); ++n) fresh = name + "_" + std::to_string(n);
    root_.dims.insert(fresh);
    if (fresh != name) inner.dims[name] = coda::dim_of(fresh);
  }
}

}  // namespace coda::ast
