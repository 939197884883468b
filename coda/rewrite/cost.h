// coda/rewrite/cost.h: what a kernel takes, by a stated model.
//
//   time = max(bytes / bandwidth, flops / throughput) + launch
//
// with the numbers of a machine like an H200. Bytes: each distinct tensor that the kernel reads or
// stores, once (an accumulating result is both; a gathered table counts what is gathered). But a
// stream reads a tensor again for each of its spaces that needs it, and a gemm whose tiles each
// add up a whole row of an input reads that as often as there are tiles across. Flops: those of
// products, 2 a term; maps and sums hide behind what moves.
//
// Accuracy comes before time: each reduction of a kernel that reads what another kernel rounded
// when it stored it adds kRounded, more than any kernel takes; and so does each reduction elsewhere
// that reads a full-width value which this kernel made of rounded ones. So a statistic is made of
// unrounded values wherever a cut can have it so. What a product went into is another value, and is
// not rounded yet.
#pragma once

#include <optional>
#include <vector>

#include "coda/rewrite/nominal.h"
#include "coda/rewrite/verdict.h"
#include "coda/rewrite/working.h"

namespace coda {

inline constexpr double kBandwidth = 4.0e12;   // bytes/s from memory, sustained
inline constexpr double kThroughput = 6.5e14;  // flop/s of bf16 products, sustained
inline constexpr double kLaunch = 2.0e-6;      // s for each kernel
inline constexpr double kRounded = 1;          // "s" for each statistic of rounded values
inline constexpr double kTilesAcross = 16;     // tiles of 256 columns in a row of 4096

class Costs {
 public:
  // Sizes that are not given are nominal ones.
  Costs(const Working& working, const Sizes& sizes)
      : working_(&working), nominal_(working.block(), sizes) {}

  double bytes(Value v) const;   // as it crosses between kernels
  double flops(int node) const;  // 0 but for products
  // Of what a part stores.
  double bytes_stored(const Part& part) const;
  // Seconds, without what only check() can tell.
  double at_least(const Part& part) const;
  // Seconds; what the verdict says of the part is read again. The part must be accepted.
  double of(const Part& part, Verdicts& verdicts) const;

 private:
  struct Amounts {
    double bytes = 0, flops = 0;
  };
  Amounts amounts(const Part& part) const;
  double rounded(const Part& part) const;
  bool rounds(Value v) const;  // when it crosses
  // Those that read `v` or what maps and layout make of it.
  const std::vector<int>& reductions(Value v) const;
  double stored_bytes(Value v) const;  // as results of the block
  double bytes_read(Value v, const Part& part) const;

  const Working* working_;
  Nominal nominal_;
  mutable std::vector<double> bytes_, stored_, flops_;  // by value, value, node; -1: not known yet
  mutable std::vector<int> rounds_;                     // by value; -1: not known yet
  mutable std::vector<Value> tainted_, fresh_;
  mutable std::vector<std::optional<std::vector<int>>> reductions_;  // by value
};

}  // namespace coda
