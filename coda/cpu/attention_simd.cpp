// coda/cpu/attention_simd.cpp: blocks of 64 queries × 64 keys, once for each SIMD target.
#include "coda/cpu/attention_simd.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "coda/cpu/attention_simd.cpp"
#include <hwy/foreach_target.h>
#include "coda/cpu/vector_targets.h"
// After foreach_target.h.
#include <hwy/highway.h>

#include "coda/cpu/attention_blocks-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coda::cpu::HWY_NAMESPACE {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::byte* element(const HeadsView& view, std::int64_t batch, std::int64_t head,
                   std::int64_t position) {
  const std::int64_t offset = view.batch[static_cast<std::size_t>(batch)] +
                              view.head[static_cast<std::size_t>(head)] + position * view.position;
  return static_cast<std::byte*>(view.data) +
         offset * static_cast<std::int64_t>(size_of(view.dtype));
}

// view[batch, head, first:first+count, 0:width] → to[count][padded], zeros behind width.
void Pack(const HeadsView& view, std::int64_t batch, std::int64_t head, std::int64_t first,
          std::int64_t count, std::int64_t width, float* to) {
  const std::int64_t padded = round_up(width, kPad);
  for (std::int64_t r = 0; r < count; ++r) {
    LoadRow(view.dtype, element(view, batch, head, first + r), view.element, width,
            to + r * padded);
    std::fill(to + r * padded + width, to + (r + 1) * padded, 0.0f);
  }
}

void Unpack(const HeadsView& view, std::int64_t batch, std::int64_t head, std::int64_t first,
            std::int64_t count, std::int64_t width, const float* from) {
  if (view.data == nullptr) return;
  const std::int64_t padded = round_up(width, kPad);
  for (std::int64_t r = 0; r < count; ++r) {
    StoreRow(view.dtype, element(view, batch, head, first + r), view.element, width,
             from + r * padded);
  }
}

// One block of packed rows [count][padded] → [width][64], zeros behind count.
void TransposeBlock(const float* rows, std::int64_t count, std::int64_t width, float* to) {
  const std::int64_t padded = round_up(width, kPad);
  if (count < kKeyBlock) std::fill(to, to + width * kKeyBlock, 0.0f);
  Transpose(rows, padded, count, width, to, kKeyBlock);
}

// The scores of one block of queries against one block of keys.
struct Scores {
  float scale, softcap;
  const AttentionArguments* a;
  std::int64_t first_query, first_key;
  std::int64_t keys;    // of the block: ≤ 64
  std::int64_t padded;  // keys rounded up to kPad

  // [first, last) of the block's keys that query `row` of the block sees.
  Visible visible(std::int64_t row) const {
    Visible seen = visible_keys(*a, first_query + row);
    seen.first = std::clamp<std::int64_t>(seen.first - first_key, 0, keys);
    seen.last = std::clamp<std::int64_t>(seen.last - first_key, seen.first, keys);
    return seen;
  }
};

template <bool kSoftcap>
HWY_INLINE V Score(const Scores& scores, V product, V& tanh) {
  const D d;
  V x = hn::Mul(product, hn::Set(d, scores.scale));
  if constexpr (kSoftcap) {
    tanh = tanh_f32(d, hn::Div(x, hn::Set(d, scores.softcap)));
    x = hn::Mul(tanh, hn::Set(d, scores.softcap));
  }
  return x;
}

HWY_INLINE V Mask(V x, std::int64_t column, const Visible& seen) {
  const D d;
  const hn::RebindToSigned<D> di;
  const auto c = hn::Iota(di, static_cast<std::int32_t>(column));
  const auto in = hn::And(hn::Gt(c, hn::Set(di, static_cast<std::int32_t>(seen.first) - 1)),
                          hn::Gt(hn::Set(di, static_cast<std::int32_t>(seen.last)), c));
  return hn::IfThenElse(hn::RebindMask(d, in), x, hn::Set(d, -kInfinity));
}

