// coda/program/dim_syntax.h: dimensions as expressions ↔ Dims.
#pragma once

#include <set>
#include <string>
#include <variant>

#include "coda/program/ast.h"
#include "coda/program/dims.h"
#include "coda/program/forms.h"

namespace coda::ast {

// `H*(E/2)`, `E - R`, `blocks(N, 128)`; a Mistake where the expression is no dimension.
std::variant<Dim, Mistake> dim_of(const Expr& expr);
// The inverse: flat() of it is the Dim's canonical text.
Expr expr_of(const Dim& dim);

// Every name in the expression of a dimension.
void dim_names(const Expr& dim, std::set<std::string>& names);
// The first place in it that is `name`; nullptr: none.
const Expr* place_of(const Expr& expr, const std::string& name);
// The dimensions that exist in an item: those of its types, those that its `as`, split and join
// name, and those that it names itself.
std::set<std::string> dim_names(const Item& item);

}  // namespace coda::ast
