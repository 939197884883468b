#include "coda/core/error.h"
#include "coda/cuda/general_phases.h"
namespace coda::cuda {
void GeneralPlanner::attention() {
  throw Unsupported("attention");
}
}  // namespace coda::cuda