// s[row, 0:padded]: products in, masked scores out; gives their maximum.
template <bool kSoftcap>
float ScoreRow(const Scores& scores, std::int64_t row, float* s) {
  const D d;
  const Visible seen = scores.visible(row);
  const bool whole = seen.first == 0 && seen.last == scores.padded;
  V most = hn::Set(d, -kInfinity);
  V tanh = hn::Zero(d);
  for (std::int64_t c = 0; c < scores.padded; c += kLanes) {
    V x = Score<kSoftcap>(scores, hn::Load(d, s + c), tanh);
    if (!whole) x = Mask(x, c, seen);
    hn::Store(x, d, s + c);
    most = hn::Max(most, x);
  }
  return hn::GetLane(hn::MaxOfLanes(d, most));
}

// s[0:padded] = exp(s - shift); sum[0:kPad], a row's sum still in lanes, takes them in after
// scaling by `old`.
void ExpRow(std::int64_t padded, float shift, float old, float* s, float* sum) {
  const D d;
  V total = hn::Mul(hn::Load(d, sum), hn::Set(d, old));
  for (std::int64_t c = 0; c < padded; c += kLanes) {
    const V p = exp_f32(d, hn::Sub(hn::Load(d, s + c), hn::Set(d, shift)));
    hn::Store(p, d, s + c);
    total = hn::Add(total, p);
  }
  hn::Store(total, d, sum);
}

// most = max(most, here); shift: most, but 0 where it is -inf, so that -inf never meets -inf;
// old = exp(the earlier most - shift).
void MoveMost(float* most, const float* here, float* shift, float* old) {
  const D d;
  for (std::int64_t r = 0; r < kQueryBlock; r += kLanes) {
    const V before = hn::Load(d, most + r);
    const V now = hn::Max(before, hn::Load(d, here + r));
    const V from = hn::IfThenElse(hn::Eq(now, hn::Set(d, -kInfinity)), hn::Zero(d), now);
    hn::Store(now, d, most + r);
    hn::Store(from, d, shift + r);
    hn::Store(exp_f32(d, hn::Sub(before, from)), d, old + r);
  }
}

// s: products → probabilities p; ds: do·v → the gradient of the products.
template <bool kSoftcap>
void GradRow(const Scores& scores, std::int64_t row, float lse, float dot, float* s, float* ds) {
  const D d;
  const Visible seen = scores.visible(row);
  const bool whole = seen.first == 0 && seen.last == scores.padded;
  V tanh = hn::Zero(d);
  for (std::int64_t c = 0; c < scores.padded; c += kLanes) {
    V x = Score<kSoftcap>(scores, hn::Load(d, s + c), tanh);
    if (!whole) x = Mask(x, c, seen);
    const V p = exp_f32(d, hn::Sub(x, hn::Set(d, lse)));
    V g = hn::Mul(p, hn::Sub(hn::Load(d, ds + c), hn::Set(d, dot)));
    if constexpr (kSoftcap) g = hn::Mul(g, hn::NegMulAdd(tanh, tanh, hn::Set(d, 1.0f)));
    hn::Store(p, d, s + c);
    hn::Store(hn::Mul(g, hn::Set(d, scores.scale)), d, ds + c);
  }
}

// dot[r] = ⟨do, o⟩ of each row.
// NOTE: where a query sees one key, or one outweighs the rest, o is that v and do·v - ⟨do, o⟩ must
// be 0: another order of summation would leave a remainder, which large k and q then multiply.
void Dots(std::int64_t count, std::int64_t values, const float* d_o, const float* o,
          std::int64_t stride, float* dot) {
  constexpr int kSideBySide = 8;
  std::int64_t r = 0;
  for (; r + kSideBySide <= count; r += kSideBySide) {
    DotRows<kSideBySide>(values, d_o + r * stride, o + r * stride, stride, dot + r);
  }
  for (; r < count; ++r) DotRows<1>(values, d_o + r * stride, o + r * stride, stride, dot + r);
}

