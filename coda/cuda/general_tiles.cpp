// coda/cuda/general_tiles.cpp: accumulators on the FP32 units by tiles in shared memory
// (device/products.cuh).
//
// A side of an operand is loops over memory: one for each factor that it runs over, so that the
// page does not depend on strides. Sums have parts of 64 terms, as those of one element a thread.
#include <algorithm>
#include <limits>

#include "coda/check/input_view.h"
#include "coda/cuda/general_phases.h"

namespace coda::cuda {
namespace {

constexpr std::int64_t kLeast = 1 << 18;           // terms; fewer are not worth a tile
constexpr std::int64_t kSmall = 64, kLarge = 128;  // rows and columns of a tile
constexpr int kSide = 16;                          // threads along a tile

struct FactorLoop {
  std::int64_t extent = 1, stride = 0;
};

// How far apart neighbours are.
std::int64_t least_step(const std::vector<FactorLoop>& loops) {
  for (std::size_t i = loops.size(); i-- > 0;) {
    if (loops[i].extent > 1) return std::abs(loops[i].stride);
  }
  return std::numeric_limits<std::int64_t>::max();
}

// `Steps<2>{{a.x_row_0, a.x_row_1}, {a.x_row_step_0, a.x_row_step_1}}`
std::string steps(Arguments& arguments, const std::string& name,
                  const std::vector<FactorLoop>& loops) {
  std::string extents, strides;
  for (std::size_t i = 0; i < loops.size(); ++i) {
    const std::string at = std::to_string(i), comma = i == 0 ? "" : ", ";
    extents += comma + arguments.number(name + "_" + at, loops[i].extent);
    strides += comma + arguments.number(name + "_step_" + at, loops[i].stride);
  }
  return "Steps<" + std::to_string(loops.size()) + ">{{" + extents + "}, {" + strides + "}}";
}

}  // namespace

// The declaration of an operand, and the function that makes numbers of its elements; nullopt: it
// is more than strided memory.
std::optional<GeneralPlanner::TileOperand> GeneralPlanner::tile_operand(
    Arguments& arguments, const Operand& operand, const Dim& side, const Dim& depth,
    const std::string& name) const {
  const std::optional<InputView> view = view_input(program_, operand.value, sizes_);
  if (!view || !arguments.has_whole_elements(view->parameter)) return std::nullopt;
  const std::vector<Factor> factors = factors_of(program_.type(operand.value));
  const std::vector<std::int64_t>& strides =
      layouts_[static_cast<std::size_t>(view->parameter)].strides;
  const auto loops_of = [&](const Dim& dim) {
    std::vector<FactorLoop> loops;
    for (const Factor& factor : dim.factors) {
      const auto at =
          static_cast<std::size_t>(std::ranges::find(factors, factor) - factors.begin());
      if (at == factors.size()) {
        loops.push_back({require_extent(factor, sizes_), 0});
        continue;
      }
      for (const SubAxis& axis : view->factors[at]) {
        loops.push_back({axis.extent, strides[static_cast<std::size_t>(axis.factor)] * axis.scale});
      }
    }
    if (loops.empty()) loops.push_back({});
    return loops;
  };
  const std::vector<FactorLoop> along_side = loops_of(side), along_depth = loops_of(depth);
  std::int64_t first = 0;
  for (const InputView::Offset& offset : view->offsets) {
    first += offset.count * strides[static_cast<std::size_t>(offset.factor)];
  }
  const DType dtype = program_.type(operand.input).dtype;
  const std::string element(element_of(dtype));
  std::string pointer = arguments.pointer(view->parameter);
  if (!view->offsets.empty()) pointer += " + " + arguments.number(name + "_first", first);
  const bool across = least_step(along_side) < least_step(along_depth);
  const std::string side_steps = steps(arguments, name + "_side", along_side);
  const std::string depth_steps = steps(arguments, name + "_depth", along_depth);
  const std::string is_across = arguments.number(name + "_across", across ? 1 : 0) + " != 0";
  TileOperand made;
  made.declaration = "const ProductOperand<" + element + ", " + std::to_string(along_side.size()) +
                     ", " + std::to_string(along_depth.size()) + "> " + name + " = {\n        " +
                     pointer + ",\n        " + side_steps + ",\n        " + depth_steps +
                     ",\n        " + is_across + "};";
  made.value = "PlainValue()";
  if (!view->casts.empty()) {
    Cast value{"Element<" + element + ">::value(x)", lane_of(dtype, real_)};
    for (const DType to : view->casts) value = cast(value.text, value.lane, to, real_);
    made.value =
        "[](" + element + " x) { return " + convert(value.text, value.lane, Lane::f32) + "; }";
  }
  return made;
}

bool GeneralPlanner::tiled_product(const Accumulator& accumulator, const Dim& rows,
                                   const Dim& columns, const Stored& to, const std::string& stem) {
  if (real_ != Lane::f32) return false;
  const std::int64_t height = require_extent(rows, sizes_), width = require_extent(columns, sizes_);
  std::int64_t depth = 0;
  for (const Accumulator::Term& term : accumulator.terms) {
    depth +=
        require_extent(program_.nodes()[static_cast<std::size_t>(term.node)].attr.axis, sizes_);
  }
  if (height * width == 0 || height * width < kLeast / std::max<std::int64_t>(depth, 1)) {
    return false;
  }
  const auto tiles_of = [&](std::int64_t side) {
    return ((height + side - 1) / side) * ((width + side - 1) / side);
  };
  const std::int64_t side = tiles_of(kLarge) >= target_.processors ? kLarge : kSmall;
  const std::string each = std::to_string(side / kSide);

  Arguments arguments(program_, sizes_, layouts_);
  const std::string row_count = arguments.extent(rows), column_count = arguments.extent(columns);
  std::string body;
  for (std::size_t t = 0; t < accumulator.terms.size(); ++t) {
    const Accumulator::Term& term = accumulator.terms[t];
    const Node& node = program_.nodes()[static_cast<std::size_t>(term.node)];
    const std::string at = accumulator.terms.size() == 1 ? "" : "_" + std::to_string(t);
    const auto left = tile_operand(arguments, term.left, rows, node.attr.axis, "left" + at);
    const auto right = tile_operand(arguments, term.right, columns, node.attr.axis, "right" + at);
    if (!left || !right) return false;
    body += "    // " + text_of(node.results[0]) + "\n    " + left->declaration + "\n    " +
            right->declaration + "\n    product.add(left" + at + ", right" + at + ", " +
            arguments.extent(node.attr.axis) + ", " + left->value + ", " + right->value + ");\n";
  }
  // Where the sums go: dense over the value's factors.
  const auto dense = [&](const Dim& dim) {
    std::vector<FactorLoop> loops;
    for (const Factor& factor : dim.factors) {
      std::int64_t stride = 1;
      const auto own = std::ranges::find(to.factors, factor);
      for (auto inner = own + 1; inner != to.factors.end(); ++inner) {
        stride *= require_extent(*inner, sizes_);
      }
      loops.push_back({require_extent(factor, sizes_), stride});
    }
    if (loops.empty()) loops.push_back({});
    return loops;
  };
  const std::string sums = arguments.workspace("kept_" + to.name, type_of(to.lane), to.offset);
  const std::string to_row = steps(arguments, "to_row", dense(rows));
  const std::string to_column = steps(arguments, "to_column", dense(columns));
  body +=
      "    product.store(" + sums + ", " + to_row + ",\n                  " + to_column + ");\n";

  const std::string entry = identifier(program_.name()) + "_" +
                            std::to_string(plan_.launches.size() + 1) + "_" + identifier(stem);
  const std::string type = "Arguments_" + entry;
  const std::string tiles = arguments.number("tiles", tiles_of(side));
  constexpr std::string_view kInclude = "\n#include \"products.cuh\"\n";
  if (plan_.page.find(kInclude) == std::string::npos) plan_.page += kInclude;
  plan_.page += "\n" + arguments.declaration(type) + "\n// " + text_of(accumulator.value) +
                "\nextern \"C\" __global__ void __launch_bounds__(256, " +
                (side == kLarge ? "1" : "2") + ") " + entry + "(const __grid_constant__ " + type +
                " a) {\n  __shared__ ProductMemory<" + each +
                "> memory;\n  for (long long tile = blockIdx.x; tile < " + tiles +
                "; tile += gridDim.x) {\n    ProductTile<" + each + "> product(memory, tile, " +
                row_count + ", " + column_count + ");\n" + body + "  }\n}\n";
  Launch launch;
  launch.entry = entry;
  launch.words = arguments.words();
  launch.block = kThreads;
  launch.grid[0] = std::min(tiles_of(side), std::int64_t{1} << 30);
  plan_.launches.push_back(std::move(launch));
  return true;
}

}  // namespace coda::cuda
