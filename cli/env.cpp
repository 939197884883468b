// cli/env.cpp: what this machine and this build have.
#include <dnnl.hpp>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/devices.h"
#include "coda/core/flags.h"
#include "coda/cpu/cpu.h"
#include "coda/program/library.h"

namespace coda {
namespace {

nlohmann::json describe() {
  const dnnl_version_t* onednn = dnnl_version();
  const auto version = [](int a, int b, int c) {
    return std::to_string(a) + "." + std::to_string(b) + "." + std::to_string(c);
  };
  return {{"coda", CODA_VERSION},
          {"devices", device_names()},
          {"threads", flags::threads()},
          {"simd", cpu::simd_target()},
          {"onednn", version(onednn->major, onednn->minor, onednn->patch)},
          {"programs", embedded_programs()}};
}

}  // namespace

void add_env(CLI::App& app) {
  auto json = std::make_shared<bool>(false);
  CLI::App* command = app.add_subcommand("env", "Say what this machine and this build have");
  command->add_flag("--json", *json, "The same as JSON");
  command->footer("Example: coda env");
  command->callback([json] {
    const nlohmann::json facts = describe();
    if (*json) {
      std::cout << facts.dump(2) << "\n";
      return;
    }
    for (const auto& [key, value] : facts.items()) {
      std::string text;
      if (value.is_array()) {
        for (const auto& each : value) text += (text.empty() ? "" : " ") + each.get<std::string>();
      } else {
        text = value.is_string() ? value.get<std::string>() : value.dump();
      }
      std::cout << key << ": " << text << "\n";
    }
    std::cout << "set CODA_THREADS to use another number of threads\n";
  });
}

}  // namespace coda
