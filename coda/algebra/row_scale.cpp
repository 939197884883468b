// coda/algebra/row_scale.cpp: (r·X·γ) @ W = r·((X·γ) @ W): a norm's row scale leaves the operand of
// the products that read it, its column scale stays.
//
// The full form is a LayerNorm's. With x the core, μ its shift, γ the column scale, β the bias:
//   (r·(x - μ)·γ + β) @ W = r·(S - (μ - m0)·c) + d,   S = ((x - m0)·γ) @ W, c = γ @ W, d = β @ W.
// Any m0 will do. NOTE: with m0 = 0 the two terms cancel where a row's mean is many times its
// deviation, and 16 bits of x·γ are not enough; the mean of the residual that x comes from is near.
#include <algorithm>
#include <map>
#include <set>

#include "coda/algebra/factors.h"
#include "coda/algebra/rebuild.h"
#include "coda/algebra/rule.h"

namespace coda {
namespace {

// An operand taken apart. A row scale lacks the contracted factors, a column scale has no others.
struct Operand {
  Value core;
  std::optional<Value> shift;
  Term rows, columns;
  std::optional<Value> bias;
};

bool is_column(const Program& program, Value v, const Dim& axis) {
  const std::vector<Factor> factors = factors_of(program.type(v));
  return std::ranges::all_of(factors, [&](const Factor& factor) {
    return std::ranges::find(axis.factors, factor) != axis.factors.end();
  });
}

std::optional<Operand> take_apart(const Program& program, Value v, const Dim& axis) {
  Operand operand;
  v = behind_casts(program, v);
  if (is_op(program, v, Op::add)) {
    const std::vector<Value>& args = program.node(v).args;
    for (std::size_t i = 0; i < 2; ++i) {
      if (!is_column(program, args[i], axis) || program.type(args[i]).is_scalar()) continue;
      operand.bias = args[i];
      v = behind_casts(program, args[1 - i]);
      break;
    }
  }
  const Term term = factorize(program, v);
  operand.rows.negative = term.negative;
  std::vector<Value> cores;
  for (const Term::Part& part : term.parts) {
    const Type& type = program.type(part.value);
    if (!has_any(type, axis)) {
      operand.rows.parts.push_back(part);
    } else if (is_column(program, part.value, axis)) {
      operand.columns.parts.push_back(part);
    } else {
      if (part.inverse) return std::nullopt;
      cores.push_back(part.value);
    }
  }
  if (cores.size() != 1 || !has_all(program.type(cores[0]), axis)) return std::nullopt;
  if (program.type(cores[0]).dims != program.type(v).dims) return std::nullopt;
  operand.core = cores[0];
  if (is_op(program, operand.core, Op::sub)) {
    const Node& node = program.node(operand.core);
    if (!has_any(program.type(node.args[1]), axis) &&
        program.type(node.args[0]).dims == program.type(operand.core).dims) {
      operand.shift = node.args[1];
      operand.core = node.args[0];
    }
  }
  return operand;
}

// The reduction of whole rows that a row scale comes from, if it does.
std::optional<Value> statistic_behind(const Program& program, Value v, const Dim& axis) {
  std::set<Value> seen;
  std::vector<Value> todo{v};
  while (!todo.empty()) {
    const Node* node = node_of(program, todo.back());
    todo.pop_back();
    if (node == nullptr) continue;
    for (const Value arg : node->args) {
      const bool whole = has_any(program.type(arg), axis);
      if (whole && class_of(node->op) == OpClass::reduce) return node->results[0];
      if (!whole && seen.insert(arg).second) todo.push_back(arg);
    }
  }
  return std::nullopt;
}

class RowScale {
 public:
  RowScale(const Program& program, Situation& situation)
      : program_(program),
        situation_(situation),
        uses_(program),
        stored_(storage_dtypes(program)),
        build_(program) {}

  Program run() && {
    Program made = std::move(build_).run(
        [this](const Node& node) { return node.op == Op::product ? replace(node) : std::nullopt; });
    return made;
  }

 private:
  std::optional<std::vector<Expr>> replace(const Node& node) {
    for (std::size_t side = 0; side < 2; ++side) {
      const std::optional<Operand> operand = worth(node.args[side], node.attr.axis);
      if (!operand) continue;
      if (const auto made = commute(node, side, *operand)) return std::vector{*made};
    }
    return std::nullopt;
  }

  // The operand, where every reader of it is a product over the same axis and a scale may leave.
  std::optional<Operand> worth(Value v, const Dim& axis) {
    std::optional<Operand> operand = take_apart(program_, v, axis);
    if (!operand || operand->rows.parts.empty()) return std::nullopt;
    const auto of_rows = [&](const Term::Part& part) {
      return statistic_behind(program_, part.value, axis).has_value();
    };
    const bool norm = std::ranges::any_of(operand->rows.parts, of_rows);
    const bool bare = operand->columns.parts.empty() && !operand->shift && !operand->bias &&
                      program_.is_param(operand->core);
    const bool scaled = std::ranges::any_of(operand->rows.parts, [&](const Term::Part& part) {
      return !program_.type(part.value).is_scalar();
    });
    if (!norm && !(bare && scaled) && !meets_its_like(v, *operand)) return std::nullopt;
    if (!only_products_read(v, axis)) {
      note(v, "something beside products reads it, so it must exist anyway");
      return std::nullopt;
    }
    if (norm && stored_[static_cast<std::size_t>(v.id)] == DType::f16 && !situation_.delay_f16) {
      note(v, "f16 could overflow without the row scale; --delay-f16 allows it");
      return std::nullopt;
    }
    return operand;
  }

