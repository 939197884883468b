// coda/cuda/stream.cpp: the page of a streaming program: its spaces, side by side in one launch.
#include "coda/cuda/stream.h"

#include <algorithm>
#include <deque>

#include "coda/check/bind.h"
#include "coda/cuda/stream_kernel.h"
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

Plan plan(const Checked& checked, const Sizes& sizes, std::span<const Layout> layouts) {
  const Program& program = checked.program();
  Plan plan = {.name = program.name(), .path = "stream"};
  Arguments arguments(program, sizes, layouts);
  std::deque<streaming::Space> spaces;
  std::deque<Kernel> kernels;
  int threads = 0, most = 32;
  for (std::size_t s = 0; s < checked.spaces().size(); ++s) {
    spaces.emplace_back(checked, s, sizes, layouts);
    kernels.emplace_back(spaces.back(), arguments, static_cast<int>(s));
    const int own = kernels.back().threads();
    most = std::max(most, own);
    if (!kernels.back().suits_any()) threads = std::max(threads, own);
  }
  if (threads == 0) threads = most;
  const bool wide = most_elements(program, sizes) >= kMostNarrow;
  std::string functions, calls;
  std::int64_t blocks = 0;
  for (std::size_t s = 0; s < kernels.size(); ++s) {
    kernels[s].set_threads(threads);
    const std::int64_t own = kernels[s].blocks();
    if (own == 0) continue;
    functions += kernels[s].text() + "\n";
    plan.path += (blocks == 0 ? ": " : "; ") + kernels[s].summary();
    const std::string begin = arguments.number("begin_" + std::to_string(s), blocks);
    blocks += own;
    const std::string end = arguments.number("end_" + std::to_string(s), blocks);
    const std::string call = kernels[s].name() + "(a, block - Index(" + begin + "));\n";
    calls += kernels.size() == 1 ? "  " + kernels[s].name() + "(a, block);\n"
                                 : "  if (block >= Index(" + begin + ") && block < Index(" + end +
                                       ")) " + call;
  }
  if (blocks > kMostBlocks) throw Refused{std::to_string(blocks) + " blocks"};
  if (blocks == 0) {
    plan.path = "stream: nothing to do";
    return plan;
  }
  const std::string entry = identifier(program.name());
  plan.page = commented(print(program)) +
              "#include \"maps.cuh\"\n#include \"philox.cuh\"\n#include \"stream.cuh\"\n\n"
              "using namespace coda;\nusing Index = " +
              std::string(wide ? "unsigned long long" : "unsigned") + ";\n\n" +
              arguments.declaration("Arguments_" + entry) + "using Arguments = Arguments_" + entry +
              ";\n\n" + functions + "extern \"C\" __global__ void __launch_bounds__(" +
              std::to_string(threads) + ") " + entry +
              "(const __grid_constant__ Arguments_" + entry + " a) {\n" +
              "  const Index block = blockIdx.x;\n" + calls + "}\n";
  plan.launches.push_back({.entry = entry,
                           .words = arguments.words(),
                           .grid = {blocks, 1, 1},
                           .block = threads});
  return plan;
}

}  // namespace

std::optional<Plan> plan_stream(const Checked& checked, const Sizes& sizes,
                                std::span<const Layout> layouts, const Target&,
                                std::vector<std::string>& reasons) {
  if (checked.kind() != KernelKind::stream) return std::nullopt;
  try {
    return plan(checked, sizes, layouts);
  } catch (const Refused& refused) {
    reasons.push_back("stream: " + refused.why);
    return std::nullopt;
  }
}

}  // namespace coda::cuda
