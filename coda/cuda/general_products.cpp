// coda/cuda/general_products.cpp: accumulators: loops over the contraction, a small tile a thread.
//
// Sums have parts of 64 terms in every tile, so that the tile does not change a bit.
#include <algorithm>

#include "coda/cuda/general_phases.h"

namespace coda::cuda {
namespace {

constexpr std::int64_t kTile = 4;

// Every kTile-th position of a flat axis: where a thread's rows or columns lie.
struct Side {
  Dim dim;
  std::int64_t extent = 1, tile = 1;
};

}  // namespace

void GeneralPlanner::products() {
  for (std::size_t s = 0; s < checked_.spaces().size(); ++s) {
    for (const Accumulator& accumulator : checked_.spaces()[s].accumulators) {
      if (!kept_.contains(representative(accumulator.value).id)) product(s, accumulator);
    }
  }
}

void GeneralPlanner::product(std::size_t space, const Accumulator& accumulator) {
  const std::vector<Factor> factors = factors_of(program_.type(accumulator.value));
  const ValueInfo& info = program_.value(accumulator.value);
  const std::string name =
      info.name.empty() ? "product" + std::to_string(accumulator.value.id) : info.name;
  const Stored to = stored(name, factors, real_);

  Side rows, columns;
  const std::vector<Role>& roles = checked_.roles(space, accumulator.value);
  for (std::size_t f = 0; f < factors.size(); ++f) {
    (roles[f] == Role::row ? rows : columns).dim.factors.push_back(factors[f]);
  }
  rows.extent = require_extent(rows.dim, sizes_);
  columns.extent = require_extent(columns.dim, sizes_);
  if (tiled_product(accumulator, rows.dim, columns.dim, to, name)) {
    return keep(accumulator.value, to);
  }
  const std::int64_t enough = std::int64_t{target_.processors} * kThreads * kTile * kTile;
  if (rows.extent >= kTile && columns.extent >= kTile && rows.extent * columns.extent >= enough) {
    rows.tile = columns.tile = kTile;
  }
  const auto tiles = [](const Side& side) {
    return (side.extent + side.tile - 1) / side.tile;
  };

  each_of(name, text_of(accumulator.value), tiles(rows) * tiles(columns),
          [&](Phase& phase, const Coordinates& position) {
            ElementEmitter& emitter = phase.emitter;
            const int depth = position[0].depth;
            const auto at = [&](std::string_view stem, const std::string& expression) {
              return emitter.coordinate(stem, expression, depth);
            };
            const std::string across = phase.arguments.number("tiles_across", tiles(columns));
            const std::string tile = position[0].text;
            // Positions past the end repeat the last one; they are not stored.
            const auto places = [&](const Side& side, std::string_view stem,
                                    const std::string& number) {
              std::vector<Coordinate> places;
              for (std::int64_t i = 0; i < side.tile; ++i) {
                const std::string own =
                    side.tile == 1
                        ? number
                        : "exact::minimum(" + number + " * " + std::to_string(side.tile) + " + " +
                              std::to_string(i) + ", " + phase.arguments.extent(side.dim) + " - 1)";
                places.push_back(at(stem, own));
              }
              return places;
            };
            const std::string row_tile = at("row_tile", tile + " / " + across).text;
            const std::string column_tile = at("column_tile", tile + " % " + across).text;
            const std::vector<Coordinate> r = places(rows, "row", row_tile);
            const std::vector<Coordinate> c = places(columns, "column", column_tile);
            const auto named = [&](std::size_t i, std::size_t j) {
              ElementEmitter::Named all{rows.dim.factors, emitter.divide(r[i], rows.dim)};
              all.add(columns.dim.factors, emitter.divide(c[j], columns.dim));
              return all;
            };
            const std::vector<std::string> totals =
                sum_products(emitter, accumulator, r.size(), c.size(), named);
            for (std::size_t i = 0; i < r.size(); ++i) {
              for (std::size_t j = 0; j < c.size(); ++j) {
                const std::string& total = totals[i * c.size() + j];
                const Coordinates own = emitter.by_name(accumulator.value, named(i, j));
                if (r.size() == 1) {
                  write(phase, to, own, total);
                  continue;
                }
                const auto inside = [&](const Side& side, const std::string& number,
                                        std::size_t k) {
                  return number + " * " + std::to_string(side.tile) + " + " + std::to_string(k) +
                         " < " + phase.arguments.extent(side.dim);
                };
                emitter.open("if (" + inside(rows, row_tile, i) + " && " +
                             inside(columns, column_tile, j) + ")");
                write(phase, to, own, total);
                emitter.close();
              }
            }
          });
  keep(accumulator.value, to);
}

// Names of the sums of a tile's elements, row by row.
std::vector<std::string> GeneralPlanner::sum_products(
    ElementEmitter& emitter, const Accumulator& accumulator, std::size_t rows, std::size_t columns,
    const std::function<ElementEmitter::Named(std::size_t, std::size_t)>& named) const {
  const std::string type(type_of(real_)), zero = literal(0, real_);
  const std::size_t count = rows * columns;
  const auto declare = [&](std::string_view stem) {
    std::vector<std::string> names;
    std::string text = type;
    for (std::size_t i = 0; i < count; ++i) {
      names.push_back(emitter.fresh(stem));
      text += (i == 0 ? " " : ", ") + names.back() + " = " + zero;
    }
    emitter.line(text + ";");
    return names;
  };
  const auto add = [&](const std::string& total, const std::string& term) {
    emitter.line(total + " = " + emitter.call(Op::add, {total, term}) + ";");
  };
  const std::vector<std::string> totals = declare("total");
  for (const Accumulator::Term& term : accumulator.terms) {
    const Node& node = program_.nodes()[static_cast<std::size_t>(term.node)];
    const Dim& axis = node.attr.axis;
    const std::string extent = emitter.arguments().extent(axis);
    const std::string from = emitter.fresh("from"), to = emitter.fresh("to");
    const std::string k = emitter.fresh("k"), step = std::to_string(kBlock);
    emitter.open("for (long long " + from + " = 0; " + from + " < " + extent + "; " + from +
                 " += " + step + ")");
    emitter.line("const long long " + to + " = exact::minimum(" + from + " + " + step + ", " +
                 extent + ");");
    const std::vector<std::string> parts = declare("part");
    emitter.open("for (long long " + k + " = " + from + "; " + k + " < " + to + "; ++" + k + ")");
    const Coordinate own{k, emitter.depth()};
    for (std::size_t i = 0; i < count; ++i) {
      ElementEmitter::Named all = named(i / columns, i % columns);
      all.add(axis.factors, emitter.divide(own, axis));
      const auto operand = [&](Value value) {
        return emitter.value(value, emitter.by_name(value, all), real_).text;
      };
      const std::string left = operand(node.args[0]), right = operand(node.args[1]);
      add(parts[i], emitter.call(Op::mul, {left, right}));
    }
    emitter.close();
    for (std::size_t i = 0; i < count; ++i) add(totals[i], parts[i]);
    emitter.close();
  }
  return totals;
}

}  // namespace coda::cuda
