// coda/program/forms.cpp: the table of call forms, and whether a call has its shape.
#include "coda/program/forms.h"
#include "coda/program/quote.h"

#include <algorithm>
#include <array>
#include <map>

namespace coda::ast {
namespace {

struct Row {
  std::string_view name;
  Op op;
  std::string_view roles, text;
};

// Unary maps and casts have rows by rule: `exp(v)`, `bf16(v)`.
constexpr auto kRows = std::to_array<Row>({
    {"size", Op::size, "d", "size(N)"},
    {"index", Op::index, "d", "index(N)"},
    {"block_size", Op::minimum, "dn", "block_size(N) or block_size(N, 128)"},
    {"uniform", Op::uniform, "vs", "uniform(seed, [M, N]) or uniform(seed, v)"},
    {"min", Op::minimum, "vv", "min(a, b)"},
    {"max", Op::maximum, "ve", "max(a, b) or max(v, N)"},
    {"where", Op::where, "vvv", "where(condition, a, b)"},
    {"neg", Op::neg, "v", "neg(v)"},
    {"split", Op::split, "vp", "a, b = split(v, E: E/2, E/2)"},
    {"join", Op::join, "p", "join(E: a, b) or join(a, b, E: R, E - R)"},
    {"spread", Op::spread, "vl", "spread(v, N) or spread(v, [M, N])"},
    {"sum", Op::sum, "vd", "sum(v, N)"},
    {"logsumexp", Op::logsumexp, "vd", "logsumexp(v, N)"},
    {"block_sum", Op::block_sum, "vdn", "block_sum(v, N) or block_sum(v, N, 128)"},
    {"block_max", Op::block_max, "vdn", "block_max(v, N) or block_max(v, N, 128)"},
    {"block_logsumexp", Op::block_logsumexp, "vdn",
     "block_logsumexp(v, N) or block_logsumexp(v, N, 128)"},
    {"scatter_sum", Op::scatter_sum, "vvd", "scatter_sum(v, ids, V)"},
    {"pick", Op::pick, "vv", "pick(v, ids)"},
    {"attention", Op::attention, "vvvo", "o, lse = attention(q, k, v, causal: true)"},
    {"attention_grad", Op::attention_grad, "vvvvvvo",
     "dq, dk, dv = attention_grad(do, q, k, v, o, lse, causal: true)"},
});

constexpr auto kForeign = std::to_array<std::pair<std::string_view, std::string_view>>({
    {"matmul", "write `a @ b`"},
    {"dot", "write `a @ b`"},
    {"einsum", "write `a @ b`, or `a @[K, J] b` to name what is contracted"},
    {"transpose", "remove it: dimensions are named, and a result is stored in its declared order"},
    {"permute", "remove it: dimensions are named, and a result is stored in its declared order"},
    {"reshape", "write `v as [M, H*E]`"},
    {"view", "write `v as [M, H*E]`"},
    {"concat", "write `join(E: a, b)`"},
    {"cat", "write `join(E: a, b)`"},
    {"chunk", "write `a, b = split(v, E: E/2, E/2)`"},
    {"broadcast", "write `spread(v, N)`"},
    {"expand", "write `spread(v, N)`"},
    {"mean", "write `sum(v, N) / size(N)`"},
    {"var", "write `sum(d * d, N) / size(N)` with `d = v - sum(v, N) / size(N)`"},
    {"softmax", "write `exp(v - logsumexp(v, N))`"},
    {"pow", "write `x * x`, or `exp(y * log(x))`"},
    {"square", "write `x * x`"},
    {"cast", "write the dtype as the call: `bf16(v)`"},
    {"float", "write `f32(v)`"},
    {"int", "write `i64(v)`"},
    {"len", "write `size(N)`"},
    {"shape", "write `size(N)`"},
    {"arange", "write `index(N)`"},
    {"iota", "write `index(N)`"},
    {"rand", "write `uniform(seed, [M, N])`"},
    {"gather", "write `table[ids]`"},
    {"take", "write `table[ids]`"},
    {"maximum", "write `max(a, b)`"},
    {"minimum", "write `min(a, b)`"},
});

std::map<std::string_view, Form> make_forms() {
  std::map<std::string_view, Form> forms;
  for (const Row& row : kRows)
    forms[row.name] = {row.name, row.op, row.roles, std::string(row.text)};
  for (const Op op : all_ops()) {
    const std::string_view name = spelling(op);
    if (class_of(op) != OpClass::unary || op == Op::neg) continue;
    forms[name] = {name, op, "v", std::string(name) + "(v)"};
  }
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16, DType::f8e4m3,
                            DType::f8e5m2, DType::i32, DType::i64, DType::u8, DType::boolean}) {
    const std::string_view name = coda::name_of(dtype);
    forms[name] = {name, Op::cast, "v", std::string(name) + "(v)"};
  }
  return forms;
}

const std::map<std::string_view, Form>& forms() {
  static const std::map<std::string_view, Form> all = make_forms();
  return all;
}

std::string count(std::size_t number, std::string_view what) {
  return std::to_string(number) + " " + std::string(what) + (number == 1 ? "" : "s");
}

std::string what_is(Role role) {
  switch (role) {
    case Role::value:
      return "the missing value";
    case Role::dim:
      return "the dimension, such as N in `bf16[M, N]`";
    case Role::value_or_dim:
      return "a second value, or the dimension";
    case Role::dim_or_list:
      return "the new dimension";
    case Role::value_or_list:
      return "the dimensions of the result, or a value that has them";
    case Role::pieces:
      return "the dimension, a colon and the pieces";
    case Role::number:
    case Role::options:
      break;
  }
  return "what is missing";
}

}  // namespace