void ScaleRow(std::int64_t padded, float by, float* row) {
  const D d;
  for (std::int64_t c = 0; c < padded; c += kLanes) {
    hn::Store(hn::Mul(hn::Load(d, row + c), hn::Set(d, by)), d, row + c);
  }
}

Scores scores_of(const AttentionArguments& a, std::int64_t first_query, std::int64_t block) {
  Scores scores;
  scores.scale = static_cast<float>(a.options.scale);
  scores.softcap = static_cast<float>(a.options.softcap);
  scores.a = &a;
  scores.first_query = first_query;
  scores.first_key = block * kKeyBlock;
  scores.keys = std::min(kKeyBlock, a.sizes.keys - scores.first_key);
  scores.padded = round_up(scores.keys, kPad);
  return scores;
}

// The blocks that hold every key which some query of [first, first + count) sees.
struct Blocks {
  std::int64_t first, last;
};
Blocks blocks_of(const AttentionArguments& a, std::int64_t first, std::int64_t count) {
  const std::int64_t from = visible_keys(a, first).first;
  const std::int64_t to = visible_keys(a, first + count - 1).last;
  if (to <= from) return {0, 0};
  return {from / kKeyBlock, (to + kKeyBlock - 1) / kKeyBlock};
}

}  // namespace

void PackKeys(const AttentionArguments& a, std::int64_t batch, std::int64_t key_head,
              float* scratch) {
  const AttentionScratch at = forward_scratch(a.sizes);
  const std::int64_t keys = a.sizes.keys, width = a.sizes.width;
  for (std::int64_t first = 0; first < keys; first += kKeyBlock) {
    const std::int64_t count = std::min(kKeyBlock, keys - first);
    Pack(a.k, batch, key_head, first, count, width, scratch + at.k);
    TransposeBlock(scratch + at.k, count, width, scratch + at.k_t + first * width);
  }
  Pack(a.v, batch, key_head, 0, keys, a.sizes.value_width, scratch + at.v);
}

void Attend(const AttentionArguments& a, std::int64_t batch, std::int64_t head, std::int64_t first,
            std::int64_t count, float* scratch) {
  const AttentionScratch at = forward_scratch(a.sizes);
  float* q = scratch + at.q;
  float* s = scratch + at.s;
  float* o = scratch + at.o;
  float* most = scratch + at.rows;
  float* here = most + kQueryBlock;
  float* shift = here + kQueryBlock;
  float* old = shift + kQueryBlock;
  float* sum = old + kQueryBlock;  // [64][kPad]
  Pack(a.q, batch, head, first, count, a.sizes.width, q);
  std::fill(o, o + count * at.value_width, 0.0f);
  std::fill(most, here + kQueryBlock, -kInfinity);
  std::fill(sum, sum + kQueryBlock * kPad, 0.0f);
  const Blocks blocks = blocks_of(a, first, count);
  for (std::int64_t block = blocks.first; block < blocks.last; ++block) {
    const Scores scores = scores_of(a, first, block);
    Gemm(count, scores.padded, a.sizes.width, {q, at.width, 1},
         scratch + at.k_t + block * kKeyBlock * a.sizes.width, kKeyBlock, s, kKeyBlock,
         Into::overwrite);
    for (std::int64_t r = 0; r < count; ++r) {
      float* row = s + r * kKeyBlock;
      here[r] =
          scores.softcap != 0 ? ScoreRow<true>(scores, r, row) : ScoreRow<false>(scores, r, row);
    }
    MoveMost(most, here, shift, old);
    for (std::int64_t r = 0; r < count; ++r) {
      if (old[r] != 1) ScaleRow(at.value_width, old[r], o + r * at.value_width);
      ExpRow(scores.padded, shift[r], old[r], s + r * kKeyBlock, sum + r * kPad);
    }
    Gemm(count, at.value_width, scores.keys, {s, kKeyBlock, 1},
         scratch + at.v + scores.first_key * at.value_width, at.value_width, o, at.value_width,
         Into::accumulate);
  }
  for (std::int64_t r = 0; r < count; ++r) {
    const D d;
    const float total = hn::GetLane(hn::SumOfLanes(d, hn::Load(d, sum + r * kPad)));
    ScaleRow(at.value_width, total == 0 ? 0.0f : 1 / total, o + r * at.value_width);
    if (a.lse.data == nullptr) continue;
    const float lse = total == 0 ? -kInfinity : most[r] + std::log(total);
    store(a.lse.dtype, element(a.lse, batch, head, first + r), 0, lse);
  }
  Unpack(a.o, batch, head, first, count, a.sizes.value_width, o);
}

