// coda/cpu/isa.cpp: CODA_ISA to Highway's and oneDNN's own switches.
#include "coda/cpu/isa.h"

#include <hwy/highway.h>

#include <mutex>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>

#include "coda/core/error.h"
#include "coda/core/flags.h"

namespace coda::cpu {
namespace {

void apply(const std::string& isa) {
  if (isa.empty() || isa == "avx512") return;
  if (isa == "avx2") {
    dnnl::set_max_cpu_isa(dnnl::cpu_isa::avx2);
    hwy::DisableTargets(HWY_AVX3 | HWY_AVX3_DL);
  } else if (isa == "sse4") {
    dnnl::set_max_cpu_isa(dnnl::cpu_isa::sse41);
    hwy::DisableTargets(HWY_AVX3 | HWY_AVX3_DL | HWY_AVX2);
  } else {
    throw ProgramError("CODA_ISA is \"" + isa + "\", which is no SIMD target",
                       "set it to sse4, avx2 or avx512, or unset it to use the best there is");
  }
}

}  // namespace

void cap_isa() {
  static std::once_flag once;
  std::call_once(once, [] { apply(flags::isa()); });
}

}  // namespace coda::cpu
