// coda/cuda/element_layout.cpp: layout operations as arithmetic on coordinates; positions, random
// numbers, gathers and picks.
#include <algorithm>

#include "coda/core/error.h"
#include "coda/cuda/element.h"

namespace coda::cuda {
namespace {

// Coordinates of the factors of `dim`, which stand side by side in `factors`.
Coordinates part(const std::vector<Factor>& factors, const Coordinates& coordinates,
                 const Dim& dim) {
  Coordinates own;
  for (const Factor& factor : dim.factors) {
    const auto at = std::ranges::find(factors, factor);
    if (at == factors.end()) throw InternalError("no factor `" + factor.text() + "`");
    own.push_back(coordinates[static_cast<std::size_t>(at - factors.begin())]);
  }
  return own;
}

// What is left of a type's coordinates without some factors.
ElementEmitter::Named without(const std::vector<Factor>& factors, const Coordinates& coordinates,
                              const Dim& removed) {
  ElementEmitter::Named rest;
  for (std::size_t f = 0; f < factors.size(); ++f) {
    if (std::ranges::find(removed.factors, factors[f]) != removed.factors.end()) continue;
    rest.factors.push_back(factors[f]);
    rest.coordinates.push_back(coordinates[f]);
  }
  return rest;
}

Dim whole(const Type& type) {
  return Dim{factors_of(type)};
}

}  // namespace

Emitted ElementEmitter::split(Value value, const Coordinates& coordinates, Lane lane) {
  const Node& node = program_.node(value);
  const std::vector<Factor> factors = factors_of(program_.type(value));
  const auto slot = static_cast<std::size_t>(program_.value(value).slot);
  const Dim& piece = node.attr.dims[slot];
  Coordinate at = flat(piece, part(factors, coordinates, piece));
  std::string start;
  for (std::size_t p = 0; p < slot; ++p) start += " + " + arguments_.extent(node.attr.dims[p]);
  if (!start.empty()) at = coordinate("at_" + node.attr.axis.text(), at.text + start, at.depth);
  Named named = without(factors, coordinates, piece);
  named.add(node.attr.axis.factors, divide(at, node.attr.axis));
  return this->value(node.args[0], by_name(node.args[0], named), lane);
}

// One branch a piece.
Emitted ElementEmitter::join(Value value, const Coordinates& coordinates, Lane lane) {
  const Node& node = program_.node(value);
  const std::vector<Factor> factors = factors_of(program_.type(value));
  const Dim& axis = node.attr.axis;
  const Coordinate at = flat(axis, part(factors, coordinates, axis));
  const int depth = depth_of(coordinates);
  const std::string name = fresh(stem_of(value));
  in_scope(depth, [&] {
    line(std::string(type_of(lane)) + " " + name + " = " + literal(0, lane) + ";");
    std::string start;  // of the piece
    for (std::size_t p = 0; p < node.args.size(); ++p) {
      const Dim& piece = node.attr.dims[p];
      const std::string end =
          start.empty() ? arguments_.extent(piece) : start + " + " + arguments_.extent(piece);
      const std::string before = start.empty() ? "" : at.text + " >= " + start + " && ";
      open("if (" + before + at.text + " < " + end + ")");
      // NOTE: a coordinate of the branch's own, so that nothing of it is computed outside.
      std::string own = "0";
      if (extent(piece, {}) != std::optional<std::int64_t>(1)) {
        own = fresh("at_" + piece.text());
        line("const long long " + own + " = " + at.text +
             (start.empty() ? "" : " - (" + start + ")") + ";");
      }
      Named named = without(factors, coordinates, axis);
      named.add(piece.factors, divide({own, this->depth()}, piece));
      const Emitted made = this->value(node.args[p], by_name(node.args[p], named), lane);
      line(name + " = " + made.text + ";");
      close();
      start = end;
    }
  });
  return {name, lane, depth};
}

Emitted ElementEmitter::as(Value value, const Coordinates& coordinates, Lane lane) {
  const Node& node = program_.node(value);
  const Type &from = program_.type(node.args[0]), &to = program_.type(value);
  Coordinates before;
  std::size_t first = 0;
  for (std::size_t d = 0; d < to.dims.size(); ++d) {
    const Dim &old = from.dims[d], &own = to.dims[d];
    const std::span<const Coordinate> here =
        std::span(coordinates).subspan(first, own.factors.size());
    first += own.factors.size();
    bool renamed = old.factors.size() == own.factors.size();
    for (std::size_t f = 0; renamed && f < own.factors.size() && own.factors.size() > 1; ++f) {
      renamed = same_extent(dim_of(old.factors[f]), dim_of(own.factors[f])) == std::optional(true);
    }
    if (renamed) {
      before.insert(before.end(), here.begin(), here.end());
    } else {
      const Coordinates divided = divide(flat(own, here), old);
      before.insert(before.end(), divided.begin(), divided.end());
    }
  }
  return this->value(node.args[0], before, lane);
}

Emitted ElementEmitter::spread(Value value, const Coordinates& coordinates, Lane lane) {
  const Node& node = program_.node(value);
  Named all = named(value, coordinates);
  if (node.attr.block > 0) {
    const Coordinate at = flat(node.attr.axis, part(all.factors, coordinates, node.attr.axis));
    const Factor blocks = Factor::blocks(node.attr.axis, node.attr.block);
    all.add(std::span(&blocks, 1),
            {coordinate("block", at.text + " / " + std::to_string(node.attr.block), at.depth)});
  }
  return this->value(node.args[0], by_name(node.args[0], all), lane);
}

Emitted ElementEmitter::position(Value value, const Coordinates& coordinates) {
  const Coordinate at = flat(whole(program_.type(value)), coordinates);
  return {at.text == "0" ? "0LL" : at.text, Lane::i64, at.depth};
}

Emitted ElementEmitter::uniform(Value value, const Coordinates& coordinates) {
  const Emitted seed = this->value(program_.node(value).args[0], {}, Lane::i64);
  const Coordinate at = flat(whole(program_.type(value)), coordinates);
  const int depth = std::max(seed.depth, at.depth);
  comment(value, depth);
  return {define("float", stem_of(value), "uniform_at(" + seed.text + ", " + at.text + ")", depth),
          Lane::f32, depth};
}

// table[ids]: 0 where the id is outside.
Emitted ElementEmitter::gather(Value value, const Coordinates& coordinates) {
  const Node& node = program_.node(value);
  const Value table = node.args[0], ids = node.args[1];
  const std::size_t lead = factors_of(program_.type(ids)).size();
  const auto middle = coordinates.begin() + static_cast<std::ptrdiff_t>(lead);
  const Emitted id = this->value(ids, {coordinates.begin(), middle}, Lane::i64);
  const Dim& rows = program_.type(table).dims.at(0);
  const Lane lane = lane_of(program_, value, real_);
  const int depth = std::max(depth_of(coordinates), id.depth);
  const std::string name = fresh(stem_of(value));
  in_scope(depth, [&] {
    line(std::string(type_of(lane)) + " " + name + " = " + literal(0, lane) + ";");
    open("if (" + id.text + " >= 0 && " + id.text + " < " + arguments_.extent(rows) + ")");
    const std::string own = fresh("id");
    line("const long long " + own + " = " + id.text + ";");
    Coordinates at = divide({own, this->depth()}, rows);
    at.insert(at.end(), middle, coordinates.end());
    line(name + " = " + this->value(table, at, lane).text + ";");
    close();
  });
  return {name, lane, depth};
}

// The element that the id names; 0 where it is outside.
Emitted ElementEmitter::pick(Value value, const Coordinates& coordinates) {
  const Node& node = program_.node(value);
  const Named here = named(value, coordinates);
  const Emitted id = this->value(node.args[1], by_name(node.args[1], here), Lane::i64);
  const Dim& axis = node.attr.axis;
  const Lane lane = lane_of(program_, value, real_);
  const int depth = std::max(depth_of(coordinates), id.depth);
  const std::string name = fresh(stem_of(value));
  in_scope(depth, [&] {
    line(std::string(type_of(lane)) + " " + name + " = " + literal(0, lane) + ";");
    open("if (" + id.text + " >= 0 && " + id.text + " < " + arguments_.extent(axis) + ")");
    const std::string own = fresh("id");
    line("const long long " + own + " = " + id.text + ";");
    Named all = here;
    all.add(axis.factors, divide({own, this->depth()}, axis));
    line(name + " = " + this->value(node.args[0], by_name(node.args[0], all), lane).text + ";");
    close();
  });
  return {name, lane, depth};
}

}  // namespace coda::cuda
