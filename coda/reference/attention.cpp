// coda/reference/attention.cpp: attention and its gradient by the dense formula, one query at a
// time.
//
// Query i of S stands at position i + T - S among the T keys: the last query sees the last key.
// NOTE: the gradient uses the o and lse that it is given, as a kernel does; it does not recompute
// them.
#include <algorithm>
#include <cmath>
#include <limits>

#include "coda/core/error.h"
#include "coda/reference/ops.h"

namespace coda::reference {
namespace {

// A [batch*sequence, heads*size] array as Numbers.
template <class Number>
struct Heads {
  std::int64_t batch = 1, length = 1, heads = 1, size = 1;
  std::vector<Number> data;

  explicit Heads(const Array& array) : data(array.data.begin(), array.data.end()) {
    const std::size_t rows = array.type.dims.at(0).factors.size();
    const std::size_t columns = array.type.dims.at(1).factors.size();
    for (std::size_t f = 0; f < rows; ++f) {
      (f + 1 < rows ? batch : length) *= array.extents[f];
    }
    for (std::size_t f = 0; f < columns; ++f) {
      (f + 1 < columns ? heads : size) *= array.extents[rows + f];
    }
  }
  Number* row(std::int64_t b, std::int64_t position, std::int64_t head) {
    return data.data() + ((b * length + position) * heads + head) * size;
  }
  void copy_to(Array& array) const { std::ranges::copy(data, array.data.begin()); }
};

// The keys first … last - 1 that a query sees.
struct Visible {
  std::int64_t first = 0, last = 0;
};

Visible visible(std::int64_t query, std::int64_t queries, std::int64_t keys,
                const AttentionOptions& options) {
  const std::int64_t position = query + keys - queries;
  Visible seen{0, keys};
  if (options.causal || options.window > 0) {
    seen.last = std::clamp<std::int64_t>(position + 1, 0, keys);
  }
  if (options.window > 0) {
    seen.first = std::clamp<std::int64_t>(position - options.window + 1, 0, seen.last);
  }
  return seen;
}

template <class Number>
Number dot(const Number* a, const Number* b, std::int64_t size) {
  Number total = 0;
  for (std::int64_t e = 0; e < size; ++e) total += a[e] * b[e];
  return total;
}

// y += factor · x
template <class Number>
void add_scaled(Number* y, Number factor, const Number* x, std::int64_t size) {
  for (std::int64_t e = 0; e < size; ++e) y[e] += factor * x[e];
}

template <class Number>
struct Scores {
  Number scale, softcap;
  std::optional<DType> stored;

  Scores(const AttentionOptions& options, std::int64_t size)
      : scale(
            static_cast<Number>(options.scale.value_or(std::pow(static_cast<double>(size), -0.5)))),
        softcap(static_cast<Number>(options.softcap)),
        stored(options.stored) {}

