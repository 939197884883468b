// bench/library.cpp: libcoda_bench.so and libcoda_bench_cpu.so: programs and schedules for Python's
// ctypes, on memory that the caller owns.
//
// Requests and descriptions are JSON, tensors are bare pointers: the caller (PyTorch) allocates and
// checks. A function that fails returns null or nonzero, and coda_bench_error() says why. Handles
// are for one thread at a time.
#include <chrono>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/devices.h"
#include "coda/backend/execute.h"
#include "coda/check/bind.h"
#include "coda/core/error.h"
#include "coda/program/text.h"
#include "coda/reference/reference.h"
#include "coda/rewrite/halves.h"
#include "coda/rewrite/ledger.h"
#include "coda/rewrite/retype.h"
#include "coda/rewrite/rewrite.h"

namespace coda {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

thread_local std::string last_error, last_text;

// A program or a schedule for one set of sizes; without a device only its description.
struct Opened {
  std::shared_ptr<const Backend> backend;
  Schedule schedule;
  Sizes sizes;
  std::optional<Kernel> kernel;          // of a program
  std::optional<Executable> executable;  // of a schedule
  std::vector<Tensor> params, results;   // shapes; run() fills in the rest
  std::size_t scratch = 0;
  std::string description;
};

Module module_of(const json& request) {
  if (request.contains("path")) return parse_file(request["path"]);
  return parse(request.at("text").get<std::string>(), request.value("file", "text"));
}

Sizes sizes_of(const json& request) {
  return request.value("sizes", Sizes());
}

std::shared_ptr<const Backend> backend_of(const bench::Wanted& wanted) {
  // Kept for good: what a backend compiled serves every handle.
  static std::map<bench::Wanted, std::shared_ptr<const Backend>> known;
  std::shared_ptr<const Backend>& backend = known[wanted];
  if (!backend) {
    backend = wanted.device == "reference" ? reference::backend() : bench::device_backend(wanted);
  }
  return backend;
}

Tensor shaped(const Type& type, const Sizes& sizes) {
  return dense(nullptr, type.dtype, shape_of(type, sizes));
}

json tensor_json(const std::string& name, const Type& type, const Tensor& tensor) {
  return {{"name", name},
          {"dtype", name_of(type.dtype)},
          {"shape", tensor.shape},
          {"type", type.text()}};
}

// Sizes in step `s`: in a loop those of a full chunk.
Sizes sizes_in(const Opened& opened, const Step& step) {
  Sizes sizes = opened.sizes;
  if (step.loop >= 0) {
    const Loop& loop = opened.schedule.loops[static_cast<std::size_t>(step.loop)];
    sizes[loop.dim] = std::min(sizes[loop.dim], loop.size);
  }
  return sizes;
}

// [m, n, k] of each product of a step, over all chunks where it is in a loop.
json products_json(const Opened& opened, const Step& step) {
  const Sizes sizes = bind_sizes(step.program, opened.sizes);
  json products = json::array();
  for (const Node& node : step.program.nodes()) {
    if (node.op != Op::product) continue;
    const std::int64_t k = require_extent(node.attr.axis, sizes);
    const std::int64_t all = elements_of(step.program.type(node.results[0]), sizes);
    const std::int64_t left = elements_of(step.program.type(node.args[0]), sizes);
    const std::int64_t m = k > 0 ? left / k : 0;
    products.push_back({m, m > 0 ? all / m : 0, k});
  }
  return products;
}

json steps_json(const Opened& opened) {
  const Ledger counted = ledger(opened.schedule, opened.sizes);
  json steps = json::array();
  for (std::size_t s = 0; s < opened.schedule.steps.size(); ++s) {
    const Step& step = opened.schedule.steps[s];
    const Cost& cost = counted.steps[s];
    const Sizes sizes = sizes_in(opened, step);
    json entry = {{"name", step.program.name()}, {"kind", cost.kind},
                  {"flops", cost.flops},         {"products", products_json(opened, step)},
                  {"bytes", bytes_moved(cost)},  {"sizes", sizes}};
    if (opened.backend && opened.backend->name() != "reference") {
      // Compiled already: this finds it again.
      const Sizes own = bind_sizes(step.program, sizes);
      entry["note"] = opened.kernel ? opened.kernel->note()
                                    : opened.backend->compile(check(step.program), own).note();
    }
    steps.push_back(std::move(entry));
  }
  return steps;
}

void describe(Opened& opened, std::string_view kind, double parsed, double compiled) {
  json params = json::array(), results = json::array();
  for (std::size_t i = 0; i < opened.params.size(); ++i) {
    const Param& param = opened.schedule.params[i];
    params.push_back(tensor_json(param.name, param.type, opened.params[i]));
  }
  for (std::size_t i = 0; i < opened.results.size(); ++i) {
    const Result& result = opened.schedule.results[i];
    json entry = tensor_json(result.name, result.type, opened.results[i]);
    entry["accumulates"] = result.store == Store::accumulate;
    results.push_back(std::move(entry));
  }
  const Ledger counted = ledger(opened.schedule, opened.sizes);
  const json all = {{"name", opened.schedule.name},  {"kind", kind},
                    {"sizes", opened.sizes},         {"params", std::move(params)},
                    {"results", std::move(results)}, {"scratch", opened.scratch},
                    {"flops", counted.total.flops},  {"bytes", bytes_moved(counted.total)},
                    {"parse_seconds", parsed},       {"compile_seconds", compiled},
                    {"steps", steps_json(opened)}};
  opened.description = all.dump();
}

std::unique_ptr<Opened> open(const json& request) {
  const auto start = Clock::now();
  const std::string name = request.value("name", ""), device = request.value("device", "");
  const Module module = module_of(request);
  auto opened = std::make_unique<Opened>();
  const Schedule* schedule = module.find_schedule(name);
  // NOTE: a schedule's sizes are those of the block that it is as a whole.
  const Program program = schedule != nullptr ? inline_schedule(*schedule) : module.find(name);
  opened->schedule = schedule != nullptr ? *schedule : as_schedule(program);
  opened->sizes = bind_sizes(program, sizes_of(request));
  for (const Param& param : program.params()) {
    opened->params.push_back(shaped(param.type, opened->sizes));
  }
  for (const Result& result : program.results()) {
    opened->results.push_back(shaped(result.type, opened->sizes));
  }
  const double parsed = seconds_since(start);
  const auto compile_start = Clock::now();
  if (!device.empty()) {
    opened->backend = backend_of({.device = device,
                                  .tile = request.value("tile", ""),
                                  .threads = request.value("threads", 0),
                                  .whole_products = request.value("whole_products", false)});
    if (schedule != nullptr) {
      opened->executable.emplace(*schedule, *opened->backend, opened->sizes);
      opened->scratch = opened->executable->scratch_bytes();
    } else {
      opened->kernel.emplace(opened->backend->compile(check(program), opened->sizes));
      opened->scratch = opened->kernel->scratch_bytes();
    }
  }
  const double compiled = seconds_since(compile_start);
  const bool is_block = program.kind() == Program::Kind::block;
  const char* kind = schedule != nullptr ? "schedule" : is_block ? "block" : "program";
  describe(*opened, kind, parsed, compiled);
  return opened;
}

// On the tensors of the last run.
void launch(Opened& opened, void* scratch, void* stream) {
  const std::span<std::byte> memory = {static_cast<std::byte*>(scratch), opened.scratch};
  if (opened.kernel) {
    opened.kernel->run(opened.params, opened.results, memory, Stream{stream});
  } else if (opened.executable) {
    opened.executable->run(opened.params, opened.results, memory, Stream{stream});
  } else {
    throw ProgramError("`" + opened.schedule.name + "` was opened without a device",
                       "open it with \"device\": \"cuda\"");
  }
}

// `pointers`: of every parameter, then of every result. `strides`: in elements, of every axis of
// them in turn; null: all are dense.
void run(Opened& opened, void* const* pointers, const std::int64_t* strides, void* scratch,
         void* stream) {
  for (std::vector<Tensor>* tensors : {&opened.params, &opened.results}) {
    for (Tensor& tensor : *tensors) {
      tensor.data = *pointers++;
      if (strides == nullptr) continue;
      for (std::int64_t& stride : tensor.strides) stride = *strides++;
    }
  }
  launch(opened, scratch, stream);
}

std::vector<std::string> strings(const json& request, const char* key) {
  return request.value(key, std::vector<std::string>());
}

// What `coda rewrite` prints.
std::string rewritten(const json& request) {
  const Module module = module_of(request);
  const DType dtype = request.value("f32", false) ? DType::f32 : DType::bf16;
  const Program block = retype(module.find(request.value("name", "")), DType::bf16, dtype);
  RewriteOptions options{.sizes = sizes_of(request)};
  if (request.contains("memory")) options.memory = request["memory"].get<std::int64_t>();
  for (const std::string& name : strings(request, "save")) options.save.insert(name);
  for (const std::string& name : strings(request, "recompute")) options.recompute.insert(name);
  const bool fused = !request.value("unfused", false);
  if (!request.value("grad", false)) {
    return print(fused ? rewrite(block, options).forward.schedule : unfused(block));
  }
  GradOptions gradients{.of = strings(request, "of"), .wrt = strings(request, "wrt")};
  for (const std::string& name : strings(request, "accumulate")) {
    gradients.accumulate[name] = DType::f32;
  }
  if (!fused) {
    const Training plain = grad_for_training(block, gradients);
    return print(std::vector{unfused(plain.forward), unfused(plain.backward)});
  }
  Rewritten made = rewrite(block, gradients, options);
  std::vector<Schedule> schedules = {std::move(made.forward.schedule)};
  if (made.backward) schedules.push_back(std::move(made.backward->schedule));
  return print(schedules);
}

// The value of `body`, or `failed` after keeping the message of what it threw.
template <class T, class Body>
T guarded(T failed, Body body) {
  try {
    last_error.clear();
    return body();
  } catch (const Unsupported& error) {
    last_error = "unsupported: " + std::string(error.what());
  } catch (const std::exception& error) {
    last_error = error.what();
  } catch (...) {
    last_error = "an exception of an unknown type";
  }
  return failed;
}

const char* text_of(std::string text) {
  last_text = std::move(text);
  return last_text.c_str();
}

}  // namespace
}  // namespace coda

