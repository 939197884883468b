// coda/backend/execute.cpp: runs what was planned (plan.cpp): calls in order, loops chunk by chunk.
#include "coda/backend/execute.h"

#include <chrono>

namespace coda {
namespace {

std::string shape_text(DType dtype, const std::vector<std::int64_t>& shape) {
  return to_string(Tensor{nullptr, dtype, shape, dense_strides(shape)});
}

}  // namespace

void Executable::require(std::span<const Tensor> params, std::span<const Tensor> results,
                         std::span<const std::byte> scratch) const {
  const auto fits = [&](std::string_view kind, const std::vector<Expected>& expected,
                        std::span<const Tensor> tensors) {
    if (tensors.size() != expected.size()) {
      throw ProgramError(name_ + " has " + std::to_string(expected.size()) + " " +
                             std::string(kind) + "s, but " + std::to_string(tensors.size()) +
                             " tensors were given",
                         "give one tensor for each, in the order of the declaration");
    }
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      std::int64_t elements = 1;
      for (const std::int64_t extent : expected[i].shape) elements *= extent;
      const bool has_rows = !expected[i].by_rows || (!tensors[i].shape.empty() &&
                                                     tensors[i].shape[0] == expected[i].shape[0]);
      const bool fits = tensors[i].dtype == expected[i].dtype && tensors[i].elements() == elements;
      if (fits && has_rows) continue;
      throw ProgramError(std::string(kind) + " `" + expected[i].name + "` of " + name_ + " is " +
                             to_string(tensors[i]) + ", but it was compiled for " +
                             shape_text(expected[i].dtype, expected[i].shape),
                         "give a tensor of that dtype and size, or compile for other sizes");
    }
  };
  fits("parameter", params_, params);
  fits("result", results_, results);
  if (scratch.size() < scratch_bytes_) {
    throw ProgramError(name_ + " was given " + std::to_string(scratch.size()) +
                           " bytes of scratch and needs " + std::to_string(scratch_bytes_),
                       "give as many as scratch_bytes() says");
  }
}

Tensor Executable::tensor(const Slot& slot, std::int64_t first, const Bound& bound) {
  Tensor tensor;
  switch (slot.kind) {
    case Slot::Kind::param:
      tensor = bound.params[slot.index];
      break;
    case Slot::Kind::result:
      tensor = bound.results[slot.index];
      break;
    case Slot::Kind::arena:
      tensor = {bound.scratch.data() + slot.offset, slot.dtype, slot.shape, slot.strides};
      break;
  }
  if (!slot.rows) return tensor;
  const auto size = static_cast<std::int64_t>(size_of(tensor.dtype));
  tensor.data = static_cast<std::byte*>(tensor.data) + first * tensor.strides[0] * size;
  tensor.shape[0] = slot.shape[0];
  return tensor;
}

void Executable::run_call(const Call& call, std::int64_t first, const Bound& bound) const {
  const auto tensors = [&](const std::vector<Slot>& slots) {
    std::vector<Tensor> all;
    all.reserve(slots.size());
    for (const Slot& slot : slots) all.push_back(tensor(slot, first, bound));
    return all;
  };
  kernels_[call.kernel].run(tensors(call.inputs), tensors(call.outputs),
                            bound.scratch.subspan(kernel_scratch_offset_), bound.stream);
}

// `run` is called for each call with its step, and the first element of its chunk.
template <class Run>
void Executable::run_steps(const Bound& bound, Run run) const {
  auto loop = loops_.begin();
  for (std::size_t i = 0; i < calls_.size();) {
    if (loop == loops_.end() || i < loop->begin) {
      run(i, calls_[i], 0);
      ++i;
      continue;
    }
    for (const Slot& slot : loop->zeroed) {
      memory_.zero(tensor(slot, 0, bound), bound.stream);
    }
    for (std::int64_t first = 0; first < loop->extent; first += loop->chunk) {
      if (loop->first) memory_.write(bound.scratch.data() + *loop->first, first, bound.stream);
      const bool is_tail = first + loop->chunk > loop->extent;
      for (i = loop->begin; i < loop->end; ++i) {
        run(i, is_tail ? loop->tail[i - loop->begin] : calls_[i], first);
      }
    }
    i = loop->end;
    ++loop;
  }
}

void Executable::run(std::span<const Tensor> params, std::span<const Tensor> results,
                     std::span<std::byte> scratch, Stream stream) const {
  require(params, results, scratch);
  const Bound bound{params, results, scratch, stream};
  run_steps(bound, [&](std::size_t, const Call& call, std::int64_t first) {
    run_call(call, first, bound);
  });
}

void Executable::run_timed(std::span<const Tensor> params, std::span<const Tensor> results,
                           std::span<std::byte> scratch, std::vector<Timing>& timings,
                           Stream stream) const {
  require(params, results, scratch);
  const Bound bound{params, results, scratch, stream};
  for (std::size_t i = timings.size(); i < calls_.size(); ++i) timings.push_back({calls_[i].name});
  run_steps(bound, [&](std::size_t step, const Call& call, std::int64_t first) {
    const auto start = std::chrono::steady_clock::now();
    run_call(call, first, bound);
    memory_.wait(stream);
    timings[step].seconds +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  });
}

}  // namespace coda