  // Whether the operand is another product, r·S, and what is made of it is added to a third one
  // that r scales: r·A + s·((r·S) @ b), a low-rank adapter.
  bool meets_its_like(Value v, const Operand& operand) const {
    if (!is_accumulator(program_, operand.core) || operand.shift || operand.bias ||
        !operand.columns.parts.empty()) {
      return false;
    }
    const auto is_ours = [&](const Term::Part& part) {
      return std::ranges::any_of(operand.rows.parts, [&](const Term::Part& ours) {
        return ours.value == part.value && ours.inverse == part.inverse &&
               !program_.type(part.value).is_scalar();
      });
    };
    const auto has_ours = [&](Value other) {
      const Term term = factorize(program_, other);
      return std::ranges::any_of(term.parts, is_ours) &&
             std::ranges::any_of(term.parts, [&](const Term::Part& part) {
               return is_accumulator(program_, part.value);
             });
    };
    std::vector<Value> todo{v};
    while (!todo.empty()) {
      const Value at = todo.back();
      todo.pop_back();
      for (const int user : uses_.of(at)) {
        const Node& node = program_.nodes()[static_cast<std::size_t>(user)];
        const bool leads_on =
            node.op == Op::cast || node.op == Op::mul || (node.op == Op::product && at == v);
        if (leads_on) todo.push_back(node.results[0]);
        if (node.op == Op::add && std::ranges::any_of(node.args, has_ours)) return true;
      }
    }
    return false;
  }

  bool only_products_read(Value v, const Dim& axis) const {
    if (uses_.in_result(v)) return false;
    return std::ranges::all_of(uses_.of(v), [&](int user) {
      const Node& node = program_.nodes()[static_cast<std::size_t>(user)];
      if (node.op == Op::cast) return only_products_read(node.results[0], axis);
      return node.op == Op::product && node.attr.axis == axis && node.args[0] != node.args[1];
    });
  }

  void note(Value v, const std::string& why) {
    std::string text = "row_scale leaves " + describe(program_, v) + " as it is: " + why;
    if (std::ranges::find(situation_.notes, text) == situation_.notes.end()) {
      situation_.notes.push_back(std::move(text));
    }
  }

  Expr has_elements(const Dim& axis) {
    const Expr zero = build_.constant(0);
    const Expr size{zero.builder, zero.builder->op(Op::size, {}, {.axis = axis})};
    return map(Op::gt, size, zero);
  }

  // NOTE: a row of no elements has a statistic of 0/0. Inside the operand that scaled nothing;
  // after the product, whose elements are 0, it must not be seen.
  Expr scaled(Expr e, const Term& by, const Dim& axis) {
    for (const Term::Part& part : by.parts) {
      Expr scale = build_(part.value);
      if (!is_op(program_, part.value, Op::constant) && !is_op(program_, part.value, Op::where)) {
        scale = where(has_elements(axis), scale, build_.constant(part.inverse ? 1 : 0));
      }
      e = part.inverse ? e / scale : e * scale;
    }
    return by.negative ? -e : e;
  }

  // The column scale alone.
  Expr columns_of(const Operand& operand) {
    const std::vector<Term::Part>& parts = operand.columns.parts;
    Expr e = build_(parts[0].value);
    if (parts[0].inverse) e = build_.constant(1) / e;
    return build_.times(e, std::span(parts).subspan(1));
  }

