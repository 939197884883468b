// cli/main.cpp: the command `coda`: subcommands, and errors turned into messages and exit codes.
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <new>
#include <string_view>

#include "cli/commands.h"
#include "cli/sources.h"
#include "coda/core/error.h"
#include "coda/core/flags.h"

namespace {

// The message of an error, "error:" in red on a terminal.
void report(std::string text) {
  if (coda::flags::color(2)) {
    constexpr std::string_view kWord = "error:";
    for (std::size_t at = text.find(kWord); at != std::string::npos;) {
      text.replace(at, kWord.size(), "\033[1;31merror:\033[0m");
      at = text.find(kWord, at + 20);
    }
  }
  std::cerr << text << (text.ends_with('\n') ? "" : "\n");
}

// CLI11 says no more of a mistyped command than that one is required.
void require_command(CLI::App& app, int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "";
  std::vector<std::string> known;
  for (const CLI::App* command : app.get_subcommands({})) known.push_back(command->get_name());
  if (name.empty() || name.starts_with("-") || std::ranges::find(known, name) != known.end())
    return;
  report("error: there is no command `" + name +
         "`\n  fix: " + coda::suggestion(name, known, "see `coda --help`"));
  throw CLI::RuntimeError(coda::kUsage);
}

int run(int argc, char** argv) {
  CLI::App app{
      "CODA: Transformer operators as programs that run in the epilogue of a matrix product.\n"
      "A path to a program may also name a file of the standard library: llama.coda, norm.coda, …"};
  app.name("coda");
  app.require_subcommand(1);
  app.failure_message(CLI::FailureMessage::help);
  app.set_version_flag("--version", CODA_VERSION);
  app.footer(
      "Exit codes: 0 done; 1 the text or the inputs are wrong, or a check failed; 2 usage; "
      "3 unsupported; 70 a fault of coda.");
  coda::add_check(app);
  coda::add_fmt(app);
  coda::add_print(app);
  coda::add_grad(app);
  coda::add_rewrite(app);
  coda::add_explain(app);
  coda::add_emit(app);
  coda::add_tune(app);
  coda::add_build(app);
  coda::add_verify(app);
  coda::add_run(app);
  coda::add_train(app);
  coda::add_evaluate(app);
  coda::add_report(app);
  coda::add_generate(app);
  coda::add_bench(app);
  coda::add_env(app);
  try {
    if (argc == 1) throw CLI::CallForHelp();
    require_command(app, argc, argv);
    app.parse(argc, argv);
    return coda::kOk;
  } catch (const CLI::RuntimeError& error) {
    return error.get_exit_code();
  } catch (const CLI::Success& success) {
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    report("error: " + std::string(error.what()) +
           "\n  fix: see `coda --help`, or `coda COMMAND --help`");
    return coda::kUsage;
  }
}

// The same error for tools or for people.
int fail(int argc, char** argv, const coda::ProgramError& error, int code) {
  const auto is_json = [](std::string_view argument) {
    return argument == "--json";
  };
  if (std::any_of(argv + 1, argv + argc, is_json)) {
    std::cout << coda::errors_json(error).dump(2) << "\n";
  } else {
    report(error.what());
  }
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const coda::ProgramError& error) {
    return fail(argc, argv, error, coda::kRefused);
  } catch (const coda::Unsupported& error) {
    const coda::ProgramError shown("unsupported: " + std::string(error.what()), error.fix());
    return fail(argc, argv, shown, coda::kUnsupported);
  } catch (const std::bad_alloc&) {
    const coda::ProgramError shown("not enough memory for these sizes", "give smaller sizes");
    return fail(argc, argv, shown, coda::kRefused);
  } catch (const std::exception& error) {
    const coda::ProgramError shown("internal: " + std::string(error.what()),
                                   "this is a fault of coda; report it with the command line");
    return fail(argc, argv, shown, coda::kInternal);
  }
}
