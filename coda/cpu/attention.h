// coda/cpu/attention.h: attention and its gradient, by blocks with a running softmax.
//
// Memory grows with the sequence, never with its square. f32, bf16 and f16 tensors are computed in
// f32, a call with an f64 tensor in double by plain loops. A call gives the same bits whatever the
// thread count.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "coda/backend/backend.h"
#include "coda/core/dtype.h"

namespace coda::cpu {

// Extents that the tensors of one call share. Query head h reads key head h / (heads / key_heads).
struct AttentionSizes {
  std::int64_t batch = 1;
  std::int64_t heads = 1;        // of q, o, lse
  std::int64_t key_heads = 1;    // of k, v
  std::int64_t queries = 0;      // S
  std::int64_t keys = 0;         // T; causal aligns the last query with the last key
  std::int64_t width = 0;        // E, of a head of q and k
  std::int64_t value_width = 0;  // of a head of v and o
};

struct AttentionOptions {
  bool causal = false;
  std::int64_t window =
      0;               // query i sees keys i - window + 1 … i (aligned as causal is); 0: no window
  double softcap = 0;  // 0: none
  double scale = 1;    // always explicit here: the language's default is E^-0.5
};

// One tensor: element (b, h, s, e) is at batch[b] + head[h] + s * position + e * element, counted
// in elements from data.
struct HeadsView {
  void* data = nullptr;  // null: a result that nobody asked for
  DType dtype = DType::f32;
  std::vector<std::int64_t> batch;
  std::vector<std::int64_t> head;
  std::int64_t position = 0;
  std::int64_t element = 0;  // unused by lse
};

struct AttentionArguments {
  AttentionSizes sizes;
  AttentionOptions options;
  HeadsView q, k, v;
  HeadsView o, lse;  // written by attention, read by attention_grad
  HeadsView d_o;     // attention_grad only, as below
  HeadsView dq, dk, dv;
};

// Bytes of scratch for either call with up to `threads` threads. Linear in queries and keys.
std::size_t attention_scratch_bytes(const AttentionSizes& sizes, int threads);

// o and lse; a row that sees no key has o = 0 and lse = -inf.
void attention(const AttentionArguments& arguments, int threads, std::span<std::byte> scratch);
// dq, dk and dv from d_o, q, k, v, o and lse.
void attention_grad(const AttentionArguments& arguments, int threads, std::span<std::byte> scratch);

// A program that is nothing but one attention or attention_grad call (check's kind opaque), for the
// CPU backend's compile.
Kernel compile_attention(const Checked& program, const Sizes& sizes, int threads);

}  // namespace coda::cpu
