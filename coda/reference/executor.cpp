// coda/reference/executor.cpp: a backend as what verify judges.
#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>

#include "coda/reference/verify.h"

namespace coda {
namespace {

// The last kernel compiled: verify asks for the same one many times in a row.
struct Compiled {
  std::mutex mutex;
  Program program;
  Sizes sizes;
  std::shared_ptr<const Kernel> kernel;
};

}  // namespace

Executor executor_of(const Backend& backend) {
  return [&backend, last = std::make_shared<Compiled>()](const Program& program, const Sizes& sizes,
                                                         std::span<const Tensor> params,
                                                         std::span<const Tensor> results) {
    std::shared_ptr<const Kernel> kernel;
    {
      const std::lock_guard lock(last->mutex);
      if (!last->kernel || last->sizes != sizes || !(last->program == program)) {
        last->kernel = std::make_shared<const Kernel>(backend.compile(check(program), sizes));
        last->program = program;
        last->sizes = sizes;
      }
      kernel = last->kernel;
    }
    // All ones: a NaN to whoever reads scratch before writing it.
    const OwnedTensor scratch(DType::u8, {static_cast<std::int64_t>(kernel->scratch_bytes())});
    std::fill_n(scratch.as<std::byte>(), scratch.bytes(), std::byte{0xff});
    kernel->run(params, results, {scratch.as<std::byte>(), scratch.bytes()});
  };
}

}  // namespace coda
