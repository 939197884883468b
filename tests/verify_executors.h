// tests/verify_executors.h: programs with honest executors that work in float over strided tensors,
// as a backend would, and the faults that make them wrong.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

#include "coda/program/builder.h"
#include "coda/reference/verify.h"

namespace coda {

inline Dim D(std::string name) {
  return dim_of(std::move(name));
}

// ---- programs ----

// h = residual + x @ w;  p = h * gamma;  ss = block_sum(h * h, N)
inline Program residual_norm(DType dtype) {
  Builder b("residual_norm", Program::Kind::program);
  const auto param = [&](const char* name, std::vector<Dim> dims) {
    return Expr{&b, b.param(name, {dtype, std::move(dims)})};
  };
  const Expr x = param("x", {D("M"), D("K")}), w = param("w", {D("N"), D("K")});
  const Expr residual = param("residual", {D("M"), D("N")}), gamma = param("gamma", {D("N")});
  const Expr h = residual + product(x, w, D("K"));
  const Expr ss = block_reduce(Op::block_sum, h * h, D("N"), kBlock);
  b.result("h", {dtype, {D("M"), D("N")}}, h.value);
  b.result("p", {dtype, {D("M"), D("N")}}, (h * gamma).value);
  b.result("ss", ss.type(), ss.value);
  return std::move(b).finish();
}

// r = rsqrt(sum(ss, K) / size(K) + eps);  y = r * (x @ w), both f32
inline Program row_scale(DType dtype) {
  Builder b("row_scale", Program::Kind::program);
  const Expr x{&b, b.param("x", {dtype, {D("M"), D("K")}})};
  const Expr w{&b, b.param("w", {dtype, {D("N"), D("K")}})};
  const Expr ss{&b, b.param("ss", {DType::f32, {D("M"), D("K")}})};
  const Expr eps{&b, b.param("eps", {DType::f32, {}})};
  const Expr size{&b, b.op(Op::size, {}, {.axis = D("K")})};
  const Expr r = map(Op::rsqrt, reduce(Op::sum, ss, D("K")) / size + eps);
  const Expr s = product(x, w, D("K"));
  b.result("r", {DType::f32, {D("M")}}, r.value);
  b.result("s", {DType::f32, {D("M"), D("N")}}, s.value);
  b.result("y", {DType::f32, {D("M"), D("N")}}, (r * s).value);
  return std::move(b).finish();
}

// dw += dz @ x
inline Program weight_grad(DType dtype, DType stored = DType::f32) {
  Builder b("weight_grad", Program::Kind::program);
  const Expr dz{&b, b.param("dz", {dtype, {D("M"), D("N")}})};
  const Expr x{&b, b.param("x", {dtype, {D("M"), D("K")}})};
  b.result("dw", {stored, {D("N"), D("K")}}, product(dz, x, D("M")).value, Store::accumulate);
  return std::move(b).finish();
}

// y = table[ids];  inside = ids >= 0;  next = ids + 1;  u = uniform(seed, [M])
inline Program lookup(DType dtype) {
  Builder b("lookup", Program::Kind::program);
  const Expr table{&b, b.param("table", {dtype, {D("V"), D("N")}})};
  const Expr ids{&b, b.param("ids", {DType::i64, {D("M")}})};
  const Expr seed{&b, b.param("seed", {DType::i64, {}})};
  const Expr y{&b, b.op(Op::gather, {table.value, ids.value})};
  const Expr zero{&b, b.constant(0)}, one{&b, b.constant(1)};
  b.result("y", {dtype, {D("M"), D("N")}}, y.value);
  b.result("inside", {DType::boolean, {D("M")}}, map(Op::ge, ids, zero).value);
  b.result("next", {DType::i64, {D("M")}}, map(Op::add, ids, one).value);
  b.result("u", {DType::f32, {D("M")}}, b.op(Op::uniform, {seed.value}, {.dims = {D("M")}}));
  return std::move(b).finish();
}

// dx = where(x > 0, dy, 0) * x;  l = log(v)
inline Program relu_grad(DType dtype) {
  Builder b("relu_grad", Program::Kind::program);
  const Expr x{&b, b.param("x", {dtype, {D("M"), D("N")}})};
  const Expr dy{&b, b.param("dy", {dtype, {D("M"), D("N")}})};
  const Expr v{&b, b.param("v", {dtype, {D("N")}})};
  const Expr zero{&b, b.constant(0)};
  b.result("dx", {dtype, {D("M"), D("N")}}, (where(map(Op::gt, x, zero), dy, zero) * x).value);
  b.result("l", {DType::f32, {D("N")}}, map(Op::log, v).value);
  return std::move(b).finish();
}

// ---- honest executors, with a place for each fault ----

enum class Fault {
  none,
  drops_last_k,          // off by one in the contraction
  drops_k_slice,         // a middle slice of 8
  truncates,             // bf16 by cutting the low bits
  sums_in_f16,           // accumulator rounded to f16 at every step
  rounds_accumulator,    // accumulator rounded to the operands' dtype before the epilogue
  rounds_at_two_thirds,  // the sum up to two thirds of K rounded to bf16: a split with 16-bit parts
  wrong_block,           // blocks of 32
  statistic_of_stored,   // of a wrong value: p in place of h
  gamma_by_row,          // wrong broadcast axis
  scale_twice,
  no_scale,
  no_eps,
  eps_outside_root,
  ignores_accumulate,
  accumulates_twice,
  transposed_result,
  wraps_ids,  // a negative id counts from the end
  clamps_ids,
  seed_of_32_bits,
  one_off_counter,
  divides_by_upstream,  // z * dy / dy: wrong only where dy is 0
  upstream_is_one,
  fast_log,  // 12 bits
};

inline std::byte* address(const Tensor& t, std::int64_t i, std::int64_t j) {
  std::int64_t offset = 0;
  if (t.shape.size() == 1) offset = i * t.strides[0];
  if (t.shape.size() == 2) offset = i * t.strides[0] + j * t.strides[1];
  return static_cast<std::byte*>(t.data) + offset * static_cast<std::int64_t>(size_of(t.dtype));
}

inline float at(const Tensor& t, std::int64_t i = 0, std::int64_t j = 0) {
  return static_cast<float>(load(t.dtype, address(t, i, j), 0));
}

inline void put(const Tensor& t, std::int64_t i, std::int64_t j, double value) {
  store(t.dtype, address(t, i, j), 0, value);
}

inline float truncated_bf16(float x) {
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) & 0xffff0000u);
}

