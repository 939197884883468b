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
           .buys = "a pass between two products that reads X and writes it scaled: 2·M·D",
           .apply = row_scale},
      Rule{.name = "packed_product",
           .identity = "split(x @ w, N: A, B) = x @ w1, x @ w2 with w1, w2 = split(w, N: A, B)",
           .precondition = "maps read pieces together; scales, biases and casts lie between",
           .buys = "a pass over the product, which no tile could split: 2·M·N",
           .apply = packed_product},
      Rule{.name = "shared_scale",
           .identity = "r·A + r·(s·(x @ b)) = r·(A + (s·x) @ b)",
           .precondition = "A and B are products that nothing else reads; x is made for this alone",
           .buys = "one accumulator instead of two; the second was stored and read: 2·M·N",
           .apply = shared_scale},
  };
  return rules;
}

std::span<const Rule> joint_rules() {
  static constexpr std::array rules{
      Rule{.name = "centred_sum",
           .identity = "sum((x - mean x)·s) = 0",
           .precondition = "s does not vary along the sum",
           .buys = "a pass over whole rows: M·D",
           .apply = centred_sum},
      Rule{.name = "joined_products",
           .identity = "join(a @ x, b @ x) = join(a, b) @ x",
           .precondition = "the products share an operand; pieces of one split weight",
           .buys = "the join of what is stored in parts, too: 2·M·N",
           .apply = joined_products},
      Rule{.name = "other_operand",
           .identity = "dZ' @ (r·P) = (r·dZ)' @ P",
           .precondition = "r runs along the contraction; r·dZ is computed anyway; nothing else "
                           "reads r·P",
           .buys = "the scaled copy of P: 2·M·D",
           .apply = other_operand},
      Rule{.name = "row_sum",
           .identity = "sum(X, M) @ W = sum(X @ W, M)",
           .precondition = "(r·X) @ W is computed anyway",
           .buys = "a kernel that reads a weight once more: D·N",
           .apply = row_sum},
      Rule{.name = "vanishing",
           .identity = "(x - detach(x))·y = 0",
           .precondition = "gradients are taken",
           .buys = "what the term reads",
           .apply = vanishing},
      Rule{.name = "merged_sums",
           .identity = "sum(a) ± sum(b) = sum(a ± b)",
           .precondition = "the same axis, and nothing else reads the two",
           .buys = "one of two rows of partial results: 2·M·N/64",
           .apply = merged_sums},
      Rule{.name = "constant_scale",
           .identity = "a·(b·x·y / z) = (a·b)·x·y / z",
           .precondition = "nothing else reads the chain between the two constants",
           .buys = "nothing but a multiplication",
           .apply = constant_scale},
  };
  return rules;
}

std::span<const Rule> kernel_rules() {
  static constexpr std::array rules{
      Rule{.name = "centred_squares",
           .identity = "Σ(x - μ)² = Σ_blocks [Σ_block (x - μ_b)² + n_b·(μ_b - μ)²]",
           .precondition = "μ is the mean of x, which a product's tiles make",
           .buys = "a pass over whole rows: M·D",
           .apply = centred_squares},
  };
  return rules;
}

}  // namespace coda
