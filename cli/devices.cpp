// cli/devices.cpp: runs programs and blocks on a backend, or by the reference.
#include "cli/devices.h"

#include "coda/backend/execute.h"
#include "coda/cpu/cpu.h"
#include "coda/reference/reference.h"
#include "coda/rewrite/ledger.h"
#include "coda/rewrite/partition.h"

namespace coda {

std::vector<std::string> device_names() {
  return {"cpu", "reference", "exact"};
}

std::unique_ptr<Backend> device_backend(const std::string& name) {
  if (name == "cpu") return cpu::backend();
  if (name == "reference") return reference::backend();
  throw ProgramError("`" + name + "` is not a backend", "give --device cpu or --device reference");
}

void run_on(const std::string& device, const Program& program, const Sizes& sizes,
            std::span<const Tensor> params, std::span<const Tensor> results) {
  if (device == "cpu") {
    const bool is_block = program.kind() == Program::Kind::block;
    const Schedule schedule = is_block ? rewrite(program).schedule : as_schedule(program);
    const Executable executable(schedule, *device_backend(device), sizes);
    const OwnedTensor scratch(DType::u8, {static_cast<std::int64_t>(executable.scratch_bytes())});
    executable.run(params, results, {scratch.as<std::byte>(), scratch.bytes()});
    return;
  }
  const auto mode = device == "exact" ? reference::Mode::exact : reference::Mode::rounded;
  const auto arrays = reference::evaluate(program, sizes, params, mode, results);
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    for (std::size_t j = 0; j < arrays[i].data.size(); ++j) {
      store(results[i].dtype, results[i].data, static_cast<std::int64_t>(j), arrays[i].data[j]);
    }
  }
}

}  // namespace coda
