// coda/algebra/rules.cpp: the list of rules.
#include <array>

#include "coda/algebra/rule.h"

namespace coda {

std::span<const Rule> block_rules() {
  static constexpr std::array rules{
      Rule{.name = "row_scale",
           .identity = "(r·X·γ) @ W = r·((X·γ) @ W)",
           .precondition = "only products read the operand; r is a whole-row statistic, or X a "
                           "parameter; not past a pin, not into f16",
           .buys = "no pass over whole rows between two products",
           .apply = row_scale},
      Rule{.name = "packed_product",
           .identity = "split(x @ w, N: A, B) = x @ w1, x @ w2 with w1, w2 = split(w, N: A, B)",
           .precondition = "maps read pieces together; scales, biases and casts lie between",
           .buys = "a pass over the product, which no tile could split",
           .apply = packed_product},
      Rule{.name = "shared_scale",
           .identity = "r·A + r·(s·(x @ b)) = r·(A + (s·x) @ b)",
           .precondition = "A and B are products that nothing else reads; x is made for this alone",
           .buys = "one accumulator instead of two and their sum",
           .apply = shared_scale},
  };
  return rules;
}

std::span<const Rule> joint_rules() {
  static constexpr std::array rules{
      Rule{.name = "centred_sum",
           .identity = "sum((x - mean x)·s) = 0",
           .precondition = "s does not vary along the sum",
           .buys = "a pass over whole rows",
           .apply = centred_sum},
      Rule{.name = "joined_products",
           .identity = "join(a @ x, b @ x) = join(a, b) @ x",
           .precondition = "the products share an operand; pieces of one split weight",
           .buys = "one product of one stored operand",
           .apply = joined_products},
      Rule{.name = "row_sum",
           .identity = "sum(X, M) @ W = sum(X @ W, M)",
           .precondition = "(r·X) @ W is computed anyway",
           .buys = "a kernel for a vector times a weight",
           .apply = row_sum},
      Rule{.name = "vanishing",
           .identity = "(x - detach(x))·y = 0",
           .precondition = "gradients are taken",
           .buys = "a term",
           .apply = vanishing},
      Rule{.name = "merged_sums",
           .identity = "sum(a) ± sum(b) = sum(a ± b)",
           .precondition = "the same axis, and nothing else reads the two",
           .buys = "one row of partial results instead of two",
           .apply = merged_sums},
      Rule{.name = "constant_scale",
           .identity = "a·(b·x·y / z) = (a·b)·x·y / z",
           .precondition = "nothing else reads the chain between the two constants",
           .buys = "a multiplication",
           .apply = constant_scale},
  };
  return rules;
}

std::span<const Rule> kernel_rules() {
  static constexpr std::array rules{
      Rule{.name = "centred_squares",
           .identity = "Σ(x - μ)² = Σ_blocks [Σ_block (x - μ_b)² + n_b·(μ_b - μ)²]",
           .precondition = "μ is the mean of x, which a product's tiles make",
           .buys = "a pass over whole rows",
           .apply = centred_squares},
  };
  return rules;
}

}  // namespace coda
