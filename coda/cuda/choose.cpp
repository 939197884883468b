// coda/cuda/choose.cpp: asks the planners in turn, fastest first, and keeps what they answered.
#include "coda/cuda/choose.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "coda/check/bind.h"
#include "coda/core/error.h"
#include "coda/cuda/gemm.h"
#include "coda/cuda/general.h"
#include "coda/cuda/pack.h"
#include "coda/cuda/stream.h"
#include "coda/cuda/tuning.h"

namespace coda::cuda {
namespace {

constexpr std::int64_t kEnoughAlignment = 16;  // bytes
constexpr const char* kGeneral = "general";

// The candidate of that text; nullopt where only these layouts have none such. `tiles_of`: the
// candidates for some layouts; it says why others are none.
template <class Tile, class TilesOf>
std::optional<Tile> pinned(const Checked& checked, const Sizes& sizes,
                           std::span<const Layout> layouts, const PlanOptions& options,
                           std::vector<std::string>& reasons, TilesOf tiles_of) {
  const auto find = [&](const std::vector<Tile>& tiles) -> std::optional<Tile> {
    const auto found = std::ranges::find(tiles, options.tile, &Tile::text);
    return found == tiles.end() ? std::nullopt : std::optional(*found);
  };
  if (const auto tile = find(tiles_of(layouts, reasons))) return tile;
  if (options.elsewhere == PlanOptions::Elsewhere::choose) return std::nullopt;
  const auto dense =
      canonical_layouts(checked.program(), sizes, dense_layouts(checked.program(), sizes));
  std::vector<std::string> why;
  const std::vector<Tile> tiles = tiles_of(dense, why);
  if (find(tiles)) return std::nullopt;
  std::string known;
  for (const Tile& tile : tiles) known += tile.text() + ", ";
  std::string message = "`" + options.tile + "` is no candidate for " + checked.program().name();
  for (const std::string& each : why) message += "; " + each;
  throw ProgramError(std::move(message), "give one of: " + known + kGeneral);
}

std::optional<GemmTile> pinned_tile(const Checked& checked, const Sizes& sizes,
                                    std::span<const Layout> layouts, const Target& target,
                                    const PlanOptions& options, std::vector<std::string>& reasons) {
  return pinned<GemmTile>(checked, sizes, layouts, options, reasons,
                          [&](std::span<const Layout> of, std::vector<std::string>& why) {
                            return gemm_tiles(checked, sizes, of, target, why);
                          });
}

// Of a program without a product: "stream/32x8/4". Tiles of products are none of its business.
std::optional<StreamTile> pinned_stream(const Checked& checked, const Sizes& sizes,
                                        std::span<const Layout> layouts, const Target& target,
                                        const PlanOptions& options) {
  if (!options.tile.starts_with("stream/")) return std::nullopt;
  std::vector<std::string> reasons;
  return pinned<StreamTile>(checked, sizes, layouts, options, reasons,
                            [&](std::span<const Layout> of, std::vector<std::string>&) {
                              return stream_tiles(checked, sizes, of, target);
                            });
}

// What was measured to be fastest; nullopt where nothing was, or it is no candidate any more.
std::optional<Plan> tuned_plan(const Checked& checked, const Sizes& sizes,
                               std::span<const Layout> layouts, const Target& target,
                               const PlanOptions& options, std::vector<std::string>& reasons) {
  if (!options.tuning || !options.tile.empty()) return std::nullopt;
  // Tiles were timed on a GPU without others.
  if (checked.kind() == KernelKind::gemm && !target.exclusive) return std::nullopt;
  const TuningEntry* entry = options.tuning->find(checked.program(), sizes, layouts);
  if (entry == nullptr) return std::nullopt;
  const PlanOptions pinned{.tile = entry->tile, .elsewhere = PlanOptions::Elsewhere::choose};
  std::vector<std::string> unused;
  std::optional<Plan> plan;
  if (checked.kind() == KernelKind::gemm) {
    const auto tile = pinned_tile(checked, sizes, layouts, target, pinned, unused);
    if (tile) plan = plan_gemm(checked, sizes, layouts, target, &*tile, unused);
  } else {
    const auto tile = pinned_stream(checked, sizes, layouts, target, pinned);
    if (tile) plan = plan_stream(checked, sizes, layouts, target, unused, &*tile);
  }
  if (plan) {
    plan->notes.push_back("tuned: " + tuning_text(*entry));
  } else {
    reasons.push_back("the tuned tile " + entry->tile + " is no candidate any more");
  }
  return plan;
}

std::optional<Plan> fast_plan(const Checked& checked, const Sizes& sizes,
                              std::span<const Layout> layouts, const Target& target,
                              const PlanOptions& options, std::vector<std::string>& reasons) {
  if (options.tile == kGeneral) return std::nullopt;
  if (auto tuned = tuned_plan(checked, sizes, layouts, target, options, reasons)) return tuned;
  switch (checked.kind()) {
    case KernelKind::gemm: {
      if (options.tile.empty()) {
        return plan_gemm(checked, sizes, layouts, target, nullptr, reasons);
      }
      const auto tile = pinned_tile(checked, sizes, layouts, target, options, reasons);
      if (tile) return plan_gemm(checked, sizes, layouts, target, &*tile, reasons);
      if (options.elsewhere == PlanOptions::Elsewhere::refuse) return std::nullopt;
      reasons.push_back(options.tile + " is no candidate");
      return plan_gemm(checked, sizes, layouts, target, nullptr, reasons);
    }
    case KernelKind::stream: {
      const auto tile = pinned_stream(checked, sizes, layouts, target, options);
      return plan_stream(checked, sizes, layouts, target, reasons, tile ? &*tile : nullptr);
    }
    case KernelKind::opaque:
      return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace

Plan choose_plan(const Checked& checked, const Sizes& sizes, std::span<const Layout> layouts,
                 const Target& target, const PlanOptions& options) {
  std::vector<std::string> reasons;
  std::optional<Plan> plan = fast_plan(checked, sizes, layouts, target, options, reasons);
  if (!plan && options.tile != kGeneral) {
    plan = plan_packed(checked, sizes, layouts, target, nullptr, reasons);
  }
  if (!plan) plan = plan_general(checked, sizes, layouts, target);
  plan->notes.insert(plan->notes.begin(), reasons.begin(), reasons.end());
  return *std::move(plan);
}

std::vector<std::string> tile_candidates(const Checked& checked, const Sizes& sizes,
                                         std::span<const Layout> layouts, const Target& target,
                                         std::vector<std::string>& reasons) {
  std::vector<std::string> tiles;
  for (const StreamTile& tile : stream_tiles(checked, sizes, layouts, target)) {
    tiles.push_back(tile.text());
  }
  if (checked.kind() != KernelKind::gemm) return tiles;
  for (const GemmTile& tile : gemm_tiles(checked, sizes, layouts, target, reasons)) {
    // A tile may be refused only when its page is written.
    if (plan_gemm(checked, sizes, layouts, target, &tile, reasons)) tiles.push_back(tile.text());
  }
  return tiles;
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
