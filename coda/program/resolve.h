// coda/program/resolve.h: every name of an item: what it means, whether it exists, is assigned once
// and is used.
//
// Types come later (lower.h); what is wrong with a name is said here, once, and poisons its
// statement.
#pragma once

#include <set>
#include <vector>

#include "coda/program/unit.h"

namespace coda::ast {

struct Resolved {
  struct Call {
    const Expr* expr = nullptr;
    Definition callee;
  };
  std::vector<Call> calls;              // of defs, programs and blocks
  std::set<const Statement*> poisoned;  // reported: they give no values
  bool good = true;                     // nothing was reported
};

Resolved resolve(const Unit& unit, const Item& item, std::vector<Diagnostic>& diagnostics);

}  // namespace coda::ast