#define CODA_EXPORT extern "C" __attribute__((visibility("default")))

// Of the last call that failed on this thread.
CODA_EXPORT const char* coda_bench_error() {
  return coda::last_error.c_str();
}

// {"text" or "path", "name", "sizes": {}, "device": "cuda" or "cpu", "reference" or "", "tile",
// "threads", "whole_products"} → a handle.
CODA_EXPORT void* coda_bench_open(const char* request) {
  return coda::guarded<void*>(nullptr, [&] {
    return static_cast<void*>(coda::open(nlohmann::json::parse(request)).release());
  });
}

CODA_EXPORT void coda_bench_close(void* handle) {
  delete static_cast<coda::Opened*>(handle);
}

// Names, dtypes, shapes, bytes, flops, notes and seconds, as JSON; valid while the handle is.
CODA_EXPORT const char* coda_bench_describe(void* handle) {
  return static_cast<coda::Opened*>(handle)->description.c_str();
}

// 0: launched, in the stream's order. `scratch`: as many bytes as the description says.
CODA_EXPORT int coda_bench_run(void* handle, void* const* pointers, const std::int64_t* strides,
                               void* scratch, void* stream) {
  return coda::guarded(1, [&] {
    coda::run(*static_cast<coda::Opened*>(handle), pointers, strides, scratch, stream);
    return 0;
  });
}

