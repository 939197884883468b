// coda/check/tile_rules.cpp: rules 3 to 5: what may follow products inside one kernel, op by op.

#include <algorithm>

#include "coda/check/tile.h"

namespace coda {

void Tile::check_node(int i) {
  const Node& n = node(i);
  if (n.op == Op::scatter_sum) {
    refuse(i, "`" + text(i) + "` adds into rows that any tile may reach",
           "make scatter_sum a program of its own");
    return;
  }
  for (Value result : n.results) {
    if (!part_.has(result) || !is_tile(result)) continue;
    for (std::size_t f : factors_with(draft_, result, Role::local)) {
      const std::string factor = factors_of(program_.type(result))[f].text();
      refuse(i, "`" + factor + "` of `" + text(result) +
                    "` is neither a row nor a column of the tile");
      return;
    }
  }
  switch (class_of(n.op)) {
    case OpClass::leaf:
    case OpClass::product:
    case OpClass::opaque:
      return;
    case OpClass::unary:
    case OpClass::binary:
    case OpClass::compare:
    case OpClass::select:
    case OpClass::cast:
      return check_map(i);
    case OpClass::reduce:
      return check_reduce(i);
    case OpClass::block_reduce:
      return check_block_reduce(i);
    case OpClass::layout:
      if (n.op == Op::split) return check_split(i);
      if (n.op == Op::join) return check_join(i);
      if (n.op == Op::spread) return check_spread(i);
      frame(n.results[0]) = frame(n.args[0]);
      picked(n.results[0]) = picked(n.args[0]);
      return;
    case OpClass::indexed:
      if (n.op == Op::pick) return check_pick(i);
      return check_gather(i);
  }
}

void Tile::check_map(int i) {
  const Value result = node(i).results[0];
  bool any_picked = false;
  std::optional<Value> framed;
  for (Value arg : node(i).args) {
    if (!is_tile(arg)) continue;
    any_picked = any_picked || picked(arg);
    if (picked(arg)) continue;
    if (framed && frame(*framed) != frame(arg)) {
      refuse(i,
             "`" + text(*framed) + "` and `" + text(arg) + "` are different columns of one product",
             "split the weight instead of the product: `a, b = split(w, …)`, then `x @ a` and "
             "`x @ b`");
      return;
    }
    framed = arg;
    if (leading(arg) && leading_name(arg) != leading_name(result)) {
      refuse(i, "the columns of `" + text(arg) + "` start with " + leading_name(arg) +
                    ", those of `" + text(result) + "` with " + leading_name(result));
      return;
    }
  }
  if (framed) frame(result) = frame(*framed);
  picked(result) = any_picked;
  if (any_picked && leading(result))
    refuse(i, "a picked element meets the columns of a tile: it may be in another tile");
}

void Tile::check_reduce(int i) {
  const FactorRange axis = read_whole(program_, i)[0];
  const std::optional<Role> role = role_of(draft_, axis);
  const Value operand = node(i).args[0], result = node(i).results[0];
  const std::string op(spelling(node(i).op)), name = describe(program_, result);
  const bool named = !program_.value(result).name.empty();
  const std::string partial = "block_" + text(i);
  const std::string fix = "store `" + partial + "` here and finish it with `" + op + "(" +
                          (named ? name : "s") + ", blocks(" + node(i).attr.axis.text() +
                          "))` in the next program";
  frame(result) = frame(operand);
  picked(result) = picked(operand);
  if (role == Role::local || (role == Role::column && !leads(axis))) return;
  if (role == Role::column)
    refuse(i,
           "`" + text(i) + "` needs the whole row but a tile sees at most " +
               std::to_string(kMaxTileBlock) + " columns",
           fix, "whole-row reductions of tile values take a second program");
  else
    refuse(i, "`" + text(i) + "` runs along the rows, and a tile sees some of them", fix,
           "along rows only block reductions");
}

void Tile::check_block_reduce(int i) {
  const FactorRange axis = read_whole(program_, i)[0];
  const std::optional<Role> role = role_of(draft_, axis);
  const Value operand = node(i).args[0], result = node(i).results[0];
  frame(result) = frame(operand);
  if (picked(operand)) {
    refuse(i, "`" + text(i) + "` reduces a picked element: it may be in another tile");
    return;
  }
  const Factor first = factors_of(program_.type(operand))[axis.first];
  const auto is_leading = [&](const Factor& factor) {
    return leading_names_.contains(factor.text());
  };
  if (is_tile(operand) && first.kind() == Factor::Kind::blocks &&
      std::ranges::any_of(first.dim().factors, is_leading)) {
    refuse(i, "`" + text(i) + "` reduces blocks, of which a tile sees some", kStore,
           "a block of blocks is wider than a tile");
    return;
  }
  if (role == Role::local || (role == Role::column && !leads(axis))) return;
  const std::vector<std::size_t> rows = factors_with(draft_, operand, Role::row);
  const bool along_rows =
      role == Role::row && rows.size() == axis.count &&
      has_all_rows(program_, draft_, extents_, operand) &&
      factors_of(program_.type(operand))[axis.first].kind() != Factor::Kind::blocks;
  if (!along_rows && !is_all_columns(axis)) {
    refuse(i,
           "the blocks of `" + text(i) + "` are not blocks of a tile's " +
               (role == Role::row ? "rows" : "columns"),
           kStore, "block reductions run along all rows, all columns, or inside a head");
  } else if (node(i).attr.block > kMaxTileBlock) {
    refuse(i,
           "`" + text(i) + "` has blocks of " + std::to_string(node(i).attr.block) +
               ", a tile holds at most " + std::to_string(kMaxTileBlock),
           "use smaller blocks, or a program of its own", "a block is inside one tile");
  }
}

void Tile::check_split(int i) {
  const FactorRange axis = read_whole(program_, i)[0];
  const Value operand = node(i).args[0];
  const bool head = role_of(draft_, axis) == Role::column && !leads(axis);
  for (Value result : node(i).results) {
    frame(result) = frame(operand);
    picked(result) = picked(operand);
  }
  if (is_input(operand) || head || role_of(draft_, axis) == Role::local) return;
  if (role_of(draft_, axis) == Role::column && is_tile(operand)) {
    for (Value result : node(i).results) frame(result) = ++frames_;
    return;
  }
  refuse(i, "`" + text(i) + "` divides " + node(i).attr.axis.text() + ", of which a tile sees some",
         kStore, "ranges of rows are ranges of inputs");
}

void Tile::check_join(int i) {
  const Node& n = node(i);
  const Value result = n.results[0];
  const FactorRange axis = read_whole(program_, i)[0];
  const std::optional<Role> role = role_of(draft_, axis);
  picked(result) = std::ranges::any_of(n.args, [&](Value arg) { return picked(arg) != 0; });
  if (role == Role::local) return;
  if (role != Role::column) {
    refuse(i, "`" + text(i) + "` joins along the rows", "join them in a program of its own",
           "joins of rows are results of a program without products");
    return;
  }
  if (leads(axis)) {
    if (!std::ranges::all_of(n.args, [&](Value arg) { return is_tile(arg); })) {
      refuse(i, "`" + text(i) + "` joins columns of a tile with columns of an input");
      return;
    }
    // All pieces of one split, in order, are the columns that were split.
    std::optional<int> whole;
    for (int s : part_.nodes()) {
      if (node(s).op != Op::split || node(s).results.size() != n.args.size()) continue;
      bool same = node(s).attr.dims == n.attr.dims;
      for (std::size_t p = 0; p < n.args.size(); ++p)
        same = same && frame(n.args[p]) == frame(node(s).results[p]) && frame(n.args[p]) > 0;
      if (same) whole = frame(node(s).args[0]);
    }
    frame(result) = whole ? *whole : ++frames_;
    return;
  }
  std::optional<Value> framed;
  for (Value arg : n.args) {
    if (!is_tile(arg)) continue;
    if (framed && (frame(*framed) != frame(arg) || leading_name(*framed) != leading_name(arg))) {
      refuse(i, "`" + text(*framed) + "` and `" + text(arg) + "` are different columns");
      return;
    }
    framed = arg;
  }
  if (framed) frame(result) = frame(*framed);
}

void Tile::check_spread(int i) {
  const Node& n = node(i);
  const Value operand = n.args[0], result = n.results[0];
  frame(result) = frame(operand);
  picked(result) = picked(operand);
  const FactorRange axis = find_axis(program_, result, n.attr.axis);
  if (!is_tile(operand)) {
    if (n.attr.block > 0 && axis.count > 0 && leads(axis) && !is_all_columns(axis))
      refuse(i, "the blocks of `" + text(i) + "` are not blocks of a tile's columns");
    return;
  }
  if (picked(operand) && leading(result)) {
    refuse(i, "a picked element meets the columns of a tile: it may be in another tile");
  } else if (n.attr.block == 0 && leading_name(operand) != leading_name(result)) {
    refuse(i, "`" + text(i) + "` repeats the columns of a tile outside of them");
  }
}

void Tile::check_pick(int i) {
  const FactorRange axis = read_whole(program_, i)[0];
  const Value operand = node(i).args[0], ids = node(i).args[1], result = node(i).results[0];
  const std::optional<Role> role = role_of(draft_, axis);
  frame(result) = frame(operand);
  if (is_tile(ids)) {
    refuse(i, "the ids `" + text(ids) + "` are computed from a product");
  } else if (role == Role::local || (role == Role::column && !leads(axis))) {
    picked(result) = picked(operand);
  } else if (is_tile(operand) && is_all_columns(axis) && frame(operand) == 0) {
    picked(result) = 1;
  } else {
    refuse(
        i,
        "`" + text(i) + "` picks along " + node(i).attr.axis.text() + ", of which a tile sees some",
        kStore, "pick runs along all columns of a product");
  }
}

void Tile::check_gather(int i) {
  const FactorRange rows = read_whole(program_, i)[0];
  const Value table = node(i).args[0], ids = node(i).args[1];
  if (!program_.is_param(table) || is_tile(ids))
    refuse(i,
           "`" + text(i) + "` gathers " +
               (is_tile(ids) ? "by ids that a product gives" : "from a computed table"),
           kStore, "gathers read inputs");
  else if (role_of(draft_, rows) != Role::local)
    refuse(i, "the rows of `" + text(table) + "` are gathered and also aligned with the tile",
           "read the table twice, as two parameters", "gathers read inputs");
}

void Tile::check_result(const Result& result) {
  const Value value = result.value;
  const int at = program_.value(value).node;
  const std::string rule = "a result has the tile's rows or columns for dimensions";
  const std::string name = "`" + result.name + ": " + result.type.text() + "`";
  for (std::size_t f : factors_with(draft_, value, Role::local)) {
    draft_.report.refuse(at,
                         name + " has " + factors_of(program_.type(value))[f].text() +
                             ", which is neither a row nor a column of the kernel",
                         {value}, rule, "compute it in a program of its own");
    return;
  }
  const bool rows = !factors_with(draft_, value, Role::row).empty();
  const std::vector<std::size_t> columns = factors_with(draft_, value, Role::column);
  const bool some_rows = rows && !has_all_rows(program_, draft_, extents_, value);
  const bool some_columns = !columns.empty() && !leads({value, columns[0], 1});
  if (some_rows || some_columns)
    draft_.report.refuse(at, name + " repeats over the tiles of the kernel", {value}, rule,
                         "compute it in a program of its own");
}

}  // namespace coda
