// coda 1
// # With an f32 master and the bf16 copy that the products read.
// program adamw_master(
//     master: f32[M, N], grad: f32[M, N], m: f32[M, N], v: f32[M, N], lr: f32, beta1: f32, beta2: f32,
//     eps: f32, weight_decay: f32, bias1: f32, bias2: f32, grad_scale: f32
// ) -> (new_master: f32[M, N], new_param: bf16[M, N], new_m: f32[M, N], new_v: f32[M, N]) {
//   t1 = grad * grad_scale
//   new_m = beta1 * m + (1 - beta1) * t1
//   new_v = beta2 * v + (1 - beta2) * t1 * t1
//   t2 = lr * (weight_decay * master + new_m / bias1 / (sqrt(new_v / bias2) + eps))
//   new_master = master - t2
//   new_param = new_master
// }
#include "maps.cuh"
#include "philox.cuh"
#include "stream.cuh"

using namespace coda;
using Index = unsigned;

struct Arguments_adamw_master {
  long long rows_0;
  long long chunks_0;
  long long items_0_0;
  const float* master;
  const float* grad;
  const float* m;
  const float* v;
  const float* lr;
  const float* weight_decay;
  const float* bias1;
  const float* beta1;
  const float* grad_scale;
  const float* bias2;
  const float* beta2;
  const float* eps;
  float* new_master;
  bf16_t* new_param;
  float* new_m;
  float* new_v;
};
using Arguments = Arguments_adamw_master;

// rows, 256 threads a row, 1 x 4 of N
__device__ __forceinline__ void space_0(const Arguments& a, Index block) {
  constexpr int kTeam = 256, kTeams = 1;
  const Index member = threadIdx.x % kTeam, team = threadIdx.x / kTeam;
  const float lr = value_at(a.lr);
  const float weight_decay = value_at(a.weight_decay);
  const float bias1 = value_at(a.bias1);
  const float one_over_bias1 = exact::div(1.0f, bias1);
  const float beta1 = value_at(a.beta1);
  const float grad_scale = value_at(a.grad_scale);
  const float bias2 = value_at(a.bias2);
  const float one_over_bias2 = exact::div(1.0f, bias2);
  const float beta2 = value_at(a.beta2);
  const float eps = value_at(a.eps);
  const Index chunk = block % Index(a.chunks_0), row = block / Index(a.chunks_0) * kTeams + team;
  if (row >= Index(a.rows_0)) return;
  Pack<float, 4> master[1];
  Pack<float, 4> grad[1];
  Pack<float, 4> m[1];
  Pack<float, 4> v[1];
  #pragma unroll
  for (int u = 0; u < 1; ++u) {
    const Index item = chunk * 256 + member + kTeam * u;
    const bool ok = true;
    const Index c = item * 4;
    master[u].load(a.master + c);
    grad[u].load(a.grad + c);
    m[u].load(a.m + c);
    v[u].load(a.v + c);
  }
  #pragma unroll
  for (int u = 0; u < 1; ++u) {
    const Index item = chunk * 256 + member + kTeam * u;
    const bool ok = true;
    const Index c = item * 4;
    // t1 = grad * grad_scale
    float t1[4];
    EACH(4) t1[i] = exact::mul(grad[u].at(i), grad_scale);
    // new_m = beta1 * m + (1 - beta1) * t1
    float new_m[4];
    EACH(4) new_m[i] = exact::add(exact::mul(beta1, m[u].at(i)), exact::mul(exact::sub(1.0f, beta1), t1[i]));
    // new_v = beta2 * v + (1 - beta2) * t1 * t1
    float new_v[4];
    EACH(4) new_v[i] = exact::add(exact::mul(beta2, v[u].at(i)), exact::mul(exact::mul(exact::sub(1.0f, beta2), t1[i]), t1[i]));
    // t2 = lr * (weight_decay * master + new_m / bias1 / (sqrt(new_v / bias2) + eps))
    float t2[4];
    EACH(4) t2[i] = exact::mul(lr, exact::add(exact::mul(weight_decay, master[u].at(i)), exact::div(exact::mul(new_m[i], one_over_bias1), exact::add(exact::sqrt(exact::mul(new_v[i], one_over_bias2)), eps))));
    // new_master = master - t2
    float new_master[4];
    EACH(4) new_master[i] = exact::sub(master[u].at(i), t2[i]);
    // new_master = master - t2
    {
      float new_master_out[4];
      EACH(4) new_master_out[i] = new_master[i];
      Pack<float, 4> stored;
      stored.fill(new_master_out);
      stored.store(a.new_master + c);
    }
    {
      float new_param_out[4];
      EACH(4) new_param_out[i] = new_master[i];
      Pack<bf16_t, 4> stored;
      stored.fill(new_param_out);
      stored.store(a.new_param + c);
    }
    // new_m = beta1 * m + (1 - beta1) * t1
    {
      float new_m_out[4];
      EACH(4) new_m_out[i] = new_m[i];
      Pack<float, 4> stored;
      stored.fill(new_m_out);
      stored.store(a.new_m + c);
    }
    // new_v = beta2 * v + (1 - beta2) * t1 * t1
    {
      float new_v_out[4];
      EACH(4) new_v_out[i] = new_v[i];
      Pack<float, 4> stored;
      stored.fill(new_v_out);
      stored.store(a.new_v + c);
    }
  }
}

extern "C" __global__ void __launch_bounds__(256) adamw_master(const __grid_constant__ Arguments_adamw_master a) {
  const Index block = blockIdx.x;
  space_0(a, block);
}
