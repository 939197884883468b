// coda/rewrite/rewrite.h: a whole block, or a whole training step, to kernels: the passes in order.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coda/rewrite/grad.h"
#include "coda/rewrite/partition.h"

namespace coda {

struct RewriteOptions {
  // Row scales leave the operands of products even where these are f16, whose range they may
  // exceed.
  bool delay_f16 = false;
  // Bytes that one forward may keep for its backward, at `sizes`; none: as many as pay.
  std::optional<std::int64_t> memory = {};
  // Names of values of the block, against the policy's choice.
  std::set<std::string> save = {}, recompute = {};
  // What bytes are counted at for `memory`; a name that is missing counts as 1024. Kernels do not
  // depend on sizes.
  Sizes sizes = {};
};

// The program after one pass.
struct Pass {
  std::string name;
  Program program;
};

struct Rewritten {
  Partition forward;
  std::optional<Partition> backward;  // with a gradient only
  std::vector<std::string> saved;     // what forward keeps for it, beside results
  std::vector<Pass> passes;           // in order; "forward" and "backward" start the halves
  std::vector<std::string> notes;     // rules that could have been applied and were not, and why
};

// simplify, the algebra (docs/rewrite.md), partition. Total: whatever the block, the steps are
// kernels. Pure, as all of rewriting: any thread may call it. Throws ProgramError where an option
// names no value of the block.
Rewritten rewrite(const Program& block, const RewriteOptions& options = {});
// The same with grad after the algebra of the block, so that differentiation gives the algebra of
// backward; then save or recompute, and each half goes on alone.
Rewritten rewrite(const Program& block, const GradOptions& gradients,
                  const RewriteOptions& options = {});

}  // namespace coda
