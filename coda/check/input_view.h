// coda/check/input_view.h: a parameter seen through casts, splits and `as`, as strides of the
// parameter.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "coda/program/program.h"

namespace coda {

// One loop over a parameter: its stride is strides[factor] * scale.
struct SubAxis {
  std::int64_t extent = 1;
  int factor = 0;  // of the parameter, in factors_of order
  std::int64_t scale = 1;
};

struct InputView {
  // `count` steps along a factor of the parameter.
  struct Offset {
    int factor = 0;
    std::int64_t count = 0;
  };
  int parameter = 0;
  std::vector<DType> casts;  // in order; without those that cannot change a value
  std::vector<Offset> offsets;
  std::vector<std::vector<SubAxis>> factors;  // of each factor of the value, outermost first
  // The dtype that holds every value of the view.
  DType dtype = DType::f32;
};

// nullopt where the value is more than casts, splits and `as` of a parameter, or no strides
// describe it (a range of merged factors that cuts one of them).
std::optional<InputView> view_input(const Program& program, Value value, const Sizes& sizes);

// Is every value of `narrow` one of `wide`?
bool holds_all(DType wide, DType narrow);

}  // namespace coda
