// coda/cuda/element.cpp: scopes, coordinates, parameters and maps.
#include "coda/cuda/element.h"

#include <algorithm>

#include "coda/core/error.h"
#include "coda/program/text.h"

namespace coda::cuda {
namespace {

std::string indent(int depth) {
  return std::string(static_cast<std::size_t>(2 * (depth + 1)), ' ');
}

bool is_one(const Factor& factor) {
  return factor.kind() == Factor::Kind::number && factor.number() == 1;
}

}  // namespace

int depth_of(std::span<const Coordinate> coordinates) {
  int depth = 0;
  for (const Coordinate& each : coordinates) depth = std::max(depth, each.depth);
  return depth;
}

ElementEmitter::ElementEmitter(const Program& program, Arguments& arguments, Precision precision,
                               Supply supply)
    : program_(program),
      arguments_(arguments),
      real_(real_lane(program)),
      precision_(precision),
      supply_(std::move(supply)),
      scopes_(1) {
  find_equal_values();
}

void ElementEmitter::find_equal_values() {
  for (std::size_t v = 0; v < program_.values().size(); ++v) {
    equal_.push_back(Value{static_cast<std::int32_t>(v)});
  }
  const std::span<const Node> nodes = program_.nodes();
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const Node &node = nodes[i], &earlier = nodes[j];
      const auto same = [&](Value a, Value b) {
        return representative(a) == representative(b);
      };
      if (node.op != earlier.op || !(node.attr == earlier.attr) ||
          !std::ranges::equal(node.args, earlier.args, same)) {
        continue;
      }
      for (std::size_t r = 0; r < node.results.size(); ++r) {
        equal_[static_cast<std::size_t>(node.results[r].id)] = representative(earlier.results[r]);
      }
      break;
    }
  }
}

// ---- text ----

void ElementEmitter::append(int depth, std::string_view statement) {
  Scope& scope = scopes_.at(static_cast<std::size_t>(depth));
  scope.text += indent(depth);
  scope.text += statement;
  scope.text += '\n';
}

void ElementEmitter::open(const std::string& head) {
  scopes_.emplace_back().head = head;
}

void ElementEmitter::close() {
  const Scope inner = std::move(scopes_.back());
  scopes_.pop_back();
  append(depth(), inner.head.empty() ? "{" : inner.head + " {");
  scopes_.back().text += inner.text;
  append(depth(), "}");
}

void ElementEmitter::line(std::string_view statement) {
  append(depth(), statement);
}

std::string ElementEmitter::text() const {
  if (scopes_.size() != 1) throw InternalError("a scope of emitted code is still open");
  return scopes_[0].text;
}

std::string ElementEmitter::fresh(std::string_view stem) {
  return identifier(stem) + "_" + std::to_string(++names_);
}

std::string ElementEmitter::define(std::string_view type, std::string_view stem,
                                   const std::string& expression, int depth) {
  for (const Scope& scope : scopes_) {
    const auto found = scope.names.find(expression);
    if (found != scope.names.end()) return found->second;
  }
  const std::string name = fresh(stem);
  append(depth, "const " + std::string(type) + " " + name + " = " + expression + ";");
  scopes_[static_cast<std::size_t>(depth)].names.emplace(expression, name);
  return name;
}

std::string ElementEmitter::stem_of(Value value) const {
  const ValueInfo& info = program_.value(value);
  if (!info.name.empty()) return info.name;
  return info.node < 0 ? program_.params()[static_cast<std::size_t>(value.id)].name
                       : std::string(name_of(program_.node(value).op));
}

void ElementEmitter::comment(Value value, int depth) {
  const ValueInfo& info = program_.value(value);
  if (info.node < 0 || info.name.empty()) return;
  std::string text = print_node(program_, static_cast<std::size_t>(info.node));
  std::ranges::replace(text, '\n', ' ');
  append(depth, "// " + text);
}

// ---- coordinates ----

Coordinate ElementEmitter::coordinate(std::string_view stem, const std::string& expression,
                                      int depth) {
  return {define("long long", stem, expression, depth), depth};
}

