// cli/report_time.cpp: where the time went, by kind of work and by kernel.
#include <algorithm>
#include <array>
#include <cctype>
#include <map>

#include "cli/html.h"
#include "cli/progress.h"
#include "cli/report_sections.h"
#include "coda/rewrite/ledger.h"
#include "coda/rewrite/svg.h"

namespace coda {
namespace {

using nlohmann::json;

constexpr std::array kGroups = {"forward",   "attention forward", "backward", "attention backward",
                                "optimiser", "between kernels"};
constexpr std::size_t kOptimiser = 4, kBetween = 5;

// Kernels that do the same in each layer.
struct Row {
  std::string name, kind, work;
  std::size_t group = 0;
  double seconds = 0;
  int kernels = 0;
  double flops = 0, bytes = 0;  // of all steps
};

std::size_t group_of(const json& kernel) {
  const bool backward = kernel.at("phase") == "backward";
  return (backward ? 2 : 0) + (kernel.at("kind") == "opaque" ? 1 : 0);
}

// "stack_grad_5_d_1.s_up" of the schedule stack_grad → "d_s_up".
std::string role(std::string name, const std::string& schedule) {
  const auto digits = [&](std::size_t at) {
    std::size_t end = at;
    while (end < name.size() && std::isdigit(static_cast<unsigned char>(name[end])) != 0) ++end;
    return end;
  };
  if (name.starts_with(schedule + "_")) {
    const std::size_t end = digits(schedule.size() + 1);
    if (end < name.size() && name[end] == '_') name.erase(0, end + 1);
  }
  const std::size_t start = name.starts_with("d_") ? 2 : 0, end = digits(start);
  if (end > start && end < name.size() && name[end] == '.') name.erase(start, end + 1 - start);
  return name;
}

// Without the numbers of layers: "1.p_3 @ 1.gate" → "p_3 @ gate".
std::string without_layers(const std::string& work) {
  std::string text;
  for (std::size_t i = 0; i < work.size(); ++i) {
    std::size_t end = i;
    while (end < work.size() && std::isdigit(static_cast<unsigned char>(work[end])) != 0) ++end;
    const bool begins =
        i == 0 || std::string_view(" _([").find(work[i - 1]) != std::string_view::npos;
    if (begins && end > i && end < work.size() && work[end] == '.') {
      i = end;
      continue;
    }
    text += work[i];
  }
  return text;
}

std::string bar(double part, const std::string& style) {
  return formatted("<span class=\"bar %s\" style=\"width:%.2f%%\"></span>", style.c_str(),
                   100 * std::clamp(part, 0.0, 1.0));
}

// In billions a second.
std::string speed(double amount, double seconds) {
  return amount > 0 && seconds > 0 ? formatted("%.1f", amount / seconds / 1e9) : "";
}

struct Times {
  std::vector<Row> rows;
  std::array<double, kGroups.size()> groups{};
  double total = 0;
};

Times times_of(const RunLog& log) {
  std::map<std::string, const json*> known;
  if (!log.kernels.is_null()) {
    for (const json& kernel : log.kernels.at("kernels")) {
      known[kernel.at("schedule").get<std::string>() + ": " +
            kernel.at("name").get<std::string>()] = &kernel;
    }
  }
  std::map<std::string, Row> rows;
  Times times;
  double inside = 0;
  std::map<std::string, bool> counted;
  for (const RunLog::Session& session : log.sessions) {
    times.total += session.timed;
    const auto steps = static_cast<double>(session.to - session.from);
    for (const auto& [key, seconds] : session.kernels) {
      const auto at = known.find(key);
      const json* kernel = at == known.end() ? nullptr : at->second;
      const std::string name = kernel == nullptr ? key.substr(0, key.find(": "))
                                                 : role(kernel->at("name").get<std::string>(),
                                                        kernel->at("schedule").get<std::string>());
      const std::size_t group = kernel == nullptr ? kOptimiser : group_of(*kernel);
      Row& row = rows[std::to_string(group) + name];
      row.name = name;
      row.group = group;
      row.seconds += seconds;
      if (!std::exchange(counted[key], true)) ++row.kernels;
      inside += seconds;
      times.groups[group] += seconds;
      if (kernel == nullptr) continue;
      row.kind = kernel->at("kind").get<std::string>();
      row.work = without_layers(kernel->at("work").get<std::string>());
      row.flops += steps * kernel->at("flops").get<double>();
      row.bytes += steps * (kernel->at("read").get<double>() + kernel->at("written").get<double>());
    }
  }
  times.total = std::max(times.total, inside);
  times.groups[kBetween] = times.total - inside;
  for (auto& [key, row] : rows) times.rows.push_back(row);
  std::ranges::stable_sort(times.rows, std::greater(), &Row::seconds);
  return times;
}

std::string groups_text(const Times& times) {
  std::string stacked, rows;
  for (std::size_t g = 0; g < kGroups.size(); ++g) {
    const double part = times.groups[g] / times.total;
    stacked += formatted("<span class=\"g%zu\" style=\"flex:%.2f\" title=\"%s %.1f %%\"></span>", g,
                         100 * part, kGroups[g], 100 * part);
    rows += "<tr><th scope=\"row\"><span class=\"key g" + std::to_string(g) + "\"></span>" +
            kGroups[g] + "</th><td>" +
            datum("time-" + std::to_string(g), times.groups[g],
                  times.groups[g] < 60 ? formatted("%.1f s", times.groups[g])
                                       : duration_text(times.groups[g])) +
            formatted("</td><td>%.1f %%</td></tr>\n", 100 * part);
  }
  return "<div class=\"stacked\" aria-hidden=\"true\">" + stacked +
         "</div>\n<table id=\"time-groups\"><thead><tr><th scope=\"col\">work</th><th "
         "scope=\"col\">time</th><th scope=\"col\">share</th></tr></thead><tbody>\n" +
         rows + "</tbody></table>\n";
}

}  // namespace

std::string time_section(const RunLog& log) {
  const Times times = times_of(log);
  if (times.rows.empty()) return "<p>The run ended before its times were written.</p>";
  const double most = times.rows.front().seconds;
  std::string rows;
  for (const Row& row : times.rows) {
    std::string name = element("code", "", html(row.name));
    if (row.kernels > 1) name += formatted(" × %d", row.kernels);
    if (!row.work.empty()) name += element("span", "class=\"work\"", html(row.work));
    rows += "<tr><th scope=\"row\">" + name + "</th><td class=\"barcell\">" +
            bar(row.seconds / most, "g" + std::to_string(row.group)) + "</td><td>" +
            formatted("%.1f %%", 100 * row.seconds / times.total) + "</td><td class=\"wide\">" +
            kGroups[row.group] + "</td><td class=\"wide\">" + html(row.kind) +
            "</td><td class=\"wide\">" + speed(row.flops, row.seconds) +
            "</td><td class=\"wide\">" + speed(row.bytes, row.seconds) + "</td></tr>\n";
  }
  return groups_text(times) +
         "<details><summary>Each kernel</summary><p class=\"note\">Kernels that do the same in "
         "several layers are one row. A <em>gemm</em> is a matrix product with what follows it in "
         "its epilogue, a <em>stream</em> has no product, <em>opaque</em> is attention.</p>\n<div "
         "class=\"scroll\" tabindex=\"0\"><table id=\"time-kernels\"><thead><tr><th "
         "scope=\"col\">kernel</th><th scope=\"col\" class=\"barcell\">time</th><th "
         "scope=\"col\">share</th><th "
         "scope=\"col\" class=\"wide\">part</th><th scope=\"col\" class=\"wide\">kind</th><th "
         "scope=\"col\" class=\"wide\">GFLOP/s</th><th scope=\"col\" "
         "class=\"wide\">GB/s</th></tr></thead><tbody>\n" +
         rows + "</tbody></table></div></details>\n";
}

}  // namespace coda
