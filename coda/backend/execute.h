// coda/backend/execute.h: runs a Schedule on a backend, with one arena for everything between its
// steps. Of what a loop passes inside, the arena holds one chunk.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "coda/backend/backend.h"
#include "coda/program/schedule.h"

namespace coda {

// A schedule compiled for one set of sizes. run() is safe from several threads, each with its own
// scratch. Needs neither the schedule nor the backend any more.
class Executable {
 public:
  // Strides in elements of parameters and results by name, an entry for each dim.
  using Strides = std::map<std::string, std::vector<std::int64_t>>;

  // Checks and compiles every step (equal steps once). `expected`: of tensors that will not be
  // dense; others work too, after what the backend must do for them first. Throws ProgramError
  // (check, bind_sizes) or Unsupported (the backend).
  Executable(const Schedule& schedule, const Backend& backend, const Sizes& sizes,
             const Strides& expected = {});

  std::size_t scratch_bytes() const { return scratch_bytes_; }
  // Tensors in the order of the schedule's params and results, of the compiled dtypes and extents;
  // they and the scratch (64-byte aligned, scratch_bytes() of it, not zeroed) lie in the backend's
  // memory and stay the caller's. Only results are written, accumulating ones read too. Allocates
  // nothing there and waits for nothing. Throws ProgramError, before anything runs, where a tensor
  // does not fit or the scratch is too small.
  void run(std::span<const Tensor> params, std::span<const Tensor> results,
           std::span<std::byte> scratch, Stream stream = {}) const;

  // What ran, for tables: the name of step i and the seconds it took, added up over runs since
  // construction where timing was asked. Waits for each step.
  struct Timing {
    std::string step;
    double seconds = 0;
  };
  void run_timed(std::span<const Tensor> params, std::span<const Tensor> results,
                 std::span<std::byte> scratch, std::vector<Timing>& timings,
                 Stream stream = {}) const;

 private:
  // Where a named tensor lives: a parameter, a result, or a range of the arena.
  struct Slot {
    enum class Kind : std::uint8_t { param, result, arena } kind = Kind::arena;
    std::size_t index = 0;   // params, results
    std::size_t offset = 0;  // arena, bytes
    DType dtype = DType::f32;
    std::vector<std::int64_t> shape = {};
    std::vector<std::int64_t> strides = {};  // arena
    bool rows = false;  // as many rows of it as `shape` has, from the chunk's first on
  };
  struct Call {
    std::string name;
    std::size_t kernel = 0;
    std::vector<Slot> inputs, outputs;
  };
  // Calls [begin, end) run for each chunk; theirs is the full one.
  struct Loop {
    std::size_t begin = 0, end = 0;
    std::int64_t extent = 0, chunk = 0;     // nothing runs where the extent is 0
    std::vector<Call> tail = {};            // for the last, smaller chunk; empty: there is none
    std::vector<Slot> zeroed = {};          // before the first chunk
    std::optional<std::size_t> first = {};  // in the arena: an i64, the chunk's first element
  };
  // The type and extents of a tensor that the caller gives.
  struct Expected {
    std::string name;
    DType dtype = DType::f32;
    std::vector<std::int64_t> shape;
    bool by_rows = false;  // its first axis is a loop's dimension
  };
  // What one run works on.
  struct Bound {
    std::span<const Tensor> params, results;
    std::span<std::byte> scratch;
    Stream stream;
  };
  class Planner;
  void require(std::span<const Tensor> params, std::span<const Tensor> results,
               std::span<const std::byte> scratch) const;
  static Tensor tensor(const Slot& slot, std::int64_t first, const Bound& bound);
  void run_call(const Call& call, std::int64_t first, const Bound& bound) const;
  template <class Run>
  void run_steps(const Bound& bound, Run run) const;

  std::string name_;
  Memory memory_;
  std::vector<Expected> params_, results_;
  std::vector<Kernel> kernels_;
  std::vector<Call> calls_;  // one for each step
  std::vector<Loop> loops_;  // in order
  std::size_t kernel_scratch_offset_ = 0;
  std::size_t scratch_bytes_ = 0;
};

}  // namespace coda