void AttendGrad(const AttentionArguments& a, std::int64_t batch, std::int64_t key_head,
                float* scratch) {
  const AttentionScratch at = gradient_scratch(a.sizes);
  const std::int64_t keys = a.sizes.keys, width = a.sizes.width, values = a.sizes.value_width;
  Pack(a.k, batch, key_head, 0, keys, width, scratch + at.k);
  for (std::int64_t first = 0; first < keys; first += kKeyBlock) {
    const std::int64_t count = std::min(kKeyBlock, keys - first);
    TransposeBlock(scratch + at.k + first * at.width, count, width,
                   scratch + at.k_t + first * width);
    Pack(a.v, batch, key_head, first, count, values, scratch + at.v);
    TransposeBlock(scratch + at.v, count, values, scratch + at.v_t + first * values);
  }
  std::fill(scratch + at.dk, scratch + at.dk + keys * at.width, 0.0f);
  std::fill(scratch + at.dv, scratch + at.dv + keys * at.value_width, 0.0f);
  float* q = scratch + at.q;
  float* dq = scratch + at.dq;
  float* o = scratch + at.o;
  float* d_o = scratch + at.d_o;
  float* s = scratch + at.s;
  float* ds = scratch + at.ds;
  float* lse = scratch + at.rows;
  float* dot = lse + kQueryBlock;  // ⟨do, o⟩ of each query

  const std::int64_t group = a.sizes.heads / a.sizes.key_heads;
  const std::int64_t query_blocks = (a.sizes.queries + kQueryBlock - 1) / kQueryBlock;
  for (std::int64_t i = 0; i < group * query_blocks; ++i) {
    const std::int64_t head = key_head * group + i / query_blocks;
    const std::int64_t first = i % query_blocks * kQueryBlock;
    const std::int64_t count = std::min(kQueryBlock, a.sizes.queries - first);
    Pack(a.q, batch, head, first, count, width, q);
    Pack(a.o, batch, head, first, count, values, o);
    Pack(a.d_o, batch, head, first, count, values, d_o);
    std::fill(dq, dq + count * at.width, 0.0f);
    Dots(count, values, d_o, o, at.value_width, dot);
    for (std::int64_t r = 0; r < count; ++r) {
      lse[r] = static_cast<float>(load(a.lse.dtype, element(a.lse, batch, head, first + r), 0));
      if (lse[r] == -kInfinity) lse[r] = 0;  // sees no key: every score is -inf and p is 0
    }
    const Blocks blocks = blocks_of(a, first, count);
    for (std::int64_t block = blocks.first; block < blocks.last; ++block) {
      const Scores scores = scores_of(a, first, block);
      const std::int64_t key = scores.first_key;
      Gemm(count, scores.padded, width, {q, at.width, 1}, scratch + at.k_t + key * width, kKeyBlock,
           s, kKeyBlock, Into::overwrite);
      Gemm(count, scores.padded, values, {d_o, at.value_width, 1}, scratch + at.v_t + key * values,
           kKeyBlock, ds, kKeyBlock, Into::overwrite);
      for (std::int64_t r = 0; r < count; ++r) {
        float* row = s + r * kKeyBlock;
        float* d_row = ds + r * kKeyBlock;
        if (scores.softcap != 0) {
          GradRow<true>(scores, r, lse[r], dot[r], row, d_row);
        } else {
          GradRow<false>(scores, r, lse[r], dot[r], row, d_row);
        }
      }
      Gemm(scores.keys, at.value_width, count, {s, 1, kKeyBlock}, d_o, at.value_width,
           scratch + at.dv + key * at.value_width, at.value_width, Into::accumulate);
      Gemm(scores.keys, at.width, count, {ds, 1, kKeyBlock}, q, at.width,
           scratch + at.dk + key * at.width, at.width, Into::accumulate);
      Gemm(count, at.width, scores.keys, {ds, kKeyBlock, 1}, scratch + at.k + key * at.width,
           at.width, dq, at.width, Into::accumulate);
    }
    Unpack(a.dq, batch, head, first, count, width, dq);
  }
  Unpack(a.dk, batch, key_head, 0, keys, width, scratch + at.dk);
  Unpack(a.dv, batch, key_head, 0, keys, values, scratch + at.dv);
}

}  // namespace coda::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace coda::cpu {
namespace {

HWY_EXPORT(PackKeys);
HWY_EXPORT(Attend);
HWY_EXPORT(AttendGrad);

std::int64_t take(AttentionScratch& at, std::int64_t floats) {
  const std::int64_t offset = at.floats;
  at.floats += round_up(floats, kPad);
  return offset;
}

AttentionScratch query_scratch(const AttentionSizes& sizes) {
  AttentionScratch at;
  at.width = round_up(sizes.width, kPad);
  at.value_width = round_up(sizes.value_width, kPad);
  at.q = take(at, kQueryBlock * at.width);
  at.o = take(at, kQueryBlock * at.value_width);
  at.s = take(at, kQueryBlock * kKeyBlock);
  at.rows = take(at, (4 + kPad) * kQueryBlock);
  return at;
}

}  // namespace

