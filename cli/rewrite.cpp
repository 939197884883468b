// cli/rewrite.cpp: grad, rewrite and explain: commands that turn programs into programs.
#include "coda/rewrite/rewrite.h"

#include <iostream>
#include <memory>
#include <set>

#include "cli/commands.h"
#include "cli/sources.h"
#include "coda/backend/backend.h"
#include "coda/rewrite/explain.h"
#include "coda/rewrite/grad.h"
#include "coda/rewrite/ledger.h"

namespace coda {
namespace {

constexpr std::int64_t kDefaultSize = 128;

struct Options {
  std::string file, name, of, wrt;
  std::vector<std::string> sizes;
  bool grad = false;
  bool ledger = false;
  bool json = false;
};

GradOptions grad_options(const Options& options) {
  return {.of = names_from(options.of), .wrt = names_from(options.wrt)};
}

// What the options ask for: the block itself, or its two halves.
std::vector<std::pair<std::string, Program>> phases(const Options& options) {
  Program block = load_program(options.file, options.name);
  if (!options.grad) return {{"forward", std::move(block)}};
  Training training = grad_for_training(block, grad_options(options));
  return {{"forward", std::move(training.forward)}, {"backward", std::move(training.backward)}};
}

// The gradient may lack a dimension of its block; a size of it is no mistake there.
Sizes sizes_for(const std::string& phase, const Program& block, const Options& options) {
  Sizes sizes = sizes_from(options.sizes);
  if (phase == "backward") {
    const std::set<std::string> names = dimensions_of(block);
    std::erase_if(sizes, [&](const auto& size) { return !names.contains(size.first); });
  }
  return complete_sizes(block, sizes, kDefaultSize);
}

std::string line(const Cost& cost) {
  char text[160];
  std::snprintf(text, sizeof text, "%-40s %-7s %12.3f MB read %12.3f MB written %14.3f MFLOP\n",
                cost.step.c_str(), cost.kind.c_str(), static_cast<double>(cost.bytes_read) / 1e6,
                static_cast<double>(cost.bytes_written) / 1e6,
                static_cast<double>(cost.flops) / 1e6);
  return text;
}

std::string kernels_text(std::size_t count) {
  return std::to_string(count) + (count == 1 ? " kernel" : " kernels");
}

void run_grad(const Options& options) {
  std::cout << print(grad(load_program(options.file, options.name), grad_options(options)));
}

void run_rewrite(const Options& options) {
  nlohmann::json kernels = nlohmann::json::array();
  Cost total{.step = "total", .kind = ""}, unfused_total{.step = "unfused sequence", .kind = ""};
  const bool needs_sizes = options.ledger || options.json;
  std::string text, table;
  for (const auto& [phase, block] : phases(options)) {
    const Schedule schedule = rewrite(block).forward.schedule;
    Ledger costs;
    if (needs_sizes) {
      const Sizes sizes = sizes_for(phase, block, options);
      costs = ledger(schedule, sizes);
      total += costs.total;
      unfused_total += ledger(unfused(block), sizes).total;
    }
    Module module;
    for (std::size_t i = 0; i < schedule.steps.size(); ++i) {
      const Program& program = schedule.steps[i].program;
      module.programs.push_back(program);
      if (!needs_sizes) continue;
      table += line(costs.steps[i]);
      kernels.push_back({{"phase", phase},
                         {"name", program.name()},
                         {"kind", costs.steps[i].kind},
                         {"text", print(program)},
                         {"bytes_read", costs.steps[i].bytes_read},
                         {"bytes_written", costs.steps[i].bytes_written},
                         {"flops", costs.steps[i].flops}});
    }
    // One text for all phases: the version line comes once, at its top.
    const std::string printed = print(module);
    const std::size_t body = printed.find('\n') + 1;
    if (text.empty()) text = printed.substr(0, body);
    text +=
        "\n# " + phase + ": " + kernels_text(schedule.steps.size()) + "\n" + printed.substr(body);
  }
  if (options.json) {
    const auto json = [](const Cost& cost) {
      return nlohmann::json{{"bytes_read", cost.bytes_read},
                            {"bytes_written", cost.bytes_written},
                            {"flops", cost.flops}};
    };
    std::cout << nlohmann::json{{"kernels", kernels},
                                {"ledger",
                                 {{"total", json(total)}, {"unfused", json(unfused_total)}}}}
                     .dump(2)
              << "\n";
    return;
  }
  std::cout << (options.ledger ? table + line(total) + line(unfused_total) : text);
}

void run_explain(const Options& options) {
  nlohmann::json reports = nlohmann::json::array();
  for (const auto& [phase, block] : phases(options)) {
    const Sizes sizes = sizes_for(phase, block, options);
    if (options.json) {
      nlohmann::json report = explain_json(block, sizes);
      report["phase"] = phase;
      reports.push_back(std::move(report));
    } else {
      std::cout << explain(block, sizes);
    }
  }
  if (options.json) std::cout << (reports.size() == 1 ? reports[0] : reports).dump(2) << "\n";
}

std::shared_ptr<Options> common(CLI::App* command) {
  auto options = std::make_shared<Options>();
  command->add_option("file", options->file, "Program file")->required();
  command->add_option("--block,--program", options->name,
                      "The block or program of the file; the last one if not given");
  command->add_option("--of", options->of, "Results to differentiate, like y,z; all if not given");
  command->add_option("--wrt", options->wrt, "Parameters to differentiate by; all if not given");
  return options;
}

void add_sizes(CLI::App* command, Options& options) {
  command->add_option(
      "--size", options.sizes,
      "Sizes of names, like --size M=2048 N=1024; 128 where neither given nor implied");
  CLI::Option* grad =
      command->add_flag("--grad", options.grad, "Forward for training, then backward");
  command->get_option("--of")->needs(grad);
  command->get_option("--wrt")->needs(grad);
  command->add_flag("--json", options.json, "The same as JSON");
}

}  // namespace

void add_grad(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("grad", "Print the gradient of a program or block, as a block");
  const auto options = common(command);
  command->footer("Example: coda grad programs/llama.coda --block mlp --wrt x");
  command->callback([options] { run_grad(*options); });
}

void add_rewrite(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("rewrite", "Cut a block into one-kernel programs, and print them");
  const auto options = common(command);
  add_sizes(command, *options);
  command->add_flag("--ledger", options->ledger,
                    "Bytes and flops of each kernel, against the unfused sequence");
  command->footer("Example: coda rewrite programs/llama.coda --grad --ledger");
  command->callback([options] { run_rewrite(*options); });
}

void add_explain(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "explain", "Say in which kernel each statement landed and why, and what each kernel moves");
  const auto options = common(command);
  add_sizes(command, *options);
  command->footer("Example: coda explain programs/llama.coda --block mlp --size M=2048");
  command->callback([options] { run_explain(*options); });
}

}  // namespace coda
