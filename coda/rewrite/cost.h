// coda/rewrite/cost.h: what a kernel takes, by a stated model.
//
//   time = max(bytes / bandwidth, flops / throughput) + launch
//
// with the numbers of a machine like an H200. Bytes: each distinct tensor that the kernel reads or
// stores, once (an accumulating result is both; a gathered table counts what is gathered). But a
// stream reads a tensor again for each of its spaces that needs it, and a gemm whose tiles each
// add up a whole row of an input reads that as often as there are tiles across. Flops: those of
// products, 2 a term; maps and sums hide behind what moves.
#pragma once

#include <vector>

#include "coda/rewrite/nominal.h"
#include "coda/rewrite/verdict.h"
#include "coda/rewrite/working.h"

namespace coda {

inline constexpr double kBandwidth = 4.0e12;   // bytes/s from memory, sustained
inline constexpr double kThroughput = 6.5e14;  // flop/s of bf16 products, sustained
inline constexpr double kLaunch = 2.0e-6;      // s for each kernel
inline constexpr double kTilesAcross = 16;     // tiles of 256 columns in a row of 4096

class Costs {
 public:
  // Sizes that are not given are nominal ones.
  Costs(const Working& working, const Sizes& sizes)
      : working_(&working), nominal_(working.block(), sizes) {}

  double bytes(Value v) const;  // as it crosses between kernels
  // Seconds, without what only check() can tell.
  double at_least(const Part& part) const;
  // Seconds; what the verdict says of the part is read again. The part must be accepted.
  double of(const Part& part, Verdicts& verdicts) const;

 private:
  struct Amounts {
    double bytes = 0, flops = 0;
  };
  Amounts amounts(const Part& part) const;
  double stored_bytes(Value v) const;  // as results of the block
  double flops(int node) const;
  double bytes_read(Value v, const Part& part) const;

  const Working* working_;
  Nominal nominal_;
  mutable std::vector<double> bytes_, stored_, flops_;  // by value, value, node; -1: not known yet
};

}  // namespace coda
