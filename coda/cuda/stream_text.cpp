// coda/cuda/stream_text.cpp: the device function of a space: teams, passes over rows, reductions.
#include <algorithm>

#include "coda/cuda/stream_kernel.h"
#include "coda/program/text.h"

namespace coda::cuda::streaming {
Kernel::Kernel(const Space& space, Arguments& arguments, int number, const StreamTile* tile)
    : space_(space), arguments_(arguments), number_(number) {
  collect();
  choose_widths();
  choose_shape();
  if (tile != nullptr) take(*tile);
}

// Where the slot's vector lies, and whether there is one.
void Kernel::emit_slot(const Loop& loop) {
  const std::string tag = loop_name(loop);
  const std::string items = "Index(" + arguments_.number("items_" + tag, loop.items) + ")";
  const bool columns = shape_.kind == Shape::Kind::columns && !after_;
  const std::int64_t at_once = std::int64_t{shape_.team} * loop.slots;
  std::string ok;
  if (columns) {
    ok = "item < " + items + " && step + u * kTeams < count";
    line("const Index row = first + step + u * kTeams;");
    line("const Index item = tile * kTeam + member;");
  } else {
    std::string item = "member + kTeam * u";
    if (!after_ && shape_.chunks > 1 && !loop.edges)
      item = "chunk * " + std::to_string(at_once) + " + " + item;
    if (!after_ && !shape_.whole && !loads_first(loop)) item = "base + " + item;
    if (after_ && shape_.kind == Shape::Kind::columns) item = "tile * kTeam + member";
    line("const Index item = " + item + ";");
    ok = ok_always(loop) && !after_ ? "true" : "item < " + items;
  }
  const bool one_axis = loop.axes.size() == 1;
  if (loop.padded != loop.vectors) {
    const std::string vectors = arguments_.number("vectors_" + tag, loop.vectors);
    ok += one_axis ? " && item < Index(" + vectors + ")"
                   : " && item % " + std::to_string(loop.padded) + " < Index(" + vectors + ")";
  }
  if (loop.lead) {
    const std::string lead = "lead_" + loop.lead->tag, whole = "whole_" + loop.lead->tag;
    const std::string width = std::to_string(loop.lead->width);
    if (!loop.edges) {
      line("const bool ok = item < " + whole + ";");
      line("const Index c = " + lead + " + item * " + width + ";");
      return;
    }
    line("const Index c = item < " + lead + " ? item : item + " + whole + " * " + width + ";");
    line("const bool ok = c < end_" + loop.lead->tag +
         (shape_.chunks > 1 ? " && chunk == 0;" : ";"));
    return;
  }
  line("const bool ok = " + ok + ";");
  // Small extents are constants: they are sizes of heads.
  const auto size = [&](const std::string& name, std::int64_t extent) {
    return extent <= 64 ? std::to_string(extent)
                        : "Index(" + arguments_.number(name + "_" + tag, extent) + ")";
  };
  const std::string width = std::to_string(loop.width);
  if (one_axis) {
    line("const Index c = item * " + width + ";");
    return;
  }
  const std::string inner = size("padded", loop.padded);
  line("const Index c = item % " + inner + " * " + width + ";");
  std::string rest = "item / " + inner;
  for (std::size_t a = loop.axes.size() - 1; a-- > 0;) {
    const std::string name = "at_" + identifier(loop.axes[a].factor.text());
    const std::string extent = size("extent_" + loop.axes[a].factor.text(), loop.axes[a].extent);
    line("const Index " + name + " = " + (a == 0 ? rest : "(" + rest + ") % " + extent) + ";");
    rest = "(" + rest + ") / " + extent;
  }
}

std::string Kernel::loop_name(const Loop& loop) const {
  for (std::size_t l = 0; l < loops_.size(); ++l)
    if (&loops_[l] == &loop) return std::to_string(number_) + "_" + std::to_string(l);
  return "";
}

void Kernel::name_reads(Loop& loop) {
  std::map<std::pair<std::int32_t, std::pair<std::int64_t, std::string>>, std::string> shared;
  for (auto& [key, access] : loop.reads) {
    if (access.view.tensor < 0) continue;
    std::string path;
    for (const auto& [factor, piece] : access.path) path += "_" + std::to_string(piece);
    if (access.parts > 1) {
      // One pack holds all pieces that alternate.
      std::string rest;
      for (const std::int64_t stride : access.strides) rest += " " + std::to_string(stride);
      std::string& name = shared[{key.first, {access.base - access.part, rest}}];
      if (name.empty()) {
        name = unique(owner_of(access.view));
        access.loads = true;
      }
      access.name = name;
      continue;
    }
    access.loads = true;
    access.name = unique(owner_of(access.view) + path);
  }
}

// level < 0: of all levels.
bool Kernel::wants(const Access& access, int level) const {
  return access.loads && (level < 0 ? access.late == late_ : access.levels.contains(level));
}

// What all rows share and only later levels read is loaded while the reductions before them run.
void Kernel::choose_late() {
  for (Loop& loop : loops_) {
    for (auto& [key, access] : loop.reads) {
      bool rows = access.ids >= 0 || access.parts != 1 || access.view.tensor < 0;
      for (const Factor& factor : access.view.factors) rows = rows || space_.is_row(factor);
      access.late = rows ? 0 : *access.levels.begin();
    }
  }
}

void Kernel::declare_packs(const Loop& loop, int level, int slots) {
  for (const auto& [key, access] : loop.reads) {
    if (!wants(access, level)) continue;
    const DType dtype = dtype_of(access.view.tensor);
    const std::string type = access.lanes ? "Pack<" + std::string(element_of(dtype)) + ", " +
                                                std::to_string(loop.width * access.parts) + ">"
                                          : std::string(type_of(lane_of(dtype, Lane::f32)));
    line(type + " " + access.name + "[" + std::to_string(slots) + "];");
  }
}

void Kernel::emit_loads(Loop& loop, int level) {
  if (std::ranges::none_of(loop.reads, [&](const auto& read) { return wants(read.second, level); }))
    return;
  declare_packs(loop, level, loop.slots);
  line("#pragma unroll");
  line("for (int u = 0; u < " + std::to_string(loop.slots) + "; ++u) {");
  ++indent_;
  in_ = &loop;
  emit_slot(loop);
  emit_load(loop, level);
  --indent_;
  line("}");
  // NOTE: late loads come before a barrier, which they do not pass.
  if (loop.slots == 1 || late_ > 0) return;
  for (const auto& [key, access] : loop.reads)
    if (wants(access, level) && access.lanes) line("together(" + access.name + ");");
}

// Of one slot.
void Kernel::emit_load(Loop& loop, int level) {
  for (const auto& [key, access] : loop.reads) {
    if (!wants(access, level)) continue;
    const DType dtype = dtype_of(access.view.tensor);
    const std::string at =
        arguments_.pointer(access.view.tensor) + " + " + offset(access, owner_of(access.view));
    std::string condition = "ok";
    if (access.ids >= 0) {
      const Node& node = space_.node(Value{access.value});
      if (space_.level(node.args[1]) != 0) throw Refused{"ids that follow from a reduction"};
      const std::string id = row_value(node.args[1], Lane::i64);
      const Factor rows = space_.view(node.args[0])->factors[0];
      condition += " && " + id + " >= 0 && " + id + " < " + arguments_.extent(rows);
    }
    const std::string name = access.name + "[" + pack_at_ + "]";
    if (!access.lanes) {
      line(name + " = " + condition + " ? value_at(" + at +
           ") : " + literal(0, lane_of(dtype, Lane::f32)) + ";");
      continue;
    }
    std::string stride;
    if (!access.vector) {
      stride = ", " + arguments_.number(owner_of(access.view) + "_lane",
                                        access.strides.back() / access.parts);
    }
    if (condition == "ok" && ok_always(loop)) {
      line(name + ".load(" + at + stride + ");");
    } else {
      if (loop.infinite) {
        line(name + ".spread(Element<" + std::string(element_of(dtype)) +
             ">::rounded(-infinity()));");
      } else {
        line(name + ".clear();");
      }
      line("if (" + condition + ") " + name + ".load(" + at + stride + ");");
    }
  }
}

bool Kernel::ok_always(const Loop& loop) const {
  return shape_.kind == Shape::Kind::rows && !loop.lead && loop.padded == loop.vectors &&
         loop.items > 0 && loop.items % (std::int64_t{shape_.team} * loop.slots) == 0;
}

void Kernel::emit_store(Loop& loop, const Work& work) {
  const Result& result = space_.program().results()[static_cast<std::size_t>(work.result)];
  const Access& access = loop.writes.at({work.result, work.path});
  const std::string element(element_of(result.type.dtype)), width = std::to_string(loop.width);
  const Lane lane = lane_of(result.type.dtype, Lane::f32);
  const bool adds = result.store == Store::accumulate;
  const std::string text = value(work.value, work.path, lane);
  const std::string owner = owner_of(access.view);
  const std::string at = arguments_.pointer(access.view.tensor) + " + " + offset(access, owner);
  const std::int32_t node = space_.program().value(result.value).node;
  if (node >= 0 && commented_.insert(node).second) comment(node);
  if (!access.lanes) {
    std::string first =
        access.block != 0 ? "c % " + std::to_string(access.block) + " == 0" : "c == 0";
    for (std::size_t a = 0; a + 1 < loop.axes.size(); ++a)
      if (access.strides[a] == 0 && loop.axes[a].extent != 1)
        first += " && at_" + identifier(loop.axes[a].factor.text()) + " == 0";
    const std::string sum =
        adds ? map_name(Op::add, Precision::exact) + "(value_at(" + at + "), " + text + ")" : text;
    line("if (ok && " + first + ") put(" + at + ", " + sum + ");");
    return;
  }
  const std::string name = unique(result.name + "_out");
  std::string stride;
  if (!access.vector) stride = ", " + arguments_.number(owner + "_lane", access.strides.back());
  const std::string pack = "Pack<" + element + ", " + width + ">";
  line("{");
  ++indent_;
  line(std::string(type_of(lane)) + " " + name + "[" + width + "];");
  if (access.parts > 1) {
    // NOTE: pieces that alternate are stored one by one; neighbours meet in the cache.
    stride = ", " + arguments_.number(owner + "_lane", access.strides.back());
  }
  const std::string to = access.parts > 1 ? at + " + " + std::to_string(access.part) : at;
  if (adds) {
    line(pack + " before;");
    line("before.clear();");
    line("if (ok) before.load(" + to + stride + ");");
    line("EACH(" + width + ") " + name + "[i] = " + map_name(Op::add, Precision::exact) +
         "(before.at(i), " + text + ");");
  } else {
    line("EACH(" + width + ") " + name + "[i] = " + text + ";");
  }
  line(pack + " stored;");
  line("stored.fill(" + name + ");");
  line((ok_always(loop) && !after_ ? "stored.store(" : "if (ok) stored.store(") + to + stride +
       ");");
  --indent_;
  line("}");
}

void Kernel::emit_work(Loop& loop, const Work& work) {
  if (work.kind == Work::Kind::store) return emit_store(loop, work);
  const Node& node = space_.node(Value{work.node});
  const Lane lane = lane_of(space_.program(), Value{work.node}, Lane::f32);
  const std::string type(type_of(lane)), width = std::to_string(loop.width);
  const std::string op = operation(node.op);
  const bool exponents = op == "LogSumExp";
  const std::string text = value(work.value, work.path, lane);
  const bool lanes = has_lanes(work.value);
  if (commented_.insert(space_.program().value(Value{work.node}).node).second)
    comment(space_.program().value(Value{work.node}).node);
  if (work.kind == Work::Kind::accumulate) {
    if (!lanes) throw Refused{"sums along rows of what is one for each block"};
    const bool collapsed = work.value != node.args[0];
    const std::string sum = sums_.at({work.node, collapsed_path(work)});
    const std::string at = collapsed ? "[0][i]" : slot_of_sum() + "[i]";
    line("EACH(" + width + ") " + sum + at + " = " + op + "::of(" + sum + at + ", " +
         or_none(work, text, op + "::none<" + type + ">()") + ");");
    return;
  }
  const std::string& sum = reduced_.at(work.node);
  if (!lanes) {
    std::string first = "c == 0";
    if (exponents) throw Refused{"a logsumexp of what is one for each head"};
    for (const auto& factor : space_.inner_factors(work.value))
      if (factor.kind() == Factor::Kind::blocks)
        first = "c % " + std::to_string(factor.number()) + " == 0";
    line(sum + " = " + op + "::of(" + sum + ", ok && " + first + " ? " + text + " : " + op +
         "::none<" + type + ">());");
    return;
  }
  const std::string parts = unique("part");
  line("{");
  ++indent_;
  line(type + " " + parts + "[" + width + "];");
  const std::string none = exponents ? "-infinity()" : op + "::none<" + type + ">()";
  line("EACH(" + width + ") " + parts + "[i] = " + or_none(work, text, none) + ";");
  line(sum + " = " +
       (exponents ? "exponents(" + sum + ", " + parts + ");"
                  : op + "::of(" + sum + ", fold<" + op + ">(" + parts + "));"));
  --indent_;
  line("}");
}

// A lane that is reduced; where there is none, packs that are read directly hold what leaves the
// reduction as it is.
std::string Kernel::or_none(const Work& work, const std::string& text,
                            const std::string& none) const {
  const bool zeros = operation(space_.node(Value{work.node}).op) == "Sum";
  const bool held = space_.view(work.value).has_value() && (in_->infinite || zeros);
  return held || ok_always(*in_) ? text : "ok ? " + text + " : " + none;
}

std::string Kernel::slot_of_sum() const {
  return shape_.kind == Shape::Kind::columns ? "[0]" : "[u]";
}

// Of the sum to which a piece is added.
Path Kernel::collapsed_path(const Work& work) const {
  const Value made{work.node};
  return space_.restricted(work.path, space_.inner_factors(made));
}

void Kernel::emit_pass(int level, Loop& loop) {
  if (!loop.works.contains(level)) return;
  slot_names_.clear();
  const bool rows = shape_.kind == Shape::Kind::rows && level != kAfterRows;
  if (rows && !shape_.whole && !loads_first(loop)) {
    emit_looped(loop, level);
  } else {
    if (rows && shape_.whole && !shape_.keeps && !shape_.by_slot) emit_loads(loop, level);
    emit_slots(level, loop);
  }
  for (const auto& key : slot_rows_) row_names_.erase(key);
  slot_rows_.clear();
  slot_names_.clear();
  pack_at_ = "u";
  in_ = nullptr;
}

// Edges of a looped row: one vector at most.
bool Kernel::loads_first(const Loop& loop) const {
  return loop.edges && !shape_.whole && loop.items <= shape_.team;
}

// Some vectors at a time.
void Kernel::emit_looped(Loop& loop, int level) {
  const std::string items = arguments_.number("items_" + loop_name(loop), loop.items);
  line("for (Index base = 0; base < Index(" + items + "); base += kTeam * " +
       std::to_string(loop.slots) + ") {");
  ++indent_;
  emit_loads(loop, level);
  emit_slots(level, loop);
  --indent_;
  line("}");
}

void Kernel::emit_slots(int level, Loop& loop) {
  const bool by_slot = shape_.kind == Shape::Kind::rows && level != kAfterRows && shape_.by_slot;
  in_ = &loop;
  line("#pragma unroll");
  line("for (int u = 0; u < " + std::to_string(after_ ? slots_after(loop) : loop.slots) +
       "; ++u) {");
  ++indent_;
  if (shape_.kind == Shape::Kind::rows && !after_ && !shape_.whole && loop.slots > 1 &&
      !loop.edges) {
    const std::string items =
        loop.lead ? "whole_" + loop.lead->tag
                  : "Index(" + arguments_.number("items_" + loop_name(loop), loop.items) + ")";
    if (!ok_always(loop)) line("if (base + kTeam * u >= " + items + ") break;");
  }
  emit_slot(loop);
  if (by_slot) {
    pack_at_ = "0";
    declare_packs(loop, level, 1);
    emit_load(loop, level);
  }
  commented_.clear();
  for (const Work& work : loop.works.at(level)) emit_work(loop, work);
  --indent_;
  line("}");
}

int Kernel::slots_after(const Loop& loop) const {
  return shape_.kind == Shape::Kind::columns ? 1 : loop.slots;
}

// What a row has one of, known at `level`: stored, or added up over the rows.
void Kernel::emit_row_work(int level) {
  for (const int n : space_.space().nodes) {
    const Node& node = space_.program().nodes()[static_cast<std::size_t>(n)];
    if (!space_.reduces_rows(node) || space_.place(node.args[0]) == Place::inner) continue;
    if (space_.level(node.args[0]) != level) continue;
    const Lane lane = lane_of(space_.program(), node.results[0], Lane::f32);
    const std::string text = row_value(node.args[0], lane);
    const std::string& sum = sums_.at({node.results[0].id, {}});
    out_ = &row_text_[level];
    indent_ = row_indent_;
    comment(n);
    line(sum + " = " + operation(node.op) + "::of(" + sum + ", " + text + ");");
  }
  for (const int r : space_.space().results) {
    Value v;
    const View view = space_.target(r, v);
    const Place place = space_.place(v);
    if (space_.level(v) != level || (place != Place::row && place != Place::single)) continue;
    const Result& result = space_.program().results()[static_cast<std::size_t>(r)];
    const Lane lane = lane_of(result.type.dtype, Lane::f32);
    std::string text = row_value(v, lane);
    out_ = &row_text_[level];
    indent_ = row_indent_;
    const std::string at = row_offset(view, owner_of(view));
    const std::string to = arguments_.pointer(view.tensor) + (at.empty() ? "" : " + " + at);
    if (result.store == Store::accumulate)
      text = map_name(Op::add, Precision::exact) + "(value_at(" + to + "), " + text + ")";
    std::string condition = "member == 0";
    if (shape_.chunks > 1) condition += " && chunk == 0";
    if (place == Place::single) condition += " && row == 0";
    if (shape_.kind == Shape::Kind::columns) throw Refused{"a value a row beside sums along rows"};
    line("if (" + condition + ") put(" + to + ", " + text + ");");
  }
}

std::string Kernel::text() {
  taken_.clear();
  single_.clear();
  body_.clear();
  out_ = &body_;
  for (Loop& loop : loops_) name_reads(loop);
  if (shape_.kind == Shape::Kind::columns) {
    emit_columns();
  } else {
    emit_rows();
  }
  std::string text = frame(name());
  if (parts_) text += "\n" + second_text();
  return text;
}

std::string Kernel::frame(const std::string& name) const {
  std::string head = "// " + summary() + "\n__device__ __forceinline__ void " + name +
                     "(const Arguments& a, Index block) {\n";
  head += "  constexpr int kTeam = " + std::to_string(shape_.team) +
          ", kTeams = " + std::to_string(shape_.teams) + ";\n";
  head += "  const Index member = threadIdx.x % kTeam, team = threadIdx.x / kTeam;\n";
  return head + single_ + body_ + "}\n";
}

}  // namespace coda::cuda::streaming