AttentionScratch forward_scratch(const AttentionSizes& sizes) {
  AttentionScratch at = query_scratch(sizes);
  const std::int64_t keys = round_up(sizes.keys, kKeyBlock);
  at.k = take(at, kKeyBlock * at.width);
  at.k_t = take(at, keys * sizes.width);
  at.v = take(at, keys * at.value_width);
  return at;
}

AttentionScratch gradient_scratch(const AttentionSizes& sizes) {
  AttentionScratch at = query_scratch(sizes);
  const std::int64_t keys = round_up(sizes.keys, kKeyBlock);
  at.dq = take(at, kQueryBlock * at.width);
  at.d_o = take(at, kQueryBlock * at.value_width);
  at.ds = take(at, kQueryBlock * kKeyBlock);
  at.k = take(at, keys * at.width);
  at.k_t = take(at, keys * sizes.width);
  at.v = take(at, kKeyBlock * at.value_width);
  at.v_t = take(at, keys * sizes.value_width);
  at.dk = take(at, keys * at.width);
  at.dv = take(at, keys * at.value_width);
  return at;
}

void pack_keys(const AttentionArguments& a, std::int64_t batch, std::int64_t key_head,
               float* scratch) {
  HWY_DYNAMIC_DISPATCH(PackKeys)(a, batch, key_head, scratch);
}

void attend(const AttentionArguments& a, std::int64_t batch, std::int64_t head, std::int64_t first,
            std::int64_t count, float* scratch) {
  HWY_DYNAMIC_DISPATCH(Attend)(a, batch, head, first, count, scratch);
}

void attend_grad(const AttentionArguments& a, std::int64_t batch, std::int64_t key_head,
                 float* scratch) {
  HWY_DYNAMIC_DISPATCH(AttendGrad)(a, batch, key_head, scratch);
}

}  // namespace coda::cpu
#endif
