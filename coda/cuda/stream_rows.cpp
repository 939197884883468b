// coda/cuda/stream_rows.cpp: a space's rows from the first load to the last sum.
#include <algorithm>

#include "coda/cuda/stream_kernel.h"
#include "coda/program/text.h"

namespace coda::cuda::streaming {
// Of sums along rows, before the first row.
void Kernel::declare_accumulators() {
  for (const int n : space_.space().nodes) {
    const Node& node = space_.program().nodes()[static_cast<std::size_t>(n)];
    if (!space_.reduces_rows(node) || space_.place(node.args[0]) == Place::inner) continue;
    const Value v = node.results[0];
    const std::string type(type_of(lane_of(space_.program(), v, Lane::f32)));
    const std::string name = unique(print_name(v));
    sums_[{v.id, {}}] = name;
    line(type + " " + name + " = " + operation(node.op) + "::none<" + type + ">();");
  }
  for (const Loop& loop : loops_) {
    for (const auto& [level, works] : loop.works) {
      for (const Work& work : works) {
        if (work.kind != Work::Kind::accumulate) continue;
        const Node& node = space_.node(Value{work.node});
        const bool collapsed = work.value != node.args[0];
        const std::pair key{work.node, collapsed_path(work)};
        if (sums_.contains(key)) continue;
        if (collapsed && (shape_.team % loop.padded != 0 || loop.padded != loop.vectors))
          throw Refused{"sums over heads whose vectors do not divide a team"};
        const std::string type(type_of(lane_of(space_.program(), Value{work.node}, Lane::f32)));
        const std::string name = unique(print_name(Value{work.node}));
        sums_[key] = name;
        const bool one = collapsed || shape_.kind == Shape::Kind::columns;
        const std::string slots = std::to_string(one ? 1 : loop.slots);
        const std::string width = std::to_string(loop.width);
        line(type + " " + name + "[" + slots + "][" + width + "];");
        line("#pragma unroll");
        line("for (int u = 0; u < " + slots + "; ++u) EACH(" + width + ") " + name +
             "[u][i] = " + operation(node.op) + "::none<" + type + ">();");
        const std::int64_t apart = collapsed ? loop.padded : shape_.team;
        finished_.push_back({name, type, operation(node.op), std::stoi(slots), loop.width,
                             static_cast<int>(apart)});
      }
    }
  }
}

void Kernel::emit_groups() {
  const std::int64_t groups = (space_.period() + group() - 1) / std::max<std::int64_t>(1, group());
  const std::string each =
      "Index(" + arguments_.number("groups_" + std::to_string(number_), groups) + ")";
  const std::string period =
      "Index(" + arguments_.number("period_" + std::to_string(number_), space_.period()) + ")";
  const std::string size =
      space_.seen() == Rows::outer && !parts_ ? period : "Index(" + std::to_string(group()) + ")";
  line("// Block `group_block` of period `group_outer`: rows first … first + count.");
  line("const Index group_block = group % " + each + ", group_outer = group / " + each + ";");
  line("const Index begin = group_block * " + size + ";");
  line("const Index first = group_outer * " + period + " + begin;");
  line("const Index count = " + period + " - begin < " + size + " ? " + period +
       " - begin : " + size + ";");
}

// Sums of all teams, in the order of the teams.
void Kernel::add_teams() {
  const int threads = this->threads();
  for (const std::string type : {"float", "long long"}) {
    int width = 0;
    for (const Finished& sum : finished_)
      if (sum.type == type && (shape_.teams > 1 || sum.apart != shape_.team))
        width = std::max(width, sum.width);
    if (width == 0) continue;
    line("__shared__ " + type + (type == "float" ? " shared_sums[" : " shared_counts[") +
         std::to_string(width) + "][" + std::to_string(threads) + "];");
  }
  for (const Finished& sum : finished_) {
    const bool collapsed = sum.apart != shape_.team;
    if (shape_.teams == 1 && !collapsed) continue;
    const std::string width = std::to_string(sum.width), all = std::to_string(threads);
    const std::string shared = sum.type == "float" ? "shared_sums" : "shared_counts";
    line("#pragma unroll");
    line("for (int u = 0; u < " + std::to_string(sum.slots) + "; ++u) {");
    ++indent_;
    line("EACH(" + width + ") " + shared + "[i][threadIdx.x] = " + sum.name + "[u][i];");
    line("__syncthreads();");
    line("if (threadIdx.x < " + std::to_string(sum.apart) + ") {");
    line("  for (int other = threadIdx.x + " + std::to_string(sum.apart) + "; other < " + all +
         "; other += " + std::to_string(sum.apart) + ")");
    line("    EACH(" + width + ") " + sum.name + "[u][i] = " + sum.op + "::of(" + sum.name +
         "[u][i], " + shared + "[i][other]);");
    line("}");
    line("__syncthreads();");
    --indent_;
    line("}");
  }
}

// Then what follows from them.
void Kernel::finish_groups() {
  after_ = true;
  add_teams();
  for (const auto& [key, name] : sums_) {
    const Node& node = space_.node(Value{key.first});
    if (space_.place(node.args[0]) == Place::inner || shape_.teams == 1) continue;
    const std::string type(type_of(lane_of(space_.program(), Value{key.first}, Lane::f32)));
    line("__shared__ " + type + " all_" + name + "[kTeams];");
    line("if (member == 0) all_" + name + "[team] = " + name + ";");
    line("__syncthreads();");
    line(name + " = all_" + name + "[0];");
    line("for (int other = 1; other < kTeams; ++other) " + name + " = " + operation(node.op) +
         "::of(" + name + ", all_" + name + "[other]);");
  }
  std::string* const text = out_;
  bool any = false;
  for (Loop& loop : loops_) any = any || loop.works.contains(kAfterRows);
  if (any) {
    line("if (team == 0) {");
    ++indent_;
    for (Loop& loop : loops_) emit_pass(kAfterRows, loop);
    --indent_;
    line("}");
  }
  for (const int r : space_.space().results) {
    Value v;
    const View view = space_.target(r, v);
    if (space_.level(v) != kAfterRows || !space_.inner_factors(v).empty()) continue;
    const Result& result = space_.program().results()[static_cast<std::size_t>(r)];
    const Lane lane = lane_of(result.type.dtype, Lane::f32);
    std::string value = this->value(v, {}, lane);
    const std::string at = row_offset(view, owner_of(view));
    const std::string to = arguments_.pointer(view.tensor) + (at.empty() ? "" : " + " + at);
    if (result.store == Store::accumulate)
      value = map_name(Op::add, Precision::exact) + "(value_at(" + to + "), " + value + ")";
    out_ = text;
    if (space_.program().value(result.value).node >= 0)
      comment(space_.program().value(result.value).node);
    line("if (threadIdx.x == 0) put(" + to + ", " + value + ");");
  }
  after_ = false;
}

void Kernel::emit_reductions(int level) {
  std::vector<const Node*> nodes;
  for (const int n : space_.space().nodes) {
    const Node& node = space_.program().nodes()[static_cast<std::size_t>(n)];
    if (space_.first_like(node.results[0]) != node.results[0]) continue;
    if (space_.reduces_row(node) && space_.level(node.args[0]) == level) nodes.push_back(&node);
  }
  if (nodes.empty() || shape_.team == 1) return;
  const int within = std::min(shape_.team, 32);
  for (const Node* node : nodes) {
    const std::string& name = reduced_.at(node->results[0].id);
    line(name + " = among<" + operation(node->op) + ", " + std::to_string(within) + ">(" + name +
         ");");
  }
  if (shape_.team <= 32) return;
  boards_ = std::max(boards_, static_cast<int>(nodes.size()));
  for (std::size_t k = 0; k < nodes.size(); ++k)
    line("post(board[turn][" + std::to_string(k) + "], " + reduced_.at(nodes[k]->results[0].id) +
         ");");
  line("__syncthreads();");
  for (std::size_t k = 0; k < nodes.size(); ++k)
    line("collect<" + operation(nodes[k]->op) + ", kTeam / 32>(board[turn][" + std::to_string(k) +
         "], " + reduced_.at(nodes[k]->results[0].id) + ");");
  line("turn ^= 1;");
}

void Kernel::emit_rows() {
  const bool groups = space_.group() != 0;
  const std::string rows =
      "Index(" + arguments_.number("rows_" + std::to_string(number_), space_.row_count()) + ")";
  std::string start, end;
  out_ = &start;
  indent_ = 1;
  for (const int n : space_.space().nodes) {
    const Node& node = space_.program().nodes()[static_cast<std::size_t>(n)];
    if (space_.reduces_row(node) && space_.first_like(node.results[0]) == node.results[0])
      reduced_[node.results[0].id] = unique(print_name(node.results[0]));
  }
  if (groups) {
    line("const Index group = block;");
    emit_groups();
    declare_accumulators();
    line("for (Index step = team; step < count; step += kTeams) {");
    ++indent_;
    line("const Index row = first + step;");
  } else if (shape_.chunks > 1) {
    const std::string chunks =
        "Index(" + arguments_.number("chunks_" + std::to_string(number_), shape_.chunks) + ")";
    line("const Index chunk = block % " + chunks + ", row = block / " + chunks +
         " * kTeams + team;");
    line("if (row >= " + rows + ") return;");
  } else {
    line("const Index row = block * kTeams + team;");
    line("if (row >= " + rows + ") return;");
  }
  row_indent_ = indent_;
  emit_leads();
  // Each level: what a row has one of, then the loops, then the reductions that the next one reads.
  std::vector<std::string> loops(static_cast<std::size_t>(levels_));
  std::string loads;
  if (shape_.keeps) {
    choose_late();
    out_ = &loads;
    for (Loop& loop : loops_) {
      indent_ = row_indent_;
      emit_loads(loop, -1);
    }
  }
  if (!shape_.keeps) {
    out_ = &loads;
    indent_ = row_indent_;
    for (Loop& loop : loops_)
      if (loads_first(loop)) emit_loads(loop, -1);
  }
  for (int level = 0; level < levels_; ++level) {
    out_ = &loops[static_cast<std::size_t>(level)];
    indent_ = row_indent_;
    for (const int n : space_.space().nodes) {
      const Node& node = space_.program().nodes()[static_cast<std::size_t>(n)];
      if (!space_.reduces_row(node) || space_.level(node.args[0]) != level) continue;
      if (space_.first_like(node.results[0]) != node.results[0]) continue;
      const std::string op = operation(node.op);
      const std::string type =
          op == "LogSumExp"
              ? "Exponents"
              : std::string(type_of(lane_of(space_.program(), node.results[0], Lane::f32)));
      line(type + " " + reduced_.at(node.results[0].id) + " = " + op + "::none<" + type + ">();");
    }
    for (Loop& loop : loops_) emit_pass(level, loop);
    if (shape_.keeps) {
      late_ = level + 1;
      for (Loop& loop : loops_) emit_loads(loop, -1);
      late_ = 0;
    }
    emit_reductions(level);
    emit_row_work(level);
    out_ = &loops[static_cast<std::size_t>(level)];
    indent_ = row_indent_;
  }
  std::string rows_text;
  for (int level = 0; level < levels_; ++level) {
    rows_text += row_text_[level];
    if (level == 0) rows_text += loads;
    rows_text += loops[static_cast<std::size_t>(level)];
  }
  out_ = &end;
  if (groups) {
    indent_ = 1;
    line("}");
    finish_groups();
  }
  if (boards_ > 0) {
    start = "  __shared__ Posted board[2][" + std::to_string(boards_) +
            "][kTeam / 32];\n  int turn = 0;\n" + start;
  }
  body_ = start + rows_text + end;
}

void Kernel::emit_columns() {
  Loop& loop = loops_[0];
  out_ = &body_;
  indent_ = 1;
  const std::int64_t count = (loop.items + shape_.team - 1) / shape_.team;
  const std::string tiles =
      "Index(" + arguments_.number("tiles_" + std::to_string(number_), count) + ")";
  line("const Index tile = block % " + tiles + ", group = block / " + tiles + ";");
  emit_groups();
  declare_accumulators();
  line("for (Index step = team; step < count; step += kTeams * " + std::to_string(shape_.unroll) +
       ") {");
  ++indent_;
  in_slot_rows_ = true;
  emit_loads(loop, -1);
  for (const auto& key : slot_rows_) row_names_.erase(key);
  slot_rows_.clear();
  emit_pass(0, loop);
  in_slot_rows_ = false;
  --indent_;
  line("}");
  emit_row_work(0);
  if (!parts_) return finish_groups();
  after_ = true;
  add_teams();
  after_ = false;
  const std::string items = "Index(" + items_of(loop) + ")";
  line("const Index item = tile * kTeam + member;");
  line("if (team == 0 && item < " + items + ") {");
  for (std::size_t k = 0; k < finished_.size(); ++k) {
    line("  EACH(" + std::to_string(loop.width) + ") " + partial(k) + "[(group * " +
         std::to_string(loop.width) + " + i) * (long long)" + items +
         " + item] = " + finished_[k].name + "[0][i];");
  }
  line("}");
}

std::string Kernel::items_of(const Loop& loop) {
  return arguments_.number("items_" + loop_name(loop), loop.items);
}

// The parts of one sum in the workspace.
std::string Kernel::partial(std::size_t sum) {
  const std::int64_t each = 8 * groups() * loops_[0].items * loops_[0].width;
  return arguments_.workspace("parts_" + std::to_string(number_) + "_" + std::to_string(sum),
                              finished_[sum].type,
                              workspace_ + static_cast<std::int64_t>(sum) * each);
}

// The second launch: the parts of all groups, in the order of the groups.
std::string Kernel::second_text() {
  Loop& loop = loops_[0];
  single_.clear();
  body_.clear();
  taken_.clear();
  row_names_.clear();
  reciprocals_.clear();
  sums_.clear();
  finished_.clear();
  out_ = &body_;
  indent_ = 1;
  const std::string items = "Index(" + items_of(loop) + ")";
  const std::string all =
      "Index(" + arguments_.number("parts_" + std::to_string(number_), groups()) + ")";
  line("const Index tile = block, item = tile * kTeam + member;");
  declare_accumulators();
  line("#pragma unroll 4");
  line("for (Index group = team; group < " + all + "; group += kTeams) {");
  line("  if (item >= " + items + ") break;");
  for (std::size_t k = 0; k < finished_.size(); ++k) {
    line("  EACH(" + std::to_string(loop.width) + ") " + finished_[k].name +
         "[0][i] = " + finished_[k].op + "::of(" + finished_[k].name + "[0][i], " + partial(k) +
         "[(group * " + std::to_string(loop.width) + " + i) * (long long)" + items + " + item]);");
  }
  line("}");
  finish_groups();
  return frame(name() + "_second");
}

}  // namespace coda::cuda::streaming
