// coda/rewrite/nominal.h: sizes before sizes are known, to compare what moving tensors would cost.
#pragma once

#include <map>
#include <string>

#include "coda/program/program.h"

namespace coda {

// Sizes for the names of a block where none are given, those of a model of a few billion weights: a
// name alone is 4096 (tokens, widths); in a product of names the last is 128 and each before it 32
// (H*E: 32 heads of 128; B*S: 32 sequences of 128, 4096 tokens).
class Nominal {
 public:
  Nominal(const Program& block, const Sizes& given);

  double extent(const Dim& dim) const;
  double elements(const Type& type) const;

 private:
  double extent(const Factor& factor) const;
  std::map<std::string, double, std::less<>> names_;
};

// Elements of a value of that type where every plain name counts as 1024.
double nominal_elements(const Type& type);

}  // namespace coda