Coordinate ElementEmitter::flat(const Dim& dim, std::span<const Coordinate> coordinates) {
  std::string text;
  int depth = 0;
  bool single = true;
  for (std::size_t f = 0; f < dim.factors.size(); ++f) {
    if (is_one(dim.factors[f])) continue;
    depth = std::max(depth, coordinates[f].depth);
    if (text.empty()) {
      text = coordinates[f].text;
      continue;
    }
    single = false;
    text = "(" + text + ") * " + arguments_.extent(dim.factors[f]) + " + " + coordinates[f].text;
  }
  if (text.empty()) return {};
  if (single) return {text, depth};
  return coordinate(identifier(dim.text()), text, depth);
}

Coordinates ElementEmitter::divide(const Coordinate& position, const Dim& dim) {
  Coordinates coordinates(dim.factors.size());
  std::vector<std::size_t> places;
  for (std::size_t f = 0; f < dim.factors.size(); ++f) {
    if (!is_one(dim.factors[f])) places.push_back(f);
  }
  Coordinate rest = position;
  for (std::size_t p = places.size(); p-- > 1;) {
    const Factor& factor = dim.factors[places[p]];
    const std::string extent = arguments_.extent(factor);
    const std::string stem = "at_" + identifier(factor.text());
    coordinates[places[p]] = coordinate(stem, rest.text + " % " + extent, rest.depth);
    rest = coordinate("rest", rest.text + " / " + extent, rest.depth);
  }
  if (!places.empty()) coordinates[places[0]] = rest;
  return coordinates;
}

Coordinates ElementEmitter::in_space(const Checked& checked, std::size_t space, Value value,
                                     const Coordinate& row, const Coordinate& column) {
  const std::vector<Factor> factors = factors_of(program_.type(value));
  const std::vector<Role>& roles = checked.roles(space, value);
  const std::vector<Dim>& inners = checked.row_inner(space, value);
  if (roles.size() != factors.size()) {
    throw InternalError("the space does not evaluate " + describe(program_, value));
  }
  const auto whole = [](const std::vector<Dim>& dims) {
    Dim all;
    for (const Dim& dim : dims) all = all * dim;
    return all;
  };
  const Space& here = checked.spaces()[space];
  const Dim rows = whole(here.rows), columns = whole(here.columns);
  // (position / inner) % extent(axis) / block
  const auto place = [&](const Coordinate& position, const Dim& inner, const Dim& axis,
                         const Dim& all, std::int64_t block) {
    Coordinate at = position;
    if (!inner.factors.empty()) {
      at = coordinate("outer", at.text + " / " + arguments_.extent(inner), at.depth);
    }
    if (same_extent(axis * inner, all) != std::optional(true)) {
      at = coordinate("at_" + identifier(axis.text()), at.text + " % " + arguments_.extent(axis),
                      at.depth);
    }
    if (block > 1) at = coordinate("block", at.text + " / " + std::to_string(block), at.depth);
    return at;
  };
  const auto among = [](const Dim& dim, const Factor& factor) {
    return std::ranges::find(dim.factors, factor);
  };
  Coordinates coordinates;
  for (std::size_t f = 0; f < factors.size(); ++f) {
    const Factor& factor = factors[f];
    const bool blocks = factor.kind() == Factor::Kind::blocks;
    if (is_one(factor)) {
      coordinates.emplace_back();
    } else if (roles[f] == Role::row) {
      const bool of_rows = blocks && among(rows, factor) == rows.factors.end();
      coordinates.push_back(place(row, inners[f], of_rows ? factor.dim() : dim_of(factor), rows,
                                  of_rows ? factor.number() : 1));
    } else if (roles[f] == Role::column) {
      const auto own = among(columns, factor);
      if (own != columns.factors.end()) {
        const Dim inner{{own + 1, columns.factors.end()}};
        coordinates.push_back(place(column, inner, dim_of(factor), columns, 1));
      } else if (same_extent(dim_of(factor), columns) == std::optional(true)) {
        coordinates.push_back(column);
      } else if (blocks && same_extent(factor.dim(), columns) == std::optional(true)) {
        coordinates.push_back(place(column, {}, factor.dim(), columns, factor.number()));
      } else {
        throw Unsupported("the column factor `" + factor.text() + "` of " +
                          describe(program_, value));
      }
    } else {
      throw Unsupported("the local factor `" + factor.text() + "` of " + describe(program_, value));
    }
  }
  return coordinates;
}

