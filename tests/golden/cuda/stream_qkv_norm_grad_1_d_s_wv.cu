// coda 1
// program qkv_norm_grad_1_d_s_wv[D](
//     gamma_q: bf16[E], gamma_k: bf16[E], cos: f32[S, E/2], sin: f32[S, E/2], r: f32[B*S],
//     z_wq: bf16[B*S, H*E], rsqrt: f32[B*S, H], z_wk: bf16[B*S, G*E], rsqrt_1: f32[B*S, G],
//     v: bf16[B*S, G*E], d_q: bf16[B*S, H*E], d_k: bf16[B*S, G*E], d_v: bf16[B*S, G*E]
// ) -> (
//     d_s_wv: bf16[B*S, G*E], d_s_wk: bf16[B*S, G*E], d_s_wq: bf16[B*S, H*E], div_2: f32[B*S],
//     block_sum_1: f32[blocks(B*S), E], block_sum_2: f32[blocks(B*S), E]
// ) {
//   t1 = where(size(D) > 0, r, 0)
//   d_s_wv = d_v * t1
//   t2, t3 = split(d_k, E: E/2, E/2)
//   t4 = join(E: t3 * sin + t2 * cos, t3 * cos + -t2 * sin)
//   t5 = t4 * gamma_k
//   t6 = -sum(t5 * z_wk, E) * (rsqrt_1 * rsqrt_1 * rsqrt_1) / size(E) * z_wk
//   d_z_wk = t5 * rsqrt_1 + t6
//   d_s_wk = d_z_wk * t1
//   t7, t8 = split(d_q, E: E/2, E/2)
//   t9 = join(E: t8 * sin + t7 * cos, t8 * cos + -t7 * sin)
//   t10 = t9 * gamma_q
//   d_z_wq = t10 * rsqrt + -sum(t10 * z_wq, E) * (rsqrt * rsqrt * rsqrt) / size(E) * z_wq
//   d_s_wq = d_z_wq * t1
//   dot_r = sum(d_v * v + d_z_wk * z_wk, G*E) + sum(d_z_wq * z_wq, H*E)
//   div_2 = -dot_r * (r * r) / size(D)
//   block_sum_1 = block_sum(sum(t9 * (z_wq * rsqrt), H), B*S)
//   block_sum_2 = block_sum(sum(t4 * (z_wk * rsqrt_1), G), B*S)
// }
#include "maps.cuh"
#include "philox.cuh"
#include "stream.cuh"

using namespace coda;
using Index = unsigned;

struct Arguments_qkv_norm_grad_1_d_s_wv {
  long long rows_0;
  long long groups_0;
  long long period_0;
  long long items_0_0;
  const bf16_t* gamma_k;
  long long gamma_k_from_E1;
  long long rows_S;
  long long cos_row_S;
  const float* cos;
  long long sin_row_S;
  const float* sin;
  long long z_wk_row;
  long long z_wk_E0_G_stride;
  const bf16_t* z_wk;
  long long z_wk_from_E1;
  long long z_wk_E1_G_stride;
  long long rsqrt_1_row;
  const float* rsqrt_1;
  long long v_row;
  long long v_E0_G_stride;
  const bf16_t* v;
  long long v_from_E1;
  long long v_E1_G_stride;
  long long d_k_row;
  long long d_k_E0_G_stride;
  const bf16_t* d_k;
  long long d_k_from_E1;
  long long d_k_E1_G_stride;
  long long d_v_row;
  long long d_v_E0_G_stride;
  const bf16_t* d_v;
  long long d_v_from_E1;
  long long d_v_E1_G_stride;
  long long size_E;
  long long size_D;
  long long r_row;
  const float* r;
  long long d_s_wv_row;
  long long d_s_wv_E0_G_stride;
  bf16_t* d_s_wv;
  long long d_s_wv_from_E1;
  long long d_s_wv_E1_G_stride;
  long long d_s_wk_row;
  long long d_s_wk_E0_G_stride;
  bf16_t* d_s_wk;
  long long d_s_wk_from_E1;
  long long d_s_wk_E1_G_stride;
  long long items_0_1;
  const bf16_t* gamma_q;
  long long gamma_q_from_E1;
  long long z_wq_row;
  long long z_wq_E0_H_stride;
  const bf16_t* z_wq;
  long long z_wq_from_E1;
  long long z_wq_E1_H_stride;
  long long rsqrt_row;
  const float* rsqrt;
  long long d_q_row;
  long long d_q_E0_H_stride;
  const bf16_t* d_q;
  long long d_q_from_E1;
  long long d_q_E1_H_stride;
  long long d_s_wq_row;
  long long d_s_wq_E0_H_stride;
  bf16_t* d_s_wq;
  long long d_s_wq_from_E1;
  long long d_s_wq_E1_H_stride;
  long long div_2_row;
  float* div_2;
  long long items_0_2;
  long long block_sum_1_group;
  float* block_sum_1;
  long long block_sum_1_from_E1;
  long long block_sum_2_group;
  float* block_sum_2;
  long long block_sum_2_from_E1;
};
using Arguments = Arguments_qkv_norm_grad_1_d_s_wv;