std::string call_form(const Item& item) {
  std::string text;
  for (const Parameter& param : item.params) text += (text.empty() ? "" : ", ") + flat(param);
  return quoted(item.name + "(" + text + ")");
}

Role Form::role(std::size_t place) const {
  return static_cast<Role>(roles[std::min(place, roles.size() - 1)]);
}

const Form* find_form(std::string_view name) {
  const auto found = forms().find(name);
  return found == forms().end() ? nullptr : &found->second;
}

std::vector<std::string> form_names() {
  std::vector<std::string> names;
  for (const auto& [name, form] : forms()) names.emplace_back(name);
  return names;
}

std::string_view foreign_call(std::string_view name) {
  const auto found = std::ranges::find(kForeign, name, [](const auto& row) { return row.first; });
  return found == kForeign.end() ? "" : found->second;
}

std::optional<Mistake> bind_arguments(const Item& item, const Expr& call,
                                      std::vector<const Expr*>& bound) {
  bound.assign(item.params.size(), nullptr);
  const std::string form = call_form(item);
  const std::string rule = "the call has the form " + form;
  bool named = false;
  for (std::size_t i = 0; i < call.args.size(); ++i) {
    const Expr& arg = call.args[i];
    std::size_t place = i;
    if (arg.kind == ExprKind::labelled) {
      named = true;
      const std::string label = flat(arg.args[0]);
      const auto param = std::ranges::find(item.params, label, &Parameter::name);
      if (param == item.params.end()) {
        std::vector<std::string> names;
        for (const Parameter& p : item.params) names.push_back(p.name);
        const std::string near = nearest(label, names);
        return Mistake{
            arg.span, quoted(item.name) + " has no parameter " + quoted(label), rule,
            near.empty() ? "name one of its parameters" : "did you mean " + quoted(near) + "?"};
      }
      place = static_cast<std::size_t>(param - item.params.begin());
    } else if (named) {
      return Mistake{arg.span, "the argument " + quoted(flat(arg)) + " follows a named one",
                     "arguments without a name come first", "name it, or move it forward"};
    }
    if (place >= item.params.size()) {
      return Mistake{arg.span,
                     quoted(item.name) + " has " + count(item.params.size(), "parameter") +
                         ", the call " + count(call.args.size(), "argument"),
                     rule, "remove " + quoted(flat(arg))};
    }
    if (bound[place] != nullptr) {
      return Mistake{arg.span,
                     "the parameter " + quoted(item.params[place].name) + " is given twice", rule,
                     "remove one of the two"};
    }
    bound[place] = arg.kind == ExprKind::labelled ? &arg.args[1] : &arg;
  }
  std::string missing;
  for (std::size_t p = 0; p < bound.size(); ++p) {
    if (bound[p] != nullptr || item.params[p].default_value) continue;
    missing += (missing.empty() ? "" : ", ") + quoted(flat(item.params[p]));
  }
  if (missing.empty()) return std::nullopt;
  return Mistake{call.span, "the call of " + quoted(item.name) + " lacks " + missing, rule,
                 "add the missing argument" +
                     std::string(missing.find(", `") == std::string::npos ? "" : "s")};
}

std::optional<Mistake> check_form(const Form& form, const Expr& call) {
  const std::string rule = quoted(form.name) + " is written " + quoted(form.text);
  const auto mistake = [&](const Span& at, std::string message, std::string fix) {
    return Mistake{at, std::move(message), rule, std::move(fix)};
  };
  const std::size_t given = call.args.size();
  const auto last = static_cast<Role>(form.roles.back());
  const bool is_open = last == Role::pieces || last == Role::options;
  const std::size_t most = form.roles.size();
  const std::size_t least = most - (is_open || last == Role::number ? 1 : 0);
  if (given < least || (!is_open && given > most)) {
    return mistake(call.span, quoted(form.name) + " has " + count(given, "argument") + " here",
                   given < least ? "add " + what_is(form.role(given)) : "remove what is too much");
  }
  std::size_t labels = 0;
  for (std::size_t i = 0; i < given; ++i) {
    const Expr& arg = call.args[i];
    const Role role = form.role(i);
    if (arg.kind == ExprKind::labelled) {
      ++labels;
      if (role != Role::pieces && role != Role::options) {
        return mistake(arg.span, "the argument " + quoted(flat(arg)) + " has a name",
                       "remove " + quoted(flat(arg.args[0]) + ":"));
      }
      continue;
    }
    if (arg.kind == ExprKind::list && role != Role::dim_or_list && role != Role::value_or_list) {
      return mistake(arg.span, "a list stands where " + quoted(form.name) + " takes none",
                     "write it without brackets");
    }
    if (role == Role::options) {
      return mistake(arg.span,
                     quoted(form.name) + " has " + count(i + 1, "argument") + " without a name",
                     "name the option: causal, window, softcap or scale");
    }
    if (role == Role::number && arg.kind != ExprKind::number) {
      return mistake(arg.span, "the block size " + quoted(flat(arg)) + " is no number",
                     "write a number such as 128");
    }
  }
  if (last == Role::pieces && labels != 1) {
    return mistake(call.span,
                   labels == 0 ? quoted(form.name) + " does not say along which dimension"
                               : quoted(form.name) + " names more than one dimension",
                   "name the dimension once, before a colon: " + quoted("E:"));
  }
  if (form.op == Op::split && call.args[1].kind != ExprKind::labelled) {
    return mistake(call.args[1].span, "the pieces come before the dimension that is split",
                   "put " + quoted("E:") + " before the first piece");
  }
  return std::nullopt;
}

}  // namespace coda::ast
