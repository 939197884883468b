// coda/reference/ops.cpp: products, reductions, layout, indexing and random numbers, as plain
// loops.
//
// One idea serves nearly all: list, for every element that is walked, the index of its partner.
#include "coda/reference/ops.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "coda/core/error.h"

namespace coda::reference {
namespace {

std::int64_t count(const std::vector<std::int64_t>& extents) {
  std::int64_t product = 1;
  for (const std::int64_t extent : extents) product *= extent;
  return product;
}

std::size_t place_of(const std::vector<Factor>& factors, const Factor& factor) {
  const auto found = std::ranges::find(factors, factor);
  if (found == factors.end()) throw InternalError("no factor " + factor.text());
  return static_cast<std::size_t>(found - factors.begin());
}

// An array seen as [outer, length, inner] around neighbouring factors.
struct Around {
  std::int64_t outer = 1, length = 1, inner = 1;
};

Around around(const Array& array, const Dim& axis) {
  const std::size_t first = place_of(factors_of(array.type), axis.factors.at(0));
  const std::size_t last = first + axis.factors.size();
  Around view;
  for (std::size_t f = 0; f < array.extents.size(); ++f) {
    (f < first ? view.outer : f < last ? view.length : view.inner) *= array.extents[f];
  }
  return view;
}

// The same elements with the factors in another order.
Array permuted(const Array& array, const std::vector<Factor>& order) {
  const std::vector<Factor> have = factors_of(array.type);
  Array out{.type = {array.type.dtype, {Dim{order}}}, .extents = {}, .data = array.data};
  for (const Factor& factor : order) out.extents.push_back(array.extents[place_of(have, factor)]);
  const std::vector<std::int64_t> from = aligned(out, array);
  for (std::size_t i = 0; i < from.size(); ++i) {
    out.data[i] = array.data[static_cast<std::size_t>(from[i])];
  }
  return out;
}

// out[i, j] = Σ_k a[i, k] · b[k, j], every step in Number.
template <class Number>
void multiply(const std::vector<double>& a, const std::vector<double>& b, std::int64_t rows,
              std::int64_t depth, std::int64_t columns, std::vector<double>& out) {
  const std::vector<Number> right(b.begin(), b.end());
  std::vector<Number> row(static_cast<std::size_t>(columns));
  for (std::int64_t i = 0; i < rows; ++i) {
    std::ranges::fill(row, Number{0});
    for (std::int64_t k = 0; k < depth; ++k) {
      const auto left = static_cast<Number>(a[static_cast<std::size_t>(i * depth + k)]);
      const Number* terms = right.data() + k * columns;
      for (std::int64_t j = 0; j < columns; ++j) {
        row[static_cast<std::size_t>(j)] += left * terms[j];
      }
    }
    std::ranges::copy(row, out.begin() + i * columns);
  }
}

// For each element of `in`, the element of `out` that it is reduced into.
std::vector<std::int64_t> reduced_into(const Array& in, const Dim& axis, std::int64_t block,
                                       const Array& out) {
  if (block == 0) return aligned(in, out);
  const Around view = around(in, axis);
  const std::int64_t blocks = (view.length + block - 1) / block;
  std::vector<std::int64_t> into;
  into.reserve(in.data.size());
  for (std::int64_t o = 0; o < view.outer; ++o) {
    for (std::int64_t n = 0; n < view.length; ++n) {
      for (std::int64_t i = 0; i < view.inner; ++i) {
        into.push_back((o * blocks + n / block) * view.inner + i);
      }
    }
  }
  return into;
}

// NaN where either is NaN.
template <class Number>
Number larger(Number a, Number b) {
  return std::isnan(a) || a > b ? a : b;
}

template <class Number>
void reduce_in(Op op, const std::vector<double>& in, const std::vector<std::int64_t>& into,
               std::vector<double>& out) {
  const bool sums = op == Op::sum || op == Op::block_sum;
  const bool is_max = op == Op::reduce_max || op == Op::block_max;
  constexpr Number kLowest = -std::numeric_limits<Number>::infinity();
  std::vector<Number> total(out.size(), Number{0});
  if (sums) {
    for (std::size_t i = 0; i < in.size(); ++i) {
      total[static_cast<std::size_t>(into[i])] += static_cast<Number>(in[i]);
    }
    std::ranges::copy(total, out.begin());
    return;
  }
  std::vector<Number> largest(out.size(), kLowest);
  for (std::size_t i = 0; i < in.size(); ++i) {
    Number& so_far = largest[static_cast<std::size_t>(into[i])];
    so_far = larger(so_far, static_cast<Number>(in[i]));
  }
  if (is_max) {
    std::ranges::copy(largest, out.begin());
    return;
  }
  for (std::size_t i = 0; i < in.size(); ++i) {
    const auto target = static_cast<std::size_t>(into[i]);
    total[target] += std::exp(static_cast<Number>(in[i]) - largest[target]);
  }
  for (std::size_t i = 0; i < out.size(); ++i) {
    // An infinite maximum is the result: inf - inf would make it a NaN.
    out[i] = std::isinf(largest[i]) ? largest[i] : largest[i] + std::log(total[i]);
  }
}

bool inside(double id, std::int64_t size) {
  return id >= 0 && id < static_cast<double>(size);
}

template <class Number>
void scatter_in(const Array& in, const Array& ids, Array& out) {
  const auto rows = static_cast<std::int64_t>(ids.data.size());
  std::int64_t width = 1;
  for (std::size_t f = ids.extents.size(); f < in.extents.size(); ++f) width *= in.extents[f];
  const std::int64_t size = width == 0 ? 0 : static_cast<std::int64_t>(out.data.size()) / width;
  std::vector<Number> total(out.data.size(), Number{0});
  for (std::int64_t r = 0; r < rows; ++r) {
    const double id = ids.data[static_cast<std::size_t>(r)];
    if (!inside(id, size)) continue;
    for (std::int64_t i = 0; i < width; ++i) {
      total[static_cast<std::size_t>(static_cast<std::int64_t>(id) * width + i)] +=
          static_cast<Number>(in.data[static_cast<std::size_t>(r * width + i)]);
    }
  }
  std::ranges::copy(total, out.data.begin());
}

}  // namespace

Array zeros(const Type& type, const Sizes& sizes) {
  Array array{.type = type, .extents = {}, .data = {}};
  for (const Factor& factor : factors_of(type)) {
    array.extents.push_back(require_extent(factor, sizes));
  }
  array.data.assign(static_cast<std::size_t>(count(array.extents)), 0.0);
  return array;
}

std::vector<std::int64_t> strided(const std::vector<std::int64_t>& extents,
                                  const std::vector<std::int64_t>& strides) {
  std::vector<std::int64_t> indices(static_cast<std::size_t>(count(extents)));
  std::vector<std::int64_t> at(extents.size(), 0);
  std::int64_t index = 0;
  for (std::int64_t& each : indices) {
    each = index;
    for (std::size_t d = extents.size(); d-- > 0;) {
      index += strides[d];
      if (++at[d] < extents[d]) break;
      index -= at[d] * strides[d];
      at[d] = 0;
    }
  }
  return indices;
}

std::vector<std::int64_t> aligned(const Array& walk, const Array& target) {
  const std::vector<Factor> walked = factors_of(walk.type), factors = factors_of(target.type);
  std::vector<std::int64_t> strides(walked.size(), 0);
  std::int64_t stride = 1;
  for (std::size_t f = factors.size(); f-- > 0;) {
    strides[place_of(walked, factors[f])] = stride;
    stride *= target.extents[f];
  }
  return strided(walk.extents, strides);
}

void product(const Array& left, const Array& right, const Dim& contracted, Sum sum, Array& out) {
  const auto is_free = [&](const Factor& factor) {
    return std::ranges::find(contracted.factors, factor) == contracted.factors.end();
  };
  // left[free, contracted] · right[contracted, free]: the result's factors are the free ones.
  std::vector<Factor> rows, columns = contracted.factors;
  for (const Factor& factor : factors_of(left.type)) {
    if (is_free(factor)) rows.push_back(factor);
  }
  rows.insert(rows.end(), contracted.factors.begin(), contracted.factors.end());
  for (const Factor& factor : factors_of(right.type)) {
    if (is_free(factor)) columns.push_back(factor);
  }
  const Array a = permuted(left, rows), b = permuted(right, columns);
  const auto shared = static_cast<std::ptrdiff_t>(contracted.factors.size());
  const std::int64_t m = count({a.extents.begin(), a.extents.end() - shared});
  const std::int64_t k = count({b.extents.begin(), b.extents.begin() + shared});
  const std::int64_t n = count({b.extents.begin() + shared, b.extents.end()});
  if (sum == Sum::f32) {
    multiply<float>(a.data, b.data, m, k, n, out.data);
  } else {
    multiply<double>(a.data, b.data, m, k, n, out.data);
  }
}

void reduce(Op op, const Array& in, const Dim& axis, std::int64_t block, Sum sum, Array& out) {
  const std::vector<std::int64_t> into = reduced_into(in, axis, block, out);
  if (sum == Sum::f32) {
    reduce_in<float>(op, in.data, into, out.data);
  } else {
    reduce_in<double>(op, in.data, into, out.data);
  }
}

void spread(const Array& in, const Dim& axis, std::int64_t block, Array& out) {
  Array whole = in;  // `in` with blocks(axis) repeated to axis, in place
  if (block > 0) {
    const Dim blocks{{Factor::blocks(axis, block)}};
    const Around from = around(in, blocks);
    std::vector<Factor> factors = factors_of(in.type);
    const std::size_t at = place_of(factors, blocks.factors[0]);
    const auto here = static_cast<std::ptrdiff_t>(at);
    factors.erase(factors.begin() + here);
    whole.extents.erase(whole.extents.begin() + here);
    std::int64_t length = 1;
    for (std::size_t f = 0; f < axis.factors.size(); ++f) {
      const Factor& factor = axis.factors[f];
      const std::int64_t size = out.extents[place_of(factors_of(out.type), factor)];
      const auto next = static_cast<std::ptrdiff_t>(at + f);
      factors.insert(factors.begin() + next, factor);
      whole.extents.insert(whole.extents.begin() + next, size);
      length *= size;
    }
    whole.type.dims = {Dim{factors}};
    whole.data.clear();
    for (std::int64_t o = 0; o < from.outer; ++o) {
      for (std::int64_t n = 0; n < length; ++n) {
        for (std::int64_t i = 0; i < from.inner; ++i) {
          const std::int64_t source = (o * from.length + n / block) * from.inner + i;
          whole.data.push_back(in.data[static_cast<std::size_t>(source)]);
        }
      }
    }
  }
  const std::vector<std::int64_t> from = aligned(out, whole);
  for (std::size_t i = 0; i < from.size(); ++i) {
    out.data[i] = whole.data[static_cast<std::size_t>(from[i])];
  }
}

void split(const Array& in, const Dim& axis, std::vector<Array*> pieces) {
  const Around view = around(in, axis);
  std::int64_t start = 0;
  for (Array* piece : pieces) {
    const std::int64_t rows = view.outer * view.inner;
    const std::int64_t length =
        rows == 0 ? 0 : static_cast<std::int64_t>(piece->data.size()) / rows;
    for (std::int64_t o = 0; o < view.outer; ++o) {
      const auto from = in.data.begin() + (o * view.length + start) * view.inner;
      std::copy(from, from + length * view.inner, piece->data.begin() + o * length * view.inner);
    }
    start += length;
  }
}

void join(const std::vector<const Array*>& pieces, const Dim& axis, Array& out) {
  const Around view = around(out, axis);
  std::int64_t start = 0;
  for (const Array* piece : pieces) {
    const std::int64_t rows = view.outer * view.inner;
    const std::int64_t length =
        rows == 0 ? 0 : static_cast<std::int64_t>(piece->data.size()) / rows;
    for (std::int64_t o = 0; o < view.outer; ++o) {
      const auto from = piece->data.begin() + o * length * view.inner;
      std::copy(from, from + length * view.inner,
                out.data.begin() + (o * view.length + start) * view.inner);
    }
    start += length;
  }
}

void gather(const Array& table, const Array& ids, Array& out) {
  const std::size_t lead = table.type.dims.at(0).factors.size();
  const auto middle = table.extents.begin() + static_cast<std::ptrdiff_t>(lead);
  const std::int64_t size = count({table.extents.begin(), middle});
  const std::int64_t width = count({middle, table.extents.end()});
  for (std::size_t r = 0; r < ids.data.size(); ++r) {
    if (!inside(ids.data[r], size)) continue;
    const auto from = table.data.begin() + static_cast<std::int64_t>(ids.data[r]) * width;
    std::copy(from, from + width, out.data.begin() + static_cast<std::int64_t>(r) * width);
  }
}

void scatter_sum(const Array& in, const Array& ids, Sum sum, Array& out) {
  if (sum == Sum::f32) {
    scatter_in<float>(in, ids, out);
  } else {
    scatter_in<double>(in, ids, out);
  }
}

void pick(const Array& in, const Array& ids, const Dim& axis, Array& out) {
  const Around view = around(in, axis);
  const std::vector<std::int64_t> id_of = aligned(out, ids);
  for (std::int64_t o = 0; o < view.outer; ++o) {
    for (std::int64_t i = 0; i < view.inner; ++i) {
      const auto at = static_cast<std::size_t>(o * view.inner + i);
      const double id = ids.data[static_cast<std::size_t>(id_of[at])];
      if (!inside(id, view.length)) continue;
      const auto n = static_cast<std::int64_t>(id);
      out.data[at] = in.data[static_cast<std::size_t>((o * view.length + n) * view.inner + i)];
    }
  }
}

std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter,
                                    std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53} * counter[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57} * counter[2];
    counter = {
        static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(b),
        static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(a)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

void uniform(std::int64_t seed, Array& out) {
  const auto bits = static_cast<std::uint64_t>(seed);
  const std::array<std::uint32_t, 2> key = {static_cast<std::uint32_t>(bits),
                                            static_cast<std::uint32_t>(bits >> 32)};
  for (std::uint64_t i = 0; i < out.data.size(); ++i) {
    const auto words =
        philox({static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(i >> 32), 0, 0}, key);
    out.data[i] = std::ldexp(static_cast<double>(words[0] >> 8), -24);
  }
}

}  // namespace coda::reference
