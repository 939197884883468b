// coda/backend/plan.cpp: names of a schedule become places in memory, its steps become kernels.
//
// What lives between steps shares one arena: a range is free again after the last step that reads
// it. In a loop that is so within one chunk; what comes from outside or leaves the loop keeps its
// place until the loop is over. Rows of a matrix are as far apart as suits the backend.
#include <map>
#include <set>
#include <unordered_map>

#include "coda/backend/arena.h"
#include "coda/backend/execute.h"
#include "coda/check/bind.h"
#include "coda/program/rename.h"

namespace coda {

class Executable::Planner {
 public:
  Planner(const Schedule& schedule, const Backend& backend, const Sizes& sizes,
          const Strides& expected, Executable& to)
      : schedule_(schedule), backend_(backend), sizes_(sizes), expected_(expected), to_(to) {}

  void plan() {
    to_.name_ = schedule_.name;
    to_.memory_ = backend_.memory();
    for (const Param& param : schedule_.params) {
      place(param.name, Slot::Kind::param, to_.params_.size());
      to_.params_.push_back({param.name, param.type.dtype, shape_of(param.type, sizes_)});
    }
    for (const Result& result : schedule_.results) {
      place(result.name, Slot::Kind::result, to_.results_.size()).adds =
          result.store == Store::accumulate;
      to_.results_.push_back({result.name, result.type.dtype, shape_of(result.type, sizes_)});
    }
    for (const auto* tensors : {&to_.params_, &to_.results_}) {
      for (const Expected& each : *tensors) {
        const auto own = expected_.find(each.name);
        if (own == expected_.end() || own->second.size() == each.shape.size()) continue;
        throw InternalError("strides of `" + each.name + "` of " + to_.name_ + " are " +
                            std::to_string(own->second.size()) + ", and it has " +
                            std::to_string(each.shape.size()) + " dims");
      }
    }
    live_ranges();
    find_rows();
    for (std::size_t i = 0; i < schedule_.steps.size();) {
      const int loop = schedule_.steps[i].loop;
      const std::size_t end = loop < 0 ? i + 1 : end_of(i);
      if (loop < 0) {
        add(i, sizes_);
      } else {
        add_loop(i, end);
      }
      i = end;
    }
    for (const Result& result : schedule_.results) {
      if (places_.at(result.name).stored) continue;
      throw InternalError("no step of " + schedule_.name + " stores `" + result.name + "`");
    }
    to_.kernels_ = backend_.compile_all(requests_);
    std::size_t kernel_scratch = 0;
    for (const Kernel& kernel : to_.kernels_) {
      kernel_scratch = std::max(kernel_scratch, kernel.scratch_bytes());
    }
    to_.kernel_scratch_offset_ = arena_.end();
    to_.scratch_bytes_ = arena_.end() + aligned(kernel_scratch);
  }

 private:
  // A named tensor: a parameter, a result, or what some step has stored.
  struct Place {
    Slot slot = {};  // without a shape: each reader sees the memory by its own type
    DType dtype = DType::f32;
    std::size_t bytes = 0;
    std::vector<Factor> factors = {};
    int chunk_of = -1;    // the loop of whose dimension it holds one chunk
    int adder = -1;       // the loop that adds into it
    bool stored = false;  // by now
    bool adds = false;    // a result into whose earlier contents steps add
  };

  Place& place(const std::string& name, Slot::Kind kind, std::size_t index) {
    Place& place = places_[name];
    place.slot.kind = kind;
    place.slot.index = index;
    return place;
  }

  [[noreturn]] void fail(const Step& step, const std::string& what) const {
    throw InternalError("step " + step.program.name() + " of " + schedule_.name + " " + what);
  }

  const coda::Loop& loop_of(const Step& step) const {
    return schedule_.loops.at(static_cast<std::size_t>(step.loop));
  }

  std::size_t end_of(std::size_t begin) const {
    const int loop = schedule_.steps[begin].loop;
    std::size_t end = begin;
    while (end < schedule_.steps.size() && schedule_.steps[end].loop == loop) ++end;
    for (std::size_t i = end; i < schedule_.steps.size(); ++i) {
      if (schedule_.steps[i].loop == loop) fail(schedule_.steps[i], "stands apart from its loop");
    }
    return end;
  }

