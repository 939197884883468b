// coda/rewrite/gradient_rules.h: one node of a reverse sweep, and the table of rules.
#pragma once

#include "coda/rewrite/adjoints.h"

namespace coda {

// A node y = op(x0, x1, …) whose results' adjoints are complete. Rules read it like mathematics.
struct Site {
  Adjoints& adjoints;
  const Node& node;

  Expr x(std::size_t operand) const { return adjoints.forward(node.args[operand]); }
  Expr y(std::size_t slot = 0) const { return adjoints.forward(node.results[slot]); }
  const Type& x_type(std::size_t operand) const {
    return adjoints.program().type(node.args[operand]);
  }
  const Type& y_type(std::size_t slot = 0) const {
    return adjoints.program().type(node.results[slot]);
  }
  const std::optional<Expr>& d_of(std::size_t slot) const {
    return adjoints.of(node.results[slot]);
  }
  Expr d() const { return *d_of(0); }  // ops with one result only
  void give(std::size_t operand, Expr e) const { adjoints.add(node.args[operand], e); }
};

// Gives each operand of the node its share. Throws ProgramError where the op has no gradient.
void differentiate(const Site& site);

}  // namespace coda
