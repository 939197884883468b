// python/native/native.cpp: libcoda_native.so: what the Python package calls, through
// apache-tvm-ffi.
//
// Requests and facts are JSON; tensors come as DLPack views of the caller's memory and are never
// kept. Nothing here knows PyTorch or CPython. Errors carry the kind that errors.py maps to an
// exception.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/string.h>

#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "coda/backend/execute.h"
#include "coda/check/bind.h"
#include "coda/core/error.h"
#include "coda/cpu/cpu.h"
#include "coda/cuda/cuda.h"
#include "coda/cuda/driver.h"
#include "coda/cuda/pieces.h"
#include "coda/program/text.h"
#include "coda/rewrite/explain.h"
#include "coda/rewrite/retype.h"
#include "coda/rewrite/rewrite.h"

namespace coda {
namespace {

namespace ffi = tvm::ffi;
using nlohmann::json;

[[noreturn]] void raise(const std::string& kind, const std::string& message) {
  throw ffi::Error(kind, message, "");
}

// The value of body(), what it throws as the exception of that name in Python.
template <class Body>
auto guarded(Body body) {
  try {
    return body();
  } catch (const ffi::Error&) {
    throw;
  } catch (const Unsupported& error) {
    const std::string fix = error.fix().empty() ? "" : "\n  fix: " + error.fix();
    raise("CodaUnsupported", error.what() + fix);
  } catch (const ProgramError& error) {
    raise("CodaProgramError", error.what());
  } catch (const json::exception& error) {
    raise("CodaInternalError", std::string("request: ") + error.what());
  } catch (const std::exception& error) {
    raise("CodaInternalError", error.what());
  }
}

// ---- tensors ----

struct DTypeRow {
  DType dtype;
  std::uint8_t code, bits;
};
constexpr DTypeRow kDTypes[] = {
    {DType::f32, kDLFloat, 32},
    {DType::f64, kDLFloat, 64},
    {DType::bf16, kDLBfloat, 16},
    {DType::f16, kDLFloat, 16},
    {DType::f8e4m3, kDLFloat8_e4m3fn, 8},
    {DType::f8e5m2, kDLFloat8_e5m2, 8},
    {DType::i32, kDLInt, 32},
    {DType::i64, kDLInt, 64},
    {DType::u8, kDLUInt, 8},
    {DType::boolean, kDLBool, 8},
};

DType dtype_of(const DLDataType& type, const std::string& name) {
  for (const DTypeRow& row : kDTypes) {
    if (row.code == type.code && row.bits == type.bits && type.lanes == 1) return row.dtype;
  }
  throw ProgramError("`" + name + "` has a dtype that the language lacks",
                     "give one of f32 bf16 f16 f64 f8e4m3 f8e5m2 i32 i64 u8 bool");
}

Tensor tensor_of(const ffi::TensorView& view, const std::string& name) {
  Tensor tensor;
  tensor.data = static_cast<std::byte*>(view.data_ptr()) + view.byte_offset();
  tensor.dtype = dtype_of(view.dtype(), name);
  for (int axis = 0; axis < view.ndim(); ++axis) {
    tensor.shape.push_back(view.size(axis));
    tensor.strides.push_back(view.stride(axis));
  }
  return tensor;
}

// ---- texts ----

Module module_of(const json& request) {
  return parse(request.at("text").get<std::string>(), "text");
}

json type_json(const std::string& name, const Type& type) {
  json dims = json::array();
  for (const Dim& dim : type.dims) dims.push_back(dim.text());
  return {{"name", name}, {"dtype", name_of(type.dtype)}, {"type", type.text()}, {"dims", dims}};
}

json params_json(std::span<const Param> params) {
  json made = json::array();
  for (const Param& param : params) made.push_back(type_json(param.name, param.type));
  return made;
}

json results_json(std::span<const Result> results) {
  json made = json::array();
  for (const Result& result : results) {
    json entry = type_json(result.name, result.type);
    entry["accumulates"] = result.store == Store::accumulate;
    made.push_back(std::move(entry));
  }
  return made;
}

// {"text", "name", "dtype"} → the program, block or schedule alone, as {"text", "name"}; "dtype"
// takes the place of its bf16.
json retyped(const json& request) {
  const Module module = module_of(request);
  const std::string name = request.value("name", "");
  if (const Schedule* schedule = module.find_schedule(name)) {
    throw ProgramError("`" + schedule->name + "` is a schedule", "give a program or a block");
  }
  Program program = module.find(name);
  if (request.contains("dtype")) {
    const std::string dtype = request["dtype"];
    const std::optional<DType> to = dtype_from(dtype);
    if (!to) throw ProgramError("`" + dtype + "` is no dtype", "give bf16, f16, f32 or f64");
    program = retype(program, DType::bf16, *to);
  }
  return {{"text", print(program)}, {"name", program.name()}};
}

// {"text"} → the signatures of the programs and blocks that the text declares itself.
json described(const json& request) {
  const Module module = module_of(request);
  json programs = json::array();
  for (std::size_t i = module.imported; i < module.programs.size(); ++i) {
    const Program& program = module.programs[i];
    programs.push_back({{"name", program.name()},
                        {"params", params_json(program.params())},
                        {"results", results_json(program.results())}});
  }
  return programs;
}

std::vector<std::string> strings(const json& request, const char* key) {
  return request.value(key, std::vector<std::string>());
}

json half_json(const Partition& half) {
  return {{"text", print(half.schedule)},
          {"name", half.schedule.name},
          {"params", params_json(half.schedule.params)},
          {"results", results_json(half.schedule.results)}};
}

// {"text", "name", "grad", "of", "wrt", "sizes", "memory"} → {"forward", "backward", "saved",
// "notes"}; each half is a schedule.
json rewritten(const json& request) {
  const Module module = module_of(request);
  const Program& block = module.find(request.value("name", ""));
  RewriteOptions options{.sizes = request.value("sizes", Sizes())};
  if (request.contains("memory")) options.memory = request["memory"].get<std::int64_t>();
  const auto made =
      request.value("grad", false)
          ? rewrite(block,
                    GradOptions{.of = strings(request, "of"), .wrt = strings(request, "wrt")},
                    options)
          : rewrite(block, options);
  json out = {{"forward", half_json(made.forward)}, {"saved", made.saved}, {"notes", made.notes}};
  out["backward"] = made.backward ? half_json(*made.backward) : json();
  return out;
}

// {"text", "name", "grad", "of", "wrt", "sizes"} → the "kernels" and the "ledger" of report_json.
json explained(const json& request) {
  const Module module = module_of(request);
  const Program& block = module.find(request.value("name", ""));
  const Sizes sizes = bind_sizes(block, request.value("sizes", Sizes()));
  const GradOptions gradients{.of = strings(request, "of"), .wrt = strings(request, "wrt")};
  const Report made =
      request.value("grad", false) ? report(block, gradients, sizes) : report(block, sizes);
  return report_json(made);
}

// {"text", "name", "sizes"} → [[step, how its kernel runs on this machine's GPU or else on an H200,
// flops]] of a schedule.
json planned(const json& request) {
  const Module module = module_of(request);
  const Schedule* schedule = module.find_schedule(request.at("name").get<std::string>());
  if (schedule == nullptr) throw InternalError("no schedule in a text that was to be planned");
  const Sizes sizes = bind_sizes(inline_schedule(*schedule), request.at("sizes").get<Sizes>());
  const Ledger counted = ledger(*schedule, sizes);
  json steps = json::array();
  for (const cuda::KernelPiece& piece : cuda::pieces_of(*schedule, sizes)) {
    const cuda::Plan plan = cuda::machine_plan(piece);
    std::string note = plan.path;
    for (const std::string& each : plan.notes) note += "; " + each;
    steps.push_back({piece.program.name(), note, counted.steps[steps.size()].flops});
  }
  return steps;
}

// ---- running ----

// Of "device" and, for a GPU, "exclusive". Kept for good: what a backend compiled serves every
// schedule.
const Backend& backend_of(const json& request) {
  static std::mutex mutex;
  static std::map<std::pair<std::string, bool>, std::unique_ptr<const Backend>> known;
  const std::lock_guard lock(mutex);
  const std::string device = request.at("device");
  const bool exclusive = request.value("exclusive", true);
  std::unique_ptr<const Backend>& backend = known[{device, exclusive}];
  if (!backend && device == "cpu") backend = cpu::backend();
  if (!backend && device == "cuda") backend = cuda::backend({.exclusive = exclusive});
  if (!backend) {
    throw ProgramError("`" + device + "` is no device that kernels run on",
                       "move the tensors to \"cpu\" or \"cuda\"");
  }
  return *backend;
}

// A schedule for one set of sizes.
struct Opened {
  Schedule schedule;
  Sizes sizes;
  Executable executable;

