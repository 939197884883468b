// coda/rewrite/explain.cpp: the partition and the ledger of a block as text and as JSON.
#include "coda/rewrite/explain.h"

#include <cstdio>

#include "coda/program/text.h"
#include "coda/rewrite/ledger.h"
#include "coda/rewrite/rewrite.h"

namespace coda {
namespace {

struct Report {
  Partition partition;
  Ledger fused, unfused;
};

Report report_of(const Program& block, const Sizes& sizes) {
  Report report{.partition = rewrite(block).forward, .fused = {}, .unfused = {}};
  report.fused = ledger(report.partition.schedule, sizes);
  report.unfused = ledger(unfused(report.partition.block), sizes);
  return report;
}

std::string amount(std::int64_t count, const char* unit) {
  const char* const prefixes[] = {"", "k", "M", "G", "T", "P"};
  double value = static_cast<double>(count);
  int prefix = 0;
  while (value >= 1000 && prefix < 5) {
    value /= 1000;
    ++prefix;
  }
  char text[64];
  std::snprintf(text, sizeof text, prefix == 0 ? "%.0f %s%s" : "%.2f %s%s", value, prefixes[prefix],
                unit);
  return text;
}

std::string row(const std::string& name, const Cost& cost) {
  char text[256];
  std::snprintf(text, sizeof text, "  %-36s %-7s %12s read %12s written %12s\n", name.c_str(),
                cost.kind.c_str(), amount(cost.bytes_read, "B").c_str(),
                amount(cost.bytes_written, "B").c_str(), amount(cost.flops, "FLOP").c_str());
  return text;
}

nlohmann::json json_of(const Cost& cost) {
  return {{"bytes_read", cost.bytes_read},
          {"bytes_written", cost.bytes_written},
          {"flops", cost.flops}};
}

}  // namespace

std::string explain(const Program& block, const Sizes& sizes) {
  const Report report = report_of(block, sizes);
  const Partition& partition = report.partition;
  const std::vector<Step>& steps = partition.schedule.steps;
  std::string text = block.name() + ": " + std::to_string(steps.size()) +
                     (steps.size() == 1 ? " kernel, " : " kernels, ") +
                     std::to_string(report.unfused.steps.size()) +
                     " library calls without fusion\n";

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

  text += "\nkernels\n";
  for (std::size_t i = 0; i < steps.size(); ++i) {
    text += row(std::to_string(i + 1) + " " + report.fused.steps[i].step, report.fused.steps[i]);
  }
  text += row("total", report.fused.total) + row("unfused", report.unfused.total);
  const auto moved = [](const Cost& cost) {
    return cost.bytes_read + cost.bytes_written;
  };
  const double unfused_bytes = static_cast<double>(moved(report.unfused.total));
  if (unfused_bytes > 0) {
    char line[96];
    std::snprintf(line, sizeof line, "  bytes moved: %.0f %% of the unfused sequence's\n",
                  100 * static_cast<double>(moved(report.fused.total)) / unfused_bytes);
    text += line;
  }
  return text;
}

nlohmann::json explain_json(const Program& block, const Sizes& sizes) {
  const Report report = report_of(block, sizes);
  const Partition& partition = report.partition;
  nlohmann::json statements = nlohmann::json::array(), kernels = nlohmann::json::array();
  for (std::size_t n = 0; n < partition.placements.size(); ++n) {
    const Placement& placement = partition.placements[n];
    nlohmann::json kernel = nullptr;
    if (placement.step >= 0) kernel = placement.step;
    statements.push_back({{"statement", print_node(partition.block, n)},
                          {"line", partition.block.nodes()[n].where.line},
                          {"kernel", kernel},
                          {"reason", placement.reason}});
  }
  for (std::size_t i = 0; i < partition.schedule.steps.size(); ++i) {
    nlohmann::json kernel = json_of(report.fused.steps[i]);
    kernel["name"] = report.fused.steps[i].step;
    kernel["kind"] = report.fused.steps[i].kind;
    kernel["text"] = print(partition.schedule.steps[i].program);
    kernels.push_back(std::move(kernel));
  }
  nlohmann::json rival = json_of(report.unfused.total);
  rival["kernels"] = report.unfused.steps.size();
  return {{"block", block.name()},
          {"statements", std::move(statements)},
          {"kernels", std::move(kernels)},
          {"total", json_of(report.fused.total)},
          {"unfused", std::move(rival)}};
}

}  // namespace coda
