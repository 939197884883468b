// cli/report_layer.cpp: one layer's kernels as pictures, beside the calls that they replace.
#include <algorithm>

#include "cli/html.h"
#include "cli/report_sections.h"
#include "coda/program/text.h"
#include "coda/rewrite/explain.h"
#include "coda/rewrite/picture.h"

namespace coda {
namespace {

using nlohmann::json;

Report report_of(const json& layer) {
  std::vector<Phase> phases;
  for (const json& phase : layer.at("phases")) {
    const auto schedule = [&](const char* which) {
      const Module module = parse(phase.at(which).get<std::string>(), "log.jsonl");
      if (module.schedules.empty()) return Schedule{};
      return module.schedules.front();
    };
    phases.push_back({.name = phase.at("name").get<std::string>(),
                      .fused = schedule("fused"),
                      .unfused = schedule("unfused")});
  }
  return report(std::move(phases), layer.at("sizes").get<Sizes>());
}

std::string count_row(const std::string& id, const std::string& what, double kernels, double read,
                      double written, double whole) {
  const auto bytes = [](double value) {
    return amount(static_cast<std::int64_t>(std::clamp(value, 0.0, 9e18)), "B");
  };
  return "<tr><th scope=\"row\">" + what + "</th><td>" +
         datum(id + "-kernels", kernels, formatted("%.0f", kernels)) + "</td><td>" +
         datum(id + "-read", read, bytes(read)) + "</td><td>" +
         datum(id + "-written", written, bytes(written)) + "</td><td>" + bytes(read + written) +
         formatted(" (%.0f %%)", whole > 0 ? 100 * (read + written) / whole : 100) + "</td></tr>\n";
}

std::string counts_table(const json& kernels, const Report& layer) {
  const auto model = [&](const char* id, const char* what, const char* key, double whole) {
    const json& cost = kernels.at(key);
    return count_row(id, what, cost.at("kernels").get<double>(), cost.at("read").get<double>(),
                     cost.at("written").get<double>(), whole);
  };
  const json& plain = kernels.at("unfused");
  const double whole = plain.at("read").get<double>() + plain.at("written").get<double>();
  double fused_steps = 0, plain_steps = 0;
  for (const Half& half : layer.halves) {
    fused_steps += static_cast<double>(half.fused.steps.size());
    plain_steps += static_cast<double>(half.unfused.steps.size());
  }
  const auto one = [&](const char* id, const char* what, double steps, const Cost& cost) {
    return count_row(id, what, steps, static_cast<double>(cost.bytes_read),
                     static_cast<double>(cost.bytes_written),
                     static_cast<double>(bytes_moved(layer.unfused)));
  };
  return "<div class=\"scroll\" tabindex=\"0\"><table id=\"counts\"><caption>For one batch, "
         "forward and backward</caption><thead><tr><th "
         "scope=\"col\"></th><th scope=\"col\">kernels</th><th scope=\"col\">read</th><th "
         "scope=\"col\">written</th><th scope=\"col\">moved</th></tr></thead><tbody>\n" +
         model("model-unfused", "whole model, unfused", "unfused", whole) +
         model("model-fused", "whole model, fused", "fused", whole) +
         one("layer-unfused", "this layer, unfused", plain_steps, layer.unfused) +
         one("layer-fused", "this layer, fused", fused_steps, layer.total) +
         "</tbody></table></div>\n";
}

// Kernels as a stack of boxes, each as high as the bytes that it moves: left of the line read,
// right of it written.
class Towers {
 public:
  explicit Towers(const Report& layer) : layer_(layer) {}

  std::string text() {
    tower(kGap, "unfused", [](const Half& half) -> const Ledger& { return half.unfused; });
    tower(kWidth / 2 + kGap / 2, "fused",
          [](const Half& half) -> const Ledger& { return half.fused; });
    return svg_.picture(kWidth, kHead + kHeight + kGap, Svg::Form::element,
                        "class=\"towers\" role=\"img\" aria-label=\"Each kernel as a box, "
                        "as high as the bytes that it moves: unfused and fused. The lists below "
                        "have the numbers.\"");
  }

 private:
  static constexpr double kWidth = 520, kHeight = 420, kHead = 44, kGap = 16;

  template <class Which>
  void tower(double x, const std::string& name, Which which) {
    std::size_t count = 0;
    Cost sum;
    for (const Half& half : layer_.halves) {
      count += which(half).steps.size();
      sum += which(half).total;
    }
    svg_.text(x, 18, name, "class=\"title\" font-weight=\"bold\"");
    svg_.text(x, 35, std::to_string(count) + " kernels, " + amount(bytes_moved(sum), "B"));
    const double width = kWidth / 2 - 1.5 * kGap;
    double y = kHead;
    for (const Half& half : layer_.halves) {
      const std::vector<Cost>& steps = which(half).steps;
      if (y > kHead) y += kGap / 2;  // from forward to backward
      for (std::size_t i = 0; i < steps.size(); ++i) {
        const double high = kHeight * static_cast<double>(bytes_moved(steps[i])) /
                            static_cast<double>(std::max<std::int64_t>(bytes_moved(layer_.unfused),
                                                                       bytes_moved(layer_.total)));
        const std::string label = (half.phase == "forward" ? "F" : "B") + std::to_string(i + 1);
        const std::string bytes = amount(bytes_moved(steps[i]), "B");
        const double gap = high > 3 ? 0.8 : 0;
        svg_.path(
            formatted("M%.1f %.2fh%.1fv%.2fh%.1fZ", x, y, width, std::max(high - gap, 0.1), -width),
            "class=\"" + steps[i].kind + (half.phase == "forward" ? "\"" : " back\""),
            label + " " + steps[i].step + ": " + bytes);
        if (high > 13) {
          svg_.text(x + 6, y + high / 2 + 4, label);
          svg_.text(x + width - 6, y + high / 2 + 4, bytes, "text-anchor=\"end\"");
        }
        y += high;
      }
    }
  }

