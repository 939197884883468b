// coda/cuda/gemm.cpp: candidates, maps, words: what a page of a product is launched with.
#include "coda/cuda/gemm.h"

#include <algorithm>
#include <cmath>

#include "coda/check/bind.h"
#include "coda/core/error.h"
#include "coda/cuda/gemm_page.h"
#include "coda/cuda/gemm_problem.h"
#include "coda/cuda/matrix.h"
#include "coda/cuda/order.h"
#include "coda/program/text.h"

namespace coda::cuda {
namespace {

constexpr std::int64_t kShortestPart = 16;  // k steps of a tile that workers share
// What a thread may take beside 192 accumulators, as Pressure counts: with vectors along columns in
// registers, with what leaves with the tile there, and in all.
constexpr int kMostHeld = 36, kMostKept = 48, kMostRegisters = 44;
// What scratch memory is not by chance: a flag that says that a part of a tile is there.
constexpr std::int64_t kToken = 0x5bd1e995c0da9e37;
// Heads that lie across two tiles of 192 columns, three in both.
constexpr std::int64_t kHeadAcross = 128;
constexpr int kHeadSumBytes = 8 * 8 + 2 * 128 * 4;  // device/sm90_across.cuh: HeadSums::kBytes
constexpr std::int64_t kQueueBytes = 4 * 32;        // device/sm90_queue.cuh: Queue::kBytes
// L2 hints of the copy engine.
constexpr std::int64_t kEvictNormal = 0x1000000000000000, kEvictFirst = 0x12F0000000000000;

std::optional<TileShape> shape_of_tile(const Problem& problem, int columns, int cluster,
                                       std::string& why) {
  TileShape shape{.columns = columns,
                  .pairs = problem.pairs,
                  .head = problem.head,
                  .group = problem.group,
                  .cluster = cluster};
  if (columns % (32 * problem.pairs) != 0) {
    why = "paired products need a multiple of 32 columns each";
    return std::nullopt;
  }
  if (shape.result_columns() % 64 != 0) shape.unit = 32;
  if (problem.group != 0 && shape.result_columns() % problem.group != 0) {
    why = "reductions over " + std::to_string(problem.group) + " columns, and a tile holds " +
          std::to_string(shape.result_columns());
    return std::nullopt;
  }
  if (shape.unit == 32 && problem.row_blocks) {
    why = "blocks of 64 columns do not divide " + std::to_string(shape.result_columns());
    return std::nullopt;
  }
  if (shape.unit == 32 && (!problem.right().inner_first || problem.head != 0)) {
    why = "the right operand comes in boxes of 64 columns";
    return std::nullopt;
  }
  return shape;
}

// Two tiles side by side that hold three heads.
std::optional<TileShape> shape_across(const Problem& problem, const Target& target) {
  // NOTE: of a sum over heads each block sends the other its part once a tile; it may come before
  // the other has read the last one, were all of a tile's k steps under way at once.
  constexpr std::int64_t kFewestSteps = 6;
  if (problem.group != kHeadAcross || !problem.mixes_units || problem.row_blocks ||
      (problem.head != 0 && problem.head != kHeadAcross) || problem.steps() < kFewestSteps ||
      target.processors < 2) {
    return std::nullopt;
  }
  return TileShape{
      .columns = 192, .head = problem.head, .group = problem.group, .cluster = 2, .across = true};
}

struct Candidate {
  TileShape shape;
  int narrow = 0;
  Order order;
  std::int64_t group = 16;
  double cost = 0;
  bool whole = false, drawn = false;  // by the candidate's name
};

GemmTile tile_of(const Candidate& candidate) {
  return {candidate.shape.columns, candidate.shape.cluster, candidate.whole, candidate.shape.across,
          candidate.drawn};
}

bool joined(const Problem& problem, const TileShape& shape) {
  return problem.joined || shape.across;
}

enum class Sharing : std::uint8_t { none, along_k };

// Tile rows whose columns are gone through together. Where their left operand stays in L2, more of
// them read the right one less often, and the power that this saves is clock for the rest: of
// products alone under sustained load, 24 rows of depth 2048 save 1 to 4 % against 12, and at
// depths from 8192 on they cost as much.
std::int64_t group_of_rows(const Problem& problem, const TileShape& shape) {
  constexpr std::int64_t kLeftInL2 = 13 << 20;
  const std::int64_t least = problem.head != 0 || shape.pairs > 1 ? 16 : 12;
  const std::int64_t row_bytes = problem.steps() * kTileDepth * 2 * kTileRows;
  const std::int64_t rows = kLeftInL2 / std::max<std::int64_t>(row_bytes, 1);
  return std::clamp<std::int64_t>(rows, least, 24) / shape.share_right();
}

Candidate candidate_of(const Problem& problem, const TileShape& shape, const Target& target,
                       Sharing sharing) {
  Candidate candidate{shape};
  std::vector<TileGrid> grids;
  for (const Region& places : problem.places) {
    const std::int64_t rows = kTileRows * shape.share_right();
    const TileGrid grid{(places.rows() + rows - 1) / rows, places.columns()};
    if (joined(problem, shape) && !grids.empty()) {
      grids[0].columns += grid.columns;
    } else {
      grids.push_back(grid);
    }
  }
  for (const TileGrid& grid : grids) {
    const std::int64_t left = grid.columns % shape.result_columns();
    if (shape.pairs == 1 && !shape.across && left > 0 && shape.columns > 64 &&
        left <= shape.columns - 64) {
      candidate.narrow = std::max(candidate.narrow, left <= 64 ? 64 : 128);
    }
  }
  candidate.group = group_of_rows(problem, shape);
  const int side_by_side = shape.across ? 2 : 1;
  candidate.order =
      tile_order(grids, {target.processors / shape.cluster, shape.result_columns() * side_by_side,
                         candidate.narrow / shape.pairs, candidate.group, problem.stacked,
                         problem.steps(), sharing == Sharing::along_k ? kShortestPart : 0,
                         kTileRows * shape.share_right() * kTileDepth * 2,
                         static_cast<std::int64_t>(shape.columns) * kTileDepth * 2});
  // Narrower tiles read more of the left operand, and pay more often for turns. Pairs read the
  // right one once for two, and still lose 1 to 3 % where the card is at its power's limit: alone
  // under sustained load, six products of depth 2048 to 128256. Where a wave's operands exceed L2,
  // its tiles must go through k at the same pace: a column of tiles of 64 beside those of 192 costs
  // about a third of a wave.
  const bool beyond = candidate.order.beyond_l2;
  const double width = shape.columns == 192   ? 1.0
                       : shape.columns == 128 ? (beyond ? 0.95 : 0.93)
                                              : 0.7;
  const double pair = shape.cluster == 1 ? 1.0 : 0.985;
  const double uneven = beyond && shape.columns == 192 && candidate.narrow == 64 ? 0.35 : 0.0;
  candidate.cost = (static_cast<double>(candidate.order.longest) +
                    uneven * static_cast<double>(shape.result_columns() * problem.steps())) /
                   (width * pair * side_by_side);
  return candidate;
}

// The same tiles, drawn.
Candidate drawn(Candidate candidate) {
  candidate.drawn = true;
  candidate.order = drawn(std::move(candidate.order));
  return candidate;
}

std::vector<Candidate> candidates_of(const Problem& problem, const Target& target,
                                     std::vector<std::string>& reasons) {
  std::vector<Candidate> candidates;
  const bool pairs = std::ranges::all_of(
      problem.places, [](const Region& places) { return places.rows() > kTileRows; });
  for (const int columns : {192, 128, 64}) {
    for (const int cluster : {1, 2}) {
      std::string why;
      if (cluster == 2 && !pairs) why = "one tile row has no pair";
      if (cluster == 2 && target.processors < 2) why = "one processor has no pair";
      const auto shape = shape_of_tile(problem, columns, cluster, why);
      if (shape && why.empty()) {
        candidates.push_back(candidate_of(problem, *shape, target, Sharing::along_k));
        const bool shared = candidates.back().order.areas > 0;
        if (cluster == 1) {
          candidates.push_back(drawn(candidates.back()));
          // What late workers leave for the end is up to another wave.
          candidates.back().cost *= target.exclusive ? 1.0 : 0.8;
        }
        if (shared) {
          candidates.push_back(candidate_of(problem, *shape, target, Sharing::none));
          candidates.back().whole = true;
        }
      } else {
        reasons.push_back("tile " + GemmTile{columns, cluster}.text() + ": " + why);
      }
    }
  }
  if (const auto shape = shape_across(problem, target)) {
    candidates.push_back(candidate_of(problem, *shape, target, Sharing::none));
  }
  std::ranges::stable_sort(candidates, {}, &Candidate::cost);
  return candidates;
}

MapSpec left_map(const OperandMatrix& matrix, const TileShape& shape) {
  MapSpec map{matrix.tensor, matrix.offset, matrix.dtype, {}, 128, 256};
  if (matrix.inner_first) {
    map.axes = {{matrix.inner, 0, kTileDepth},
                {matrix.outer, matrix.outer_stride, kTileRows / (shape.across ? 2 : 1)}};
  } else {
    map.axes = {{matrix.outer, 0, 64}, {matrix.inner, matrix.inner_stride, kTileDepth}};
  }
  return map;
}

MapSpec right_map(const OperandMatrix& matrix, const TileShape& shape, std::int64_t box) {
  MapSpec map{matrix.tensor, matrix.offset, matrix.dtype, {}, 128, 256};
  if (!matrix.inner_first) {
    map.axes = {{matrix.outer, 0, 64},
                {matrix.inner, matrix.inner_stride, kTileDepth / shape.share_right()}};
  } else if (shape.head != 0) {
    const std::int64_t row = matrix.outer_stride;
    map.axes = {{matrix.inner, 0, kTileDepth},
                {32, row, 32},
                {2, shape.head / 2 * row, 2 / shape.share_right()},
                {shape.head / 64, 32 * row, 1},
                {matrix.outer / shape.head, shape.head * row, 1}};
  } else {
    map.axes = {{matrix.inner, 0, kTileDepth},
                {matrix.outer, matrix.outer_stride, box / shape.share_right()}};
  }
  return map;
}

// What the store warps do before the first tile.
enum class Side : std::uint8_t { empty, sums, elements };

// Of 504 for a thread of each consumer and one of the producers: what the epilogue needs. Producers
// that add up sums of columns are glad of 72, and those with results of their own of 56.
int consumer_registers(const TileShape& shape, int registers, Side side) {
  if (shape.columns < 192 && registers <= 46) return 216;
  if (side == Side::elements && registers <= 20) return 224;
  if (side != Side::empty) return 232;
  return 240;
}

Plan plan_of(const Checked& checked, const Sizes& sizes, std::span<const Layout> layouts,
             const Target& target, const Problem& problem, const Candidate& candidate,
             Registers budget = Registers::plenty) {
  const Program& program = checked.program();
  Arguments arguments(program, sizes, layouts, "args");
  RowsText rows(
      checked, layouts, arguments,
      joined(problem, candidate.shape) ? RowsText::Tiles::of_all : RowsText::Tiles::of_one_space);
  GemmPage page;
  page.name = program.name();
  page.text = print(program);
  page.shape = candidate.shape;
  page.narrow = candidate.narrow;
  page.joined = joined(problem, candidate.shape);
  page.terms = static_cast<int>(problem.depths.size());
  page.operands = problem.left().dtype;
  page.mn_major_a = !problem.left().inner_first;
  page.mn_major_b = !problem.right().inner_first;
  // Sums of products of 16-bit numbers are worth no more than fast functions give.
  page.precision = Precision::fast;
  for (std::size_t s = 0; s < problem.places.size(); ++s) {
    page.spaces.push_back(
        emit_space(problem.places[s], layouts, arguments, candidate.shape, budget, rows));
  }
  int registers = 0;
  for (const SpaceText& space : page.spaces) registers = std::max(registers, space.registers);
  registers += rows.registers();
  const int left_over = 192 - candidate.shape.columns;
  const bool vectors = std::ranges::any_of(
      page.spaces, [](const SpaceText& space) { return !space.column_fields.empty(); });
  if (budget == Registers::plenty && registers > (vectors ? kMostHeld : kMostKept) + left_over / 2 +
                                                     (candidate.shape.across ? 4 : 0)) {
    return plan_of(checked, sizes, layouts, target, problem, candidate, Registers::few);
  }
  if (budget == Registers::few && registers > kMostRegisters + left_over) {
    throw Refusal{"the epilogue needs about " + std::to_string(registers) +
                  " registers, and the accumulators leave " +
                  std::to_string(kMostRegisters + left_over)};
  }
  // The ring takes what the stages leave.
  std::size_t most = 0;
  int bytes = 4096;
  bool streams = false, any = false;
  for (const SpaceText& space : page.spaces) {
    most = std::max(most, space.slots.size());
    page.maps = std::max(page.maps, space.maps);
    page.row_bytes = std::max(page.row_bytes, rows.bytes(space.kept_bytes));
    for (const SlotUse& slot : space.slots) {
      any = true;
      streams = streams || (slot.bytes > 0 && !slot.table);
      if (candidate.shape.unit == 64 || slot.kind.starts_with("4")) bytes = 8192;
    }
  }
  page.slot_bytes = bytes;
  const std::int64_t depth = problem.steps();
  // Where the main loop is short, an epilogue that loads as fast as it can takes its bandwidth.
  page.paced = streams && depth <= 40 && !candidate.drawn;
  page.drawn = candidate.drawn;
  page.consumer_registers = consumer_registers(candidate.shape, registers,
                                               rows.side().empty()    ? Side::empty
                                               : rows.has_deep_side() ? Side::elements
                                                                      : Side::sums);
  const std::int64_t stage = (kTileRows + candidate.shape.columns) * kTileDepth * 2;
  page.stages =
      static_cast<int>(any ? 4 : std::min<std::int64_t>(5, (target.shared - 4096) / stage));
  const std::int64_t row_bytes =
      2 * kTileRows * page.row_bytes + (candidate.shape.across ? kHeadSumBytes : 0);
  constexpr std::int64_t kStageBarriers = 16, kSlotBarriers = 24, kProgress = 16;
  const std::int64_t queue_bytes = page.drawn ? kQueueBytes : 0;
  const std::int64_t left =
      target.shared - page.stages * (stage + kStageBarriers) - kProgress - row_bytes - queue_bytes;
  page.slots = static_cast<int>(
      std::min<std::int64_t>(16, left / (page.slot_bytes + kSlotBarriers)) / 2 * 2);
  if (!any) page.slots = 2, page.slot_bytes = 1024;
  if (static_cast<std::int64_t>(most) > page.slots) {
    throw Refusal{"a unit needs " + std::to_string(most) +
                  " slots of shared memory, and there are " + std::to_string(page.slots)};
  }

  GemmFields fields;
  for (std::size_t s = 0; s < problem.places.size(); ++s) {
    for (std::size_t t = 0; t < problem.depths.size(); ++t) {
      const std::string at = std::to_string(s) + "_" + std::to_string(t);
      const std::string first =
          arguments.map("left_" + at, left_map(problem.left(s, t), candidate.shape));
      if (fields.maps.empty()) fields.maps = first;
      for (int p = 0; p < problem.pairs; ++p) {
        arguments.map("right_" + at + (p == 0 ? "" : "_" + std::to_string(p)),
                      right_map(problem.right(s, t, static_cast<std::size_t>(p)), candidate.shape,
                                page.joined ? 64 : candidate.shape.result_columns()));
      }
    }
  }
  for (std::size_t s = 0; s < problem.places.size(); ++s) {
    const SpaceText& space = page.spaces[s];
    for (int k = 0; k < page.maps; ++k) {
      const std::string name = "tile_" + std::to_string(s) + "_" + std::to_string(k);
      arguments.map(name, k < space.maps ? space.map_specs[static_cast<std::size_t>(k)]
                                         : left_map(problem.left(s, 0), candidate.shape));
    }
    const std::string at = std::to_string(s);
    fields.rows.push_back(arguments.number("rows_" + at, problem.places[s].rows()));
    fields.columns.push_back(arguments.number("columns_" + at, problem.places[s].columns()));
  }
  if (page.joined) {
    std::int64_t first = 0;
    for (std::size_t s = 0; s < problem.places.size(); ++s) {
      first += problem.places[s].columns() / 64;
      // Space 0 begins at 0.
      if (s == 0) fields.first_units.push_back("");
      fields.first_units.push_back(arguments.number("first_unit_" + std::to_string(s + 1), first));
    }
  }
  for (std::size_t t = 0; t < problem.depths.size(); ++t) {
    fields.k_tiles.push_back(arguments.number("k_tiles_" + std::to_string(t), problem.steps(t)));
  }
  arguments.table("order", 0);
  arguments.number("works", static_cast<std::int64_t>(candidate.order.pieces.size()));
  arguments.number("pace", depth * 16 * 8 / 10 / (candidate.shape.units() * 2));
  arguments.number("policy_a", kEvictNormal);
  arguments.number("policy_b", kEvictNormal);
  arguments.number("policy_in", kEvictFirst);
  arguments.number("policy_out", kEvictFirst);

  const std::int64_t areas = candidate.order.areas * candidate.shape.cluster;
  const std::int64_t area_bytes = kTileRows * candidate.shape.columns * 4;
  page.split = areas > 0;
  if (page.split) {
    arguments.workspace("areas", "float", 0);
    arguments.workspace("flags", "unsigned long long", areas * area_bytes);
    arguments.number("token", kToken);
  }

  Plan plan;
  plan.workspace = areas * (area_bytes + 8);
  Launch launch;
  if (page.drawn) {
    launch.zeroed = static_cast<int>(arguments.words().size());
    arguments.workspace("tickets", "unsigned", plan.workspace);
    plan.workspace += 8;
  }
  plan.name = program.name();
  plan.path = "gemm " + tile_of(candidate).text();
  plan.page = gemm_page(page, fields, rows, arguments);
  plan.tables = {candidate.order.table()};
  launch.entry = identifier(program.name());
  launch.maps = arguments.maps();
  launch.words = arguments.words();
  launch.cluster = candidate.shape.cluster;
  launch.grid = {target.processors / launch.cluster * launch.cluster, 1, 1};
  launch.block = 384;
  launch.shared = page.stages * (stage + kStageBarriers) +
                  static_cast<std::int64_t>(page.slots) * (page.slot_bytes + kSlotBarriers) +
                  kProgress + row_bytes + queue_bytes;
  plan.launches = {std::move(launch)};
  plan.notes.push_back(
      std::to_string(page.stages) + " stages, " + std::to_string(page.slots) + " slots of " +
      std::to_string(page.slot_bytes) + " bytes, groups of " + std::to_string(candidate.group) +
      " rows" +
      (candidate.narrow > 0 ? ", last column tile " + std::to_string(candidate.narrow) : "") +
      (areas > 0 ? ", " + std::to_string(areas) + " parts of shared tiles" : "") +
      (page.drawn ? ", drawn" : "") + (page.paced ? ", paced" : "") + ", about " +
      std::to_string(registers) + " registers of the epilogue");
  return plan;
}

}  // namespace

std::string GemmTile::text() const {
  return "128x" + std::to_string(columns) + (cluster == 2 ? "x2" : "") + (whole ? "-whole" : "") +
         (across ? "-across" : "") + (drawn ? "-drawn" : "");
}

std::vector<GemmTile> gemm_tiles(const Checked& checked, const Sizes& sizes,
                                 std::span<const Layout> layouts, const Target& target,
                                 std::vector<std::string>& reasons) {
  std::vector<GemmTile> tiles;
  try {
    const Problem problem = problem_of(checked, sizes, layouts);
    for (const Candidate& candidate : candidates_of(problem, target, reasons)) {
      tiles.push_back(tile_of(candidate));
    }
  } catch (const Refusal& refusal) {
    reasons.push_back(refusal.reason);
  }
  return tiles;
}

std::optional<Plan> plan_gemm(const Checked& checked, const Sizes& sizes,
                              std::span<const Layout> layouts, const Target& target,
                              const GemmTile* pinned, std::vector<std::string>& reasons) {
  try {
    const Problem problem = problem_of(checked, sizes, layouts);
    for (const Candidate& candidate : candidates_of(problem, target, reasons)) {
      if (pinned != nullptr && !(*pinned == tile_of(candidate))) continue;
      try {
        return plan_of(checked, sizes, layouts, target, problem, candidate);
      } catch (const Refusal& refusal) {
        reasons.push_back("tile " + tile_of(candidate).text() + ": " + refusal.reason);
      }
    }
  } catch (const Refusal& refusal) {
    reasons.push_back(refusal.reason);
  } catch (const Unsupported& error) {
    reasons.push_back(error.what());
  }
  return std::nullopt;
}

}  // namespace coda::cuda
