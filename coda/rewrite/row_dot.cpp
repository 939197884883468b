// coda/rewrite/row_dot.cpp: how far after z all is linear, and whether what stands there is stored.
#include "coda/rewrite/row_dot.h"

#include <algorithm>
#include <iterator>
#include <set>

namespace coda {
namespace {

// What lies between z and the values at which its linear region ends.
class Region {
 public:
  Region(const Adjoints& adjoints, Value z, const Dim& rows)
      : adjoints_(adjoints), program_(adjoints.program()), z_(z), rows_(rows) {
    std::set<Value> before;
    do {
      before = blocked_;
      grow();
    } while (blocked_ != before);
  }

  // Where the region ends.
  std::vector<Value> frontier() const {
    std::vector<Value> ends;
    std::ranges::set_intersection(blocked_, inside_, std::back_inserter(ends));
    return ends;
  }
  // Additions of a bias inside: those where it comes with a minus, and those with a plus.
  struct Offset {
    Value sum, bias;
    bool minus = false;
  };
  const std::vector<Offset>& offsets() const { return offsets_; }

 private:
  bool inside(Value v) const { return inside_.contains(v) && !blocked_.contains(v); }

  // Everything that is reached through linear nodes from what does not block; then what has another
  // reader than these blocks, too.
  void grow() {
    inside_ = {z_};
    offsets_.clear();
    std::set<int> linear;
    for (std::size_t n = static_cast<std::size_t>(program_.value(z_).node) + 1;
         n < program_.nodes().size(); ++n) {
      const Node& node = program_.nodes()[n];
      const auto has_rows = [&](Value v) {
        return has_all(program_.type(v), rows_);
      };
      if (!std::ranges::all_of(node.results, has_rows) || !passes(node)) continue;
      linear.insert(static_cast<int>(n));
      inside_.insert(node.results.begin(), node.results.end());
    }
    for (const Value v : inside_) {
      const std::vector<int>& users = adjoints_.uses().of(v);
      const auto is_linear = [&](int user) {
        return linear.contains(user);
      };
      if (users.empty() && !adjoints_.uses().in_result(v)) continue;
      if (users.empty() || adjoints_.uses().in_result(v) ||
          !std::ranges::all_of(users, is_linear)) {
        blocked_.insert(v);
      }
    }
  }

  bool passes(const Node& node) {
    const auto in = [&](std::size_t i) {
      return inside(node.args[i]);
    };
    switch (node.op) {
      case Op::cast:
      case Op::pin:
      case Op::neg:
      case Op::as:
      case Op::split:
      case Op::save:
      case Op::recompute:
        return in(0);
      case Op::spread:
        return in(0) && node.attr.block == 0;
      case Op::join:
        return std::ranges::all_of(node.args, [&](Value v) { return inside(v); });
      case Op::mul:
        return in(0) != in(1);
      case Op::div:
        return in(0) && !in(1);
      case Op::add:
      case Op::sub: {
        if (in(0) && in(1)) return node.args[0] != node.args[1];
        if (!in(0) && !in(1)) return false;
        const Value bias = node.args[in(0) ? 1 : 0];
        if (has_any(program_.type(bias), rows_)) return false;
        offsets_.push_back({node.results[0], bias, in(0) && node.op == Op::sub});
        return true;
      }
      default:
        return false;
    }
  }

