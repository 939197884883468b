// cli/rewrite.cpp: grad, rewrite and explain: commands that turn programs into programs.
#include "coda/rewrite/rewrite.h"

#include <algorithm>
#include <iostream>
#include <memory>
#include <set>

#include "cli/commands.h"
#include "cli/pieces.h"
#include "cli/sources.h"
#include "coda/rewrite/explain.h"
#include "coda/rewrite/grad.h"
#include "coda/rewrite/halves.h"
#include "coda/rewrite/picture.h"
#include "coda/rewrite/stack.h"

namespace coda {
namespace {

constexpr std::int64_t kDefaultSize = 128;

struct Options {
  std::string file, name, of, wrt, tie;
  std::vector<std::string> sizes;
  bool grad = false, json = false, delay_f16 = false;
  int layers = 0;  // 0: the block itself
  std::string save, recompute, accumulate;
  std::optional<std::int64_t> memory;
  bool ledger = false, trace = false;
  std::string svg, device;
};

GradOptions grad_options(const Options& options) {
  GradOptions gradients{.of = names_from(options.of), .wrt = names_from(options.wrt)};
  for (const std::string& each : names_from(options.accumulate)) {
    const std::size_t equals = each.find('=');
    const std::string dtype = equals == std::string::npos ? "f32" : each.substr(equals + 1);
    if (dtype != "f32" && dtype != "bf16") {
      throw ProgramError("a gradient cannot add into " + dtype,
                         "write --accumulate NAME for f32, or NAME=bf16");
    }
    gradients.accumulate[each.substr(0, equals)] = *dtype_from(dtype);
  }
  return gradients;
}

std::map<std::string, std::string> ties(const Options& options) {
  std::map<std::string, std::string> tied;
  for (const std::string& pair : names_from(options.tie)) {
    const std::size_t equals = pair.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == pair.size()) {
      throw ProgramError("`" + pair + "` ties nothing",
                         "name two parameters: --tie head.w=embed.table");
    }
    tied[pair.substr(0, equals)] = pair.substr(equals + 1);
  }
  return tied;
}

Program block_of(const Options& options) {
  if (!options.grad && !(options.of + options.wrt).empty()) {
    throw ProgramError("`of=` and `wrt=` ask for a gradient, and none is computed",
                       "add --grad, or leave them out");
  }
  if (options.layers == 0) return load_program(options.file, options.name);
  StackOptions stacked{.tied = ties(options)};
  if (!options.name.empty()) stacked.layer = options.name;
  return stack(parse_file(options.file), options.layers, stacked);
}

RewriteOptions rewrite_options(const Options& options) {
  const auto set = [](const std::string& list) {
    const std::vector<std::string> names = names_from(list);
    return std::set<std::string>(names.begin(), names.end());
  };
  return {.delay_f16 = options.delay_f16,
          .memory = options.memory,
          .save = set(options.save),
          .recompute = set(options.recompute),
          .sizes = sizes_from(options.sizes)};
}

Report report_of(const Options& options) {
  const Program block = block_of(options);
  const Sizes sizes = complete_sizes(block, sizes_from(options.sizes), kDefaultSize);
  return options.grad ? report(block, grad_options(options), sizes, rewrite_options(options))
                      : report(block, sizes, rewrite_options(options));
}

void run_grad(const Options& options) {
  std::cout << print(grad(load_program(options.file, options.name), grad_options(options)));
}

// Programs of one text: the version line comes once, at its top.
std::string without_version(const std::string& text) {
  return text.substr(text.find('\n') + 1);
}

std::string kernels_text(std::size_t count) {
  return std::to_string(count) + (count == 1 ? " kernel" : " kernels");
}

// One text that `coda run` and `coda verify` take: each program once, then the schedules.
std::string schedules_text(std::vector<Schedule> schedules) {
  const char* phase = "Forward";
  for (Schedule& schedule : schedules) {
    schedule.comment = std::string(phase) + ": " + kernels_text(schedule.steps.size()) + ".";
    phase = "Backward";
  }
  return print(schedules);
}

std::string version_line() {
  return "coda " + std::to_string(kLanguageVersion) + "\n";
}

std::string trace_text(const std::vector<Pass>& passes) {
  std::string text = version_line();
  for (const Pass& pass : passes) {
    text += "\n# after " + pass.name + "\n" + without_version(print(pass.program));
  }
  return text;
}

void print_counted(const Options& options) {
  const Report report = report_of(options);
  if (!options.svg.empty()) write_picture(report, options.svg);
  if (options.json) {
    nlohmann::json json = report_json(report);
    for (const Pass& pass : report.passes) {
      if (options.trace)
        json["passes"].push_back({{"name", pass.name}, {"text", print(pass.program)}});
    }
    std::cout << json.dump(2) << "\n";
    return;
  }
  if (options.trace) std::cout << trace_text(report.passes) << "\n";
  if (options.ledger) {
    std::cout << ledger_text(report);
    return;
  }
  std::vector<Schedule> schedules;
  for (const Half& half : report.halves) schedules.push_back(half.partition.schedule);
  const std::string text = schedules_text(std::move(schedules));
  std::cout << (options.trace ? without_version(text) : text);
}

// Without sizes, which a block need not have.
void run_rewrite(const Options& options) {
  if (options.json || options.ledger || !options.svg.empty()) return print_counted(options);
  const Program block = block_of(options);
  Rewritten made = options.grad ? rewrite(block, grad_options(options), rewrite_options(options))
                                : rewrite(block, rewrite_options(options));
  std::vector<Schedule> schedules = {std::move(made.forward.schedule)};
  if (made.backward) schedules.push_back(std::move(made.backward->schedule));
  const std::string text = schedules_text(std::move(schedules));
  if (options.trace) std::cout << trace_text(made.passes);
  std::cout << (options.trace ? without_version(text) : text);
}

void run_explain(const Options& options) {
  const Report report = report_of(options);
  if (!options.json) {
    std::cout << explain(report);
    for (const Half& half : report.halves) {
      if (!options.device.empty()) {
        std::cout << "\n" << device_text(half.partition.schedule, report.sizes);
      }
    }
    return;
  }
  nlohmann::json json = explain_json(report);
  for (std::size_t i = 0; i < report.halves.size() && !options.device.empty(); ++i) {
    // One half alone is no array.
    (json.is_array() ? json[i] : json)["device"] =
        device_json(report.halves[i].partition.schedule, report.sizes);
  }
  std::cout << json.dump(2) << "\n";
}

// The file among `--grad of=y,z wrt=x,w FILE`.
void sort_out(const std::vector<std::string>& words, Options& options) {
  for (const std::string& word : words) {
    if (word.starts_with("of=")) {
      options.of = word.substr(3);
    } else if (word.starts_with("wrt=")) {
      options.wrt = word.substr(4);
    } else if (options.file.empty()) {
      options.file = word;
    } else {
      throw CLI::ValidationError("file", "two files: " + options.file + " and " + word +
                                             "; give one, and of=… or wrt=… beside it");
    }
  }
  if (options.file.empty()) throw CLI::RequiredError("file");
}

std::shared_ptr<Options> common(CLI::App* command) {
  auto options = std::make_shared<Options>();
  command
      ->add_option_function<std::vector<std::string>>(
          "file", [options = options.get()](const auto& words) { sort_out(words, *options); },
          "Program file; of=y,z and wrt=x,w may stand for --of and --wrt")
      ->required()
      ->expected(1, 3);
  command->add_option("--block,--program", options->name,
                      "The block or program of the file; the last one if not given");
  command->add_option("--of", options->of, "Results to differentiate, like y,z; all if not given");
  command->add_option("--wrt", options->wrt, "Parameters to differentiate by; all if not given");
  return options;
}

void add_rewriting(CLI::App* command, Options& options) {
  command->add_option(
      "--size", options.sizes,
      "Sizes of names, like --size M=2048 N=1024; 128 where neither given nor implied");
  CLI::Option* layers = command->add_option(
      "--layers", options.layers,
      "Repeat the block (`layer` if not given) so often, embedding and head of the file around it");
  layers->check(number_between(1, 4096));
  command->add_option("--tie", options.tie, "Parameters that are one, like head.w=embed.table")
      ->needs(layers);
  CLI::Option* grad =
      command->add_flag("--grad", options.grad, "Forward for training, then backward");
  const auto of_training = [&](CLI::Option* option) {
    option->needs(grad);
  };
  of_training(command->get_option("--of"));
  of_training(command->get_option("--wrt"));
  of_training(command
                  ->add_option("--memory", options.memory,
                               "Bytes that forward may keep for backward, like 4GB")
                  ->transform(CLI::AsSizeValue(false)));
  of_training(command->add_option("--save", options.save, "Values that forward keeps, like q,k"));
  of_training(command->add_option("--recompute", options.recompute,
                                  "Values that backward computes again, like q,k"));
  of_training(command->add_option(
      "--accumulate", options.accumulate,
      "Parameters whose gradients add into what is there, in f32; or NAME=bf16"));
  command->add_flag("--delay-f16", options.delay_f16,
                    "Let row scales leave products of f16, whose range what is left may exceed");
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
  add_rewriting(command, *options);
  command->add_flag("--ledger", options->ledger,
                    "Bytes and flops of each kernel, against the unfused sequence");
  command->add_flag("--trace", options->trace, "First the program after each pass");
  command->add_option("--svg", options->svg, "Write a picture of the schedule to this file");
  command->footer("Example: coda rewrite programs/llama.coda --layers 3 --grad --ledger");
  command->callback([options] { run_rewrite(*options); });
}

void add_explain(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "explain", "Say in which kernel each statement landed and why, and what each kernel moves");
  const auto options = common(command);
  add_rewriting(command, *options);
  command
      ->add_option("--device", options->device,
                   "cuda: also how each kernel runs on this machine's GPU, or else an H200")
      ->check(CLI::IsMember({"cuda"}));
  command->footer(
      "Example: coda explain programs/llama.coda --block mlp --size M=2048 --device cuda");
  command->callback([options] { run_explain(*options); });
}

}  // namespace coda
