// coda/model/blocks.cpp: from a text of programs/ to something that runs.
#include "coda/model/blocks.h"

#include "coda/check/bind.h"
#include "coda/core/error.h"
#include "coda/program/library.h"
#include "coda/program/text.h"
#include "coda/rewrite/ledger.h"
#include "coda/rewrite/retype.h"
#include "coda/rewrite/rewrite.h"

namespace coda {
namespace {

Schedule schedule_of(const Program& program) {
  return program.kind() == Program::Kind::block ? rewrite(program).forward.schedule
                                                : as_schedule(program);
}

}  // namespace

Program standard_program(std::string_view file, std::string_view name, DType dtype) {
  const std::optional<std::string_view> text = embedded_program(file);
  if (!text) throw InternalError("the library has no program file " + std::string(file));
  const Program program = parse(*text, file).find(name);
  return dtype == DType::bf16 ? program : retype(program, DType::bf16, dtype);
}

CompiledBlock::CompiledBlock(const Program& program, const Backend& backend, const Sizes& sizes)
    : CompiledBlock(schedule_of(program), backend, sizes) {}

CompiledBlock::CompiledBlock(const Schedule& schedule, const Backend& backend, const Sizes& sizes)
    : name_(schedule.name), executable_(schedule, backend, sizes) {
  for (const Param& param : schedule.params) params_.push_back(param.name);
  for (const Result& result : schedule.results) results_.push_back(result.name);
}

void CompiledBlock::run(const TensorMap& tensors, std::span<std::byte> scratch,
                        Timings* timings) const {
  const auto find = [&](const std::vector<std::string>& names) {
    std::vector<Tensor> found;
    for (const std::string& name : names) {
      const auto tensor = tensors.find(name);
      if (tensor == tensors.end()) {
        throw InternalError("no tensor `" + name + "` for " + name_);
      }
      found.push_back(tensor->second);
    }
    return found;
  };
  const std::vector<Tensor> params = find(params_), results = find(results_);
  if (timings == nullptr) {
    executable_.run(params, results, scratch);
    return;
  }
  std::vector<Executable::Timing> steps;
  executable_.run_timed(params, results, scratch, steps);
  for (const Executable::Timing& step : steps) {
    (*timings)[name_ + ": " + step.step] += step.seconds;
  }
}

void Workspace::add_results(const Schedule& schedule, const Sizes& sizes, TensorMap& into) {
  for (const Result& result : schedule.results) {
    if (into.contains(result.name)) continue;
    memory_.emplace_back(result.type.dtype, shape_of(result.type, sizes));
    into.emplace(result.name, memory_.back().tensor());
  }
}

void Scratch::reserve(std::size_t bytes) {
  if (bytes > memory_.bytes()) {
    memory_ = OwnedTensor(DType::u8, {static_cast<std::int64_t>(bytes)});
  }
}

}  // namespace coda