  std::optional<Expr> commute(const Node& node, std::size_t side, const Operand& operand) {
    const Dim& axis = node.attr.axis;
    const Expr other = build_(node.args[1 - side]);
    const auto with_other = [&](Expr e) {
      return side == 0 ? product(e, other, axis) : product(other, e, axis);
    };
    const DType stored = stored_[static_cast<std::size_t>(node.args[side].id)];
    Expr p = build_(operand.core);
    std::optional<Expr> offset;  // μ - m0
    if (operand.shift) {
      const Expr mean = build_(*operand.shift);
      // Where whole rows are at hand, the mean itself: the difference is 0, its gradient is not.
      const std::optional<Expr> near = is_made_in_tiles(program_, operand.core)
                                           ? near_mean(operand.core, *operand.shift, axis)
                                           : map(Op::detach, mean);
      if (near) {
        p = p - *near;
        offset = where(has_elements(axis), mean - *near, build_.constant(0));
      } else {
        note(node.args[side], "no mean is known that is near its own");
        return std::nullopt;
      }
    }
    p = build_.times(p, operand.columns.parts);
    if (p.type().dims != program_.type(node.args[side]).dims) return std::nullopt;
    if (stored != DType::f64 && !is_input(p)) p = cast(p, stored);
    const std::string prefix = prefix_of(node, side, operand);
    if (p.value != build_(operand.core).value) name(p, prefix + "p");
    for (const Term::Part& part : operand.rows.parts) {
      if (const auto sum = statistic_behind(program_, part.value, axis)) {
        name(build_(*sum), prefix + "ss");
        name(build_(part.value), prefix + "r");
      }
    }
    // NOTE: before the product itself, so that a reverse sweep has its gradient when it comes here.
    std::optional<Expr> d, c;
    if (operand.bias) d = with_other(whole(build_(*operand.bias)));
    if (offset) {
      c = operand.columns.parts.empty() ? reduce(Op::sum, other, axis)
                                        : with_other(whole(columns_of(operand)));
    }
    Expr z = with_other(p);
    const std::string of = program_.is_param(node.args[1 - side])
                               ? "_" + base_of(describe(program_, node.args[1 - side]))
                               : "";
    name(z, prefix + "s" + of);
    if (c) z = z - *offset * *c;
    z = scaled(z, operand.rows, axis);
    if (d) z = z + *d;
    if (program_.value(node.results[0]).name.empty()) name(z, prefix + "z" + of);
    const std::vector<Dim>& dims = program_.type(node.results[0]).dims;
    if (z.type().dims != dims) z = in_dims(z, dims);
    const DType rounded = stored_[static_cast<std::size_t>(node.results[0].id)];
    if ((offset || operand.bias) && rounded != DType::f64) z = cast(z, rounded);
    return z;
  }

  // Names as they are written down: p = h·γ, ss = Σh², r, s = p @ w, z = r·s.
  static void name(Expr e, std::string name) {
    const Program& program = e.builder->so_far();
    if (program.is_param(e.value) || !program.value(e.value).name.empty()) return;
    e.builder->name(e.value, std::move(name));
  }
  // "3." in a stack.
  std::string prefix_of(const Node& node, std::size_t side, const Operand& operand) const {
    for (const Value v : {node.args[side], node.results[0], operand.core}) {
      const std::string name = describe(program_, v);
      if (program_.value(v).name.empty() && !program_.is_param(v)) continue;
      return name.substr(0, name.rfind('.') + 1);
    }
    return "";
  }
  static std::string base_of(const std::string& name) { return name.substr(name.rfind('.') + 1); }

  bool is_input(Expr e) const { return e.builder->so_far().is_param(e.value); }

  // A column in f32, so that its product with a weight is: rows of any size are added to it.
  static Expr whole(Expr e) {
    return e.type().dtype == DType::f32 || e.type().dtype == DType::f64 ? e : cast(e, DType::f32);
  }

  // A mean that rows of `v`, made in tiles, are likely near to: that of a residual it adds to.
  std::optional<Expr> near_mean(Value v, Value shift, const Dim& axis) {
    std::vector<Value> addends{behind_casts(program_, v)};
    for (std::size_t i = 0; i < addends.size(); ++i) {
      const Node* node = node_of(program_, addends[i]);
      if (i > 0) {
        if (const auto mean = known_mean(addends[i], axis)) {
          return map(Op::detach, build_(*mean));
        }
      }
      if (node == nullptr || node->op != Op::add) continue;
      for (const Value arg : node->args) addends.push_back(behind_casts(program_, arg));
    }
    for (const Value addend : addends) {
      if (is_made_in_tiles(program_, addend)) continue;
      if (program_.type(addend).dims != program_.type(v).dims) continue;
      const Expr x = build_(addend);
      const Expr size{x.builder, x.builder->op(Op::size, {}, {.axis = axis})};
      const Expr mean = reduce(Op::sum, x, axis) / size;
      if (mean.type().dims == program_.type(shift).dims) return map(Op::detach, mean);
    }
    return std::nullopt;
  }

  // A mean of `v`, or of something that `v` is an addend of, made before now.
  std::optional<Value> known_mean(Value v, const Dim& axis) {
    if (means_.empty()) {
      for (const Node& node : program_.nodes()) {
        if (node.op != Op::div) continue;
        const Node* count = node_of(program_, node.args[1]);
        if (count == nullptr || count->op != Op::size) continue;
        if (const auto of = mean_of(program_, node.results[0], count->attr.axis)) {
          means_.emplace(behind_casts(program_, *of), node.results[0]);
        }
      }
    }
    const auto found = means_.find(behind_casts(program_, v));
    if (found == means_.end() || !build_.has(found->second)) return std::nullopt;
    if (!mean_of(program_, found->second, axis)) return std::nullopt;
    return found->second;
  }

  const Program& program_;
  Situation& situation_;
  const Uses uses_;
  const std::vector<DType> stored_;
  Rebuild build_;
  std::map<Value, Value> means_;  // of what → where it stands
};

}  // namespace

Program row_scale(const Program& program, Situation& situation) {
  return RowScale(program, situation).run();
}

}  // namespace coda
