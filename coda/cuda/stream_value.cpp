// coda/cuda/stream_value.cpp: values as expressions: of a row, of a vector's lane, of a group.
#include <algorithm>

#include "coda/cuda/stream_kernel.h"
#include "coda/program/text.h"

namespace coda::cuda::streaming {
namespace {

// Names of the page that a value may not have.
constexpr std::string_view kOurs[] = {"a",
                                      "i",
                                      "u",
                                      "c",
                                      "row",
                                      "item",
                                      "ok",
                                      "member",
                                      "team",
                                      "block",
                                      "chunk",
                                      "group",
                                      "base",
                                      "turn",
                                      "first",
                                      "count",
                                      "step",
                                      "board",
                                      "begin",
                                      "tile",
                                      "other",
                                      "stored",
                                      "before",
                                      "shared_sums",
                                      "together",
                                      "group_block",
                                      "group_outer",
                                      "value_at",
                                      "put",
                                      "fold",
                                      "among",
                                      "post",
                                      "collect",
                                      "exponents",
                                      "uniform_at",
                                      "round_to",
                                      "kTeam",
                                      "kTeams",
                                      "Index",
                                      "Arguments",
                                      "Pack",
                                      "Sum",
                                      "Max",
                                      "LogSumExp",
                                      "Exponents",
                                      "threadIdx",
                                      "blockIdx",
                                      "EACH",
                                      "not_a_number",
                                      "Posted",
                                      "Element",
                                      "bf16_t",
                                      "f16_t",
                                      "bool_t",
                                      "shared_counts"};

}  // namespace

// The struct of device/stream.cuh that combines values.
std::string operation(Op op) {
  switch (op) {
    case Op::reduce_max:
    case Op::block_max:
      return "Max";
    case Op::logsumexp:
    case Op::block_logsumexp:
      return "LogSumExp";
    default:
      return "Sum";
  }
}

void Kernel::line(const std::string& text) {
  *out_ += std::string(static_cast<std::size_t>(2 * indent_), ' ') + text + "\n";
}

std::string Kernel::print_of(Value v) const {
  const std::int32_t node = space_.program().value(v).node;
  return node < 0 ? describe(space_.program(), v)
                  : print_node(space_.program(), static_cast<std::size_t>(node));
}

bool Kernel::is_statement(std::int32_t node) const {
  return print_node(space_.program(), static_cast<std::size_t>(node)).find(" = ") !=
         std::string::npos;
}

void Kernel::comment(std::int32_t node) {
  line("// " + print_node(space_.program(), static_cast<std::size_t>(node)));
}

std::string Kernel::unique(std::string_view name) {
  const std::string wanted = identifier(name);
  std::string out = wanted;
  if (std::ranges::find(kOurs, wanted) != std::end(kOurs)) out += "_";
  for (int n = 2; !taken_.insert(out).second; ++n) out = wanted + "_" + std::to_string(n);
  return out;
}

bool Kernel::has_lanes(Value v) const {
  const Factor& last = in_->axes.back().factor;
  for (const Atom& atom : space_.atoms(space_.inner_factors(v)))
    for (const Axis& axis : atom.axes)
      if (axis.factor == last) return true;
  return false;
}

// Fast where nothing but rounded results and reductions read it.
Precision Kernel::precision(const Node& node) const {
  const auto precise = [&](const auto& self, Value v) -> bool {
    const auto known = precise_.find(v.id);
    if (known != precise_.end()) return known->second;
    precise_[v.id] = false;
    bool wide = false;
    for (const int r : space_.space().results) {
      const Result& result = space_.program().results()[static_cast<std::size_t>(r)];
      const bool narrow = is_float(result.type.dtype) && size_of(result.type.dtype) <= 2;
      wide = wide || (result.value == v && !narrow);
    }
    for (const int n : space_.space().nodes) {
      const Node& reader = space_.program().nodes()[static_cast<std::size_t>(n)];
      if (std::ranges::find(reader.args, v) == reader.args.end()) continue;
      const OpClass kind = class_of(reader.op);
      if (kind == OpClass::reduce || kind == OpClass::block_reduce) continue;
      for (const Value made : reader.results) wide = wide || self(self, made);
    }
    return precise_[v.id] = wide;
  };
  const Place place = space_.place(node.results[0]);
  if (place != Place::inner || precise(precise, node.results[0])) return Precision::exact;
  return Precision::fast;
}

// ---- rows ----

std::string Kernel::row_value(Value v, Lane wanted) {
  const Program& program = space_.program();
  const Lane real = Lane::f32;
  const bool is_param = program.is_param(v);
  if (!is_param && space_.node(v).op == Op::constant)
    return literal(space_.node(v).attr.number, wanted);
  if (!is_param && space_.node(v).op == Op::size)
    return convert("(long long)" + arguments_.extent(space_.node(v).attr.axis), Lane::i64, wanted);
  const Lane lane =
      is_param ? lane_of(program, v, real) : result_lane(program, space_.node(v), real, wanted);
  const auto known = row_names_.find({v.id, lane});
  if (known != row_names_.end()) return convert(known->second, lane, wanted);

  const Place place = space_.place(v);
  const int level = space_.level(v);
  std::string* const before = out_;
  const int indent = indent_;
  const bool single = place == Place::single && level == 0;
  const bool here = !single && in_slot_rows_;
  if (after_ && !single && level != kAfterRows) throw Refused{"values of rows after the last row"};
  std::string text;
  {
    // What it reads is written first, each in its own place.
    if (single) {
      out_ = &single_;
      indent_ = 1;
    } else if (!here && !after_) {
      out_ = &row_text_[level];
      indent_ = row_indent_;
    }
    if (const auto view = space_.view(v)) {
      const std::string at = row_offset(*view, owner_of(*view));
      text = "value_at(" + arguments_.pointer(view->tensor) + (at.empty() ? "" : " + " + at) + ")";
    } else {
      text = node_value(v, {}, lane);
    }
    const std::int32_t node = program.value(v).node;
    const bool alias = node >= 0 && !is_statement(node) && space_.uses_of(v) <= 1;
    if (alias) {
      out_ = before;
      indent_ = indent;
      return convert(text, lane, wanted);
    }
    if (node >= 0) comment(node);
    const std::string given = program.value(v).name;
    const std::string name = unique(given.empty() ? print_name(v) : given);
    line("const " + std::string(type_of(lane)) + " " + name + " = " + text + ";");
    row_names_[{v.id, lane}] = name;
    if (here) slot_rows_.emplace_back(v.id, lane);
  }
  out_ = before;
  indent_ = indent;
  return convert(row_names_[{v.id, lane}], lane, wanted);
}

// "t1" of "t1 = x - mean".
std::string Kernel::print_name(Value v) const {
  const std::string text = print_of(v);
  const std::size_t end = text.find_first_of(" ,(");
  return text.find(" = ") == std::string::npos ? std::string(name_of(space_.node(v).op))
                                               : text.substr(0, end);
}

std::string Kernel::picked(Value v, Lane wanted) {
  const Node& node = space_.node(v);
  const std::string id = row_value(node.args[1], Lane::i64);
  const std::string size = arguments_.extent(node.attr.axis);
  const std::string before = picked_at_;
  picked_at_ = id;
  const Lane lane = lane_of(space_.program(), v, Lane::f32);
  const std::string text = value(node.args[0], {}, lane);
  picked_at_ = before;
  return convert(
      "(" + id + " >= 0 && " + id + " < " + size + " ? " + text + " : " + literal(0, lane) + ")",
      lane, wanted);
}

// ---- along rows ----

std::string Kernel::memory(Value v, const Path& path, Lane wanted) {
  const Program& program = space_.program();
  const Lane lane = lane_of(program, v, Lane::f32);
  if (!picked_at_.empty()) {
    if (!space_.view(v)) {
      if (space_.node(v).op == Op::index) return convert(picked_at_, Lane::i64, wanted);
      throw Refused{"`" + print_of(v) + "` is picked from"};
    }
    return convert(element({.view = *space_.view(v)}), lane, wanted);
  }
  if (after_) {
    if (!space_.view(v)) throw Refused{"`" + print_of(v) + "` after the last row"};
    return convert(element(access(*in_, *space_.view(v), path)), lane, wanted);
  }
  const Access& access = in_->reads.at({v.id, path});
  if (access.view.tensor >= 0) {
    std::string text = access.name + "[" + pack_at_ + "]";
    if (access.lanes) {
      const std::string i = access.parts == 1 ? "i"
                                              : std::to_string(access.parts) + " * i + " +
                                                    std::to_string(access.part);
      text += ".at(" + i + ")";
    }
    return convert(text, lane, wanted);
  }
  std::string at = "(long long)(" + offset(access, "position_" + std::to_string(v.id)) + ")";
  if (access.lanes) {
    at += " + i";
    if (access.strides.back() != 1)
      at += " * " +
            arguments_.number("position_" + std::to_string(v.id) + "_lane", access.strides.back());
  }
  if (space_.node(v).op == Op::index) return convert("(" + at + ")", Lane::i64, wanted);
  const std::string seed = row_value(space_.node(v).args[0], Lane::i64);
  return convert("uniform_at(" + seed + ", " + at + ")", Lane::f32, wanted);
}

// A reduction inside a row: the lanes of neighbouring threads.
std::string Kernel::inside(Value v, const Path& path, Lane wanted) {
  const Node& node = space_.node(v);
  const Lane lane = lane_of(space_.program(), v, Lane::f32);
  const std::string type(type_of(lane)), op = operation(node.op);
  const bool exponents = op == "LogSumExp";
  const std::int64_t together = in_->lanes_together == in_->axes.back().extent
                                    ? in_->padded
                                    : in_->lanes_together / in_->width;
  comment(space_.program().value(v).node);
  std::string all;
  const std::string name = unique(print_name(v));
  for (const auto& [arg, piece] : operands(v, path)) {
    const std::string lanes = unique(name + "_of");
    const std::string none = exponents ? "-infinity()" : op + "::none<" + type + ">()";
    const std::string text = value(arg, piece, lane);
    line(type + " " + lanes + "[" + std::to_string(in_->width) + "];");
    line("EACH(" + std::to_string(in_->width) + ") " + lanes + "[i] = ok ? " + text + " : " + none +
         ";");
    const std::string folded =
        exponents ? "exponents(" + lanes + ")" : "fold<" + op + ">(" + lanes + ")";
    all = all.empty() ? folded : op + "::of(" + all + ", " + folded + ")";
  }
  line("const " + type + " " + name + " = among<" + op + ", " + std::to_string(together) + ">(" +
       all + ")" + (exponents ? ".value()" : "") + ";");
  slot_names_[{{v.id, path}, lane}] = name;
  return convert(name, lane, wanted);
}

std::string Kernel::map_value(const Node& node, const Path& path, Lane wanted) {
  const Program& program = space_.program();
  const Lane real = Lane::f32;
  const auto argument = [&](std::size_t k) {
    const Value arg = node.args[k];
    return value(arg, space_.restricted(path, space_.inner_factors(arg)),
                 operand_lane(program, node, k, real, wanted));
  };
  const Lane lane = result_lane(program, node, real, wanted);
  switch (node.op) {
    case Op::cast:
    case Op::pin: {
      const Value arg = node.args[0];
      const Lane from = lane_of(program, arg, real);
      const Cast made = cast(value(arg, space_.restricted(path, space_.inner_factors(arg)), from),
                             from, node.attr.dtype, real);
      return convert(made.text, made.lane, wanted);
    }
    case Op::detach:
    case Op::save:
    case Op::recompute:
      return value(node.args[0], path, wanted);
    default:
      break;
  }
  // Divided by what is one number for the row: multiplied by its reciprocal.
  const bool mean = node.op == Op::div && !program.is_param(node.args[1]) &&
                    space_.node(node.args[1]).op == Op::size;
  if (node.op == Op::div && (mean || space_.place(node.results[0]) == Place::inner)) {
    const Place below = space_.place(node.args[1]);
    if (below == Place::single || below == Place::row)
      return "exact::mul(" + argument(0) + ", " + reciprocal(node.args[1]) + ")";
  }
  std::string text;
  for (std::size_t k = 0; k < node.args.size(); ++k) text += (k == 0 ? "" : ", ") + argument(k);
  return convert(map_name(node.op, precision(node)) + "(" + text + ")", lane, wanted);
}

std::string Kernel::reciprocal(Value v) {
  const auto known = reciprocals_.find(v.id);
  if (known != reciprocals_.end()) return known->second;
  const std::string below = row_value(v, Lane::f32);
  std::string* const before = out_;
  const int indent = indent_;
  const bool single = space_.place(v) == Place::single && space_.level(v) == 0;
  if (single) {
    out_ = &single_;
    indent_ = 1;
  } else if (!in_slot_rows_ && !after_) {
    out_ = &row_text_[space_.level(v)];
    indent_ = row_indent_;
  }
  const std::string name = unique("one_over_" + print_name_of_param(v));
  line("const float " + name + " = exact::div(1.0f, " + below + ");");
  out_ = before;
  indent_ = indent;
  if (single || !in_slot_rows_) reciprocals_[v.id] = name;
  return name;
}

std::string Kernel::print_name_of_param(Value v) const {
  return space_.program().is_param(v) ? space_.program().value(v).name : print_name(v);
}

std::string Kernel::node_value(Value v, const Path& path, Lane wanted) {
  const Node& node = space_.node(v);
  const Program& program = space_.program();
  const Lane lane = lane_of(program, v, Lane::f32);
  if (space_.reduces_row(node)) {
    const std::string& name = reduced_.at(space_.first_like(v).id);
    const bool exponents = operation(node.op) == "LogSumExp";
    return convert(name + (exponents ? ".value()" : ""), lane, wanted);
  }
  if (space_.reduces_rows(node)) {
    if (!after_) throw Refused{"sums along rows inside rows"};
    return convert(sums_.at({v.id, path}) + (space_.inner_factors(v).empty() ? "" : "[u][i]"), lane,
                   wanted);
  }
  if (space_.reduces_inside(node)) return inside(v, path, wanted);
  switch (node.op) {
    case Op::constant:
      return literal(node.attr.number, wanted);
    case Op::index:
    case Op::uniform: {
      // Of rows only.
      std::vector<std::int64_t> strides;
      std::int64_t inside = 1;
      std::vector<Factor> factors = factors_of(program.type(v));
      for (std::size_t f = factors.size(); f-- > 0;) {
        strides.insert(strides.begin(), inside);
        inside *= space_.extent(factors[f]);
      }
      std::string at = row_offset({-1, factors, strides}, "position_" + std::to_string(v.id));
      at = "(long long)(" + (at.empty() ? "0" : at) + ")";
      if (node.op == Op::index) return convert(at, Lane::i64, wanted);
      return convert("uniform_at(" + row_value(node.args[0], Lane::i64) + ", " + at + ")",
                     Lane::f32, wanted);
    }
    case Op::gather: {
      const View table = *space_.view(node.args[0]);
      const std::string id = row_value(node.args[1], Lane::i64);
      const std::string size = arguments_.extent(table.factors[0]);
      return convert("(" + id + " >= 0 && " + id + " < " + size + " ? value_at(" +
                         arguments_.pointer(table.tensor) + " + " + id + " * " +
                         arguments_.number(owner_of(table) + "_id", table.strides[0]) +
                         ") : " + literal(0, lane) + ")",
                     lane, wanted);
    }
    case Op::pick:
      return picked(v, wanted);
    case Op::split:
    case Op::join: {
      const auto all = operands(v, path);
      return value(all[0].first, all[0].second, wanted);
    }
    case Op::spread:
    case Op::as:
      return value(node.args[0], space_.restricted(path, space_.inner_factors(node.args[0])),
                   wanted);
    default:
      return map_value(node, path, wanted);
  }
}

std::string Kernel::value(Value v, const Path& path, Lane wanted) {
  const Place place = space_.place(v);
  if (place == Place::single || place == Place::row) return row_value(v, wanted);
  const Program& program = space_.program();
  if (space_.view(v)) return memory(v, path, wanted);
  const Node& node = space_.node(v);
  if (node.op == Op::gather || node.op == Op::index || node.op == Op::uniform)
    return memory(v, path, wanted);
  if (!picked_at_.empty()) return node_value(v, {}, wanted);
  const Lane lane = result_lane(program, node, Lane::f32, wanted);
  const bool lanes = place == Place::inner && has_lanes(v);
  const auto known = slot_names_.find({{v.id, path}, lane});
  if (known != slot_names_.end())
    return convert(known->second + (lanes ? "[i]" : ""), lane, wanted);
  if (space_.reduces_inside(node)) return inside(v, path, wanted);
  const std::string text = node_value(v, path, lane);
  const bool layout = class_of(node.op) == OpClass::layout;
  const std::int32_t n = program.value(v).node;
  if (after_ || layout || (!is_statement(n) && space_.uses_of(v) <= 1))
    return convert(text, lane, wanted);
  comment(n);
  const std::string name = unique(print_name(v));
  const std::string type(type_of(lane)), width = std::to_string(in_->width);
  if (lanes) {
    line(type + " " + name + "[" + width + "];");
    line("EACH(" + width + ") " + name + "[i] = " + text + ";");
  } else {
    line("const " + type + " " + name + " = " + text + ";");
  }
  slot_names_[{{v.id, path}, lane}] = name;
  return convert(name + (lanes ? "[i]" : ""), lane, wanted);
}

}  // namespace coda::cuda::streaming
