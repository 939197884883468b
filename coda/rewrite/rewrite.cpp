// coda/rewrite/rewrite.cpp: the passes, in order.
#include "coda/rewrite/rewrite.h"

#include "coda/rewrite/simplify.h"

namespace coda {

Rewritten rewrite(const Program& block, const RewriteOptions&) {
  Rewritten made;
  made.passes.push_back({"simplify", simplify(block)});
  made.forward = partition(made.passes.back().program);
  return made;
}

Rewritten rewrite(const Program& block, const GradOptions& gradients, const RewriteOptions&) {
  Rewritten made;
  const Training training = grad_for_training(simplify(block), gradients);
  made.passes.push_back({"simplify", simplify(training.forward)});
  made.forward = partition(made.passes.back().program);
  made.passes.push_back({"grad", training.backward});
  made.passes.push_back({"simplify", simplify(training.backward)});
  made.backward = partition(made.passes.back().program);
  made.saved = training.saved;
  return made;
}

}  // namespace coda
