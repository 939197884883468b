// coda/cpu/attention.cpp: how attention's work is cut over threads, and the plain loops in double.
//
// Forward: a task is a block of queries of one head. Gradient: a task is all that one key head
// needs, because its queries add into the same dk and dv; so no sum depends on the threads.
#include "coda/cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "coda/core/pool.h"
#include "coda/cpu/attention_simd.h"

namespace coda::cpu {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::size_t kAlign = 64;

// A task of the forward pass: few enough that keys are not packed for each block of queries alone.
constexpr std::int64_t kQueriesPerTask = 4 * kQueryBlock;

std::size_t worker_bytes(const AttentionSizes& sizes) {
  const std::int64_t floats =
      std::max(forward_scratch(sizes).floats, gradient_scratch(sizes).floats);
  // In double: the scores of one query and their gradients; dk and dv.
  const std::int64_t doubles = sizes.keys * (2 + sizes.width + sizes.value_width);
  const auto bytes = static_cast<std::size_t>(std::max(floats * 4, doubles * 8));
  return (bytes + kAlign - 1) / kAlign * kAlign;
}

bool in_double(const AttentionArguments& a) {
  for (const HeadsView* view : {&a.q, &a.k, &a.v, &a.o, &a.d_o, &a.dq, &a.dk, &a.dv}) {
    if (view->data != nullptr && view->dtype == DType::f64) return true;
  }
  return false;
}

// One tensor of one (batch, head), an element at a time.
struct Rows {
  const HeadsView& view;
  std::int64_t base;

  Rows(const HeadsView& of, std::int64_t batch, std::int64_t head)
      : view(of),
        base(of.data == nullptr ? 0
                                : of.batch[static_cast<std::size_t>(batch)] +
                                      of.head[static_cast<std::size_t>(head)]) {}

  std::int64_t at(std::int64_t row, std::int64_t element) const {
    return base + row * view.position + element * view.element;
  }
  double operator()(std::int64_t row, std::int64_t element = 0) const {
    return load(view.dtype, view.data, at(row, element));
  }
  void set(std::int64_t row, std::int64_t element, double value) const {
    if (view.data != nullptr) store(view.dtype, view.data, at(row, element), value);
  }
};

double score(const AttentionArguments& a, const Rows& q, const Rows& k, std::int64_t query,
             std::int64_t key) {
  double x = 0;
  for (std::int64_t e = 0; e < a.sizes.width; ++e) x += q(query, e) * k(key, e);
  x *= a.options.scale;
  return a.options.softcap != 0 ? a.options.softcap * std::tanh(x / a.options.softcap) : x;
}

void attend_in_double(const AttentionArguments& a, std::int64_t batch, std::int64_t head,
                      double* scores) {
  const std::int64_t key_head = head / (a.sizes.heads / a.sizes.key_heads);
  const Rows q(a.q, batch, head), k(a.k, batch, key_head), v(a.v, batch, key_head);
  const Rows o(a.o, batch, head), lse(a.lse, batch, head);
  for (std::int64_t i = 0; i < a.sizes.queries; ++i) {
    const Visible keys = visible_keys(a, i);
    double most = -kInfinity;
    for (std::int64_t j = keys.first; j < keys.last; ++j) {
      most = std::max(most, scores[j] = score(a, q, k, i, j));
    }
    double sum = 0;
    for (std::int64_t j = keys.first; j < keys.last; ++j) {
      sum += scores[j] = std::exp(scores[j] - most);
    }
    for (std::int64_t e = 0; e < a.sizes.value_width; ++e) {
      double x = 0;
      for (std::int64_t j = keys.first; j < keys.last; ++j) x += scores[j] * v(j, e);
      o.set(i, e, sum == 0 ? 0 : x / sum);
    }
    lse.set(i, 0, sum == 0 ? -kInfinity : most + std::log(sum));
  }
}

void attend_grad_in_double(const AttentionArguments& a, std::int64_t batch, std::int64_t key_head,
                           double* scratch) {
  const auto [batches, heads, key_heads, queries, keys, width, values] = a.sizes;
  double* p = scratch;
  double* ds = p + keys;
  double* dk = ds + keys;
  double* dv = dk + keys * width;
  std::fill(dk, dv + keys * values, 0.0);
  const Rows k(a.k, batch, key_head), v(a.v, batch, key_head);
  const std::int64_t group = heads / key_heads;
  for (std::int64_t head = key_head * group; head < (key_head + 1) * group; ++head) {
    const Rows q(a.q, batch, head), o(a.o, batch, head), d_o(a.d_o, batch, head);
    const Rows lse(a.lse, batch, head), dq(a.dq, batch, head);
    for (std::int64_t i = 0; i < queries; ++i) {
      const Visible seen = visible_keys(a, i);
      double dot = 0;
      for (std::int64_t e = 0; e < values; ++e) dot += o(i, e) * d_o(i, e);
      for (std::int64_t j = seen.first; j < seen.last; ++j) {
        const double x = score(a, q, k, i, j);
        p[j] = std::exp(x - lse(i));
        double dp = 0;
        for (std::int64_t e = 0; e < values; ++e) dp += d_o(i, e) * v(j, e);
        ds[j] = p[j] * (dp - dot) * a.options.scale;
        if (a.options.softcap != 0) {
          const double tanh = x / a.options.softcap;
          ds[j] *= 1 - tanh * tanh;
        }
        for (std::int64_t e = 0; e < width; ++e) dk[j * width + e] += ds[j] * q(i, e);
        for (std::int64_t e = 0; e < values; ++e) dv[j * values + e] += p[j] * d_o(i, e);
      }
      for (std::int64_t e = 0; e < width; ++e) {
        double x = 0;
        for (std::int64_t j = seen.first; j < seen.last; ++j) x += ds[j] * k(j, e);
        dq.set(i, e, x);
      }
    }
  }
  const Rows to_k(a.dk, batch, key_head), to_v(a.dv, batch, key_head);
  for (std::int64_t j = 0; j < keys; ++j) {
    for (std::int64_t e = 0; e < width; ++e) to_k.set(j, e, dk[j * width + e]);
    for (std::int64_t e = 0; e < values; ++e) to_v.set(j, e, dv[j * values + e]);
  }
}

void require(const AttentionSizes& sizes, std::span<const std::byte> scratch, int threads) {
  if (sizes.key_heads > 0 && sizes.heads % sizes.key_heads != 0) {
    throw ProgramError("attention has " + std::to_string(sizes.heads) + " query heads and " +
                           std::to_string(sizes.key_heads) + " key heads",
                       "make the query heads a multiple of the key heads");
  }
  if (scratch.size() < attention_scratch_bytes(sizes, threads)) {
    throw InternalError("attention was given too little scratch");
  }
}

std::int64_t ceil_div(std::int64_t n, std::int64_t by) {
  return (n + by - 1) / by;
}

}  // namespace