inline float dot(const Tensor& a, std::int64_t i, const Tensor& b, std::int64_t j, Fault fault) {
  const std::int64_t depth = a.shape[1];
  float total = 0;
  for (std::int64_t k = 0; k < depth; ++k) {
    if (fault == Fault::drops_last_k && k == depth - 1) continue;
    if (fault == Fault::drops_k_slice && k >= 8 && k < 16) continue;
    total += at(a, i, k) * at(b, j, k);
    if (fault == Fault::sums_in_f16) total = static_cast<float>(round_to(DType::f16, total));
    if (fault == Fault::rounds_at_two_thirds && k == depth * 2 / 3) {
      total = static_cast<float>(round_to(DType::bf16, total));
    }
  }
  if (fault == Fault::rounds_accumulator) total = static_cast<float>(round_to(a.dtype, total));
  return total;
}

using Tensors = std::span<const Tensor>;

inline void run_residual_norm(Tensors in, Tensors out, Fault fault) {
  const Tensor &x = in[0], &w = in[1], &residual = in[2], &gamma = in[3];
  const std::int64_t rows = x.shape[0], columns = w.shape[0];
  const std::int64_t block = fault == Fault::wrong_block ? 32 : 64;
  const auto stored = [&](float value) {
    return fault == Fault::truncates ? truncated_bf16(value) : value;
  };
  for (std::int64_t i = 0; i < rows; ++i) {
    std::vector<float> sums(static_cast<std::size_t>((columns + 31) / 32), 0.0f);
    for (std::int64_t j = 0; j < columns; ++j) {
      const float h = at(residual, i, j) + dot(x, i, w, j, fault);
      const float g = at(gamma, fault == Fault::gamma_by_row ? i % columns : j);
      const bool transposed = fault == Fault::transposed_result && i < columns && j < rows;
      put(out[0], transposed ? j : i, transposed ? i : j, stored(h));
      put(out[1], i, j, stored(h * g));
      const float value = fault == Fault::statistic_of_stored ? h * g : h;
      sums[static_cast<std::size_t>(j / block)] += value * value;
    }
    for (std::int64_t n = 0; n < out[2].shape[1]; ++n) {
      put(out[2], i, n, sums[static_cast<std::size_t>(n)]);
    }
  }
}

inline void run_row_scale(Tensors in, Tensors out, Fault fault) {
  const Tensor &x = in[0], &w = in[1], &ss = in[2], &eps = in[3];
  for (std::int64_t i = 0; i < x.shape[0]; ++i) {
    float total = 0;
    for (std::int64_t k = 0; k < ss.shape[1]; ++k) total += at(ss, i, k);
    const float mean = total / static_cast<float>(ss.shape[1]);
    float r = 1 / std::sqrt(mean + (fault == Fault::no_eps ? 0.0f : at(eps)));
    if (fault == Fault::eps_outside_root) r = 1 / (std::sqrt(mean) + at(eps));
    put(out[0], i, 0, r);
    for (std::int64_t j = 0; j < w.shape[0]; ++j) {
      const float s = dot(x, i, w, j, fault);
      put(out[1], i, j, s);
      put(out[2], i, j,
          fault == Fault::scale_twice ? s * r * r
          : fault == Fault::no_scale  ? s
                                      : s * r);
    }
  }
}

