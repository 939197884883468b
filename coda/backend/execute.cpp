// coda/backend/execute.cpp: names of a schedule become places in memory, its steps become kernels.
//
// What lives between steps shares one arena: a range is free again after the last step that reads
// it.
#include "coda/backend/execute.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <unordered_map>

#include "coda/check/bind.h"

namespace coda {
namespace {

constexpr std::size_t kAlign = 64;

std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlign - 1) / kAlign * kAlign;
}

// Ranges of a growing address space: first fit, neighbours merged when they are free again.
class Arena {
 public:
  std::size_t take(std::size_t bytes) {
    bytes = std::max(aligned(bytes), kAlign);  // an empty tensor has a place of its own too
    for (auto hole = holes_.begin(); hole != holes_.end(); ++hole) {
      if (hole->second < bytes) continue;
      const std::size_t offset = hole->first;
      const std::size_t rest = hole->second - bytes;
      holes_.erase(hole);
      if (rest > 0) holes_[offset + bytes] = rest;
      return offset;
    }
    std::size_t offset = end_;
    if (!holes_.empty()) {
      const auto last = std::prev(holes_.end());
      if (last->first + last->second == end_) {
        offset = last->first;
        holes_.erase(last);
      }
    }
    end_ = offset + bytes;
    return offset;
  }

  void give_back(std::size_t offset, std::size_t bytes) {
    bytes = std::max(aligned(bytes), kAlign);
    auto hole = holes_.emplace(offset, bytes).first;
    const auto next = std::next(hole);
    if (next != holes_.end() && offset + bytes == next->first) {
      hole->second += next->second;
      holes_.erase(next);
    }
    if (hole != holes_.begin()) {
      const auto before = std::prev(hole);
      if (before->first + before->second == hole->first) {
        before->second += hole->second;
        holes_.erase(hole);
      }
    }
  }

  std::size_t end() const { return end_; }

 private:
  std::map<std::size_t, std::size_t> holes_;  // offset → bytes
  std::size_t end_ = 0;
};

std::string shape_text(DType dtype, const std::vector<std::int64_t>& shape) {
  return to_string(Tensor{nullptr, dtype, shape, dense_strides(shape)});
}

}  // namespace

class Executable::Planner {
 public:
  Planner(const Schedule& schedule, const Backend& backend, const Sizes& sizes, Executable& to)
      : schedule_(schedule), backend_(backend), sizes_(sizes), to_(to) {}

  void plan() {
    to_.name_ = schedule_.name;
    for (const Param& param : schedule_.params) {
      place(param.name, Slot::Kind::param, to_.params_.size());
      to_.params_.push_back({param.name, param.type.dtype, shape_of(param.type, sizes_)});
    }
    for (const Result& result : schedule_.results) {
      place(result.name, Slot::Kind::result, to_.results_.size());
      to_.results_.push_back({result.name, result.type.dtype, shape_of(result.type, sizes_)});
      missing_[result.name] = true;
    }
    for (std::size_t i = 0; i < schedule_.steps.size(); ++i) {
      for (const std::string& name : schedule_.steps[i].inputs) last_use_[name] = i;
    }
    for (std::size_t i = 0; i < schedule_.steps.size(); ++i) add(i);
    for (const auto& [name, missing] : missing_) {
      if (missing) throw InternalError("no step of " + schedule_.name + " stores `" + name + "`");
    }
    to_.kernel_scratch_offset_ = arena_.end();
    to_.scratch_bytes_ = arena_.end() + aligned(kernel_scratch_);
  }

 private:
  // A named tensor once some step has stored it, or a parameter.
  struct Place {
    Slot slot;  // without a shape: each reader sees the memory by its own type
    DType dtype = DType::f32;
    std::size_t bytes = 0;
    std::vector<Factor> factors;
  };

  void place(const std::string& name, Slot::Kind kind, std::size_t index) {
    Place& place = places_[name];
    place.slot.kind = kind;
    place.slot.index = index;
  }

  Slot slot_of(const Place& place, const Type& type) const {
    Slot slot = place.slot;
    slot.dtype = type.dtype;
    slot.shape = shape_of(type, sizes_);
    return slot;
  }

  [[noreturn]] void fail(const Step& step, const std::string& what) const {
    throw InternalError("step " + step.program.name() + " of " + schedule_.name + " " + what);
  }

  Slot input(const Step& step, std::size_t i) const {
    const std::string& name = step.inputs[i];
    const Type& type = step.program.params()[i].type;
    const auto found = places_.find(name);
    if (found == places_.end()) fail(step, "reads `" + name + "`, which nothing stores");
    const Place& place = found->second;
    const bool stored_here = place.slot.kind == Slot::Kind::arena;
    if (stored_here && (place.dtype != type.dtype || place.factors != factors_of(type))) {
      fail(step, "reads `" + name + "` as " + type.text() + ", but it was stored otherwise");
    }
    return slot_of(place, type);
  }

