// coda 1
// # RMSNorm and LayerNorm of a row by themselves, one streaming kernel each.
// program rmsnorm_rows(x: bf16[M, D], gamma: bf16[D], eps: f32) -> (y: bf16[M, D], r: f32[M]) {
//   r = rsqrt(sum(x * x, D) / size(D) + eps)
//   y = x * r * gamma
// }
#include "maps.cuh"
#include "philox.cuh"
#include "stream.cuh"

using namespace coda;
using Index = unsigned;

struct Arguments_rmsnorm_rows {
  long long rows_0;
  long long items_0_0;
  long long x_row;
  const bf16_t* x;
  const bf16_t* gamma;
  long long size_D;
  const float* eps;
  long long y_row;
  bf16_t* y;
  long long r_row;
  float* r;
};
using Arguments = Arguments_rmsnorm_rows;

// rows, 128 threads a row, 4 x 8 of D
__device__ __forceinline__ void space_0(const Arguments& a, Index block) {
  constexpr int kTeam = 128, kTeams = 1;
  const Index member = threadIdx.x % kTeam, team = threadIdx.x / kTeam;
  const float eps = value_at(a.eps);
  __shared__ Posted board[2][1][kTeam / 32];
  int turn = 0;
  const Index row = block * kTeams + team;
  if (row >= Index(a.rows_0)) return;
  Pack<bf16_t, 8> x[4];
  Pack<bf16_t, 8> gamma[4];
  #pragma unroll
  for (int u = 0; u < 4; ++u) {
    const Index item = member + kTeam * u;
    const bool ok = true;
    const Index c = item * 8;
    x[u].load(a.x + row * a.x_row + c);
    gamma[u].load(a.gamma + c);
  }
  float sum = Sum::none<float>();
  #pragma unroll
  for (int u = 0; u < 4; ++u) {
    const Index item = member + kTeam * u;
    const bool ok = true;
    const Index c = item * 8;
    // sum(x * x, D)
    {
      float part[8];
      EACH(8) part[i] = fast::mul(x[u].at(i), x[u].at(i));
      sum = Sum::of(sum, fold<Sum>(part));
    }
  }
  sum = among<Sum, 32>(sum);
  post(board[turn][0], sum);
  __syncthreads();
  collect<Sum, kTeam / 32>(board[turn][0], sum);
  turn ^= 1;
  // r = rsqrt(sum(x * x, D) / size(D) + eps)
  const float r = exact::rsqrt(exact::add(exact::div(sum, lane<float>((long long)a.size_D)), eps));
  if (member == 0) put(a.r + row * a.r_row, r);
  #pragma unroll
  for (int u = 0; u < 4; ++u) {
    const Index item = member + kTeam * u;
    const bool ok = true;
    const Index c = item * 8;
    // y = x * r * gamma
    float y[8];
    EACH(8) y[i] = fast::mul(fast::mul(x[u].at(i), r), gamma[u].at(i));
    // y = x * r * gamma
    {
      float y_out[8];
      EACH(8) y_out[i] = y[i];
      Pack<bf16_t, 8> stored;
      stored.fill(y_out);
      stored.store(a.y + row * a.y_row + c);
    }
  }
}

extern "C" __global__ void __launch_bounds__(128) rmsnorm_rows(const __grid_constant__ Arguments_rmsnorm_rows a) {
  const Index block = blockIdx.x;
  space_0(a, block);
}
