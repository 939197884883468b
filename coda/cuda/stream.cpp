// coda/cuda/stream.cpp: the page of a streaming program: its spaces, side by side in one launch.
#include "coda/cuda/stream.h"

#include <algorithm>
#include <deque>

#include "coda/check/bind.h"
#include "coda/cuda/stream_kernel.h"
#include "coda/cuda/stream_scatter.h"
#include "coda/program/text.h"

namespace coda::cuda {
namespace {

using streaming::Kernel;
using streaming::Refused;

constexpr std::int64_t kMostBlocks = 0x7fffffff;
constexpr std::int64_t kMostNarrow = std::int64_t{1} << 31;  // elements that 32 bits index

std::int64_t most_elements(const Program& program, const Sizes& sizes) {
  std::int64_t most = 0;
  for (const Param& param : program.params()) most = std::max(most, elements_of(param.type, sizes));
  for (const Result& result : program.results())
    most = std::max(most, elements_of(result.type, sizes));
  return most;
}

std::string commented(const std::string& text) {
  std::string out;
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    if (end > at) out += "// " + text.substr(at, end - at) + "\n";
    at = end + 1;
  }
  return out;
}

Plan plan(const Checked& checked, const Sizes& sizes, std::span<const Layout> layouts,
          const StreamTile* tile) {
  const Program& program = checked.program();
  Plan plan = {.name = program.name(), .path = "stream"};
  Arguments arguments(program, sizes, layouts);
  std::deque<streaming::Space> spaces;
  std::deque<Kernel> kernels;
  int threads = 0, most = 32;
  bool roomy = false;  // sums along rows hold many registers
  for (std::size_t s = 0; s < checked.spaces().size(); ++s) {
    spaces.emplace_back(checked, s, sizes, layouts);
    kernels.emplace_back(spaces.back(), arguments, static_cast<int>(s), tile);
    const int own = kernels.back().threads();
    roomy = roomy || spaces.back().group() != 0;
    most = std::max(most, own);
    if (!kernels.back().suits_any()) threads = std::max(threads, own);
  }
  if (threads == 0) threads = most;
  const bool wide = most_elements(program, sizes) >= kMostNarrow;
  // Which space a block works for, of the launch and of the one that finishes long sums.
  struct Part {
    std::string call;
    std::int64_t blocks = 0;
  };
  std::string functions;
  std::vector<Part> first, second;
  const int least = kernels.size() == 1 ? kernels[0].least_blocks() : 0;
  for (Kernel& kernel : kernels) {
    kernel.set_threads(threads);
    if (kernel.blocks() == 0) continue;
    kernel.set_workspace(plan.workspace);
    plan.workspace += kernel.workspace();
    functions += kernel.text() + "\n";
    plan.path += (first.empty() ? ": " : "; ") + kernel.summary();
    first.push_back({kernel.name(), kernel.blocks()});
    if (kernel.has_second()) second.push_back({kernel.name() + "_second", kernel.second_blocks()});
  }
  std::int64_t blocks = 0;
  const auto calls = [&](const std::vector<Part>& parts) {
    std::string text;
    blocks = 0;
    for (const Part& part : parts) {
      const std::string begin =
          parts.size() == 1 ? "0" : "Index(" + arguments.number("begin_" + part.call, blocks) + ")";
      blocks += part.blocks;
      const std::string call = part.call + "(a, block - " + begin + ");\n";
      text += parts.size() == 1 ? "  " + part.call + "(a, block);\n"
                                : "  if (block >= " + begin + " && block < Index(" +
                                      arguments.number("end_" + part.call, blocks) + ")) " + call;
    }
    return text;
  };
  const std::string second_calls = calls(second);
  const std::int64_t second_blocks = blocks;
  const std::string first_calls = calls(first);
  if (blocks > kMostBlocks) throw Refused{std::to_string(blocks) + " blocks"};
  if (blocks == 0) {
    plan.path = "stream: nothing to do";
    return plan;
  }
  const std::string entry = identifier(program.name());
  const auto kernel = [&](const std::string& name, const std::string& body) {
    return "extern \"C\" __global__ void __launch_bounds__(" + std::to_string(threads) +
           (roomy       ? ", 1) "
            : least > 0 ? ", " + std::to_string(least) + ") "
                        : ") ") +
           name + "(const __grid_constant__ Arguments_" + entry +
           " a) {\n  const Index block = blockIdx.x;\n" + body + "}\n";
  };
  plan.page = commented(print(program)) +
              "#include \"maps.cuh\"\n#include \"philox.cuh\"\n#include \"stream.cuh\"\n\n"
              "using namespace coda;\nusing Index = " +
              std::string(wide ? "unsigned long long" : "unsigned") + ";\n\n" +
              arguments.declaration("Arguments_" + entry) + "using Arguments = Arguments_" + entry +
              ";\n\n" + functions + kernel(entry, first_calls);
  const auto launch = [&](const std::string& name, std::int64_t grid) {
    plan.launches.push_back(
        {.entry = name, .words = arguments.words(), .grid = {grid, 1, 1}, .block = threads});
  };
  launch(entry, blocks);
  if (!second.empty()) {
    plan.page += "\n" + kernel(entry + "_second", second_calls);
    launch(entry + "_second", second_blocks);
  }
  return plan;
}

}  // namespace

std::string StreamTile::text() const {
  return "stream/" + std::to_string(team) + "x" + std::to_string(teams) + "/" +
         std::to_string(unroll);
}

std::vector<StreamTile> stream_tiles(const Checked& checked, const Sizes& sizes,
                                     std::span<const Layout> layouts, const Target& target) {
  if (checked.kind() != KernelKind::stream || checked.spaces().size() != 1) return {};
  try {
    if (streaming::plan_scatter(checked, sizes, layouts, target)) return {};
    Arguments arguments(checked.program(), sizes, layouts);
    const streaming::Space space(checked, 0, sizes, layouts);
    const std::vector<StreamTile> all = Kernel(space, arguments, 0, nullptr).candidates();
    std::vector<StreamTile> taken;
    std::vector<std::string> reasons;
    for (const StreamTile& tile : all)
      if (plan_stream(checked, sizes, layouts, target, reasons, &tile)) taken.push_back(tile);
    return taken;
  } catch (const Refused&) {
    return {};
  }
}

std::optional<Plan> plan_stream(const Checked& checked, const Sizes& sizes,
                                std::span<const Layout> layouts, const Target& target,
                                std::vector<std::string>& reasons, const StreamTile* tile) {
  if (checked.kind() != KernelKind::stream) return std::nullopt;
  try {
    if (auto scatter = streaming::plan_scatter(checked, sizes, layouts, target)) return scatter;
    return plan(checked, sizes, layouts, tile);
  } catch (const Refused& refused) {
    reasons.push_back("stream: " + refused.why);
    return std::nullopt;
  }
}

}  // namespace coda::cuda
