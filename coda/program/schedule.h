// coda/program/schedule.h: a block cut into programs, each one kernel, in the order in which they
// run. A value, without locks: any number of threads may read one.
#pragma once

#include <cstdint>
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
  int loop = -1;                     // index into Schedule::loops: the loop whose body it is in
};

// Neighbouring steps that run once for each chunk of a dimension, so that what they pass to each
// other exists for one chunk at a time.
//
// In their programs `dim` is the chunk: `size` elements, less in the last. A tensor from outside
// that has `dim` (a whole first dimension) is passed as that chunk's rows; what the body stores for
// others that has it (the same) is written chunk by chunk. What lacks it must be accumulated
// (Store::accumulate), and starts from zero, or from what the caller gives where the schedule's own
// result accumulates.
struct Loop {
  std::string dim;
  std::int64_t size = 0;
  std::string first;  // name of an i64 scalar: the chunk's first element; empty: nobody reads it
};

struct Schedule {
  std::string name;
  std::vector<Param> params;
  std::vector<Result> results;  // `value` is unused
  std::vector<Step> steps;
  std::vector<Loop> loops = {};
  std::string comment = {};  // the comment lines above it, without '#'
  Location where = {};       // in a text; line 0: none
};

// The same tensors, kernels and loops. Names of programs, and of their parameters and results, do
// not count.
bool operator==(const Schedule& a, const Schedule& b);

// The schedule as one block: every step replaced by its program, what steps pass to each other cast
// as its store would round it. A loop's one chunk is the whole dimension. Throws ProgramError where
// steps do not fit together.
Program inline_schedule(const Schedule& schedule);

}  // namespace coda