// rows, 32 threads a row, 1 x 8 of G E/2, 1 x 8 of H E/2, 1 x 8 of E/2, looped
__device__ __forceinline__ void space_0(const Arguments& a, Index block) {
  constexpr int kTeam = 32, kTeams = 8;
  const Index member = threadIdx.x % kTeam, team = threadIdx.x / kTeam;
  const float one_over_size = exact::div(1.0f, lane<float>((long long)a.size_E));
  const float one_over_size_2 = exact::div(1.0f, lane<float>((long long)a.size_E));
  const Index group = block;
  // Block `group_block` of period `group_outer`: rows first … first + count.
  const Index group_block = group % Index(a.groups_0), group_outer = group / Index(a.groups_0);
  const Index begin = group_block * Index(64);
  const Index first = group_outer * Index(a.period_0) + begin;
  const Index count = Index(a.period_0) - begin < Index(64) ? Index(a.period_0) - begin : Index(64);
  float block_sum_2[1][8];
  #pragma unroll
  for (int u = 0; u < 1; ++u) EACH(8) block_sum_2[u][i] = Sum::none<float>();
  float block_sum_2_2[1][8];
  #pragma unroll
  for (int u = 0; u < 1; ++u) EACH(8) block_sum_2_2[u][i] = Sum::none<float>();
  float block_sum_1[1][8];
  #pragma unroll
  for (int u = 0; u < 1; ++u) EACH(8) block_sum_1[u][i] = Sum::none<float>();
  float block_sum_1_2[1][8];
  #pragma unroll
  for (int u = 0; u < 1; ++u) EACH(8) block_sum_1_2[u][i] = Sum::none<float>();
  for (Index step = team; step < count; step += kTeams) {
    const Index row = first + step;
    const float r = value_at(a.r + row * a.r_row);
    // t1 = where(size(D) > 0, r, 0)
    const float t1 = exact::where(exact::gt((long long)a.size_D, 0LL), r, 0.0f);
    float sum = Sum::none<float>();
    float sum_2 = Sum::none<float>();
    for (Index base = 0; base < Index(a.items_0_0); base += kTeam * 1) {
      Pack<bf16_t, 8> gamma_k_0[1];
      Pack<bf16_t, 8> gamma_k_1[1];
      Pack<float, 8> cos[1];
      Pack<float, 8> sin[1];
      Pack<bf16_t, 8> z_wk_0[1];
      Pack<bf16_t, 8> z_wk_1[1];
      float rsqrt_1[1];
      Pack<bf16_t, 8> v_0[1];
      Pack<bf16_t, 8> v_1[1];
      Pack<bf16_t, 8> d_k_0[1];
      Pack<bf16_t, 8> d_k_1[1];
      Pack<bf16_t, 8> d_v_0[1];
      Pack<bf16_t, 8> d_v_1[1];
      #pragma unroll
      for (int u = 0; u < 1; ++u) {
        const Index item = base + member + kTeam * u;
        const bool ok = true;
        const Index c = item % 8 * 8;
        const Index at_G = item / 8;
        gamma_k_0[u].load(a.gamma_k + c);
        gamma_k_1[u].load(a.gamma_k + a.gamma_k_from_E1 + c);
        cos[u].load(a.cos + (row % Index(a.rows_S)) * a.cos_row_S + c);
        sin[u].load(a.sin + (row % Index(a.rows_S)) * a.sin_row_S + c);
        z_wk_0[u].load(a.z_wk + row * a.z_wk_row + at_G * a.z_wk_E0_G_stride + c);
        z_wk_1[u].load(a.z_wk + row * a.z_wk_row + a.z_wk_from_E1 + at_G * a.z_wk_E1_G_stride + c);
        rsqrt_1[u] = ok ? value_at(a.rsqrt_1 + row * a.rsqrt_1_row + at_G) : 0.0f;
        v_0[u].load(a.v + row * a.v_row + at_G * a.v_E0_G_stride + c);
        v_1[u].load(a.v + row * a.v_row + a.v_from_E1 + at_G * a.v_E1_G_stride + c);
        d_k_0[u].load(a.d_k + row * a.d_k_row + at_G * a.d_k_E0_G_stride + c);
        d_k_1[u].load(a.d_k + row * a.d_k_row + a.d_k_from_E1 + at_G * a.d_k_E1_G_stride + c);
        d_v_0[u].load(a.d_v + row * a.d_v_row + at_G * a.d_v_E0_G_stride + c);
        d_v_1[u].load(a.d_v + row * a.d_v_row + a.d_v_from_E1 + at_G * a.d_v_E1_G_stride + c);
      }
      #pragma unroll
      for (int u = 0; u < 1; ++u) {
        const Index item = base + member + kTeam * u;
        const bool ok = true;
        const Index c = item % 8 * 8;
        const Index at_G = item / 8;
        // t5 = t4 * gamma_k
        float t5[8];
        EACH(8) t5[i] = fast::mul(fast::add(fast::mul(d_k_1[u].at(i), sin[u].at(i)), fast::mul(d_k_0[u].at(i), cos[u].at(i))), gamma_k_0[u].at(i));
        // sum(t5 * z_wk, E)
        float sum_3_of[8];
        EACH(8) sum_3_of[i] = ok ? fast::mul(t5[i], z_wk_0[u].at(i)) : Sum::none<float>();
        // t5 = t4 * gamma_k
        float t5_2[8];
        EACH(8) t5_2[i] = fast::mul(fast::add(fast::mul(d_k_1[u].at(i), cos[u].at(i)), fast::mul(fast::neg(d_k_0[u].at(i)), sin[u].at(i))), gamma_k_1[u].at(i));
        float sum_3_of_2[8];
        EACH(8) sum_3_of_2[i] = ok ? fast::mul(t5_2[i], z_wk_1[u].at(i)) : Sum::none<float>();
        const float sum_3 = among<Sum, 8>(Sum::of(fold<Sum>(sum_3_of), fold<Sum>(sum_3_of_2)));
        // t6 = -sum(t5 * z_wk, E) * (rsqrt_1 * rsqrt_1 * rsqrt_1) / size(E) * z_wk
        float t6[8];
        EACH(8) t6[i] = fast::mul(exact::mul(fast::mul(fast::neg(sum_3), fast::mul(fast::mul(rsqrt_1[u], rsqrt_1[u]), rsqrt_1[u])), one_over_size), z_wk_0[u].at(i));
        // d_z_wk = t5 * rsqrt_1 + t6
        float d_z_wk[8];
        EACH(8) d_z_wk[i] = fast::add(fast::mul(t5[i], rsqrt_1[u]), t6[i]);
        // sum(d_v * v + d_z_wk * z_wk, G*E)
        {
          float part[8];
          EACH(8) part[i] = fast::add(fast::mul(d_v_0[u].at(i), v_0[u].at(i)), fast::mul(d_z_wk[i], z_wk_0[u].at(i)));
          sum = Sum::of(sum, fold<Sum>(part));
        }
        // t6 = -sum(t5 * z_wk, E) * (rsqrt_1 * rsqrt_1 * rsqrt_1) / size(E) * z_wk
        float t6_2[8];
        EACH(8) t6_2[i] = fast::mul(exact::mul(fast::mul(fast::neg(sum_3), fast::mul(fast::mul(rsqrt_1[u], rsqrt_1[u]), rsqrt_1[u])), one_over_size), z_wk_1[u].at(i));
        // d_z_wk = t5 * rsqrt_1 + t6
        float d_z_wk_2[8];
        EACH(8) d_z_wk_2[i] = fast::add(fast::mul(t5_2[i], rsqrt_1[u]), t6_2[i]);
        {
          float part_2[8];
          EACH(8) part_2[i] = fast::add(fast::mul(d_v_1[u].at(i), v_1[u].at(i)), fast::mul(d_z_wk_2[i], z_wk_1[u].at(i)));
          sum = Sum::of(sum, fold<Sum>(part_2));
        }
        // block_sum_2 = block_sum(sum(t4 * (z_wk * rsqrt_1), G), B*S)
        EACH(8) block_sum_2[0][i] = Sum::of(block_sum_2[0][i], ok ? fast::mul(fast::add(fast::mul(d_k_1[u].at(i), sin[u].at(i)), fast::mul(d_k_0[u].at(i), cos[u].at(i))), fast::mul(z_wk_0[u].at(i), rsqrt_1[u])) : Sum::none<float>());
        EACH(8) block_sum_2_2[0][i] = Sum::of(block_sum_2_2[0][i], ok ? fast::mul(fast::add(fast::mul(d_k_1[u].at(i), cos[u].at(i)), fast::mul(fast::neg(d_k_0[u].at(i)), sin[u].at(i))), fast::mul(z_wk_1[u].at(i), rsqrt_1[u])) : Sum::none<float>());
        // d_s_wv = d_v * t1
        float d_s_wv[8];
        EACH(8) d_s_wv[i] = fast::mul(d_v_0[u].at(i), t1);
        // d_s_wv = d_v * t1
        {
          float d_s_wv_out[8];
          EACH(8) d_s_wv_out[i] = d_s_wv[i];
          Pack<bf16_t, 8> stored;
          stored.fill(d_s_wv_out);
          stored.store(a.d_s_wv + row * a.d_s_wv_row + at_G * a.d_s_wv_E0_G_stride + c);
        }
        // d_s_wv = d_v * t1
        float d_s_wv_2[8];
        EACH(8) d_s_wv_2[i] = fast::mul(d_v_1[u].at(i), t1);
        {
          float d_s_wv_out_2[8];
          EACH(8) d_s_wv_out_2[i] = d_s_wv_2[i];
          Pack<bf16_t, 8> stored;
          stored.fill(d_s_wv_out_2);
          stored.store(a.d_s_wv + row * a.d_s_wv_row + a.d_s_wv_from_E1 + at_G * a.d_s_wv_E1_G_stride + c);
        }
        // d_s_wk = d_z_wk * t1
        float d_s_wk[8];
        EACH(8) d_s_wk[i] = fast::mul(d_z_wk[i], t1);
        // d_s_wk = d_z_wk * t1
        {
          float d_s_wk_out[8];
          EACH(8) d_s_wk_out[i] = d_s_wk[i];
          Pack<bf16_t, 8> stored;
          stored.fill(d_s_wk_out);
          stored.store(a.d_s_wk + row * a.d_s_wk_row + at_G * a.d_s_wk_E0_G_stride + c);
        }
        // d_s_wk = d_z_wk * t1
        float d_s_wk_2[8];
        EACH(8) d_s_wk_2[i] = fast::mul(d_z_wk_2[i], t1);
        {
          float d_s_wk_out_2[8];
          EACH(8) d_s_wk_out_2[i] = d_s_wk_2[i];
          Pack<bf16_t, 8> stored;
          stored.fill(d_s_wk_out_2);
          stored.store(a.d_s_wk + row * a.d_s_wk_row + a.d_s_wk_from_E1 + at_G * a.d_s_wk_E1_G_stride + c);
        }
      }
    }
    for (Index base = 0; base < Index(a.items_0_1); base += kTeam * 1) {
      Pack<bf16_t, 8> gamma_q_0[1];
      Pack<bf16_t, 8> gamma_q_1[1];
      Pack<float, 8> cos_2[1];
      Pack<float, 8> sin_2[1];
      Pack<bf16_t, 8> z_wq_0[1];
      Pack<bf16_t, 8> z_wq_1[1];
      float rsqrt[1];
      Pack<bf16_t, 8> d_q_0[1];
      Pack<bf16_t, 8> d_q_1[1];
      #pragma unroll
      for (int u = 0; u < 1; ++u) {
        const Index item = base + member + kTeam * u;
        const bool ok = true;
        const Index c = item % 8 * 8;
        const Index at_H = item / 8;
        gamma_q_0[u].load(a.gamma_q + c);
        gamma_q_1[u].load(a.gamma_q + a.gamma_q_from_E1 + c);
        cos_2[u].load(a.cos + (row % Index(a.rows_S)) * a.cos_row_S + c);
        sin_2[u].load(a.sin + (row % Index(a.rows_S)) * a.sin_row_S + c);
        z_wq_0[u].load(a.z_wq + row * a.z_wq_row + at_H * a.z_wq_E0_H_stride + c);
        z_wq_1[u].load(a.z_wq + row * a.z_wq_row + a.z_wq_from_E1 + at_H * a.z_wq_E1_H_stride + c);
        rsqrt[u] = ok ? value_at(a.rsqrt + row * a.rsqrt_row + at_H) : 0.0f;
        d_q_0[u].load(a.d_q + row * a.d_q_row + at_H * a.d_q_E0_H_stride + c);
        d_q_1[u].load(a.d_q + row * a.d_q_row + a.d_q_from_E1 + at_H * a.d_q_E1_H_stride + c);
      }
      #pragma unroll
      for (int u = 0; u < 1; ++u) {
        const Index item = base + member + kTeam * u;
        const bool ok = true;
        const Index c = item % 8 * 8;
        const Index at_H = item / 8;
        // t10 = t9 * gamma_q
        float t10[8];
        EACH(8) t10[i] = fast::mul(fast::add(fast::mul(d_q_1[u].at(i), sin_2[u].at(i)), fast::mul(d_q_0[u].at(i), cos_2[u].at(i))), gamma_q_0[u].at(i));
        // sum(t10 * z_wq, E)
        float sum_4_of[8];
        EACH(8) sum_4_of[i] = ok ? fast::mul(t10[i], z_wq_0[u].at(i)) : Sum::none<float>();
        // t10 = t9 * gamma_q
        float t10_2[8];
        EACH(8) t10_2[i] = fast::mul(fast::add(fast::mul(d_q_1[u].at(i), cos_2[u].at(i)), fast::mul(fast::neg(d_q_0[u].at(i)), sin_2[u].at(i))), gamma_q_1[u].at(i));
        float sum_4_of_2[8];
        EACH(8) sum_4_of_2[i] = ok ? fast::mul(t10_2[i], z_wq_1[u].at(i)) : Sum::none<float>();
        const float sum_4 = among<Sum, 8>(Sum::of(fold<Sum>(sum_4_of), fold<Sum>(sum_4_of_2)));
        // d_z_wq = t10 * rsqrt + -sum(t10 * z_wq, E) * (rsqrt * rsqrt * rsqrt) / size(E) * z_wq
        float d_z_wq[8];
        EACH(8) d_z_wq[i] = fast::add(fast::mul(t10[i], rsqrt[u]), fast::mul(exact::mul(fast::mul(fast::neg(sum_4), fast::mul(fast::mul(rsqrt[u], rsqrt[u]), rsqrt[u])), one_over_size_2), z_wq_0[u].at(i)));
        // sum(d_z_wq * z_wq, H*E)
        {
          float part_3[8];
          EACH(8) part_3[i] = fast::mul(d_z_wq[i], z_wq_0[u].at(i));
          sum_2 = Sum::of(sum_2, fold<Sum>(part_3));
        }
        // d_z_wq = t10 * rsqrt + -sum(t10 * z_wq, E) * (rsqrt * rsqrt * rsqrt) / size(E) * z_wq
        float d_z_wq_2[8];
        EACH(8) d_z_wq_2[i] = fast::add(fast::mul(t10_2[i], rsqrt[u]), fast::mul(exact::mul(fast::mul(fast::neg(sum_4), fast::mul(fast::mul(rsqrt[u], rsqrt[u]), rsqrt[u])), one_over_size_2), z_wq_1[u].at(i)));
        {
          float part_4[8];
          EACH(8) part_4[i] = fast::mul(d_z_wq_2[i], z_wq_1[u].at(i));
          sum_2 = Sum::of(sum_2, fold<Sum>(part_4));
        }
        // block_sum_1 = block_sum(sum(t9 * (z_wq * rsqrt), H), B*S)
        EACH(8) block_sum_1[0][i] = Sum::of(block_sum_1[0][i], ok ? fast::mul(fast::add(fast::mul(d_q_1[u].at(i), sin_2[u].at(i)), fast::mul(d_q_0[u].at(i), cos_2[u].at(i))), fast::mul(z_wq_0[u].at(i), rsqrt[u])) : Sum::none<float>());
        EACH(8) block_sum_1_2[0][i] = Sum::of(block_sum_1_2[0][i], ok ? fast::mul(fast::add(fast::mul(d_q_1[u].at(i), cos_2[u].at(i)), fast::mul(fast::neg(d_q_0[u].at(i)), sin_2[u].at(i))), fast::mul(z_wq_1[u].at(i), rsqrt[u])) : Sum::none<float>());
        // d_s_wq = d_z_wq * t1
        float d_s_wq[8];
        EACH(8) d_s_wq[i] = fast::mul(d_z_wq[i], t1);
        // d_s_wq = d_z_wq * t1
        {
          float d_s_wq_out[8];
          EACH(8) d_s_wq_out[i] = d_s_wq[i];
          Pack<bf16_t, 8> stored;
          stored.fill(d_s_wq_out);
          stored.store(a.d_s_wq + row * a.d_s_wq_row + at_H * a.d_s_wq_E0_H_stride + c);
        }
        // d_s_wq = d_z_wq * t1
        float d_s_wq_2[8];
        EACH(8) d_s_wq_2[i] = fast::mul(d_z_wq_2[i], t1);
        {
          float d_s_wq_out_2[8];
          EACH(8) d_s_wq_out_2[i] = d_s_wq_2[i];
          Pack<bf16_t, 8> stored;
          stored.fill(d_s_wq_out_2);
          stored.store(a.d_s_wq + row * a.d_s_wq_row + a.d_s_wq_from_E1 + at_H * a.d_s_wq_E1_H_stride + c);
        }
      }
    }
    sum = among<Sum, 32>(sum);
    sum_2 = among<Sum, 32>(sum_2);
    // dot_r = sum(d_v * v + d_z_wk * z_wk, G*E) + sum(d_z_wq * z_wq, H*E)
    const float dot_r = exact::add(sum, sum_2);
    // div_2 = -dot_r * (r * r) / size(D)
    const float div_2 = exact::div(exact::mul(exact::neg(dot_r), exact::mul(r, r)), lane<float>((long long)a.size_D));
    if (member == 0) put(a.div_2 + row * a.div_2_row, div_2);
  }
  __shared__ float shared_sums[8][256];
  #pragma unroll
  for (int u = 0; u < 1; ++u) {
    EACH(8) shared_sums[i][threadIdx.x] = block_sum_2[u][i];
    __syncthreads();
    if (threadIdx.x < 8) {
      for (int other = threadIdx.x + 8; other < 256; other += 8)
        EACH(8) block_sum_2[u][i] = Sum::of(block_sum_2[u][i], shared_sums[i][other]);
    }
    __syncthreads();
  }
  #pragma unroll
  for (int u = 0; u < 1; ++u) {
    EACH(8) shared_sums[i][threadIdx.x] = block_sum_2_2[u][i];
    __syncthreads();
    if (threadIdx.x < 8) {
      for (int other = threadIdx.x + 8; other < 256; other += 8)
        EACH(8) block_sum_2_2[u][i] = Sum::of(block_sum_2_2[u][i], shared_sums[i][other]);
    }
    __syncthreads();
  }
  #pragma unroll
  for (int u = 0; u < 1; ++u) {
    EACH(8) shared_sums[i][threadIdx.x] = block_sum_1[u][i];
    __syncthreads();
    if (threadIdx.x < 8) {
      for (int other = threadIdx.x + 8; other < 256; other += 8)
        EACH(8) block_sum_1[u][i] = Sum::of(block_sum_1[u][i], shared_sums[i][other]);
    }
    __syncthreads();
  }
  #pragma unroll
  for (int u = 0; u < 1; ++u) {
    EACH(8) shared_sums[i][threadIdx.x] = block_sum_1_2[u][i];
    __syncthreads();
    if (threadIdx.x < 8) {
      for (int other = threadIdx.x + 8; other < 256; other += 8)
        EACH(8) block_sum_1_2[u][i] = Sum::of(block_sum_1_2[u][i], shared_sums[i][other]);
    }
    __syncthreads();
  }
  if (team == 0) {
    #pragma unroll
    for (int u = 0; u < 1; ++u) {
      const Index item = member + kTeam * u;
      const bool ok = item < Index(a.items_0_2);
      const Index c = item * 8;
      // block_sum_1 = block_sum(sum(t9 * (z_wq * rsqrt), H), B*S)
      {
        float block_sum_1_out[8];
        EACH(8) block_sum_1_out[i] = block_sum_1[u][i];
        Pack<float, 8> stored;
        stored.fill(block_sum_1_out);
        if (ok) stored.store(a.block_sum_1 + group_block * a.block_sum_1_group + c);
      }
      {
        float block_sum_1_out_2[8];
        EACH(8) block_sum_1_out_2[i] = block_sum_1_2[u][i];
        Pack<float, 8> stored;
        stored.fill(block_sum_1_out_2);
        if (ok) stored.store(a.block_sum_1 + group_block * a.block_sum_1_group + a.block_sum_1_from_E1 + c);
      }
      // block_sum_2 = block_sum(sum(t4 * (z_wk * rsqrt_1), G), B*S)
      {
        float block_sum_2_out[8];
        EACH(8) block_sum_2_out[i] = block_sum_2[u][i];
        Pack<float, 8> stored;
        stored.fill(block_sum_2_out);
        if (ok) stored.store(a.block_sum_2 + group_block * a.block_sum_2_group + c);
      }
      {
        float block_sum_2_out_2[8];
        EACH(8) block_sum_2_out_2[i] = block_sum_2_2[u][i];
        Pack<float, 8> stored;
        stored.fill(block_sum_2_out_2);
        if (ok) stored.store(a.block_sum_2 + group_block * a.block_sum_2_group + a.block_sum_2_from_E1 + c);
      }
    }
  }
}

extern "C" __global__ void __launch_bounds__(256, 1) qkv_norm_grad_1_d_s_wv(const __grid_constant__ Arguments_qkv_norm_grad_1_d_s_wv a) {
  const Index block = blockIdx.x;
  space_0(a, block);
}