  Slot output(const Step& step, std::size_t i) {
    const std::string& name = step.outputs[i];
    const Type& type = step.program.results()[i].type;
    auto found = places_.find(name);
    if (found == places_.end()) {
      Place place;
      place.dtype = type.dtype;
      place.factors = factors_of(type);
      place.bytes = static_cast<std::size_t>(elements_of(type, sizes_)) * size_of(type.dtype);
      place.slot.offset = arena_.take(place.bytes);
      found = places_.emplace(name, std::move(place)).first;
    } else if (found->second.slot.kind != Slot::Kind::result || !missing_[name]) {
      fail(step, "stores `" + name + "`, which is already there");
    }
    missing_[name] = false;
    return slot_of(found->second, type);
  }

  void add(std::size_t index) {
    const Step& step = schedule_.steps[index];
    if (step.inputs.size() != step.program.params().size() ||
        step.outputs.size() != step.program.results().size()) {
      fail(step, "has another number of names than of parameters and results");
    }
    Call call;
    call.name = step.program.name();
    call.kernel = kernel_of(step.program);
    kernel_scratch_ = std::max(kernel_scratch_, call.kernel->scratch_bytes());
    for (std::size_t i = 0; i < step.inputs.size(); ++i) call.inputs.push_back(input(step, i));
    for (std::size_t i = 0; i < step.outputs.size(); ++i) call.outputs.push_back(output(step, i));
    to_.calls_.push_back(std::move(call));
    // NOTE: outputs are placed before inputs are freed, so that no kernel writes over what it
    // reads.
    for (const std::string& name : step.inputs) release_after(name, index);
    for (const std::string& name : step.outputs) release_after(name, index);
  }

  void release_after(const std::string& name, std::size_t step) {
    const auto use = last_use_.find(name);
    if (use != last_use_.end() && use->second > step) return;
    Place& place = places_.at(name);
    if (place.slot.kind != Slot::Kind::arena || place.bytes == kReleased) return;
    arena_.give_back(place.slot.offset, place.bytes);
    place.bytes = kReleased;
  }

  std::shared_ptr<const Kernel> kernel_of(const Program& program) {
    auto& same = kernels_[program.hash()];
    for (const auto& [known, kernel] : same) {
      if (*known == program) return kernel;
    }
    const Checked checked = check(program);
    const Sizes sizes = bind_sizes(program, sizes_);
    auto kernel = std::make_shared<const Kernel>(backend_.compile(checked, sizes));
    same.emplace_back(&program, kernel);
    return kernel;
  }

  static constexpr std::size_t kReleased = static_cast<std::size_t>(-1);

  const Schedule& schedule_;
  const Backend& backend_;
  const Sizes& sizes_;
  Executable& to_;
  Arena arena_;
  std::size_t kernel_scratch_ = 0;
  std::map<std::string, Place> places_;
  std::map<std::string, bool> missing_;  // results that no step has stored yet
  std::map<std::string, std::size_t> last_use_;
  std::unordered_map<std::size_t,
                     std::vector<std::pair<const Program*, std::shared_ptr<const Kernel>>>>
      kernels_;
};

Executable::Executable(const Schedule& schedule, const Backend& backend, const Sizes& sizes) {
  Planner(schedule, backend, sizes, *this).plan();
}

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
      if (tensors[i].dtype == expected[i].dtype && tensors[i].elements() == elements) continue;
      throw ProgramError(std::string(kind) + " `" + expected[i].name + "` of " + name_ + " is " +
                             to_string(tensors[i]) + ", but it was compiled for " +
                             shape_text(expected[i].dtype, expected[i].shape),
                         "give a tensor of that dtype and size, or compile for other sizes");
    }
  };
  fits("parameter", params_, params);
  fits("result", results_, results);
  if (scratch.size() < scratch_bytes_) {
    throw InternalError(name_ + " was given " + std::to_string(scratch.size()) +
                        " bytes of scratch and needs " + std::to_string(scratch_bytes_));
  }
}

void Executable::run_call(const Call& call, std::span<const Tensor> params,
                          std::span<const Tensor> results, std::span<std::byte> scratch) const {
  const auto tensors = [&](const std::vector<Slot>& slots) {
    std::vector<Tensor> all;
    all.reserve(slots.size());
    for (const Slot& slot : slots) {
      switch (slot.kind) {
        case Slot::Kind::param:
          all.push_back(params[slot.index]);
          break;
        case Slot::Kind::result:
          all.push_back(results[slot.index]);
          break;
        case Slot::Kind::arena:
          all.push_back(dense(scratch.data() + slot.offset, slot.dtype, slot.shape));
          break;
      }
    }
    return all;
  };
  call.kernel->run(tensors(call.inputs), tensors(call.outputs),
                   scratch.subspan(kernel_scratch_offset_));
}

void Executable::run(std::span<const Tensor> params, std::span<const Tensor> results,
                     std::span<std::byte> scratch) const {
  require(params, results, scratch);
  for (const Call& call : calls_) run_call(call, params, results, scratch);
}

void Executable::run_timed(std::span<const Tensor> params, std::span<const Tensor> results,
                           std::span<std::byte> scratch, std::vector<Timing>& timings) const {
  require(params, results, scratch);
  for (std::size_t i = timings.size(); i < calls_.size(); ++i) timings.push_back({calls_[i].name});
  for (std::size_t i = 0; i < calls_.size(); ++i) {
    const auto start = std::chrono::steady_clock::now();
    run_call(calls_[i], params, results, scratch);
    timings[i].seconds +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
}

}  // namespace coda
