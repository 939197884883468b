// coda/reference/ops.h: the ops that are more than one formula an element, on whole arrays.
//
// Each takes its result as zeros of the right type and fills it. Elements find each other by the
// names of their factors; nothing here knows dtypes beyond the precision that sums run in.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "coda/reference/reference.h"

namespace coda::reference {

// The precision of arithmetic inside an op that adds up many terms.
enum class Sum : std::uint8_t { f32, f64 };

Array zeros(const Type& type, const Sizes& sizes);

// Index = Σ at[d] · strides[d] of every element, row-major over `extents`.
std::vector<std::int64_t> strided(const std::vector<std::int64_t>& extents,
                                  const std::vector<std::int64_t>& strides);

// For each element of `walk`, the index of the element of `target` at the same coordinates. Every
// factor of `target` is one of `walk`; what only `walk` has is ignored.
std::vector<std::int64_t> aligned(const Array& walk, const Array& target);

void product(const Array& left, const Array& right, const Dim& contracted, Sum sum, Array& out);

// sum, reduce_max, logsumexp and their block forms (block > 0).
void reduce(Op op, const Array& in, const Dim& axis, std::int64_t block, Sum sum, Array& out);

void spread(const Array& in, const Dim& axis, std::int64_t block, Array& out);
void split(const Array& in, const Dim& axis, std::vector<Array*> pieces);
void join(const std::vector<const Array*>& pieces, const Dim& axis, Array& out);

void gather(const Array& table, const Array& ids, Array& out);
void scatter_sum(const Array& in, const Array& ids, Sum sum, Array& out);
void pick(const Array& in, const Array& ids, const Dim& axis, Array& out);

// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter,
                                    std::array<std::uint32_t, 2> key);
void uniform(std::int64_t seed, Array& out);

struct AttentionOptions {
  bool causal = false;
  std::int64_t window = 0;      // 0: none
  double softcap = 0;           // 0: none
  std::optional<double> scale;  // none: head size ^ -0.5
  Sum sum = Sum::f64;           // scores, probabilities and sums
  std::optional<DType> stored;  // what probabilities and their gradients are rounded to; none: not
};

void attention(const Array& q, const Array& k, const Array& v, const AttentionOptions& options,
               Array& o, Array& lse);
void attention_grad(const Array& d_o, const Array& q, const Array& k, const Array& v,
                    const Array& o, const Array& lse, const AttentionOptions& options, Array& dq,
                    Array& dk, Array& dv);

}  // namespace coda::reference
