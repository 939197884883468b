#include "maps.cuh"
#include "stream_scatter.cuh"

using namespace coda;

struct Arguments_embedding_grad {
  long long ids_stride;
  long long values_row;
  long long out_row;
  long long items;
  long long range;
  long long rows;
  long long count;
  const long long* ids;
  const bf16_t* dx;
  float* dtable;
};

extern "C" __global__ void __launch_bounds__(256) embedding_grad(const __grid_constant__ Arguments_embedding_grad a) {
  // dtable = scatter_sum(dx, ids, V)
  const Scatter<bf16_t, float, long long> scatter = {
      a.dtable, a.dx, a.ids, a.count, a.rows, a.range,
      a.items, a.out_row, a.values_row, a.ids_stride};
  scatter_sum<8, 256, 256, false, float>(scatter);
}
