// coda/cpu/target.cpp: which SIMD instruction set the vector code dispatches to.
#include <hwy/targets.h>

#include "coda/cpu/cpu.h"

namespace coda::cpu {

std::string simd_target() {
  // Highway numbers better targets lower.
  const auto supported = hwy::SupportedTargets();
  return hwy::TargetName(supported & -supported);
}

}  // namespace coda::cpu
