// tests/cases.h: the case table, tests/cases.json, for tests.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "coda/program/program.h"
#include "coda/reference/verify.h"

namespace coda::testing {

// One program or block of programs/ and the sizes it is run at: the first are plain, the second odd
// everywhere, the others edges.
struct Case {
  std::string file, name;
  std::vector<Sizes> sizes;
  std::string no_gradient_bound;  // why the gradient's error is not judged; empty: it is

  Program load() const;
};

struct CaseTable {
  std::vector<DType> dtypes;
  std::vector<Layouts> layouts;
  std::vector<Case> cases;
};

const CaseTable& case_table();

// "norm_residual_norm", for the name of a parameterised test.
std::string test_name(const Case& entry);
std::ostream& operator<<(std::ostream& out, const Case& entry);

}  // namespace coda::testing