void ElementEmitter::Named::add(std::span<const Factor> more, const Coordinates& at) {
  factors.insert(factors.end(), more.begin(), more.end());
  coordinates.insert(coordinates.end(), at.begin(), at.end());
}

Coordinates ElementEmitter::by_name(Value value, const Named& named) const {
  Coordinates coordinates;
  for (const Factor& factor : factors_of(program_.type(value))) {
    const auto at = std::ranges::find(named.factors, factor);
    if (at != named.factors.end()) {
      coordinates.push_back(
          named.coordinates[static_cast<std::size_t>(at - named.factors.begin())]);
    } else if (is_one(factor)) {
      coordinates.emplace_back();
    } else {
      throw InternalError("no coordinate of `" + factor.text() + "` for " +
                          describe(program_, value));
    }
  }
  return coordinates;
}

ElementEmitter::Named ElementEmitter::named(Value value, const Coordinates& coordinates) const {
  return {factors_of(program_.type(value)), coordinates};
}

std::string ElementEmitter::offset(int tensor, const Coordinates& coordinates) {
  std::string text;
  for (std::size_t f = 0; f < coordinates.size(); ++f) {
    if (coordinates[f].text == "0") continue;
    text +=
        (text.empty() ? "" : " + ") + coordinates[f].text + " * " + arguments_.stride(tensor, f);
  }
  return text.empty() ? "0" : text;
}

// ---- values ----

Emitted ElementEmitter::converted(const Emitted& from, Lane lane, std::string_view stem) {
  if (from.lane == lane) return from;
  return {define(type_of(lane), stem, convert(from.text, from.lane, lane), from.depth), lane,
          from.depth};
}

Emitted ElementEmitter::value(Value value, const Coordinates& coordinates) {
  return this->value(value, coordinates, lane_of(program_, value, real_));
}

Emitted ElementEmitter::value(Value value, const Coordinates& coordinates, Lane lane) {
  value = representative(value);
  std::string key = std::to_string(value.id) + " " + std::to_string(static_cast<int>(lane));
  for (const Coordinate& each : coordinates) key += " " + each.text;
  for (const Scope& scope : scopes_) {
    const auto found = scope.values.find(key);
    if (found != scope.values.end()) return found->second;
  }
  const Emitted emitted = converted(compute(value, coordinates, lane), lane, stem_of(value));
  scopes_[static_cast<std::size_t>(emitted.depth)].values.emplace(key, emitted);
  return emitted;
}

const Type& ElementEmitter::type_of_tensor(int tensor) const {
  const auto t = static_cast<std::size_t>(tensor);
  const std::size_t params = program_.params().size();
  return t < params ? program_.params()[t].type : program_.results()[t - params].type;
}

// NOTE: an address that is no multiple of the element's size is read and written by bytes.
Emitted ElementEmitter::load(int tensor, const Coordinates& coordinates) {
  const DType dtype = type_of_tensor(tensor).dtype;
  const auto t = static_cast<std::size_t>(tensor);
  const std::size_t params = program_.params().size();
  const std::string& name =
      t < params ? program_.params()[t].name : program_.results()[t - params].name;
  const Lane lane = dtype == DType::f64 ? Lane::f64 : lane_of(dtype, Lane::f32);
  const std::string pointer = arguments_.pointer(tensor), at = offset(tensor, coordinates);
  const std::string element = arguments_.has_whole_elements(tensor)
                                  ? pointer + "[" + at + "]"
                                  : "load_bytes(" + pointer + ", " + at + ")";
  const std::string text =
      "Element<" + std::string(element_of(dtype)) + ">::value(" + element + ")";
  const int depth = depth_of(coordinates);
  return {define(type_of(lane), name, text, depth), lane, depth};
}

