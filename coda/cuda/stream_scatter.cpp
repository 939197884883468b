// coda/cuda/stream_scatter.cpp: the page of a scatter_sum: the rows of a block, and its vectors.
#include "coda/cuda/stream_scatter.h"

#include <algorithm>
#include <bit>

#include "coda/cuda/arguments.h"
#include "coda/cuda/maps.h"
#include "coda/cuda/stream_space.h"
#include "coda/program/text.h"

namespace coda::cuda::streaming {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kBlocksEach = 8;    // blocks of a processor
constexpr std::int64_t kMostRange = 1024;  // Scattering::kMostRows
constexpr std::int64_t kSliceItems = 64;   // vectors of a row that a block takes

struct Flat {
  std::int64_t extent = 1, stride = 1;
};

// Factors first … last as one axis.
Flat flat(const std::vector<Factor>& factors, const Layout& layout, std::size_t first,
          std::size_t last, const Sizes& sizes) {
  Flat out;
  bool any = false;
  for (std::size_t f = last; f-- > first;) {
    const std::int64_t extent = require_extent(factors[f], sizes);
    if (extent == 1) continue;
    if (any && layout.strides[f] != out.stride * out.extent)
      throw Refused{"`" + factors[f].text() + "` does not lie densely"};
    if (!any) out.stride = layout.strides[f];
    any = true;
    out.extent *= extent;
  }
  return out;
}

}  // namespace

std::optional<Plan> plan_scatter(const Checked& checked, const Sizes& sizes,
                                 std::span<const Layout> layouts, const Target& target) {
  const Program& program = checked.program();
  if (program.nodes().size() != 1 || program.nodes()[0].op != Op::scatter_sum) return std::nullopt;
  const Node& node = program.nodes()[0];
  if (program.results().size() != 1 || !program.is_param(node.args[0]) ||
      !program.is_param(node.args[1]))
    throw Refused{"a scatter_sum of what is no parameter"};
  const Result& result = program.results()[0];
  const Type &values = program.type(node.args[0]), &ids = program.type(node.args[1]);
  const auto is_wide = [](DType dtype) {
    return dtype == DType::f64 || dtype == DType::f8e4m3 || dtype == DType::f8e5m2;
  };
  if (is_wide(values.dtype) || is_wide(result.type.dtype)) throw Refused{"f64 or fp8 values"};
  const std::vector<Factor> from = factors_of(values), to = factors_of(result.type),
                            by = factors_of(ids);
  if (to != factors_of(program.type(result.value))) throw Refused{"a result in another order"};
  const auto of = [&](Value v) -> const Layout& {
    return layouts[static_cast<std::size_t>(v.id)];
  };
  const int out = static_cast<int>(program.params().size());
  const Layout& out_layout = layouts[static_cast<std::size_t>(out)];
  const Flat named = flat(by, of(node.args[1]), 0, by.size(), sizes);
  const Flat listed = flat(from, of(node.args[0]), 0, by.size(), sizes);
  const Flat columns = flat(from, of(node.args[0]), by.size(), from.size(), sizes);
  const std::size_t rows_end = node.attr.axis.factors.size();
  const Flat rows = flat(to, out_layout, 0, rows_end, sizes);
  const Flat stored = flat(to, out_layout, rows_end, to.size(), sizes);
  if ((columns.extent != 1 && columns.stride != 1) || (stored.extent != 1 && stored.stride != 1))
    throw Refused{"columns that are no neighbours"};
  if (named.extent >= std::int64_t{1} << 40) throw Refused{"too many ids"};

  const std::int64_t small = static_cast<std::int64_t>(size_of(values.dtype)),
                     large = static_cast<std::int64_t>(size_of(result.type.dtype));
  int width = small <= 2 ? 8 : 4;
  const auto fits = [&](const Layout& layout, std::int64_t size, std::int64_t stride) {
    const std::int64_t bytes = std::min<std::int64_t>(16, size * width);
    return layout.alignment % bytes == 0 && stride * size % bytes == 0;
  };
  while (width > 1 &&
         (columns.extent % width != 0 || !fits(of(node.args[0]), small, listed.stride) ||
          !fits(out_layout, large, rows.stride)))
    width /= 2;
  // Columns in slices, so that a row that many ids name is shared by some blocks.
  const std::int64_t all = columns.extent / width, items = std::min(all, kSliceItems);
  const std::int64_t slices = items == 0 ? 1 : (all + items - 1) / items;
  const std::int64_t team = std::min<std::int64_t>(
      kThreads, static_cast<std::int64_t>(
                    std::bit_ceil(static_cast<std::uint64_t>(std::max<std::int64_t>(1, items)))));
  const std::int64_t wanted = std::max<std::int64_t>(1, kBlocksEach * target.processors / slices);
  const std::int64_t range = std::clamp((rows.extent + wanted - 1) / wanted,
                                        std::min(kThreads / team, kMostRange), kMostRange);
  Plan plan = {.name = program.name(), .path = "stream: scatter_sum"};
  const std::int64_t blocks = (rows.extent + range - 1) / range * slices;
  if (blocks == 0 || columns.extent == 0) return plan;
  if (blocks > 0x7fffffff) throw Refused{std::to_string(blocks) + " blocks"};
  plan.path += ", " + std::to_string(team) + " threads a row, " + std::to_string(range) +
               " rows a block, slices of " + std::to_string(items) + " vectors of " +
               std::to_string(width);

  Arguments arguments(program, sizes, layouts);
  const std::string entry = identifier(program.name());
  const std::string lane(type_of(lane_of(program, result.value, Lane::f32)));
  // Where the slice lies.
  const std::string number = arguments.number("slices", slices),
                    each = arguments.number("slice_items", items),
                    total = arguments.number("items", all);
  const std::string call =
      "  const long long slice = blockIdx.x % " + number + ", first = slice * " + each +
      ";\n  const long long column = first * " + std::to_string(width) + ";\n  const Scatter<" +
      std::string(element_of(values.dtype)) + ", " + std::string(element_of(result.type.dtype)) +
      ", " + std::string(element_of(ids.dtype)) + "> scatter = {\n      " + arguments.pointer(out) +
      " + column, " + arguments.pointer(node.args[0].id) + " + column, " +
      arguments.pointer(node.args[1].id) + ", " + arguments.number("count", named.extent) + ", " +
      arguments.number("rows", rows.extent) + ", " + arguments.number("range", range) +
      ",\n      " + total + " - first < " + each + " ? " + total + " - first : " + each + ", " +
      arguments.number("out_row", rows.stride) + ", " +
      arguments.number("values_row", listed.stride) + ", " +
      arguments.number("ids_stride", named.stride) + "};\n";
  const bool adds = result.store == Store::accumulate;
  plan.page =
      "#include \"maps.cuh\"\n#include \"stream_scatter.cuh\"\n\nusing namespace coda;\n\n" +
      arguments.declaration("Arguments_" + entry) +
      "\nextern \"C\" __global__ void __launch_bounds__(" + std::to_string(kThreads) + ") " +
      entry + "(const __grid_constant__ Arguments_" + entry + " a) {\n  // " +
      print_node(program, 0) + "\n" + call + "  scatter_sum<" + std::to_string(width) + ", " +
      std::to_string(kThreads) + ", " + std::to_string(team) + ", " + (adds ? "true" : "false") +
      ", " + lane + ">(scatter, blockIdx.x / " + number + ");\n}\n";
  plan.launches.push_back(
      {.entry = entry, .words = arguments.words(), .grid = {blocks, 1, 1}, .block = kThreads});
  return plan;
}

}  // namespace coda::cuda::streaming
