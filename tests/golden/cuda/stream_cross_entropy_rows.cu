// coda 1
// # Cross-entropy of logits that already exist, a row at a time.
// program cross_entropy_rows(z: bf16[M, V], target: i64[M], ignore_index: i64)
//     -> (loss: f32[M], lse: f32[M]) {
//   lse = logsumexp(z, V)
//   loss = where(target == ignore_index, 0, logsumexp(z, V) - pick(z, target))
// }
#include "maps.cuh"
#include "philox.cuh"
#include "stream.cuh"

using namespace coda;
using Index = unsigned;

struct Arguments_cross_entropy_rows {
  long long rows_0;
  long long items_0_0;
  long long z_row;
  const bf16_t* z;
  long long target_row;
  const long long* target;
  const long long* ignore_index;
  long long size_V;
  long long z_V;
  long long loss_row;
  float* loss;
  long long lse_row;
  float* lse;
};
using Arguments = Arguments_cross_entropy_rows;

// rows, 512 threads a row, 4 x 8 of V, looped
__device__ __forceinline__ void space_0(const Arguments& a, Index block) {
  constexpr int kTeam = 512, kTeams = 1;
  const Index member = threadIdx.x % kTeam, team = threadIdx.x / kTeam;
  const long long ignore_index = value_at(a.ignore_index);
  __shared__ Posted board[2][2][kTeam / 32];
  int turn = 0;
  const Index row = block * kTeams + team;
  if (row >= Index(a.rows_0)) return;
  const long long target = value_at(a.target + row * a.target_row);
  Exponents lse = LogSumExp::none<Exponents>();
  Exponents logsumexp = LogSumExp::none<Exponents>();
  for (Index base = 0; base < Index(a.items_0_0); base += kTeam * 4) {
    Pack<bf16_t, 8> z[4];
    #pragma unroll
    for (int u = 0; u < 4; ++u) {
      const Index item = base + member + kTeam * u;
      const bool ok = item < Index(a.items_0_0);
      const Index c = item * 8;
      z[u].clear();
      if (ok) z[u].load(a.z + row * a.z_row + c);
    }
    #pragma unroll
    for (int u = 0; u < 4; ++u) {
      const Index item = base + member + kTeam * u;
      const bool ok = item < Index(a.items_0_0);
      const Index c = item * 8;
      // lse = logsumexp(z, V)
      {
        float part[8];
        EACH(8) part[i] = ok ? z[u].at(i) : -infinity();
        lse = LogSumExp::of(lse, exponents(part));
      }
      // logsumexp(z, V)
      {
        float part_2[8];
        EACH(8) part_2[i] = ok ? z[u].at(i) : -infinity();
        logsumexp = LogSumExp::of(logsumexp, exponents(part_2));
      }
    }
  }
  lse = among<LogSumExp, 32>(lse);
  logsumexp = among<LogSumExp, 32>(logsumexp);
  post(board[turn][0], lse);
  post(board[turn][1], logsumexp);
  __syncthreads();
  collect<LogSumExp, kTeam / 32>(board[turn][0], lse);
  collect<LogSumExp, kTeam / 32>(board[turn][1], logsumexp);
  turn ^= 1;
  // loss = where(target == ignore_index, 0, logsumexp(z, V) - pick(z, target))
  const float loss = exact::where(exact::eq(target, ignore_index), 0.0f, exact::sub(logsumexp.value(), (target >= 0 && target < a.size_V ? value_at(a.z + row * a.z_row + target * a.z_V) : 0.0f)));
  if (member == 0) put(a.loss + row * a.loss_row, loss);
  // lse = logsumexp(z, V)
  const float lse_2 = lse.value();
  if (member == 0) put(a.lse + row * a.lse_row, lse_2);
}

extern "C" __global__ void __launch_bounds__(512) cross_entropy_rows(const __grid_constant__ Arguments_cross_entropy_rows a) {
  const Index block = blockIdx.x;
  space_0(a, block);
}
