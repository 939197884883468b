// coda/cpu/scatter.cpp: scatter_sum by sorting.
//
// The ids are sorted by counting, which keeps rows with one id in order; then every row of the
// result adds up its own rows. So the sum's order is a function of the ids alone, and threads share
// no row.
#include "coda/cpu/scatter.h"

#include <algorithm>
#include <cstring>

#include "coda/check/bind.h"
#include "coda/core/error.h"
#include "coda/core/pool.h"
#include "coda/cpu/bound_access.h"
#include "coda/cpu/lower.h"
#include "coda/cpu/plain_transfer.h"

namespace coda::cpu {
namespace {

using Int = std::int64_t;
constexpr Int kTaskRows = 64;  // of the result

struct Scatter {
  Type values, ids, result;
  std::vector<Factor> kept;  // what the values have beside the ids' factors
  Dim axis;
  Sizes sizes;
  Int id_count = 1, rows = 0, width = 1;
  Lane lane = Lane::f32;
  Store store = Store::overwrite;
  int values_param = 0, ids_param = 0;
  int threads = 1;
};

Int factor_index(const std::vector<Factor>& factors, const Factor& factor) {
  return std::ranges::find(factors, factor) - factors.begin();
}

// Offset of flat position `index` over factors with these extents and strides.
struct Digits {
  std::vector<Int> extents, strides;
  Int at(Int index) const {
    Int offset = 0;
    for (std::size_t f = extents.size(); f-- > 0;) {
      offset += index % extents[f] * strides[f];
      index /= extents[f];
    }
    return offset;
  }
};

Digits digits(const std::vector<Factor>& wanted, const std::vector<Factor>& factors,
              const std::vector<Int>& strides, const Sizes& sizes) {
  Digits result;
  for (const Factor& factor : wanted) {
    result.extents.push_back(require_extent(factor, sizes));
    result.strides.push_back(strides[static_cast<std::size_t>(factor_index(factors, factor))]);
  }
  return result;
}

// starts[v] … starts[v + 1]: the positions, in `order`, of the ids that are v.
void sort_ids(const Scatter& scatter, const Tensor& ids, Int* starts, Int* next, Int* order) {
  const std::vector<Factor> factors = factors_of(scatter.ids);
  const Digits places =
      digits(factors, factors, factor_strides(scatter.ids, ids, scatter.sizes), scatter.sizes);
  std::fill(starts, starts + scatter.rows + 1, 0);
  const auto id_at = [&](Int i) {
    return load_integer(ids.dtype, ids.data, places.at(i));
  };
  const auto valid = [&](Int id) {
    return id >= 0 && id < scatter.rows;
  };
  for (Int i = 0; i < scatter.id_count; ++i) {
    if (const Int id = id_at(i); valid(id)) ++starts[id + 1];
  }
  for (Int v = 0; v < scatter.rows; ++v) starts[v + 1] += starts[v];
  std::copy(starts, starts + scatter.rows, next);
  for (Int i = 0; i < scatter.id_count; ++i) {
    if (const Int id = id_at(i); valid(id)) order[next[id]++] = i;
  }
}

void run(const Scatter& scatter, std::span<const Tensor> params, std::span<const Tensor> results,
         std::span<std::byte> scratch) {
  const Tensor& values = params[static_cast<std::size_t>(scatter.values_param)];
  const Tensor& ids = params[static_cast<std::size_t>(scatter.ids_param)];
  const Tensor& result = results[0];
  auto* starts = reinterpret_cast<Int*>(scratch.data());
  Int* next = starts + scatter.rows + 1;
  Int* order = next + scatter.rows;
  std::byte* sums = reinterpret_cast<std::byte*>(order + scatter.id_count);
  sort_ids(scatter, ids, starts, next, order);

  const std::vector<Factor> value_factors = factors_of(scatter.values);
  const std::vector<Factor> result_factors = factors_of(scatter.result);
  const std::vector<Int> from = factor_strides(scatter.values, values, scatter.sizes);
  const std::vector<Int> to = factor_strides(scatter.result, result, scatter.sizes);
  const Digits source = digits(factors_of(scatter.ids), value_factors, from, scatter.sizes);
  const Digits target = digits(scatter.axis.factors, result_factors, to, scatter.sizes);
  const Digits kept_from = digits(scatter.kept, value_factors, from, scatter.sizes);
  const Digits kept_to = digits(scatter.kept, result_factors, to, scatter.sizes);
  const auto lane = static_cast<Int>(lane_bytes(scatter.lane));
  const auto in_bytes = static_cast<Int>(size_of(values.dtype));
  const auto out_bytes = static_cast<Int>(size_of(result.dtype));
  // The innermost kept factor is one run.
  const Int run_length = scatter.kept.empty() ? 1 : kept_from.extents.back();
  const Int from_step = scatter.kept.empty() ? 1 : kept_from.strides.back();
  const Int to_step = scatter.kept.empty() ? 1 : kept_to.strides.back();
  const bool aligned = is_aligned(values.data, values.dtype);
  const Load load = load_run(values.dtype, scatter.lane);
  const Put put = store_run(result.dtype, scatter.lane, scatter.store);
  const Map add = map_loops(Op::add, scatter.lane, scatter.lane);

  const Int tasks = (scatter.rows + kTaskRows - 1) / kTaskRows;
  parallel_for(tasks, scatter.threads, [&](Int task, int worker) {
    std::byte* sum = sums + worker * 2 * scatter.width * lane;
    std::byte* row = sum + scatter.width * lane;
    const Int end = std::min(scatter.rows, (task + 1) * kTaskRows);
    for (Int v = task * kTaskRows; v < end; ++v) {
      std::memset(sum, 0, static_cast<std::size_t>(scatter.width * lane));
      for (Int p = starts[v]; p < starts[v + 1]; ++p) {
        const Int base = source.at(order[p]);
        for (Int k = 0; k < scatter.width; k += run_length) {
          const std::byte* in =
              static_cast<const std::byte*>(values.data) + (base + kept_from.at(k)) * in_bytes;
          if (aligned) {
            load(in, from_step, run_length, row + k * lane);
          } else {
            load_unaligned(values.dtype, scatter.lane, in, from_step, run_length, row + k * lane);
          }
        }
        const Arg args[3] = {{sum, {0, 0, 1}}, {sum, {0, 0, 1}}, {row, {0, 0, 1}}};
        add(Loops{{1, 1, scatter.width}}, args);
      }
      for (Int k = 0; k < scatter.width; k += run_length) {
        std::byte* out =
            static_cast<std::byte*>(result.data) + (target.at(v) + kept_to.at(k)) * out_bytes;
        if (is_aligned(result.data, result.dtype)) {
          put(sum + k * lane, 1, run_length, out, to_step);
        } else {
          store_unaligned(result.dtype, scatter.lane, scatter.store, sum + k * lane, 1, run_length,
                          out, to_step);
        }
      }
    }
  });
}

}  // namespace

bool is_scatter(const Checked& checked) {
  for (const Node& node : checked.program().nodes()) {
    if (node.op == Op::scatter_sum) return true;
  }
  return false;
}

Kernel compile_scatter(const Checked& checked, const Sizes& sizes, int threads) {
  const Program& program = checked.program();
  const bool alone = program.nodes().size() == 1 && program.results().size() == 1;
  const Node& node = program.nodes()[0];
  if (!alone || !program.is_param(node.args[0]) || !program.is_param(node.args[1])) {
    throw Unsupported("scatter_sum stands beside other work");
  }
  Scatter scatter;
  scatter.values_param = node.args[0].id;
  scatter.ids_param = node.args[1].id;
  scatter.values = program.type(node.args[0]);
  scatter.ids = program.type(node.args[1]);
  scatter.result = program.results()[0].type;
  scatter.store = program.results()[0].store;
  scatter.axis = node.attr.axis;
  scatter.sizes = sizes;
  scatter.threads = threads;
  scatter.rows = require_extent(node.attr.axis, sizes);
  scatter.id_count = elements_of(scatter.ids, sizes);
  const std::vector<Factor> id_factors = factors_of(scatter.ids);
  for (const Factor& factor : factors_of(scatter.values)) {
    if (std::ranges::find(id_factors, factor) != id_factors.end()) continue;
    scatter.kept.push_back(factor);
    scatter.width *= require_extent(factor, sizes);
  }
  const DType on_chip = program.type(node.results[0]).dtype;
  scatter.lane =
      is_integer(on_chip) && is_integer(scatter.result.dtype) ? Lane::i64 : real_lane(program);
  const std::size_t bytes = static_cast<std::size_t>(2 * scatter.rows + 1 + scatter.id_count) * 8 +
                            static_cast<std::size_t>(threads) * 2 *
                                static_cast<std::size_t>(scatter.width) * lane_bytes(scatter.lane) +
                            64;
  return Kernel([scatter](std::span<const Tensor> params, std::span<const Tensor> results,
                          std::span<std::byte> scratch) { run(scatter, params, results, scratch); },
                bytes,
                "scatter: ids sorted by counting, rows of the result on " +
                    std::to_string(threads) + " threads");
}

}  // namespace coda::cpu