// The same `times` over on the same tensors, without a pause; the host's seconds a call, negative
// where it failed.
CODA_EXPORT double coda_bench_repeat(void* handle, void* const* pointers,
                                     const std::int64_t* strides, void* scratch, void* stream,
                                     int times) {
  return coda::guarded(-1.0, [&] {
    auto& opened = *static_cast<coda::Opened*>(handle);
    coda::run(opened, pointers, strides, scratch, stream);
    const auto start = coda::Clock::now();
    for (int i = 0; i < times; ++i) coda::launch(opened, scratch, stream);
    return coda::seconds_since(start) / times;
  });
}

// The tiles that a program may be pinned to, as a JSON list; valid until the thread's next text.
CODA_EXPORT const char* coda_bench_tiles(const char* request) {
  return coda::guarded<const char*>(nullptr, [&] {
    const auto asked = nlohmann::json::parse(request);
    const coda::Program program = coda::module_of(asked).find(asked.value("name", ""));
    const coda::Sizes sizes = coda::bind_sizes(program, coda::sizes_of(asked));
    return coda::text_of(
        nlohmann::json(coda::bench::candidate_tiles(coda::check(program), sizes)).dump());
  });
}

// {"text" or "path", "name", "grad", "of", "wrt", "accumulate", "memory", "sizes"} → what `coda
// rewrite` prints, with "f32" in place of bf16, with "unfused" one library call a step; valid until
// the thread's next text.
CODA_EXPORT const char* coda_bench_rewrite(const char* request) {
  return coda::guarded<const char*>(
      nullptr, [&] { return coda::text_of(coda::rewritten(nlohmann::json::parse(request))); });
}
