#include "coda/core/error.h"
#include "coda/cuda/general_phases.h"
namespace coda::cuda {
void GeneralPlanner::scatter() {
  throw Unsupported("scatter");
}
}  // namespace coda::cuda