void ElementEmitter::store(int tensor, const Coordinates& coordinates, const std::string& value) {
  const std::string pointer = arguments_.pointer(tensor), at = offset(tensor, coordinates);
  const std::string rounded = "Element<" + std::string(element_of(type_of_tensor(tensor).dtype)) +
                              ">::rounded(" + value + ")";
  line(arguments_.has_whole_elements(tensor)
           ? pointer + "[" + at + "] = " + rounded + ";"
           : "store_bytes(" + pointer + ", " + at + ", " + rounded + ");");
}

Emitted ElementEmitter::compute(Value value, const Coordinates& coordinates, Lane lane) {
  if (supply_) {
    if (std::optional<Emitted> supplied = supply_(*this, value, coordinates)) return *supplied;
  }
  if (program_.is_param(value)) return load(value.id, coordinates);
  const Node& node = program_.node(value);
  switch (node.op) {
    case Op::constant:
      return {literal(node.attr.number, lane), lane, 0};
    case Op::size: {
      const std::string extent = arguments_.extent(node.attr.axis);
      return {extent, Lane::i64, 0};
    }
    case Op::index:
      return position(value, coordinates);
    case Op::uniform:
      return uniform(value, coordinates);
    case Op::split:
      return split(value, coordinates, lane);
    case Op::join:
      return join(value, coordinates, lane);
    case Op::as:
      return as(value, coordinates, lane);
    case Op::spread:
      return spread(value, coordinates, lane);
    case Op::gather:
      return gather(value, coordinates);
    case Op::pick:
      return pick(value, coordinates);
    case Op::detach:
    case Op::save:
    case Op::recompute:
      return this->value(node.args[0], coordinates, lane_of(program_, value, real_));
    case Op::product:
    case Op::scatter_sum:
    case Op::attention:
    case Op::attention_grad:
      throw InternalError("`" + std::string(name_of(node.op)) + "` is no element's work");
    default:
      break;
  }
  switch (class_of(node.op)) {
    case OpClass::cast:
      return cast_value(value, coordinates);
    case OpClass::reduce:
    case OpClass::block_reduce:
      return reduce(value, coordinates);
    default:
      return map(value, coordinates, lane);
  }
}

Emitted ElementEmitter::map(Value value, const Coordinates& coordinates, Lane lane) {
  const Node& node = program_.node(value);
  const Named here = named(value, coordinates);
  std::string text = map_name(node.op, precision_) + "(";
  int depth = 0;
  for (std::size_t i = 0; i < node.args.size(); ++i) {
    const Lane wanted = operand_lane(program_, node, i, real_, lane);
    const Emitted operand = this->value(node.args[i], by_name(node.args[i], here), wanted);
    depth = std::max(depth, operand.depth);
    text += (i == 0 ? "" : ", ") + operand.text;
  }
  const Lane own = result_lane(program_, node, real_, lane);
  comment(value, depth);
  return {define(type_of(own), stem_of(value), text + ")", depth), own, depth};
}

Emitted ElementEmitter::cast_value(Value value, const Coordinates& coordinates) {
  const Node& node = program_.node(value);
  const Emitted operand =
      this->value(node.args[0], by_name(node.args[0], named(value, coordinates)));
  const Cast made = cast(operand.text, operand.lane, node.attr.dtype, real_);
  if (made.text == operand.text) return {made.text, made.lane, operand.depth};
  comment(value, operand.depth);
  return {define(type_of(made.lane), stem_of(value), made.text, operand.depth), made.lane,
          operand.depth};
}

std::string ElementEmitter::call(Op op, std::initializer_list<std::string> operands) const {
  std::string text = map_name(op, precision_) + "(";
  for (const std::string& operand : operands) {
    text += (text.back() == '(' ? "" : ", ") + operand;
  }
  return text + ")";
}

}  // namespace coda::cuda
