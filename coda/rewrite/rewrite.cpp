// coda/rewrite/rewrite.cpp: the passes, in order.
#include "coda/rewrite/rewrite.h"

#include "coda/algebra/rule.h"
#include "coda/rewrite/halves.h"
#include "coda/rewrite/simplify.h"

namespace coda {
namespace {

// Each pass is kept, if it changed something.
class Passes {
 public:
  explicit Passes(const RewriteOptions& options) : situation_{.delay_f16 = options.delay_f16} {}

  void start(std::string name, Program program) {
    passes_.push_back({std::move(name), std::move(program)});
  }
  void simplify(Hints hints) { append("simplify", coda::simplify(program(), hints)); }
  void apply(std::span<const Rule> rules) {
    for (const Rule& rule : rules) {
      append(std::string(rule.name), rule.apply(program(), situation_));
      simplify(Hints::keep);
    }
  }
  Partition cut() {
    simplify(Hints::drop);
    apply(kernel_rules());
    return partition(program());
  }

  const Program& program() const { return passes_.back().program; }
  std::vector<Pass> take() && { return std::move(passes_); }
  std::vector<std::string> notes() && { return std::move(situation_.notes); }

 private:
  void append(std::string name, Program program) {
    if (!(program == passes_.back().program)) start(std::move(name), std::move(program));
  }

  Situation situation_;
  std::vector<Pass> passes_;
};

}  // namespace

Rewritten rewrite(const Program& block, const RewriteOptions& options) {
  Passes passes(options);
  passes.start("block", block);
  passes.simplify(Hints::keep);
  passes.apply(block_rules());
  Rewritten made;
  made.forward = passes.cut();
  made.notes = std::move(passes).notes();
  made.passes = std::move(passes).take();
  return made;
}

Rewritten rewrite(const Program& block, const GradOptions& gradients,
                  const RewriteOptions& options) {
  Passes passes(options);
  passes.start("block", block);
  passes.simplify(Hints::keep);
  passes.apply(block_rules());
  passes.start("grad", joint(passes.program(), gradients));
  passes.simplify(Hints::keep);
  passes.apply(joint_rules());
  const Training training = halves(passes.program(), block.params().size(), block.results().size(),
                                   {.save = options.save, .recompute = options.recompute});
  Rewritten made;
  passes.start("forward", training.forward);
  made.forward = passes.cut();
  passes.start("backward", training.backward);
  made.backward = passes.cut();
  made.saved = training.saved;
  made.notes = std::move(passes).notes();
  made.passes = std::move(passes).take();
  return made;
}

}  // namespace coda
