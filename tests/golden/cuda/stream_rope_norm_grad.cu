// coda 1
// # Backward, a streaming kernel: rotates back and scales by r for the products that follow. A rotation
// # keeps dot products, so the row dot t that RMSNorm's backward needs comes from the stored q, k and v.
// program rope_norm_grad(
//     dq: bf16[B*S, H*E], dk: bf16[B*S, G*E], dv: bf16[B*S, G*E], q: bf16[B*S, H*E],
//     k: bf16[B*S, G*E], v: bf16[B*S, G*E], r: f32[B*S], cos: f32[S, E/2], sin: f32[S, E/2]
// ) -> (zq: bf16[B*S, H*E], zk: bf16[B*S, G*E], zv: bf16[B*S, G*E], t: f32[B*S]) {
//   t = sum(dq * q, H*E) + sum(dk * k, G*E) + sum(dv * v, G*E)
//   t1 = -sin
//   t2, t3 = split(dq, E: E/2, E/2)
//   zq = r * join(E: t2 * cos - t3 * t1, t3 * cos + t2 * t1)
//   t4 = -sin
//   t5, t6 = split(dk, E: E/2, E/2)
//   zk = r * join(E: t5 * cos - t6 * t4, t6 * cos + t5 * t4)
//   zv = r * dv
// }
#include "maps.cuh"
#include "philox.cuh"
#include "stream.cuh"

using namespace coda;
using Index = unsigned;

struct Arguments_rope_norm_grad {
  long long rows_0;
  long long items_0_0;
  long long dq_row;
  long long dq_E0_H_stride;
  const bf16_t* dq;
  long long dq_from_E1;
  long long dq_E1_H_stride;
  long long q_row;
  long long q_E0_H_stride;
  const bf16_t* q;
  long long q_from_E1;
  long long q_E1_H_stride;
  long long rows_S;
  long long cos_row_S;
  const float* cos;
  long long sin_row_S;
  const float* sin;
  long long r_row;
  const float* r;
  long long zq_row;
  long long zq_E0_H_stride;
  bf16_t* zq;
  long long zq_from_E1;
  long long zq_E1_H_stride;
  long long items_0_1;
  long long dk_row;
  long long dk_E0_G_stride;
  const bf16_t* dk;
  long long dk_from_E1;
  long long dk_E1_G_stride;
  long long dv_row;
  long long dv_E0_G_stride;
  const bf16_t* dv;
  long long dv_from_E1;
  long long dv_E1_G_stride;
  long long k_row;
  long long k_E0_G_stride;
  const bf16_t* k;
  long long k_from_E1;
  long long k_E1_G_stride;
  long long v_row;
  long long v_E0_G_stride;
  const bf16_t* v;
  long long v_from_E1;
  long long v_E1_G_stride;
  long long zk_row;
  long long zk_E0_G_stride;
  bf16_t* zk;
  long long zk_from_E1;
  long long zk_E1_G_stride;
  long long zv_row;
  long long zv_E0_G_stride;
  bf16_t* zv;
  long long zv_from_E1;
  long long zv_E1_G_stride;
  long long t_row;
  float* t;
};
using Arguments = Arguments_rope_norm_grad;

