// cli/report_curves.cpp: the numbers of each step as charts and as a table.
#include <algorithm>
#include <cmath>
#include <set>

#include "cli/chart.h"
#include "cli/html.h"
#include "cli/progress.h"
#include "cli/report_sections.h"
#include "coda/rewrite/svg.h"

namespace coda {
namespace {

constexpr std::size_t kMostPoints = 400;  // of a line

// Steps in ranges, at most kMostPoints of them, all as long but the last.
struct Range {
  std::int64_t first = 0, last = 0;                      // steps
  double low = 0, high = 0;                              // losses
  double smooth = 0, rate = 0, norm = 0, most_norm = 0;  // of the last step; the largest norm
  double loss = 0;                                       // of the last step
};

std::vector<Range> ranges(const RunLog& log) {
  const std::vector<double> smooth = smoothed_losses(log);
  const std::size_t each = (log.steps.size() + kMostPoints - 1) / kMostPoints;
  std::vector<Range> all;
  std::size_t i = 0;
  for (const auto& [number, step] : log.steps) {
    if (i % each == 0) {
      all.push_back({.first = number, .low = step.loss, .high = step.loss});
    }
    Range& range = all.back();
    range.last = number;
    range.low = std::min(range.low, step.loss);
    range.high = std::max(range.high, step.loss);
    range.most_norm = std::max(range.most_norm, step.norm);
    range.loss = step.loss;
    range.smooth = smooth[i];
    range.rate = step.rate;
    range.norm = step.norm;
    ++i;
  }
  return all;
}

double last_step(const RunLog& log) {
  std::int64_t last = 1;
  if (!log.steps.empty()) last = std::max(last, log.steps.rbegin()->first);
  return static_cast<double>(last);
}

// Round numbers around all finite values.
void fit(Chart& chart) {
  double low = INFINITY, high = -INFINITY;
  for (const ChartLine& line : chart.lines) {
    for (const auto& [x, y] : line.points) {
      if (!std::isfinite(y)) continue;
      low = std::min(low, y);
      high = std::max(high, y);
    }
  }
  if (!(low <= high)) low = 0, high = 1;
  if (low > 0 && low < 0.4 * high) low = 0;
  const std::vector<double> round = ticks(low, high, 6);
  const double step = round.size() > 1 ? round[1] - round[0] : std::max(std::abs(high), 1e-12);
  chart.low = std::floor(low / step + 1e-9) * step;
  chart.high = std::max(std::ceil(high / step - 1e-9) * step, chart.low + step);
}

Chart loss_chart(const RunLog& log, const std::vector<Range>& all) {
  Chart chart{.title =
                  "Loss in nats a byte over steps: of each batch, smoothed, and on held-out "
                  "text. The table below has the numbers.",
              .x = "steps",
              .y = "loss (nats a byte)",
              .right = "bits a byte",
              .scale = 1 / std::log(2.0),
              .last = last_step(log)};
  ChartLine raw{"each batch", "raw", {}}, smooth{"smoothed", "smooth", {}},
      held_out{"held out", "held", {}, true};
  for (const Range& range : all) {
    const auto first = static_cast<double>(range.first), last = static_cast<double>(range.last);
    raw.points.emplace_back(first, range.high);
    if (range.last > range.first) raw.points.emplace_back(last, range.low);
    smooth.points.emplace_back(last, range.smooth);
  }
  for (const auto& [step, loss] : log.held_out) {
    held_out.points.emplace_back(static_cast<double>(step), loss);
  }
  chart.lines = {raw, smooth, held_out};
  fit(chart);
  return chart;
}

Chart small_chart(const RunLog& log, const std::vector<Range>& all, const std::string& name,
                  const std::string& axis, double Range::* value) {
  Chart chart{.title = name + " over steps. The table below has the numbers.",
              .x = "steps",
              .y = axis,
              .last = last_step(log)};
  ChartLine line{name, "smooth", {}};
  for (const Range& range : all) {
    line.points.emplace_back(static_cast<double>(range.last), range.*value);
  }
  chart.lines = {line};
  fit(chart);
  return chart;
}

std::string cell(const std::string& text) {
  return element("td", "", text);
}

std::string table(const RunLog& log) {
  std::set<std::int64_t> shown;
  for (const auto& [step, loss] : log.held_out) shown.insert(step);
  for (const auto& [step, text] : log.samples) shown.insert(step);
  const std::vector<double> smooth = smoothed_losses(log);
  std::string rows;
  for (const std::int64_t step : shown) {
    std::string row = element("th", "scope=\"row\"", count_text(step));
    const auto held_out = log.held_out.find(step);
    const bool measured = held_out != log.held_out.end();
    const double nats = measured ? held_out->second : 0;
    row += cell(measured ? formatted("%.4f", nats) : "");
    row += cell(measured ? formatted("%.4f", nats / std::log(2.0)) : "");
    if (const auto at = log.steps.find(step); at != log.steps.end()) {
      const auto index = static_cast<std::size_t>(std::distance(log.steps.begin(), at));
      row += cell(formatted("%.4f", smooth[index])) + cell(formatted("%.4f", at->second.loss)) +
             cell(formatted("%.3g", at->second.rate)) + cell(formatted("%.3f", at->second.norm));
    } else {
      row += "<td></td><td></td><td></td><td></td>";
    }
    rows += "<tr>" + row + "</tr>\n";
  }
  return "<div class=\"scroll\" tabindex=\"0\"><table id=\"curve-table\"><caption>Loss in nats a "
         "byte but for the column in bits</caption><thead><tr><th "
         "scope=\"col\">step</th><th scope=\"col\">held out</th><th scope=\"col\">bits</th><th "
         "scope=\"col\">smoothed</th><th scope=\"col\">batch</th><th scope=\"col\">learning "
         "rate</th><th scope=\"col\">gradient norm</th></tr></thead><tbody>\n" +
         rows + "</tbody></table></div>\n";
}

}  // namespace

std::vector<double> smoothed_losses(const RunLog& log) {
  std::vector<double> all;
  for (const auto& [number, step] : log.steps) {
    const double before = all.empty() ? 0 : all.back();
    all.push_back(smoothed(before, step.loss, static_cast<std::int64_t>(all.size()) + 1));
  }
  return all;
}

std::string curves_section(const RunLog& log) {
  if (log.steps.empty()) return "<p>No step was taken.</p>";
  const std::vector<Range> all = ranges(log);
  const Chart loss = loss_chart(log, all);
  const Chart rate = small_chart(log, all, "learning rate", "learning rate", &Range::rate);
  const Chart norm =
      small_chart(log, all, "gradient norm, before clipping", "norm", &Range::most_norm);
  std::string note;
  const auto each = static_cast<double>(log.steps.size()) / static_cast<double>(all.size());
  if (each > 1) {
    note = formatted(
        " Each point stands for %.0f steps: of batches the lowest and the highest "
        "loss, of norms the highest.",
        std::ceil(each));
  }
  const auto figure = [](const Chart& chart, double width, double height,
                         const std::string& more = "") {
    return "<figure class=\"chart-box\">" + legend(chart) +
           draw(chart, width, height, "chart wide") + draw(chart, 360, 250, "chart narrow") + more +
           "</figure>\n";
  };
  return figure(loss, 1150, 400, "<output class=\"readout\" aria-live=\"polite\"></output>") +
         "<div class=\"pair\">" + figure(rate, 570, 240) + figure(norm, 570, 240) +
         "</div>\n<p class=\"note\">Smoothed: about the mean of the last 20 batches." + note +
         "</p>\n<details><summary>The numbers as a table</summary>" + table(log) + "</details>\n";
}

std::string curves_data(const RunLog& log) {
  nlohmann::json steps = nlohmann::json::array(), held_out = nlohmann::json::array();
  if (!log.steps.empty()) {
    for (const Range& r : ranges(log)) {
      const auto rounded = [](double value) {
        return std::stod(formatted("%.5g", value));
      };
      steps.push_back(
          {r.last, rounded(r.loss), rounded(r.smooth), rounded(r.rate), rounded(r.norm)});
    }
  }
  for (const auto& [step, loss] : log.held_out) held_out.push_back({step, loss});
  return nlohmann::json{{"last", last_step(log)}, {"steps", steps}, {"held_out", held_out}}.dump();
}

}  // namespace coda
