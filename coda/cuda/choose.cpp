// coda/cuda/choose.cpp: asks the planners in turn, fastest first, and keeps what they answered.
#include "coda/cuda/choose.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "coda/check/bind.h"
#include "coda/core/error.h"
#if __has_include("coda/cuda/gemm.h")
#include "coda/cuda/gemm.h"
#endif
#if __has_include("coda/cuda/stream.h")
#include "coda/cuda/stream.h"
#endif
#if __has_include("coda/cuda/general.h")
#include "coda/cuda/general.h"
#endif

namespace coda::cuda {
namespace {

constexpr std::int64_t kEnoughAlignment = 16;  // bytes

}  // namespace

Plan choose_plan(const Checked& checked, const Sizes& sizes, std::span<const Layout> layouts,
                 const Target& target, const PlanOptions& options) {
  std::vector<std::string> reasons;
  std::optional<Plan> plan;
#if __has_include("coda/cuda/stream.h")
  if (options.tile != "general" && checked.kind() == KernelKind::stream) {
    plan = plan_stream(checked, sizes, layouts, target, reasons);
  }
#endif
#if __has_include("coda/cuda/general.h")
  if (!plan) plan = plan_general(checked, sizes, layouts, target);
#else
  if (!plan) throw Unsupported("program " + checked.program().name() + ": no planner yet");
#endif
  plan->notes.insert(plan->notes.begin(), reasons.begin(), reasons.end());
  (void)options, (void)sizes, (void)layouts, (void)target;
  return *std::move(plan);
}

std::vector<Layout> canonical_layouts(const Program& program, const Sizes& sizes,
                                      std::vector<Layout> layouts) {
  const std::vector<Layout> dense = dense_layouts(program, sizes);
  std::size_t i = 0;
  const auto simplify = [&](const Type& type) {
    Layout& layout = layouts.at(i);
    const bool is_empty = elements_of(type, sizes) == 0;
    if (is_empty || layout.alignment > kEnoughAlignment) layout.alignment = kEnoughAlignment;
    const std::vector<Factor> factors = factors_of(type);
    for (std::size_t f = 0; f < factors.size(); ++f) {
      if (is_empty || require_extent(factors[f], sizes) == 1) {
        layout.strides[f] = dense[i].strides[f];
      }
    }
    ++i;
  };
  for (const Param& param : program.params()) simplify(param.type);
  for (const Result& result : program.results()) simplify(result.type);
  return layouts;
}

}  // namespace coda::cuda
