// coda/cpu/target.cpp: which instructions the backend uses here.
#include <hwy/targets.h>

#include "coda/cpu/cpu.h"
#include "coda/cpu/panel_gemm.h"

namespace coda::cpu {

std::string simd_target() {
  // Highway numbers better targets lower.
  const auto supported = hwy::SupportedTargets();
  return hwy::TargetName(supported & -supported);
}

std::string products() {
  return describe_products();
}

}  // namespace coda::cpu
