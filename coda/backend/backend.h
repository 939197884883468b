// coda/backend/backend.h: the contract of every backend: supports (with a reason), compile, run.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "coda/backend/memory.h"
#include "coda/check/check.h"
#include "coda/core/tensor.h"

namespace coda {

// A runnable program for one set of sizes. Immutable: run may be called from several threads at
// once, each with its own scratch.
class Kernel {
 public:
  // One tensor for each parameter and each result, of the compiled sizes and any strides (results:
  // no two elements at one address), in the backend's memory. Only results are written;
  // accumulating results are read too. `scratch` holds at least scratch_bytes(), 64-byte aligned,
  // in the same memory, and is in use until the stream's work is done. It need not be zeroed.
  using Run = std::function<void(std::span<const Tensor> params, std::span<const Tensor> results,
                                 std::span<std::byte> scratch, Stream stream)>;
  // Of a backend without streams.
  using HostRun =
      std::function<void(std::span<const Tensor> params, std::span<const Tensor> results,
                         std::span<std::byte> scratch)>;

  Kernel(Run run, std::size_t scratch_bytes, std::string note)
      : run_(std::move(run)), scratch_bytes_(scratch_bytes), note_(std::move(note)) {}
  Kernel(HostRun run, std::size_t scratch_bytes, std::string note)
      : Kernel(Run([run = std::move(run)](auto params, auto results, auto scratch, Stream) {
                 run(params, results, scratch);
               }),
               scratch_bytes, std::move(note)) {}

  std::size_t scratch_bytes() const { return scratch_bytes_; }
  const std::string& note() const {
    return note_;
  }  // how it runs: tile, threads, slow paths taken and why
  void run(std::span<const Tensor> params, std::span<const Tensor> results,
           std::span<std::byte> scratch, Stream stream = {}) const {
    run_(params, results, scratch, stream);
  }

 private:
  Run run_;
  std::size_t scratch_bytes_;
  std::string note_;
};

// Immutable: any thread may call every function, several at once. A Kernel needs its backend no
// more.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string_view name() const = 0;
  // Why this backend cannot run the program; nullopt: it can.
  virtual std::optional<std::string> refusal(const Checked& program, const Sizes& sizes) const = 0;
  // Throws Unsupported with the refusal, and ProgramError as bind_sizes does.
  virtual Kernel compile(const Checked& program, const Sizes& sizes) const = 0;
  // The same of several, in their order; for backends that compile them beside one another. Tensors
  // of the strides that the runs to come will have, without data; none: they will be dense. Runs
  // with others work too, after what the backend must do for them first.
  struct Request {
    Checked program;
    Sizes sizes;
    std::vector<Tensor> params = {}, results = {};
  };
  virtual std::vector<Kernel> compile_all(std::span<const Request> requests) const {
    std::vector<Kernel> kernels;
    for (const Request& each : requests) kernels.push_back(compile(each.program, each.sizes));
    return kernels;
  }
  // From one row to the next of a matrix whose rows have so many bytes: what suits it best, for
  // whoever may choose.
  virtual std::int64_t row_pitch(std::int64_t bytes) const { return bytes; }
  // Where its kernels' tensors and scratch live.
  virtual Memory memory() const { return host_memory(); }
};

}  // namespace coda
