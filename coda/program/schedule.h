// coda/program/schedule.h: a block cut into programs, each one kernel, in the order in which they
// run.
#pragma once

#include <string>
#include <vector>

#include "coda/program/program.h"

namespace coda {

// Tensors between steps go by name. Names of the block's parameters and results are as in the
// block.
struct Step {
  Program program;
  std::vector<std::string> inputs;   // one for each parameter of the program
  std::vector<std::string> outputs;  // one for each result
};

struct Schedule {
  std::string name;
  std::vector<Param> params;
  std::vector<Result> results;  // `value` is unused
  std::vector<Step> steps;
};

}  // namespace coda
