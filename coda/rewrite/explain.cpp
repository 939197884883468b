// coda/rewrite/explain.cpp: the partition and the ledger of a block as text and as JSON.
#include "coda/rewrite/explain.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>

#include "coda/program/text.h"
#include "coda/rewrite/halves.h"
#include "coda/rewrite/stack.h"

namespace coda {
namespace {

Half half_of(std::string phase, Partition partition, Schedule plain, const Program& block,
             const Sizes& sizes) {
  Half half{
      .phase = std::move(phase), .partition = std::move(partition), .plain = std::move(plain)};
  half.fused = ledger(half.partition.schedule, sizes);
  half.unfused = ledger(half.plain, sizes);
  half.layers = layers_of(half.partition.schedule, block.params());
  return half;
}

Report add_up(Report report) {
  report.total = {.step = "total", .kind = ""};
  report.unfused = {.step = "unfused", .kind = ""};
  for (const Half& half : report.halves) {
    report.total += half.fused.total;
    report.unfused += half.unfused.total;
  }
  return report;
}

Report finish(Report report, Rewritten& made) {
  report.passes = std::move(made.passes);
  report.saved = std::move(made.saved);
  report.notes = std::move(made.notes);
  return add_up(std::move(report));
}

}  // namespace

Report report(std::vector<Phase> phases, const Sizes& sizes) {
  Report report{.sizes = sizes};
  for (Phase& phase : phases) {
    Partition partition;
    partition.schedule = std::move(phase.fused);
    report.halves.push_back(half_of(std::move(phase.name), std::move(partition),
                                    std::move(phase.unfused), Program(), sizes));
  }
  return add_up(std::move(report));
}

Report report(const Program& block, const Sizes& sizes, const RewriteOptions& options) {
  Rewritten made = rewrite(block, options);
  Report report{.block = block, .sizes = sizes};
  report.halves.push_back(
      half_of("forward", std::move(made.forward), unfused(block), block, sizes));
  report.ideal = ideal(block, sizes);
  return finish(std::move(report), made);
}

Report report(const Program& block, const GradOptions& gradients, const Sizes& sizes,
              const RewriteOptions& options) {
  Rewritten made = rewrite(block, gradients, options);
  const Training plain = grad_for_training(block, gradients);
  Report report{.block = block, .sizes = sizes};
  report.ideal = ideal(block, made.backward->block, sizes);
  report.halves.push_back(
      half_of("forward", std::move(made.forward), unfused(plain.forward), block, sizes));
  report.halves.push_back(
      half_of("backward", std::move(*made.backward), unfused(plain.backward), block, sizes));
  return finish(std::move(report), made);
}

// ---- what a kernel does ----

namespace {

std::string operand_name(const Step& step, Value v) {
  const Program& program = step.program;
  while (!program.is_param(v) && !program.node(v).args.empty()) {
    const OpClass op = class_of(program.node(v).op);
    if (op != OpClass::cast && op != OpClass::layout) break;
    v = program.node(v).args[0];
  }
  return program.is_param(v) ? step.inputs[static_cast<std::size_t>(v.id)] : describe(program, v);
}

}  // namespace

std::string work_of(const Step& step) {
  std::string products, reads;
  for (const Node& node : step.program.nodes()) {
    if (class_of(node.op) == OpClass::opaque) return std::string(name_of(node.op));
    if (node.op != Op::product) continue;
    products += (products.empty() ? "" : ", ") + operand_name(step, node.args[0]) + " @ " +
                operand_name(step, node.args[1]);
  }
  for (const std::string& name : step.inputs) reads += (reads.empty() ? "of " : ", ") + name;
  return products.empty() ? reads : products;
}

// ---- layers of a stack ----

namespace {

using Votes = std::map<std::optional<int>, int>;

// Of equals the last layer.
std::optional<int> winner(const Votes& votes) {
  std::optional<int> most;
  int count = 0;
  for (const auto& [layer, votes_for] : votes) {
    if (votes_for < count) continue;
    most = layer;
    count = votes_for;
  }
  return most;
}

// The parameter behind a value that a product reads, or -1.
int param_behind(const Program& program, Value v) {
  while (!program.is_param(v)) {
    const Node& node = program.node(v);
    const bool is_view = class_of(node.op) == OpClass::cast ||
                         (class_of(node.op) == OpClass::layout && node.op != Op::join);
    if (!is_view) return -1;
    v = node.args[0];
  }
  return v.id;
}

}  // namespace

std::vector<std::optional<int>> layers_of(const Schedule& schedule, std::span<const Param> params) {
  std::set<std::string> all, matrices;
  for (const Param& param : params) {
    all.insert(param.name);
    if (param.type.dims.size() >= 2) matrices.insert(param.name);
  }
  std::map<std::string, std::optional<int>> made;  // name of what a step stores → its layer
  std::vector<std::optional<int>> layers;
  for (const Step& step : schedule.steps) {
    Votes work, gradients, values;
    bool passes_on = false;  // makes more than gradients of parameters
    for (const Node& node : step.program.nodes()) {
      const bool reads_weights = node.op == Op::product || class_of(node.op) == OpClass::indexed;
      for (const Value v : node.args) {
        const int param = reads_weights ? param_behind(step.program, v) : -1;
        if (param < 0) continue;
        const std::string& name = step.inputs[static_cast<std::size_t>(param)];
        if (matrices.contains(name)) work[layer_of(name)] += node.op == Op::product ? 2 : 1;
      }
    }
    for (const std::string& name : step.outputs) {
      const std::string of = name.starts_with("d_") ? name.substr(2) : "";
      if (matrices.contains(of)) work[layer_of(of)] += 2;
      if (all.contains(of)) {
        ++gradients[layer_of(of)];
      } else {
        passes_on = true;
      }
      if (const auto layer = layer_of(name)) ++values[layer];
    }
    for (const std::string& name : step.inputs) {
      std::optional<int> layer = layer_of(name);
      if (!layer && made.contains(name)) layer = made.at(name);
      if (layer) ++values[layer];
    }
    const bool finishes = !gradients.empty() && !passes_on;
    layers.push_back(winner(!work.empty() ? work : finishes ? gradients : values));
    for (const std::string& name : step.outputs) made[name] = layers.back();
  }
  return layers;
}

// ---- text ----

namespace {

std::string row(const std::string& name, const Cost& cost) {
  char text[256];
  std::snprintf(text, sizeof text, "  %-36s %-7s %12s read %12s written %12s\n", name.c_str(),
                cost.kind.c_str(), amount(cost.bytes_read, "B").c_str(),
                amount(cost.bytes_written, "B").c_str(), amount(cost.flops, "FLOP").c_str());
  return text;
}

std::string share(const Cost& fused, const Cost& unfused) {
  if (bytes_moved(unfused) == 0) return "";
  char line[96];
  std::snprintf(
      line, sizeof line, "  bytes moved: %.0f %% of the unfused sequence's\n",
      100 * static_cast<double>(bytes_moved(fused)) / static_cast<double>(bytes_moved(unfused)));
  return line;
}

std::string counted(std::size_t count, const std::string& what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

std::string kernel_rows(const Half& half) {
  std::string text;
  for (std::size_t i = 0; i < half.fused.steps.size(); ++i) {
    text += row(std::to_string(i + 1) + " " + half.fused.steps[i].step, half.fused.steps[i]);
  }
  return text;
}

std::string explain(const Half& half) {
  const Partition& partition = half.partition;
  std::string text = partition.block.name() + ": " +
                     counted(partition.schedule.steps.size(), "kernel") + ", " +
                     counted(half.unfused.steps.size(), "library call") + " without fusion\n";
  text += "\nstatements, and the kernel that each landed in\n";
  for (std::size_t n = 0; n < partition.placements.size(); ++n) {
    const Placement& placement = partition.placements[n];
    const Op op = partition.block.nodes()[n].op;
    if (op == Op::constant || op == Op::size) continue;
    const std::string where = placement.step < 0 ? "-" : std::to_string(placement.step + 1);
    char line[32];
    std::snprintf(line, sizeof line, "  %4s  ", where.c_str());
    text += line + print_node(partition.block, n) + "\n        " + placement.reason + "\n";
  }
  text += "\nkernels\n" + kernel_rows(half);
  text += row("total", half.fused.total) + row("unfused", half.unfused.total);
  return text + share(half.fused.total, half.unfused.total);
}

}  // namespace

std::string explain(const Report& report) {
  std::string text;
  for (const Half& half : report.halves) {
    text += (text.empty() ? "" : "\n") + explain(half);
  }
  if (!report.notes.empty()) text += "\nnot applied\n";
  for (const std::string& note : report.notes) text += "  " + note + "\n";
  return text;
}

std::string explain(const Program& block, const Sizes& sizes) {
  return explain(report(block, sizes));
}

std::string ledger_text(const Report& report) {
  std::string text;
  for (const Half& half : report.halves) {
    text += half.phase + ": " + counted(half.fused.steps.size(), "kernel") + ", " +
            counted(half.unfused.steps.size(), "library call") + " without fusion\n" +
            kernel_rows(half);
  }
  text += "all\n" + row("total", report.total) + row("unfused", report.unfused) +
          row("ideal: each input and result once", report.ideal);
  return text + share(report.total, report.unfused);
}

// ---- JSON ----

namespace {

nlohmann::json json_of(const Cost& cost) {
  return {{"bytes_read", cost.bytes_read},
          {"bytes_written", cost.bytes_written},
          {"flops", cost.flops}};
}

nlohmann::json kernels_json(const Half& half) {
  nlohmann::json kernels = nlohmann::json::array();
  for (std::size_t i = 0; i < half.fused.steps.size(); ++i) {
    nlohmann::json kernel = json_of(half.fused.steps[i]);
    kernel["phase"] = half.phase;
    kernel["kind"] = half.fused.steps[i].kind;
    kernel["layer"] = nullptr;
    if (half.layers[i]) kernel["layer"] = *half.layers[i];
    kernel["name"] = half.fused.steps[i].step;
    kernel["text"] = print(half.partition.schedule.steps[i].program);
    kernels.push_back(std::move(kernel));
  }
  return kernels;
}

nlohmann::json unfused_json(const Cost& cost, std::size_t kernels) {
  nlohmann::json json = json_of(cost);
  json["kernels"] = kernels;
  return json;
}

}  // namespace

nlohmann::json explain_json(const Report& report) {
  nlohmann::json all = nlohmann::json::array();
  for (const Half& half : report.halves) {
    const Partition& partition = half.partition;
    nlohmann::json statements = nlohmann::json::array();
    for (std::size_t n = 0; n < partition.placements.size(); ++n) {
      const Placement& placement = partition.placements[n];
      nlohmann::json kernel = nullptr;
      if (placement.step >= 0) kernel = placement.step;
      statements.push_back({{"statement", print_node(partition.block, n)},
                            {"line", partition.block.nodes()[n].where.line},
                            {"kernel", kernel},
                            {"reason", placement.reason}});
    }
    all.push_back({{"block", partition.block.name()},
                   {"phase", half.phase},
                   {"statements", std::move(statements)},
                   {"kernels", kernels_json(half)},
                   {"total", json_of(half.fused.total)},
                   {"unfused", unfused_json(half.unfused.total, half.unfused.steps.size())},
                   {"notes", report.notes}});
  }
  return all.size() == 1 ? all[0] : all;
}

nlohmann::json report_json(const Report& report) {
  nlohmann::json kernels = nlohmann::json::array();
  std::size_t calls = 0;
  for (const Half& half : report.halves) {
    for (nlohmann::json& kernel : kernels_json(half)) kernels.push_back(std::move(kernel));
    calls += half.unfused.steps.size();
  }
  return {{"kernels", std::move(kernels)},
          {"ledger",
           {{"total", json_of(report.total)},
            {"unfused", unfused_json(report.unfused, calls)},
            {"ideal", json_of(report.ideal)}}},
          {"saved", report.saved},
          {"notes", report.notes}};
}

}  // namespace coda
