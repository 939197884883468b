// coda/cpu/target.cpp: which instructions the backend uses here.
#include <hwy/targets.h>

#include "coda/cpu/cpu.h"
#include "coda/cpu/pair_gemm.h"

namespace coda::cpu {

std::string simd_target() {
  // Highway numbers better targets lower.
  const auto supported = hwy::SupportedTargets();
  return hwy::TargetName(supported & -supported);
}

std::string bf16_products() {
  return describe_products();
}

}  // namespace coda::cpu
