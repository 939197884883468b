// coda 1
// program bias_grad(dz: bf16[M, N]) -> (db: f32[blocks(M), N]) {
//   db = block_sum(dz, M)
// }
#include "maps.cuh"
#include "philox.cuh"
#include "stream.cuh"

using namespace coda;
using Index = unsigned;

struct Arguments_bias_grad {
  long long tiles_0;
  long long groups_0;
  long long period_0;
  long long items_0_0;
  long long dz_row;
  const bf16_t* dz;
  long long db_group;
  float* db;
};
using Arguments = Arguments_bias_grad;

// columns, 32 x 8 threads, 8 x 8 of N
__device__ __forceinline__ void space_0(const Arguments& a, Index block) {
  constexpr int kTeam = 32, kTeams = 8;
  const Index member = threadIdx.x % kTeam, team = threadIdx.x / kTeam;
  const Index tile = block % Index(a.tiles_0), group = block / Index(a.tiles_0);
  // Block `group_block` of period `group_outer`: rows first … first + count.
  const Index group_block = group % Index(a.groups_0), group_outer = group / Index(a.groups_0);
  const Index begin = group_block * Index(64);
  const Index first = group_outer * Index(a.period_0) + begin;
  const Index count = Index(a.period_0) - begin < Index(64) ? Index(a.period_0) - begin : Index(64);
  float db[1][8];
  #pragma unroll
  for (int u = 0; u < 1; ++u) EACH(8) db[u][i] = Sum::none<float>();
  for (Index step = team; step < count; step += kTeams * 8) {
    Pack<bf16_t, 8> dz[8];
    #pragma unroll
    for (int u = 0; u < 8; ++u) {
      const Index row = first + step + u * kTeams;
      const Index item = tile * kTeam + member;
      const bool ok = item < Index(a.items_0_0) && step + u * kTeams < count;
      const Index c = item * 8;
      dz[u].clear();
      if (ok) dz[u].load(a.dz + row * a.dz_row + c);
    }
    #pragma unroll
    for (int u = 0; u < 8; ++u) {
      const Index row = first + step + u * kTeams;
      const Index item = tile * kTeam + member;
      const bool ok = item < Index(a.items_0_0) && step + u * kTeams < count;
      const Index c = item * 8;
      // db = block_sum(dz, M)
      EACH(8) db[0][i] = Sum::of(db[0][i], ok ? dz[u].at(i) : Sum::none<float>());
    }
  }
  __shared__ float shared_sums[8][256];
  #pragma unroll
  for (int u = 0; u < 1; ++u) {
    EACH(8) shared_sums[i][threadIdx.x] = db[u][i];
    __syncthreads();
    if (threadIdx.x < 32) {
      for (int other = threadIdx.x + 32; other < 256; other += 32)
        EACH(8) db[u][i] = Sum::of(db[u][i], shared_sums[i][other]);
    }
    __syncthreads();
  }
  if (team == 0) {
    #pragma unroll
    for (int u = 0; u < 1; ++u) {
      const Index item = tile * kTeam + member;
      const bool ok = item < Index(a.items_0_0);
      const Index c = item * 8;
      // db = block_sum(dz, M)
      {
        float db_out[8];
        EACH(8) db_out[i] = db[u][i];
        Pack<float, 8> stored;
        stored.fill(db_out);
        if (ok) stored.store(a.db + group_block * a.db_group + c);
      }
    }
  }
}

extern "C" __global__ void __launch_bounds__(256, 1) bias_grad(const __grid_constant__ Arguments_bias_grad a) {
  const Index block = blockIdx.x;
  space_0(a, block);
}