// rows, 64 threads a row, 1 x 8 of H E/2, 1 x 8 of G E/2, looped
__device__ __forceinline__ void space_0(const Arguments& a, Index block) {
  constexpr int kTeam = 64, kTeams = 1;
  const Index member = threadIdx.x % kTeam, team = threadIdx.x / kTeam;
  __shared__ Posted board[2][3][kTeam / 32];
  int turn = 0;
  const Index row = block * kTeams + team;
  if (row >= Index(a.rows_0)) return;
  const float r = value_at(a.r + row * a.r_row);
  float sum = Sum::none<float>();
  float sum_2 = Sum::none<float>();
  float sum_3 = Sum::none<float>();
  for (Index base = 0; base < Index(a.items_0_0); base += kTeam * 1) {
    Pack<bf16_t, 8> dq_0[1];
    Pack<bf16_t, 8> dq_1[1];
    Pack<bf16_t, 8> q_0[1];
    Pack<bf16_t, 8> q_1[1];
    Pack<float, 8> cos[1];
    Pack<float, 8> sin[1];
    #pragma unroll
    for (int u = 0; u < 1; ++u) {
      const Index item = base + member + kTeam * u;
      const bool ok = true;
      const Index c = item % 8 * 8;
      const Index at_H = item / 8;
      dq_0[u].load(a.dq + row * a.dq_row + at_H * a.dq_E0_H_stride + c);
      dq_1[u].load(a.dq + row * a.dq_row + a.dq_from_E1 + at_H * a.dq_E1_H_stride + c);
      q_0[u].load(a.q + row * a.q_row + at_H * a.q_E0_H_stride + c);
      q_1[u].load(a.q + row * a.q_row + a.q_from_E1 + at_H * a.q_E1_H_stride + c);
      cos[u].load(a.cos + (row % Index(a.rows_S)) * a.cos_row_S + c);
      sin[u].load(a.sin + (row % Index(a.rows_S)) * a.sin_row_S + c);
    }
    #pragma unroll
    for (int u = 0; u < 1; ++u) {
      const Index item = base + member + kTeam * u;
      const bool ok = true;
      const Index c = item % 8 * 8;
      const Index at_H = item / 8;
      // sum(dq * q, H*E)
      {
        float part[8];
        EACH(8) part[i] = fast::mul(dq_0[u].at(i), q_0[u].at(i));
        sum = Sum::of(sum, fold<Sum>(part));
      }
      {
        float part_2[8];
        EACH(8) part_2[i] = fast::mul(dq_1[u].at(i), q_1[u].at(i));
        sum = Sum::of(sum, fold<Sum>(part_2));
      }
      // t1 = -sin
      float t1[8];
      EACH(8) t1[i] = fast::neg(sin[u].at(i));
      // zq = r * join(E: t2 * cos - t3 * t1, t3 * cos + t2 * t1)
      float zq[8];
      EACH(8) zq[i] = fast::mul(r, fast::sub(fast::mul(dq_0[u].at(i), cos[u].at(i)), fast::mul(dq_1[u].at(i), t1[i])));
      // zq = r * join(E: t2 * cos - t3 * t1, t3 * cos + t2 * t1)
      {
        float zq_out[8];
        EACH(8) zq_out[i] = zq[i];
        Pack<bf16_t, 8> stored;
        stored.fill(zq_out);
        stored.store(a.zq + row * a.zq_row + at_H * a.zq_E0_H_stride + c);
      }
      // zq = r * join(E: t2 * cos - t3 * t1, t3 * cos + t2 * t1)
      float zq_2[8];
      EACH(8) zq_2[i] = fast::mul(r, fast::add(fast::mul(dq_1[u].at(i), cos[u].at(i)), fast::mul(dq_0[u].at(i), t1[i])));
      {
        float zq_out_2[8];
        EACH(8) zq_out_2[i] = zq_2[i];
        Pack<bf16_t, 8> stored;
        stored.fill(zq_out_2);
        stored.store(a.zq + row * a.zq_row + a.zq_from_E1 + at_H * a.zq_E1_H_stride + c);
      }
    }
  }
  for (Index base = 0; base < Index(a.items_0_1); base += kTeam * 1) {
    Pack<bf16_t, 8> dk_0[1];
    Pack<bf16_t, 8> dk_1[1];
    Pack<bf16_t, 8> dv_0[1];
    Pack<bf16_t, 8> dv_1[1];
    Pack<bf16_t, 8> k_0[1];
    Pack<bf16_t, 8> k_1[1];
    Pack<bf16_t, 8> v_0[1];
    Pack<bf16_t, 8> v_1[1];
    Pack<float, 8> cos_2[1];
    Pack<float, 8> sin_2[1];
    #pragma unroll
    for (int u = 0; u < 1; ++u) {
      const Index item = base + member + kTeam * u;
      const bool ok = true;
      const Index c = item % 8 * 8;
      const Index at_G = item / 8;
      dk_0[u].load(a.dk + row * a.dk_row + at_G * a.dk_E0_G_stride + c);
      dk_1[u].load(a.dk + row * a.dk_row + a.dk_from_E1 + at_G * a.dk_E1_G_stride + c);
      dv_0[u].load(a.dv + row * a.dv_row + at_G * a.dv_E0_G_stride + c);
      dv_1[u].load(a.dv + row * a.dv_row + a.dv_from_E1 + at_G * a.dv_E1_G_stride + c);
      k_0[u].load(a.k + row * a.k_row + at_G * a.k_E0_G_stride + c);
      k_1[u].load(a.k + row * a.k_row + a.k_from_E1 + at_G * a.k_E1_G_stride + c);
      v_0[u].load(a.v + row * a.v_row + at_G * a.v_E0_G_stride + c);
      v_1[u].load(a.v + row * a.v_row + a.v_from_E1 + at_G * a.v_E1_G_stride + c);
      cos_2[u].load(a.cos + (row % Index(a.rows_S)) * a.cos_row_S + c);
      sin_2[u].load(a.sin + (row % Index(a.rows_S)) * a.sin_row_S + c);
    }
    #pragma unroll
    for (int u = 0; u < 1; ++u) {
      const Index item = base + member + kTeam * u;
      const bool ok = true;
      const Index c = item % 8 * 8;
      const Index at_G = item / 8;
      // sum(dk * k, G*E)
      {
        float part_3[8];
        EACH(8) part_3[i] = fast::mul(dk_0[u].at(i), k_0[u].at(i));
        sum_2 = Sum::of(sum_2, fold<Sum>(part_3));
      }
      {
        float part_4[8];
        EACH(8) part_4[i] = fast::mul(dk_1[u].at(i), k_1[u].at(i));
        sum_2 = Sum::of(sum_2, fold<Sum>(part_4));
      }
      // sum(dv * v, G*E)
      {
        float part_5[8];
        EACH(8) part_5[i] = fast::mul(dv_0[u].at(i), v_0[u].at(i));
        sum_3 = Sum::of(sum_3, fold<Sum>(part_5));
      }
      {
        float part_6[8];
        EACH(8) part_6[i] = fast::mul(dv_1[u].at(i), v_1[u].at(i));
        sum_3 = Sum::of(sum_3, fold<Sum>(part_6));
      }
      // t4 = -sin
      float t4[8];
      EACH(8) t4[i] = fast::neg(sin_2[u].at(i));
      // zk = r * join(E: t5 * cos - t6 * t4, t6 * cos + t5 * t4)
      float zk[8];
      EACH(8) zk[i] = fast::mul(r, fast::sub(fast::mul(dk_0[u].at(i), cos_2[u].at(i)), fast::mul(dk_1[u].at(i), t4[i])));
      // zk = r * join(E: t5 * cos - t6 * t4, t6 * cos + t5 * t4)
      {
        float zk_out[8];
        EACH(8) zk_out[i] = zk[i];
        Pack<bf16_t, 8> stored;
        stored.fill(zk_out);
        stored.store(a.zk + row * a.zk_row + at_G * a.zk_E0_G_stride + c);
      }
      // zk = r * join(E: t5 * cos - t6 * t4, t6 * cos + t5 * t4)
      float zk_2[8];
      EACH(8) zk_2[i] = fast::mul(r, fast::add(fast::mul(dk_1[u].at(i), cos_2[u].at(i)), fast::mul(dk_0[u].at(i), t4[i])));
      {
        float zk_out_2[8];
        EACH(8) zk_out_2[i] = zk_2[i];
        Pack<bf16_t, 8> stored;
        stored.fill(zk_out_2);
        stored.store(a.zk + row * a.zk_row + a.zk_from_E1 + at_G * a.zk_E1_G_stride + c);
      }
      // zv = r * dv
      float zv[8];
      EACH(8) zv[i] = fast::mul(r, dv_0[u].at(i));
      // zv = r * dv
      {
        float zv_out[8];
        EACH(8) zv_out[i] = zv[i];
        Pack<bf16_t, 8> stored;
        stored.fill(zv_out);
        stored.store(a.zv + row * a.zv_row + at_G * a.zv_E0_G_stride + c);
      }
      // zv = r * dv
      float zv_2[8];
      EACH(8) zv_2[i] = fast::mul(r, dv_1[u].at(i));
      {
        float zv_out_2[8];
        EACH(8) zv_out_2[i] = zv_2[i];
        Pack<bf16_t, 8> stored;
        stored.fill(zv_out_2);
        stored.store(a.zv + row * a.zv_row + a.zv_from_E1 + at_G * a.zv_E1_G_stride + c);
      }
    }
  }
  sum = among<Sum, 32>(sum);
  sum_2 = among<Sum, 32>(sum_2);
  sum_3 = among<Sum, 32>(sum_3);
  post(board[turn][0], sum);
  post(board[turn][1], sum_2);
  post(board[turn][2], sum_3);
  __syncthreads();
  collect<Sum, kTeam / 32>(board[turn][0], sum);
  collect<Sum, kTeam / 32>(board[turn][1], sum_2);
  collect<Sum, kTeam / 32>(board[turn][2], sum_3);
  turn ^= 1;
  // t = sum(dq * q, H*E) + sum(dk * k, G*E) + sum(dv * v, G*E)
  const float t = exact::add(exact::add(sum, sum_2), sum_3);
  if (member == 0) put(a.t + row * a.t_row, t);
}

extern "C" __global__ void __launch_bounds__(64) rope_norm_grad(const __grid_constant__ Arguments_rope_norm_grad a) {
  const Index block = blockIdx.x;
  space_0(a, block);
}
