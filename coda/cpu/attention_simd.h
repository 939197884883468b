// coda/cpu/attention_simd.h: the vectorised blocks that attention.cpp calls, one worker at a time.
//
// All arithmetic is f32 on packed, zero-padded copies in the worker's scratch, so no inner loop has
// a tail.
#pragma once

#include <cstdint>

#include "coda/cpu/attention.h"

namespace coda::cpu {

inline constexpr std::int64_t kQueryBlock = 64;
inline constexpr std::int64_t kKeyBlock = 64;
inline constexpr std::int64_t kPad = 16;  // floats: the widest vector

constexpr std::int64_t round_up(std::int64_t n, std::int64_t to) {
  return (n + to - 1) / to * to;
}

// The keys that one query sees: [first, last).
struct Visible {
  std::int64_t first = 0;
  std::int64_t last = 0;
};

inline Visible visible_keys(const AttentionArguments& a, std::int64_t query) {
  const std::int64_t aligned = query + a.sizes.keys - a.sizes.queries;  // the query's own position
  Visible keys{0, a.sizes.keys};
  if (a.options.causal || a.options.window > 0) {
    keys.last = aligned + 1 < keys.last ? aligned + 1 : keys.last;
  }
  if (a.options.window > 0 && aligned - a.options.window + 1 > 0) {
    keys.first = aligned - a.options.window + 1;
  }
  if (keys.last < keys.first) keys.last = keys.first;
  return keys;
}

// What a worker holds of the keys of one (batch, key head), and its block of queries. Offsets in
// floats; _t is transposed within a block of keys.
struct AttentionScratch {
  std::int64_t width = 0, value_width = 0;  // rounded up to kPad
  std::int64_t k = 0;                       // [T][width]; forward: one block of it
  std::int64_t k_t = 0;                     // [T / 64][E][64]
  std::int64_t v = 0;                       // forward: [T][value_width]; gradient: one block of it
  std::int64_t v_t = 0;                     // gradient: [T / 64][Ev][64]
  std::int64_t dk = 0, dv = 0;              // gradient: [T][width], [T][value_width]
  std::int64_t q = 0, dq = 0;               // [64][width]
  std::int64_t o = 0, d_o = 0;              // [64][value_width]
  std::int64_t s = 0, ds = 0;               // [64][64]
  std::int64_t rows = 0;                    // [4 + kPad][64]: statistics of each query
  std::int64_t floats = 0;
};

AttentionScratch forward_scratch(const AttentionSizes& sizes);
AttentionScratch gradient_scratch(const AttentionSizes& sizes);

// Forward: the keys and values of one (batch, key head) into scratch …
void pack_keys(const AttentionArguments& a, std::int64_t batch, std::int64_t key_head,
               float* scratch);
// … and then o and lse of queries [first, first + count), count ≤ kQueryBlock, of one query head.
void attend(const AttentionArguments& a, std::int64_t batch, std::int64_t head, std::int64_t first,
            std::int64_t count, float* scratch);
// dk and dv of one key head, dq of all query heads that read it.
void attend_grad(const AttentionArguments& a, std::int64_t batch, std::int64_t key_head,
                 float* scratch);

}  // namespace coda::cpu