  const Report& layer_;
  Svg svg_;
};

std::string kinds() {
  std::string text;
  for (const auto& [kind, meaning] :
       {std::pair("gemm", "product and epilogue"), std::pair("stream", "no product"),
        std::pair("opaque", "attention")}) {
    Svg swatch;
    swatch.path("M1 1h16v12h-16Z", formatted("class=\"%s\"", kind));
    text += "<span>" +
            swatch.picture(18, 14, Svg::Form::element, "class=\"swatch\" aria-hidden=\"true\"") +
            kind + ": " + meaning + "</span>\n";
  }
  return "<figcaption class=\"legend\">" + text + "</figcaption>\n";
}

// The programs of a ledger's kernels, each with its text.
std::string list(const Schedule& schedule, const Ledger& ledger, const json& names, char letter,
                 double most) {
  std::string items;
  for (std::size_t i = 0; i < ledger.steps.size(); ++i) {
    const Cost& cost = ledger.steps[i];
    std::string text = print(schedule.steps[i].program);
    text.erase(0, text.find('\n') + 1);  // the version of the language
    text.erase(0, text.find_first_not_of('\n'));
    const std::string name =
        i < names.size() ? names[i].get<std::string>() : schedule.steps[i].program.name();
    const double read = 100 * static_cast<double>(cost.bytes_read) / most;
    const double written = 100 * static_cast<double>(cost.bytes_written) / most;
    items += "<details class=\"kernel\"><summary><span class=\"label\">" +
             formatted("%c%zu", letter, i + 1) + "</span> " +
             element("code", "", html(work_of(schedule.steps[i]))) +
             element("span", "class=\"numbers\"",
                     html(cost.kind + ": " + amount(cost.bytes_read, "B") + " read, " +
                          amount(cost.bytes_written, "B") + " written")) +
             formatted(
                 "<span class=\"moved\" aria-hidden=\"true\"><span class=\"read\" "
                 "style=\"width:%.2f%%\"></span><span class=\"written\" "
                 "style=\"width:%.2f%%\"></span></span>",
                 read, written) +
             "</summary><p class=\"note\">" + element("code", "", html(name)) + ", " +
             amount(cost.flops, "FLOP") + "</p><pre tabindex=\"0\">" + html(text) +
             "</pre></details>\n";
  }
  return items;
}

// Names of the layer's kernels as they run, in order.
json names_of(const json& kernels, const std::string& phase, const json& layer) {
  json names = json::array();
  for (const json& kernel : kernels.at("kernels")) {
    if (kernel.at("phase") == phase && kernel.at("layer") == layer) {
      names.push_back(kernel.at("name"));
    }
  }
  return names;
}

std::string lists(const json& kernels, const Report& layer) {
  double most = 1;
  for (const Half& half : layer.halves) {
    for (const Ledger* ledger : {&half.fused, &half.unfused}) {
      for (const Cost& cost : ledger->steps) {
        most = std::max(most, static_cast<double>(bytes_moved(cost)));
      }
    }
  }
  std::string fused, plain;
  for (const Half& half : layer.halves) {
    const char letter = half.phase == "forward" ? 'F' : 'B';
    const json names = names_of(kernels, half.phase, kernels.at("layer").at("index"));
    const std::string head = "<h4>" + html(half.phase) + "</h4>\n";
    fused += head + list(half.partition.schedule, half.fused, names, letter, most);
    plain += head + list(half.plain, half.unfused, json::array(), letter, most);
  }
  return "<div class=\"pair\"><div id=\"fused-kernels\"><h3>Fused: what runs</h3>\n<p "
         "class=\"note\">A bar is "
         "the bytes moved: solid read, hatched written. A click shows the kernel's text.</p>\n" +
         fused +
         "</div>\n<div id=\"unfused-calls\"><h3>Unfused: one library call each</h3>\n<details "
         "class=\"all\"><summary>All calls</summary>\n" +
         plain + "</details></div></div>\n";
}

}  // namespace

std::string layer_section(const RunLog& log) {
  if (log.kernels.is_null()) return "<p>The run ended before its kernels were written.</p>";
  const json& record = log.kernels.at("layer");
  const Report layer = report_of(record);
  return formatted(
             "<p>Layer %d, counted from 0, as it runs among the others. F is forward, B backward. "
             "A kernel is a matrix product with "
             "all that follows it while its result is on chip.</p>\n",
             record.at("index").get<int>()) +
         "<div class=\"pair\"><div>\n" + counts_table(log.kernels, layer) +
         "</div>\n<figure><h3>Bytes moved, kernel by kernel</h3>\n" + kinds() +
         Towers(layer).text() +
         "</figure></div>\n<h3>The schedule</h3>\n<p class=\"note\">Forward runs down on the left, "
         "backward up on the right; lines are tensors, as thick as their bytes. On a narrow screen "
         "it scrolls sideways.</p>\n<div "
         "class=\"scroll picture schedule\" tabindex=\"0\">" +
         picture(layer, Svg::Form::element) + "</div>\n" + lists(log.kernels, layer);
}

}  // namespace coda