  // The last step that needs each tensor, and which tensors outlive a chunk of their loop.
  void live_ranges() {
    std::map<std::string, int> made;  // in which loop
    for (const Step& step : schedule_.steps) {
      for (std::size_t r = 0; r < step.outputs.size(); ++r) {
        const std::string& name = step.outputs[r];
        made[name] = step.loop;
        const bool adds = r < step.program.results().size() &&
                          step.program.results()[r].store == Store::accumulate;
        if (adds || places_.contains(name)) leaves_.insert(name);
      }
    }
    for (const Step& step : schedule_.steps) {
      for (const std::string& name : step.inputs) {
        const auto from = made.find(name);
        if (from != made.end() && from->second != step.loop) leaves_.insert(name);
      }
    }
    for (std::size_t i = 0; i < schedule_.steps.size(); ++i) {
      const Step& step = schedule_.steps[i];
      const std::size_t end = step.loop < 0 ? i : end_of(i) - 1;
      const auto use = [&](const std::string& name) {
        const auto from = made.find(name);
        const bool inside =
            from != made.end() && from->second == step.loop && !leaves_.contains(name);
        last_use_[name] = std::max(last_use_[name], inside ? i : end);
      };
      for (const std::string& name : step.inputs) use(name);
      for (const std::string& name : step.outputs) use(name);
    }
  }

  // How many of the last factors of each tensor form a row: as many as stand in the last dim of
  // every type that it is stored and read as, or in as few of the last dims as all types can.
  void find_rows() {
    std::map<std::string, std::set<std::size_t>> borders;
    const auto meet = [&](const std::string& name, const Type& type) {
      std::set<std::size_t> own;
      std::size_t factors = 0;
      for (std::size_t d = type.dims.size(); d-- > 1;) {
        own.insert(factors += type.dims[d].factors.size());
      }
      const auto [known, is_new] = borders.emplace(name, own);
      if (!is_new) std::erase_if(known->second, [&](std::size_t at) { return !own.contains(at); });
    };
    for (const Step& step : schedule_.steps) {
      for (std::size_t i = 0; i < std::min(step.inputs.size(), step.program.params().size()); ++i) {
        meet(step.inputs[i], step.program.params()[i].type);
      }
      const auto results = step.program.results();
      for (std::size_t i = 0; i < std::min(step.outputs.size(), results.size()); ++i) {
        meet(step.outputs[i], results[i].type);
      }
    }
    for (const auto& [name, own] : borders) {
      if (!own.empty()) row_factors_[name] = *own.begin();
    }
  }

  // Of a tensor in the arena.
  std::vector<std::int64_t> strides_of(const std::string& name, const Type& type,
                                       const std::vector<std::int64_t>& shape) const {
    std::vector<std::int64_t> strides = dense_strides(shape);
    const auto factors = row_factors_.find(name);
    if (factors == row_factors_.end()) return strides;
    const auto size = static_cast<std::int64_t>(size_of(type.dtype));
    std::size_t first = type.dims.size(), in_row = 0;
    while (in_row < factors->second) in_row += type.dims[--first].factors.size();
    const std::int64_t row = strides[first - 1];
    const std::int64_t pitch = (backend_.row_pitch(row * size) + size - 1) / size;
    for (std::size_t d = 0; d < first; ++d) strides[d] = strides[d] / row * pitch;
    return strides;
  }

  Slot slot_of(const Step& step, const std::string& name, const Place& place, const Type& type,
               const Sizes& sizes) {
    Slot slot = place.slot;
    slot.dtype = type.dtype;
    slot.shape = shape_of(type, sizes);
    slot.strides = strides_of(name, type, slot.shape);
    if (step.loop < 0 || place.chunk_of == step.loop) return slot;
    const std::string& dim = loop_of(step).dim;
    std::set<std::string> names;
    for (const Dim& each : type.dims) collect_names(each, names);
    if (!names.contains(dim)) return slot;
    if (type.dims[0] != dim_of(dim)) {
      fail(step, "takes a chunk of `" + name + ": " + type.text() + "`, whose rows are not " + dim);
    }
    slot.rows = true;
    if (slot.kind == Slot::Kind::param) to_.params_[slot.index].by_rows = true;
    if (slot.kind == Slot::Kind::result) to_.results_[slot.index].by_rows = true;
    return slot;
  }

  Slot input(const Step& step, std::size_t i, const Sizes& sizes) {
    const std::string& name = step.inputs[i];
    const Type& type = step.program.params()[i].type;
    const auto found = places_.find(name);
    const bool is_there = found != places_.end() &&
                          (found->second.slot.kind == Slot::Kind::param || found->second.stored);
    if (!is_there) fail(step, "reads `" + name + "`, which nothing stores");
    const Place& place = found->second;
    if (place.adder >= 0 && place.adder == step.loop) {
      fail(step, "reads `" + name + "` in the loop that adds into it");
    }
    const bool stored_here = place.slot.kind == Slot::Kind::arena;
    if (stored_here && (place.dtype != type.dtype || place.factors != factors_of(type))) {
      fail(step, "reads `" + name + "` as " + type.text() + ", but it was stored otherwise");
    }
    return slot_of(step, name, place, type, sizes);
  }

