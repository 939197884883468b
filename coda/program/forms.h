// coda/program/forms.h: how the ops that read like calls are written, one row each.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coda/program/ast.h"
#include "coda/program/program.h"

namespace coda::ast {

// What stands in a place between the parentheses.
enum class Role : char {
  value = 'v',
  dim = 'd',
  value_or_dim = 'e',   // max
  dim_or_list = 'l',    // spread
  value_or_list = 's',  // uniform
  number = 'n',         // a literal; only the last place, and optional
  pieces = 'p',         // split, join: from here on labelled dimensions
  options = 'o',        // attention: from here on labelled scalars
};

struct Form {
  std::string_view name;
  Op op = Op::constant;
  std::string_view roles;  // Role letters
  std::string text;        // how it is written: "sum(v, N)"

  Role role(std::size_t place) const;
};

// The op, cast or `block_size` of that name; nullptr where there is none.
const Form* find_form(std::string_view name);
std::vector<std::string> form_names();

// What to write for a call of another language ("matmul"), or "".
std::string_view foreign_call(std::string_view name);

// A mistake whose source is not known yet.
struct Mistake {
  Span at;
  std::string message, rule, fix;
};

// How a def, program or block is called: "`rmsnorm(v, g: [D], eps = 1e-5)`".
std::string call_form(const Item& item);

// The arguments of a call of a def, program or block, one for each parameter; nullptr: its default.
std::optional<Mistake> bind_arguments(const Item& item, const Expr& call,
                                      std::vector<const Expr*>& bound);
// Whether the call of an op has the arguments of its form.
std::optional<Mistake> check_form(const Form& form, const Expr& call);

}  // namespace coda::ast