  Number operator()(const Number* q, const Number* k, std::int64_t size) const {
    const Number score = scale * dot(q, k, size);
    return softcap == 0 ? score : softcap * std::tanh(score / softcap);
  }
  // d score / d (scale · q · k), from the score.
  Number slope(Number score) const {
    return softcap == 0 ? Number{1} : 1 - (score / softcap) * (score / softcap);
  }
  Number rounded(Number value) const {
    return stored ? static_cast<Number>(round_to(*stored, value)) : value;
  }
};

template <class Number>
void forward(const Array& q_array, const Array& k_array, const Array& v_array,
             const AttentionOptions& options, Array& o_array, Array& lse) {
  Heads<Number> q(q_array), k(k_array), v(v_array), o(o_array);
  const Scores<Number> score(options, q.size);
  const std::int64_t group = k.heads == 0 ? 1 : q.heads / k.heads;
  std::vector<Number> scores(static_cast<std::size_t>(k.length));
  for (std::int64_t b = 0; b < q.batch; ++b) {
    for (std::int64_t i = 0; i < q.length; ++i) {
      const Visible seen = visible(i, q.length, k.length, options);
      for (std::int64_t h = 0; h < q.heads; ++h) {
        Number largest = -std::numeric_limits<Number>::infinity(), total = 0;
        for (std::int64_t j = seen.first; j < seen.last; ++j) {
          Number& s = scores[static_cast<std::size_t>(j)];
          s = score(q.row(b, i, h), k.row(b, j, h / group), q.size);
          largest = std::isnan(s) || s > largest ? s : largest;
        }
        for (std::int64_t j = seen.first; j < seen.last; ++j) {
          total += std::exp(scores[static_cast<std::size_t>(j)] - largest);
        }
        const Number normalizer = largest + std::log(total);  // -inf where no key is seen
        lse.data[static_cast<std::size_t>((b * q.length + i) * q.heads + h)] = normalizer;
        for (std::int64_t j = seen.first; j < seen.last; ++j) {
          const Number p =
              score.rounded(std::exp(scores[static_cast<std::size_t>(j)] - normalizer));
          add_scaled(o.row(b, i, h), p, v.row(b, j, h / group), v.size);
        }
      }
    }
  }
  o.copy_to(o_array);
}

template <class Number>
void backward(const Array& do_array, const Array& q_array, const Array& k_array,
              const Array& v_array, const Array& o_array, const Array& lse,
              const AttentionOptions& options, Array& dq_array, Array& dk_array, Array& dv_array) {
  Heads<Number> d_o(do_array), q(q_array), k(k_array), v(v_array), o(o_array);
  Heads<Number> dq(dq_array), dk(dk_array), dv(dv_array);
  const Scores<Number> score(options, q.size);
  const std::int64_t group = k.heads == 0 ? 1 : q.heads / k.heads;
  for (std::int64_t b = 0; b < q.batch; ++b) {
    for (std::int64_t i = 0; i < q.length; ++i) {
      const Visible seen = visible(i, q.length, k.length, options);
      for (std::int64_t h = 0; h < q.heads; ++h) {
        const std::int64_t g = h / group;
        const Number* upstream = d_o.row(b, i, h);
        const auto normalizer = static_cast<Number>(
            lse.data[static_cast<std::size_t>((b * q.length + i) * q.heads + h)]);
        const Number mean = dot(upstream, o.row(b, i, h), v.size);  // Σ_j p_j · dp_j
        for (std::int64_t j = seen.first; j < seen.last; ++j) {
          const Number s = score(q.row(b, i, h), k.row(b, j, g), q.size);
          const Number p = std::exp(s - normalizer);
          const Number dp = dot(upstream, v.row(b, j, g), v.size);
          const Number ds = score.rounded(p * (dp - mean) * score.slope(s)) * score.scale;
          add_scaled(dv.row(b, j, g), score.rounded(p), upstream, v.size);
          add_scaled(dq.row(b, i, h), ds, k.row(b, j, g), q.size);
          add_scaled(dk.row(b, j, g), ds, q.row(b, i, h), q.size);
        }
      }
    }
  }
  dq.copy_to(dq_array);
  dk.copy_to(dk_array);
  dv.copy_to(dv_array);
}

}  // namespace

void attention(const Array& q, const Array& k, const Array& v, const AttentionOptions& options,
               Array& o, Array& lse) {
  if (options.sum == Sum::f32) {
    forward<float>(q, k, v, options, o, lse);
  } else {
    forward<double>(q, k, v, options, o, lse);
  }
}

void attention_grad(const Array& d_o, const Array& q, const Array& k, const Array& v,
                    const Array& o, const Array& lse, const AttentionOptions& options, Array& dq,
                    Array& dk, Array& dv) {
  if (options.sum == Sum::f32) {
    backward<float>(d_o, q, k, v, o, lse, options, dq, dk, dv);
  } else {
    backward<double>(d_o, q, k, v, o, lse, options, dq, dk, dv);
  }
}

}  // namespace coda::reference