  // Tensors of the parameters, of the results, a scratch of u8 and the stream's handle.
  void run(const ffi::PackedArgs& args) const {
    const std::size_t inputs = schedule.params.size(), outputs = schedule.results.size();
    if (static_cast<std::size_t>(args.size()) != inputs + outputs + 2) {
      throw ProgramError("`" + schedule.name + "` takes " + std::to_string(inputs) +
                             " inputs and " + std::to_string(outputs) + " outputs, but got " +
                             std::to_string(args.size() - 2) + " tensors",
                         "give one tensor for each, in the order of the declaration");
    }
    std::vector<Tensor> params, results;
    params.reserve(inputs);
    results.reserve(outputs);
    int at = 0;
    for (const Param& param : schedule.params) {
      params.push_back(tensor_of(args[at++].cast<ffi::TensorView>(), param.name));
    }
    for (const Result& result : schedule.results) {
      results.push_back(tensor_of(args[at++].cast<ffi::TensorView>(), result.name));
    }
    const auto scratch = args[at++].cast<ffi::TensorView>();
    const auto stream = static_cast<std::uintptr_t>(args[at].cast<std::int64_t>());
    auto* memory = static_cast<std::byte*>(scratch.data_ptr());
    executable.run(params, results, {memory, static_cast<std::size_t>(scratch.numel())},
                   Stream{reinterpret_cast<void*>(stream)});
  }
};

// {"text", "name", "sizes", "device", "exclusive"} → [facts, run]. `text` holds a schedule or a
// program.
ffi::Array<ffi::Any> opened(const json& request) {
  const std::string name = request.value("name", "");
  const Module module = module_of(request);
  const Schedule* found = module.find_schedule(name);
  const Program whole = found != nullptr ? inline_schedule(*found) : module.find(name);
  Schedule schedule = found != nullptr ? *found : as_schedule(whole);
  const Sizes sizes = bind_sizes(whole, request.value("sizes", Sizes()));
  Executable executable(schedule, backend_of(request), sizes);
  const auto made =
      std::make_shared<const Opened>(std::move(schedule), sizes, std::move(executable));
  json shapes = json::object();
  for (const Result& result : made->schedule.results) {
    shapes[result.name] = shape_of(result.type, sizes);
  }
  const json facts = {{"scratch", made->executable.scratch_bytes()},
                      {"shapes", shapes},
                      {"params", params_json(made->schedule.params)},
                      {"results", results_json(made->schedule.results)}};
  const auto run = ffi::Function::FromPacked([made](ffi::PackedArgs args, ffi::Any*) {
    guarded([&] {
      made->run(args);
      return 0;
    });
  });
  return {ffi::String(facts.dump()), run};
}

template <json (*body)(const json&)>
ffi::String answered(const ffi::String& request) {
  return guarded([&] { return ffi::String(body(json::parse(std::string(request))).dump()); });
}

ffi::Array<ffi::Any> open(const ffi::String& request) {
  return guarded([&] { return opened(json::parse(std::string(request))); });
}

// Which GPU this process uses, before it first does.
void use_gpu(std::int64_t ordinal) {
  guarded([&] {
    cuda::Driver::use_device(static_cast<int>(ordinal));
    return 0;
  });
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(describe, answered<described>)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(retype, answered<retyped>)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(rewrite, answered<rewritten>)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(explain, answered<explained>)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(plan, answered<planned>)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(open, open)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(use_gpu, use_gpu)

}  // namespace coda
