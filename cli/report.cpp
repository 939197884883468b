// cli/report.cpp: `coda report`: the page of a training run, put together from its sections.
#include "cli/report.h"

#include <cmath>
#include <iostream>
#include <memory>

#include "cli/commands.h"
#include "cli/html.h"
#include "cli/page_files.h"
#include "cli/progress.h"
#include "cli/report_sections.h"
#include "coda/core/error.h"
#include "coda/core/file.h"
#include "coda/rewrite/ledger.h"
#include "coda/rewrite/svg.h"

namespace coda {
namespace {

using nlohmann::json;

// What the run did, in numbers.
struct Totals {
  std::int64_t done = 0, steps = 0;                // of the schedule
  double training = 0, measuring = 0, tokens = 0;  // seconds; learnt in that time
  std::string state;                               // empty: all steps are done
};

Totals totals_of(const RunLog& log) {
  Totals totals;
  for (const RunLog::Session& session : log.sessions) {
    const json& batch = session.start.at("batch");
    const double tokens = batch.at("sequences").get<double>() * batch.at("length").get<double>();
    totals.training += session.training;
    totals.measuring += session.measuring;
    totals.tokens += tokens * static_cast<double>(session.to - session.from);
  }
  const RunLog::Session& last = log.sessions.back();
  totals.done = last.to;
  totals.steps = last.start.at("steps").get<std::int64_t>();
  totals.state = !last.ended ? "no end in the log" : last.interrupted ? "stopped by a signal" : "";
  return totals;
}

std::string file_of(const RunLog& log) {
  return log.sessions.back().start.at("data").at("file").get<std::string>();
}

std::string tile(const std::string& what, const std::string& value, const std::string& unit) {
  return "<div class=\"tile\"><dt>" + what + "</dt><dd>" + value + " <span class=\"unit\">" + unit +
         "</span></dd></div>\n";
}

std::string tiles(const RunLog& log) {
  const Totals totals = totals_of(log);
  std::string text;
  if (!log.held_out.empty()) {
    const double before = log.held_out.begin()->second, after = log.held_out.rbegin()->second;
    text += tile("held-out loss",
                 datum("held-out-before", before, formatted("%.3f", before)) + " → " +
                     datum("held-out-after", after, formatted("%.3f", after)),
                 "nats a byte");
    text += tile("that is", formatted("%.2f", after / std::log(2.0)), "bits a byte");
  }
  text += tile("steps",
               datum("steps", static_cast<double>(totals.done), count_text(totals.done)) +
                   (totals.done < totals.steps ? " of " + count_text(totals.steps) : ""),
               totals.state);
  text += tile("training", datum("seconds", totals.training, duration_text(totals.training)), "");
  const double rate = totals.training > 0 ? totals.tokens / totals.training : 0;
  text +=
      tile("speed", datum("tokens-per-second", rate, count_text(std::llround(rate))), "tokens/s");
  return "<dl class=\"tiles\">\n" + text + "</dl>\n";
}

std::string row(const std::string& what, const std::string& value) {
  return "<tr><th scope=\"row\">" + what + "</th><td>" + value + "</td></tr>\n";
}

std::string facts(const RunLog& log) {
  const RunLog::Session& last = log.sessions.back();
  const json &start = last.start, &model = start.at("model"), &machine = start.at("machine"),
             &versions = start.at("versions"), &data = start.at("data"), &batch = start.at("batch");
  const auto count = [](const json& value) {
    return count_text(value.get<std::int64_t>());
  };
  const auto shown = [](const json& value) {
    return html(value.is_string() ? value.get<std::string>() : value.dump());
  };
  const Totals totals = totals_of(log);
  std::string rows;
  for (const RunLog::Session& session : log.sessions) {
    const std::string from =
        session.from > 0 ? " (from step " + count_text(session.from) + ")" : "";
    rows += row("started" + from, shown(session.start.at("time")));
    rows += row("command", "<code>" + shown(session.start.at("command")) + "</code>");
  }
  rows += row("processor", shown(machine.at("cpu")) + ", " + count(machine.at("cores")) +
                               " cores, " + count(start.at("threads")) + " threads used");
  rows += row("memory", html(bytes_text(machine.at("memory").get<double>())));
  rows += row("system", shown(machine.at("system")));
  rows += row("versions", "coda " + shown(versions.at("coda")) + ", oneDNN " +
                              shown(versions.at("onednn")) + ", SIMD " +
                              shown(versions.at("simd")) + ", " + shown(versions.at("compiler")));
  rows += row("text", shown(data.at("file")) + ", " + count(data.at("bytes")) +
                          " bytes, the last " + count(data.at("held_out_bytes")) + " held out");
  rows += row("batch", count(batch.at("sequences")) + " sequences of " + count(batch.at("length")) +
                           " bytes");
  rows += row("parameters", datum("parameters", start.at("parameters").get<double>(),
                                  count(start.at("parameters"))));
  rows += row("highest learning rate", shown(start.at("rate")));
  rows += row("seed", shown(start.at("seed")));
  rows += row("training", html(duration_text(totals.training)));
  rows += row("measuring for this page",
              datum("measuring-seconds", totals.measuring,
                    formatted("%.1f s, %.1f %% of training", totals.measuring,
                              totals.training > 0 ? 100 * totals.measuring / totals.training : 0)));
  std::string sizes;
  for (const auto& [key, value] : model.items()) {
    if (!value.is_number()) continue;
    sizes += (sizes.empty() ? "" : ", ") + html(key) + " " + shown(value);
  }
  rows += row("model", sizes);
  return "<table class=\"facts\"><tbody>\n" + rows + "</tbody></table>\n";
}

std::string summary(const RunLog& log) {
  const json& start = log.sessions.back().start;
  return "A Llama-style model of " + count_text(start.at("parameters").get<std::int64_t>()) +
         " parameters learnt <b>" + html(file_of(log)) +
         "</b>, byte by byte. Every operator but attention is CODA text, differentiated, cut into "
         "kernels and run by the CPU backend.";
}

struct Options {
  std::string folder, output;
};

}  // namespace

std::string report_page(const RunLog& log) {
  try {
    const std::string css(page_file("report.css")), script(page_file("report.js"));
    return filled(page_file("report.html"), {{"title", "Training on " + html(file_of(log))},
                                             {"style", css},
                                             {"summary", summary(log)},
                                             {"tiles", tiles(log)},
                                             {"curves", curves_section(log)},
                                             {"samples", samples_section(log)},
                                             {"time", time_section(log)},
                                             {"layer", layer_section(log)},
                                             {"facts", facts(log)},
                                             {"data", curves_data(log)},
                                             {"script", script}});
  } catch (const json::exception& error) {
    throw ProgramError("the log lacks what its report shows: " + std::string(error.what()),
                       "give the folder of a model that this version of `coda train` wrote");
  }
}

std::string samples_section(const RunLog& log) {
  const auto steps = static_cast<double>(totals_of(log).steps);
  std::string text;
  for (const auto& [step, sample] : log.samples) {
    text +=
        "<li><h3>after " + count_text(step) + (step == 1 ? " step" : " steps") +
        formatted(" <span class=\"unit\">%.0f %%</span>", 100 * static_cast<double>(step) / steps) +
        "</h3><pre class=\"sample\" tabindex=\"0\">" + html(sample) + "</pre></li>\n";
  }
  return text.empty() ? "<p>No sample was taken.</p>"
                      : "<ol class=\"samples\">\n" + text + "</ol>\n";
}

std::string write_report(const std::string& folder, const std::string& path) {
  std::string to = path.empty() ? folder + "/report.html" : path;
  write_file(to, report_page(read_log(folder)));
  return to;
}

void add_report(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "report", "Make the page of a training run again from the log in its folder");
  command->add_option("folder", options->folder, "The folder of the model")->required();
  command->add_option("-o,--output", options->output, "The page (default: FOLDER/report.html)");
  command->footer("Example: coda report coda-model --output run.html");
  command->callback(
      [options] { std::cout << write_report(options->folder, options->output) << "\n"; });
}

}  // namespace coda
