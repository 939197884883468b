// coda/rewrite/explain.h: what rewriting made of a block, for its author: the kernels, where each
// statement landed and why, and what it costs.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "coda/rewrite/ledger.h"
#include "coda/rewrite/rewrite.h"

namespace coda {

// One direction of a rewritten block.
struct Half {
  std::string phase;  // forward, backward
  Partition partition;
  Schedule plain;  // the unfused sequence: one library call a step
  Ledger fused, unfused;
  std::vector<std::optional<int>> layers;  // of each step: that of a stack it mainly works for
};

struct Report {
  Program block;  // as it was given
  Sizes sizes;
  std::vector<Half> halves;  // forward, then backward where there is one
  std::vector<Pass> passes;
  std::vector<std::string> saved, notes;  // as in Rewritten
  Cost total, unfused, ideal;             // of all halves
};

// Rewrites the block and counts. The unfused sequence is that of the block as it was given, and of
// its plain gradient. Throws ProgramError where `sizes` lacks a name.
Report report(const Program& block, const Sizes& sizes, const RewriteOptions& options = {});
Report report(const Program& block, const GradOptions& gradients, const Sizes& sizes,
              const RewriteOptions& options = {});

// The same of schedules that were made before: no passes, no ideal.
struct Phase {
  std::string name;  // forward, backward
  Schedule fused, unfused;
};
Report report(std::vector<Phase> phases, const Sizes& sizes);

// What a kernel does in a few words: its products by their operands, else what it reads.
std::string work_of(const Step& step);

// The layer of a stack that each step mainly works for: that of the weights that its products and
// gathers read or make the gradients of, else that of the values it reads. nullopt: an end of the
// stack, or no stack. `params` are the parameters of the whole block.
std::vector<std::optional<int>> layers_of(const Schedule& schedule, std::span<const Param> params);

// A table for each half: each statement with its kernel and the reason; each kernel's bytes and
// flops; the same for the unfused sequence. Then what was not applied, and why.
std::string explain(const Report& report);
std::string explain(const Program& block, const Sizes& sizes);

// Each kernel's bytes and flops, the totals, the unfused sequence's and the ideal ones.
std::string ledger_text(const Report& report);

// For each half {"block", "phase", "statements": [{"statement", "line", "kernel", "reason"}],
// "kernels", "total", "unfused", "notes"}; a kernel is an index into "kernels", null where nothing
// computes the statement. Kernels are as in report_json. One half alone is no array.
nlohmann::json explain_json(const Report& report);

// {"kernels": [{"phase", "kind", "layer", "name", "text", "bytes_read", "bytes_written", "flops"}],
// "ledger": {"total", "unfused", "ideal"}, "saved", "notes"}; kernels in order, a layer may be
// null.
nlohmann::json report_json(const Report& report);

}  // namespace coda
