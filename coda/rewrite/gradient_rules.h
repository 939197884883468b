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
  bool has_d(std::size_t slot) const { return adjoints.of(node.results[slot]).has_value(); }
  // The adjoint of a result: for maps, which align it by name, it may lack factors; with all
  // factors.
  Expr d() const;
  Expr whole_d(std::size_t slot = 0) const {
    return spread_to(*adjoints.of(node.results[slot]), y_type(slot));
  }
  // The share of an operand: of a map, which repeats its operands over the result, or of another
  // op.
  void align(std::size_t operand, Expr e) const {
    adjoints.add_aligned(node.args[operand], e, y_type());
  }
  void give(std::size_t operand, Expr e) const { adjoints.add(node.args[operand], e); }
};

// Gives each operand of the node its share. Throws ProgramError where the op has no gradient.
void differentiate(const Site& site);

}  // namespace coda
