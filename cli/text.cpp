// cli/text.cpp: check, fmt and print: commands that read a text and look no further.
#include <algorithm>
#include <iostream>
#include <iterator>
#include <memory>

#include "cli/commands.h"
#include "cli/sources.h"
#include "coda/check/check.h"
#include "coda/core/file.h"

namespace coda {
namespace {

std::string_view name_of(KernelKind kind) {
  switch (kind) {
    case KernelKind::gemm:
      return "gemm";
    case KernelKind::stream:
      return "stream";
    case KernelKind::opaque:
      return "opaque";
  }
  throw InternalError("unknown kernel kind");
}

// That each step is one kernel under the schedule's dimensions; what is wrong with the program
// itself is said once.
void check_steps(const Schedule& schedule, std::vector<Diagnostic>& errors) {
  for (const Step& step : schedule.steps) {
    try {
      check(step.program);
    } catch (const ProgramError& error) {
      for (const Diagnostic& d : error.diagnostics()) {
        const auto same = [&](const Diagnostic& other) {
          return other.where == d.where;
        };
        if (std::ranges::none_of(errors, same)) errors.push_back(d);
      }
    }
  }
}

struct CheckOptions {
  std::vector<std::string> files;
  bool json = false;
};

void run_check(const CheckOptions& options) {
  std::vector<Diagnostic> errors;
  nlohmann::json programs = nlohmann::json::array();
  std::string lines;
  for (const std::string& file : options.files) {
    Module module;
    try {
      module = parse_file(file);
    } catch (const ProgramError& error) {
      errors.insert(errors.end(), error.diagnostics().begin(), error.diagnostics().end());
      continue;
    }
    if (module.imported == module.programs.size() && module.schedules.empty()) {
      lines += file + ": no program, block or schedule of its own\n";
    }
    for (std::size_t i = module.imported; i < module.programs.size(); ++i) {
      const Program& program = module.programs[i];
      const bool is_block = program.kind() == Program::Kind::block;
      nlohmann::json entry = {{"file", file},
                              {"name", program.name()},
                              {"kind", is_block ? "block" : "program"},
                              {"line", program.where().line}};
      std::string verdict = "block, " + std::to_string(program.nodes().size()) + " operations";
      if (!is_block) {
        try {
          const Checked checked = check(program);
          entry["kernel"] = name_of(checked.kind());
          entry["spaces"] = checked.spaces().size();
          verdict = "program, one " + std::string(name_of(checked.kind())) + " kernel";
        } catch (const ProgramError& error) {
          errors.insert(errors.end(), error.diagnostics().begin(), error.diagnostics().end());
          continue;
        }
      }
      programs.push_back(std::move(entry));
      lines += file + ": " + program.name() + ": " + verdict + "\n";
    }
    for (const Schedule& schedule : module.schedules) {
      check_steps(schedule, errors);
      programs.push_back({{"file", file},
                          {"name", schedule.name},
                          {"kind", "schedule"},
                          {"line", schedule.where.line},
                          {"steps", schedule.steps.size()},
                          {"loops", schedule.loops.size()}});
      lines += file + ": " + schedule.name + ": schedule, " +
               std::to_string(schedule.steps.size()) + " steps\n";
    }
  }
  if (options.json) {
    nlohmann::json report = errors_json(ProgramError(errors));
    report["programs"] = programs;
    std::cout << report.dump(2) << "\n";
    if (!errors.empty()) throw CLI::RuntimeError(kRefused);
    return;
  }
  std::cout << lines;
  if (!errors.empty()) throw ProgramError(errors);
}

struct FmtOptions {
  std::vector<std::string> files;
  bool check = false;
};

void run_fmt(const FmtOptions& options) {
  bool differs = false;
  for (const std::string& file : options.files) {
    if (file == "-") {
      const std::string text{std::istreambuf_iterator<char>(std::cin), {}};
      std::cout << format(text, "<stdin>");
      continue;
    }
    const std::string text = read_file(file);
    const std::string formatted = format(text, file);
    if (formatted == text) continue;
    differs = true;
    if (options.check) {
      std::cout << file << ": not in canonical layout\n";
    } else {
      write_file(file, formatted);
      std::cout << file << ": formatted\n";
    }
  }
  if (differs && options.check) throw CLI::RuntimeError(kRefused);
}

struct PrintOptions {
  std::string file, name;
};

void run_print(const PrintOptions& options) {
  const Module module = parse_file(options.file);
  if (options.name.empty()) {
    std::cout << print(module);
  } else if (const Schedule* schedule = module.find_schedule(options.name)) {
    std::cout << print(*schedule);
  } else {
    std::cout << print(module.find(options.name));
  }
}

}  // namespace

void add_check(CLI::App& app) {
  auto options = std::make_shared<CheckOptions>();
  CLI::App* command = app.add_subcommand(
      "check",
      "Parse and type files; check that each program, and each step of a schedule, is one kernel");
  command->add_option("files", options->files, "Program files")->required();
  command->add_flag("--json", options->json, "Verdicts and errors as JSON");
  command->footer("Example: coda check programs/norm.coda");
  command->callback([options] { run_check(*options); });
}

void add_fmt(CLI::App& app) {
  auto options = std::make_shared<FmtOptions>();
  CLI::App* command =
      app.add_subcommand("fmt", "Rewrite files in the canonical layout; comments stay");
  command->add_option("files", options->files, "Program files, or - for standard input to output")
      ->required();
  command->add_flag("--check", options->check,
                    "Write nothing; exit with 1 where a file would change");
  command->footer("Example: coda fmt my.coda");
  command->callback([options] { run_fmt(*options); });
}

void add_print(CLI::App& app) {
  auto options = std::make_shared<PrintOptions>();
  CLI::App* command =
      app.add_subcommand("print", "Print programs and schedules with all sugar and calls expanded");
  command->add_option("file", options->file, "Program file")->required();
  command->add_option("--program,--block", options->name, "Only this program, block or schedule");
  command->footer("Example: coda print programs/norm.coda --program norm_swiglu");
  command->callback([options] { run_print(*options); });
}

}  // namespace coda