  // Memory for a tensor that no one has stored yet.
  Place& take(const std::string& name, const Type& type, const Sizes& sizes) {
    Place& place = places_[name];
    place.dtype = type.dtype;
    place.factors = factors_of(type);
    const std::vector<std::int64_t> shape = shape_of(type, sizes);
    std::int64_t elements = elements_of(type, sizes);
    if (!shape.empty()) elements = std::max(elements, strides_of(name, type, shape)[0] * shape[0]);
    place.bytes = static_cast<std::size_t>(elements) * size_of(type.dtype);
    place.slot.offset = arena_.take(place.bytes);
    return place;
  }

  Slot output(const Step& step, std::size_t i, const Sizes& sizes) {
    const std::string& name = step.outputs[i];
    const Result& result = step.program.results()[i];
    if (!places_.contains(name)) take(name, result.type, sizes).chunk_of = step.loop;
    Place& place = places_.at(name);
    const bool adds = result.store == Store::accumulate;
    if (place.slot.kind == Slot::Kind::param || (place.stored && !adds)) {
      fail(step, "stores `" + name + "`, which is already there");
    }
    if (adds && !place.adds && (step.loop < 0 || place.adder != step.loop)) {
      fail(step, "adds into `" + name + "`, which nothing starts");
    }
    place.stored = true;
    Slot slot = slot_of(step, name, place, result.type, sizes);
    if (step.loop >= 0 && place.chunk_of != step.loop && !adds && !slot.rows) {
      fail(step, "stores the whole of `" + name + "` for each chunk");
    }
    return slot;
  }

  Call call(const Step& step, const Sizes& sizes) {
    if (step.inputs.size() != step.program.params().size() ||
        step.outputs.size() != step.program.results().size()) {
      fail(step, "has another number of names than of parameters and results");
    }
    Call call;
    call.name = step.program.name();
    for (std::size_t i = 0; i < step.inputs.size(); ++i) {
      call.inputs.push_back(input(step, i, sizes));
    }
    for (std::size_t i = 0; i < step.outputs.size(); ++i) {
      call.outputs.push_back(output(step, i, sizes));
    }
    return call;
  }

  void add(std::size_t index, const Sizes& sizes) {
    const Step& step = schedule_.steps[index];
    to_.calls_.push_back(call(step, sizes));
    set_kernel(to_.calls_.back(), step.program, sizes);
    // NOTE: outputs are placed before inputs are freed, so that no kernel writes over what it
    // reads.
    release_after(step, index);
  }

  void add_loop(std::size_t begin, std::size_t end) {
    const int index = schedule_.steps[begin].loop;
    const auto& loop = loop_of(schedule_.steps[begin]);
    Loop made{.begin = begin, .end = end, .extent = require_extent(dim_of(loop.dim), sizes_)};
    made.chunk = std::min(loop.size, made.extent);
    if (loop.size < 1) fail(schedule_.steps[begin], "loops over chunks without an element");
    Sizes chunk = sizes_;
    chunk[loop.dim] = made.chunk;
    if (!loop.first.empty()) {
      Place& first = take(loop.first, {.dtype = DType::i64, .dims = {}}, sizes_);
      first.stored = true;
      first.chunk_of = index;
      made.first = first.slot.offset;
      last_use_[loop.first] = end;  // it is freed below
    }
    // What outlives a chunk gets its place before the loop runs over the places inside.
    for (std::size_t i = begin; i < end; ++i) {
      const Step& step = schedule_.steps[i];
      for (std::size_t r = 0; r < std::min(step.outputs.size(), step.program.results().size());
           ++r) {
        const std::string& name = step.outputs[r];
        const Result& result = step.program.results()[r];
        if (!leaves_.contains(name)) continue;
        if (!places_.contains(name)) take(name, result.type, sizes_);
        Place& place = places_.at(name);
        if (result.store != Store::accumulate || place.adds || place.stored ||
            place.adder == index) {
          continue;
        }
        place.adder = index;
        Slot slot = place.slot;
        slot.dtype = result.type.dtype;
        slot.shape = shape_of(result.type, sizes_);
        slot.strides = strides_of(name, result.type, slot.shape);
        made.zeroed.push_back(std::move(slot));
      }
    }
    for (std::size_t i = begin; i < end; ++i) {
      const Step& step = schedule_.steps[i];
      to_.calls_.push_back(call(step, chunk));
      if (made.extent > 0) set_kernel(to_.calls_.back(), step.program, chunk);
      release_after(step, i);
    }
    if (made.extent > 0 && made.extent % made.chunk != 0) {
      chunk[loop.dim] = made.extent % made.chunk;
      for (std::size_t i = begin; i < end; ++i) {
        made.tail.push_back(smaller(schedule_.steps[i], to_.calls_[i], chunk));
      }
    }
    for (std::size_t i = begin; i < end; ++i) release_after(schedule_.steps[i], end - 1);
    if (!loop.first.empty()) {
      const Place& first = places_.at(loop.first);
      arena_.give_back(first.slot.offset, first.bytes);
      places_.erase(loop.first);
      last_use_.erase(loop.first);
    }
    to_.loops_.push_back(std::move(made));
  }

