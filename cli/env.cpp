// cli/env.cpp: what this machine and this build have, and what to install where something lacks.
#include <dnnl.hpp>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/devices.h"
#include "coda/core/flags.h"
#include "coda/cpu/cpu.h"
#include "coda/cuda/cache.h"
#include "coda/cuda/driver.h"
#include "coda/cuda/nvrtc.h"
#include "coda/cuda/tuning.h"
#include "coda/program/library.h"

namespace coda {
namespace {

nlohmann::json gpu_facts() {
  if (const auto problem = cuda::Driver::problem()) return {{"problem", *problem}};
  const cuda::DeviceFacts& device = cuda::Driver::get().device();
  return {{"name", device.name},
          {"architecture", device.target.architecture},
          {"processors", device.target.processors},
          {"memory", device.memory},
          {"shared_memory", device.target.shared},
          {"l2", device.l2},
          {"clock_khz", device.clock},
          {"memory_clock_khz", device.memory_clock},
          {"memory_bus_bits", device.memory_bus},
          {"driver_cuda", cuda::cuda_version(device.driver)}};
}

nlohmann::json nvrtc_facts() {
  if (const auto problem = cuda::nvrtc_problem()) return {{"problem", *problem}};
  const cuda::Nvrtc nvrtc = cuda::nvrtc();
  return {{"version", nvrtc.version}, {"path", nvrtc.path}};
}

nlohmann::json cache_facts() {
  const cuda::Cache& cache = cuda::Cache::process();
  const cuda::Cache::Use use = cache.use();
  return {{"folder", cache.folder()}, {"entries", use.entries}, {"bytes", use.bytes}};
}

nlohmann::json tuning_facts() {
  nlohmann::json tables = nlohmann::json::array();
  for (const cuda::TuningSource& source : cuda::tuning_sources()) {
    nlohmann::json table = {{"path", source.path}, {"entries", source.entries}};
    if (!source.problem.empty()) table["problem"] = source.problem;
    tables.push_back(std::move(table));
  }
  return tables;
}

nlohmann::json describe() {
  const dnnl_version_t* onednn = dnnl_version();
  const auto version = [](int a, int b, int c) {
    return std::to_string(a) + "." + std::to_string(b) + "." + std::to_string(c);
  };
  return {{"coda", CODA_VERSION},
          {"devices", device_names()},
          {"threads", flags::threads()},
          {"simd", cpu::simd_target()},
          {"products", cpu::products()},
          {"onednn", version(onednn->major, onednn->minor, onednn->patch)},
          {"programs", embedded_programs()},
          {"gpu", gpu_facts()},
          {"nvrtc", nvrtc_facts()},
          {"kernel_cache", cache_facts()},
          {"tuning_tables", tuning_facts()}};
}

// The objects of describe(), as a person reads them.
std::string gpu_text(const nlohmann::json& gpu) {
  if (gpu.contains("problem")) return "none: " + gpu["problem"].get<std::string>();
  const std::int64_t megahertz = gpu["clock_khz"].get<std::int64_t>() / 1000;
  // Some drivers do not say.
  const std::string clock = megahertz > 0 ? " at " + std::to_string(megahertz) + " MHz" : "";
  return gpu["name"].get<std::string>() + ", " + gpu["architecture"].get<std::string>() + ", " +
         gpu["processors"].dump() + " processors" + clock + ", " +
         cuda::readable_bytes(gpu["memory"].get<std::int64_t>()) + ", driver for CUDA " +
         gpu["driver_cuda"].get<std::string>();
}

std::string nvrtc_text(const nlohmann::json& nvrtc) {
  if (nvrtc.contains("problem")) return "none: " + nvrtc["problem"].get<std::string>();
  return nvrtc["version"].get<std::string>() + ", " + nvrtc["path"].get<std::string>();
}

std::string cache_text(const nlohmann::json& cache) {
  const std::string folder = cache["folder"].get<std::string>();
  if (folder.empty()) return "off";
  const std::int64_t kernels = cache["entries"].get<std::int64_t>();
  return folder + ", " + std::to_string(kernels) + (kernels == 1 ? " kernel, " : " kernels, ") +
         cuda::readable_bytes(cache["bytes"].get<std::int64_t>());
}

std::string tuning_text(const nlohmann::json& tables) {
  std::string text;
  for (const nlohmann::json& table : tables) {
    const auto entries = table["entries"].get<std::int64_t>();
    text += (text.empty() ? "" : "; ") + table["path"].get<std::string>() + ", " +
            (table.contains("problem")
                 ? "not used: " + table["problem"].get<std::string>()
                 : std::to_string(entries) + (entries == 1 ? " entry" : " entries"));
  }
  return text;
}

std::string text_of(const std::string& key, const nlohmann::json& value) {
  if (key == "gpu") return gpu_text(value);
  if (key == "nvrtc") return nvrtc_text(value);
  if (key == "kernel_cache") return cache_text(value);
  if (key == "tuning_tables") return tuning_text(value);
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) return value.dump();
  std::string text;
  for (const auto& each : value) text += (text.empty() ? "" : " ") + each.get<std::string>();
  return text;
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
      std::cout << key << ": " << text_of(key, value) << "\n";
    }
    std::cout << "set CODA_THREADS to use another number of threads, CODA_GEMM to multiply "
                 "another way (onednn, amx, dot), CODA_CACHE to keep kernels in "
                 "another folder (or off), CODA_NVRTC to compile with another libnvrtc\n";
  });
}

}  // namespace coda