std::size_t attention_scratch_bytes(const AttentionSizes& sizes, int threads) {
  return static_cast<std::size_t>(threads) * worker_bytes(sizes);
}

void attention(const AttentionArguments& a, int threads, std::span<std::byte> scratch) {
  require(a.sizes, scratch, threads);
  const std::size_t stride = worker_bytes(a.sizes);
  if (in_double(a)) {
    parallel_for(a.sizes.batch * a.sizes.heads, threads, [&](std::int64_t task, int worker) {
      auto* memory =
          reinterpret_cast<double*>(scratch.data() + static_cast<std::size_t>(worker) * stride);
      attend_in_double(a, task / a.sizes.heads, task % a.sizes.heads, memory);
    });
    return;
  }
  // Heads that share keys are neighbours, so that a worker mostly finds them packed.
  const std::int64_t chunks = ceil_div(a.sizes.queries, kQueriesPerTask);
  std::vector<std::int64_t> packed(static_cast<std::size_t>(threads), -1);
  parallel_for(a.sizes.batch * a.sizes.heads * chunks, threads, [&](std::int64_t task, int worker) {
    auto* memory =
        reinterpret_cast<float*>(scratch.data() + static_cast<std::size_t>(worker) * stride);
    const std::int64_t batch = task / chunks / a.sizes.heads;
    const std::int64_t head = task / chunks % a.sizes.heads;
    const std::int64_t key_head = head / (a.sizes.heads / a.sizes.key_heads);
    std::int64_t& last = packed[static_cast<std::size_t>(worker)];
    if (last != batch * a.sizes.key_heads + key_head) {
      last = batch * a.sizes.key_heads + key_head;
      pack_keys(a, batch, key_head, memory);
    }
    const std::int64_t first = task % chunks * kQueriesPerTask;
    const std::int64_t end = std::min(first + kQueriesPerTask, a.sizes.queries);
    for (std::int64_t query = first; query < end; query += kQueryBlock) {
      attend(a, batch, head, query, std::min(kQueryBlock, end - query), memory);
    }
  });
}

void attention_grad(const AttentionArguments& a, int threads, std::span<std::byte> scratch) {
  require(a.sizes, scratch, threads);
  const std::size_t stride = worker_bytes(a.sizes);
  const bool doubles = in_double(a);
  parallel_for(a.sizes.batch * a.sizes.key_heads, threads, [&](std::int64_t task, int worker) {
    std::byte* memory = scratch.data() + static_cast<std::size_t>(worker) * stride;
    const std::int64_t batch = task / a.sizes.key_heads;
    const std::int64_t key_head = task % a.sizes.key_heads;
    if (doubles) {
      attend_grad_in_double(a, batch, key_head, reinterpret_cast<double*>(memory));
    } else {
      attend_grad(a, batch, key_head, reinterpret_cast<float*>(memory));
    }
  });
}

}  // namespace coda::cpu