  // The call of a step for the last chunk, at the same places.
  Call smaller(const Step& step, const Call& full, const Sizes& sizes) {
    Call call = full;
    const auto shrink = [&](Slot& slot, const std::string& name, const Type& type) {
      slot.shape = shape_of(type, sizes);
      slot.strides = strides_of(name, type, slot.shape);
    };
    for (std::size_t i = 0; i < call.inputs.size(); ++i) {
      shrink(call.inputs[i], step.inputs[i], step.program.params()[i].type);
    }
    for (std::size_t i = 0; i < call.outputs.size(); ++i) {
      shrink(call.outputs[i], step.outputs[i], step.program.results()[i].type);
    }
    set_kernel(call, step.program, sizes);
    return call;
  }

  // Gives back what no step after `index` needs, of what `step` reads and stores.
  void release_after(const Step& step, std::size_t index) {
    for (const auto* names : {&step.inputs, &step.outputs}) {
      for (const std::string& name : *names) {
        if (last_use_.at(name) > index) continue;
        Place& place = places_.at(name);
        if (place.slot.kind != Slot::Kind::arena || place.bytes == kReleased) continue;
        arena_.give_back(place.slot.offset, place.bytes);
        place.bytes = kReleased;
      }
    }
  }

  // What a run will pass, without data.
  Tensor expected(const Slot& slot) const {
    if (slot.kind == Slot::Kind::arena) return {nullptr, slot.dtype, slot.shape, slot.strides};
    const auto& given = slot.kind == Slot::Kind::param ? to_.params_ : to_.results_;
    const Expected& whole = given[slot.index];
    Tensor tensor = dense(nullptr, whole.dtype, whole.shape);
    if (const auto own = expected_.find(whole.name); own != expected_.end()) {
      tensor.strides = own->second;
    }
    if (slot.rows) tensor.shape[0] = slot.shape[0];
    return tensor;
  }

  // Equal programs for equal sizes and strides have one kernel, compiled once everything has its
  // place.
  void set_kernel(Call& call, const Program& program, const Sizes& sizes) {
    Wanted now{.program = nameless(program), .sizes = bind_sizes(program, sizes)};
    std::vector<Tensor> params, results;
    bool is_dense = true;
    const auto add = [&](std::vector<Tensor>& tensors, const Slot& slot, const Type& type) {
      const Tensor& tensor = tensors.emplace_back(expected(slot));
      const Tensor plain = dense(nullptr, type.dtype, shape_of(type, now.sizes));
      now.strides.push_back(factor_strides(type, tensor, now.sizes));
      is_dense = is_dense && now.strides.back() == factor_strides(type, plain, now.sizes);
    };
    for (std::size_t i = 0; i < call.inputs.size(); ++i) {
      add(params, call.inputs[i], program.params()[i].type);
    }
    for (std::size_t i = 0; i < call.outputs.size(); ++i) {
      add(results, call.outputs[i], program.results()[i].type);
    }
    auto& same = wanted_[now.program.hash()];
    for (const Wanted& known : same) {
      if (known.sizes == now.sizes && known.strides == now.strides &&
          known.program == now.program) {
        call.kernel = known.kernel;
        return;
      }
    }
    if (is_dense) params.clear(), results.clear();
    call.kernel = now.kernel = requests_.size();
    requests_.push_back({check(program), now.sizes, std::move(params), std::move(results)});
    same.push_back(std::move(now));
  }

  static constexpr std::size_t kReleased = static_cast<std::size_t>(-1);

  struct Wanted {
    Program program;  // nameless
    Sizes sizes;
    std::vector<std::vector<std::int64_t>> strides;  // of the factors of each tensor
    std::size_t kernel = 0;
  };

  const Schedule& schedule_;
  const Backend& backend_;
  const Sizes& sizes_;
  const Strides& expected_;
  Executable& to_;
  AddressSpace arena_;
  std::map<std::string, Place> places_;
  std::map<std::string, std::size_t> last_use_;
  std::map<std::string, std::size_t> row_factors_;
  std::set<std::string> leaves_;  // of a loop: what is not of one chunk alone
  std::unordered_map<std::size_t, std::vector<Wanted>> wanted_;
  std::vector<Backend::Request> requests_;
};

Executable::Executable(const Schedule& schedule, const Backend& backend, const Sizes& sizes,
                       const Strides& expected) {
  Planner(schedule, backend, sizes, expected, *this).plan();
}

}  // namespace coda