inline void run_weight_grad(Tensors in, Tensors out, Fault fault) {
  const Tensor &dz = in[0], &x = in[1];
  for (std::int64_t n = 0; n < dz.shape[1]; ++n) {
    for (std::int64_t k = 0; k < x.shape[1]; ++k) {
      float total = 0;
      for (std::int64_t m = 0; m < dz.shape[0]; ++m) total += at(dz, m, n) * at(x, m, k);
      float before = at(out[0], n, k);
      if (fault == Fault::ignores_accumulate) before = 0;
      if (fault == Fault::accumulates_twice) before *= 2;
      put(out[0], n, k, before + total);
    }
  }
}

inline std::uint32_t philox_word(std::uint64_t seed, std::uint32_t counter) {
  std::uint32_t c[4] = {counter, 0, 0, 0};
  std::uint32_t k[2] = {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)};
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = 0xD2511F53ull * c[0], b = 0xCD9E8D57ull * c[2];
    const std::uint32_t next[4] = {
        static_cast<std::uint32_t>(b >> 32) ^ c[1] ^ k[0], static_cast<std::uint32_t>(b),
        static_cast<std::uint32_t>(a >> 32) ^ c[3] ^ k[1], static_cast<std::uint32_t>(a)};
    std::memcpy(c, next, sizeof c);
    k[0] += 0x9E3779B9;
    k[1] += 0xBB67AE85;
  }
  return c[0];
}

inline void run_lookup(Tensors in, Tensors out, Fault fault) {
  const Tensor &table = in[0], &ids = in[1];
  auto seed = static_cast<std::uint64_t>(load_integer(DType::i64, in[2].data, 0));
  if (fault == Fault::seed_of_32_bits) seed &= 0xffffffffu;
  for (std::int64_t i = 0; i < ids.shape[0]; ++i) {
    const std::int64_t id = load_integer(DType::i64, address(ids, i, 0), 0);
    std::int64_t row = id;
    if (fault == Fault::wraps_ids && row < 0) row += table.shape[0];
    if (fault == Fault::clamps_ids) row = std::clamp<std::int64_t>(row, 0, table.shape[0] - 1);
    const bool inside = row >= 0 && row < table.shape[0];
    for (std::int64_t j = 0; j < table.shape[1]; ++j)
      put(out[0], i, j, inside ? at(table, row, j) : 0);
    put(out[1], i, 0, id >= 0 ? 1 : 0);
    put(out[2], i, 0, static_cast<double>(id + 1));
    const auto counter = static_cast<std::uint32_t>(i + (fault == Fault::one_off_counter ? 1 : 0));
    put(out[3], i, 0, std::ldexp(philox_word(seed, counter) >> 8, -24));
  }
}

inline void run_relu_grad(Tensors in, Tensors out, Fault fault) {
  const Tensor &x = in[0], &dy = in[1], &v = in[2];
  for (std::int64_t i = 0; i < x.shape[0]; ++i) {
    for (std::int64_t j = 0; j < x.shape[1]; ++j) {
      const float d = fault == Fault::upstream_is_one ? 1 : at(dy, i, j);
      float y = at(x, i, j) > 0 ? d * at(x, i, j) : 0;
      if (fault == Fault::divides_by_upstream) y = y * d / d;
      put(out[0], i, j, y);
    }
  }
  for (std::int64_t j = 0; j < v.shape[0]; ++j) {
    const float l = std::log(at(v, j));
    put(out[1], j, 0, fault == Fault::fast_log ? std::round(l * 4096) / 4096 : l);
  }
}

using Honest = void (*)(Tensors, Tensors, Fault);

inline Executor faulty(Honest run, Fault fault) {
  return [run, fault](const Program&, const Sizes&, Tensors in, Tensors out) {
    run(in, out, fault);
  };
}

// ---- wrappers: faults that need no look inside ----

inline Executor wrapped(Honest run, std::function<void(Tensors, Tensors)> after) {
  return [run, after](const Program&, const Sizes&, Tensors in, Tensors out) {
    run(in, out, Fault::none);
    after(in, out);
  };
}

// Elements (i, j) of result 0 keep what they held before the run.
inline Executor keeping(Honest run,
                        std::function<bool(const Tensor&, std::int64_t, std::int64_t)> stale) {
  return [run, stale](const Program&, const Sizes&, Tensors in, Tensors out) {
    const Tensor& y = out[0];
    const std::size_t size = size_of(y.dtype);
    std::vector<std::vector<std::byte>> kept;
    const auto each = [&](auto action) {
      for (std::int64_t i = 0; i < y.shape[0]; ++i)
        for (std::int64_t j = 0; j < y.shape[1]; ++j)
          if (stale(y, i, j)) action(address(y, i, j));
    };
    each([&](std::byte* p) { kept.emplace_back(p, p + size); });
    run(in, out, Fault::none);
    std::size_t next = 0;
    each([&](std::byte* p) { std::memcpy(p, kept[next++].data(), size); });
  };
}

inline std::vector<Tensor> as_if_dense(Tensors tensors) {
  std::vector<Tensor> dense(tensors.begin(), tensors.end());
  for (Tensor& each : dense) each.strides = dense_strides(each.shape);
  return dense;
}

inline void flip_last_bit(const Tensor& y) {
  auto* byte = address(y, 0, 0);
  *byte ^= std::byte{1};
}

}  // namespace coda