  const Adjoints& adjoints_;
  const Program& program_;
  const Value z_;
  const Dim rows_;
  std::set<Value> inside_, blocked_;
  std::vector<Offset> offsets_;
};

// Does some gradient read `v` whatever we do?
bool is_needed(const Adjoints& adjoints, Value v, int depth = 0) {
  const Program& program = adjoints.program();
  if (adjoints.uses().in_result(v)) return true;
  for (const int user : adjoints.uses().of(v)) {
    const Node& node = program.nodes()[static_cast<std::size_t>(user)];
    if (!adjoints.wanted(node.results[0])) continue;
    switch (class_of(node.op)) {
      case OpClass::cast:
      case OpClass::layout:
        if (depth < 8 &&
            std::ranges::any_of(
                node.results, [&](Value made) { return is_needed(adjoints, made, depth + 1); })) {
          return true;
        }
        break;
      case OpClass::binary:
        if (node.op == Op::add || node.op == Op::sub) break;
        for (const Value other : node.args) {
          if ((other != v && adjoints.wanted(other)) || node.args[0] == node.args[1]) return true;
        }
        break;
      case OpClass::product:
        for (const Value other : node.args) {
          if (other != v && adjoints.wanted(other)) return true;
        }
        break;
      case OpClass::unary:
        if (node.op == Op::neg || node.op == Op::save || node.op == Op::recompute) break;
        return true;
      case OpClass::opaque:
      case OpClass::select:
      case OpClass::compare:
      case OpClass::reduce:
      case OpClass::block_reduce:
      case OpClass::indexed:
        if (node.op != Op::sum && node.op != Op::block_sum) return true;
        break;
      case OpClass::leaf:
        break;
    }
  }
  return false;
}

// Whether forward keeps `v` without being asked.
bool is_stored(const Adjoints& adjoints, Value v) {
  if (adjoints.uses().in_result(v)) return true;
  return std::ranges::any_of(adjoints.uses().of(v), [&](int user) {
    const Node& node = adjoints.program().nodes()[static_cast<std::size_t>(user)];
    return node.op == Op::product || class_of(node.op) == OpClass::opaque;
  });
}

}  // namespace

std::optional<Value> scale_on_chip(const Adjoints& adjoints, const Node& node, std::size_t i) {
  const Program& program = adjoints.program();
  const Value scale = without_guard(program, node.args[i]);
  const Value other = node.args[1 - i];
  if (!adjoints.wanted(scale) || !is_op(program, scale, Op::rsqrt)) return std::nullopt;
  if (program.is_param(other) || adjoints.uses().in_result(other)) return std::nullopt;
  if (program.type(other).dims != program.type(node.results[0]).dims) return std::nullopt;
  if (factors_of(program.type(scale)).size() >= factors_of(program.type(other)).size() ||
      adjoints.uses().of(other).size() != 1) {
    return std::nullopt;
  }
  return scale;
}

Expr row_dot(const Adjoints& adjoints, const Node& node, const Type& scale) {
  const Value z = node.results[0];
  const Program& program = adjoints.program();
  const auto dot = [&](Value v, Value with) {
    return spread_to(*adjoints.of(v), program.type(v)) * adjoints.forward(with);
  };
  Dim rows;
  rows.factors = factors_of(scale);
  if (is_needed(adjoints, z)) return dot(z, z);
  const Region region(adjoints, z, rows);
  const std::vector<Value> frontier = region.frontier();
  const auto is_there = [&](Value v) {
    return is_needed(adjoints, v) || is_stored(adjoints, v);
  };
  if (!std::ranges::all_of(frontier, is_there)) return dot(z, z);
  // NOTE: each is summed to the rows before they meet: q and k have different columns.
  const auto to_rows = [&](Expr e) {
    std::vector<Dim> runs;
    for (const Dim& dim : e.type().dims) {
      Dim run;
      for (const Factor& factor : dim.factors) {
        if (std::ranges::find(rows.factors, factor) == rows.factors.end()) {
          run.factors.push_back(factor);
        }
      }
      if (!run.factors.empty()) runs.push_back(run);
    }
    for (const Dim& run : runs) e = reduce(Op::sum, e, run);
    return e;
  };
  std::optional<Expr> total;
  const auto add = [&](Expr e, bool minus) {
    e = to_rows(e);
    total = total ? (minus ? *total - e : *total + e) : (minus ? -e : e);
  };
  for (const Value v : frontier) {
    if (adjoints.of(v)) add(dot(v, v), false);
  }
  for (const Region::Offset& offset : region.offsets()) {
    if (!adjoints.of(offset.sum)) continue;
    add(dot(offset.sum, offset.bias), !offset.minus);
  }
  return total ? *total : dot(z, z);
}

}  // namespace coda
