// coda/rewrite/halves.h: a training step cut in two, forward and backward, with what the one keeps
// for the other.
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "coda/rewrite/grad.h"

namespace coda {

// Forward and backward as two blocks with the values between them named: the backward reads what
// the forward saved.
struct Training {
  Program forward;   // the parameters; the results, then one result for each saved value
  Program backward;  // needed parameters, needed results and saved values by name, then d_<result>;
                     // results d_<param>
  std::vector<std::string> saved;  // names of the extra results of `forward`
  // What the backward reads of it, beside parameters: values of the joint program, and as what they
  // are stored. Results of the block are among them.
  std::vector<std::pair<Value, Type>> kept;
  std::set<Value> again;  // products of the joint program that run once more
};

// What is saved, against the policy's own choice.
struct Saving {
  std::set<std::string> save = {}, recompute = {};  // names of values
  // Of the joint program: products that may run once more, and values that are not kept.
  std::set<Value> again = {}, recompute_values = {};
};

// Cuts joint(block, …), whose first `params` parameters and `results` results are the block's own.
// Saves what is dear (products, reductions, opaque calls, gathers), recomputes maps and layout from
// it; of all such sets the cheapest one (saving.h). Values marked save() and recompute() in the
// text or by name are.
Training halves(const Program& joint, std::size_t params, std::size_t results,
                const Saving& saving = {});

// halves(joint(program)).
Training grad_for_training(const Program& program, const GradOptions& options = {});

}  // namespace coda
