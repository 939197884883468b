// tests/exact_schedule.h: a schedule by the exact reference, step after step, and how far it is
// from what its block means.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "coda/check/bind.h"
#include "coda/check/check.h"
#include "coda/core/error.h"
#include "coda/program/schedule.h"
#include "coda/program/text.h"
#include "coda/rewrite/grad.h"
#include "coda/rewrite/rewrite.h"
#include "tests/numeric_gradient.h"

namespace coda::testing {

inline OwnedTensor held_tensor(const Type& type, const Sizes& sizes) {
  return OwnedTensor(held(type.dtype), shape_of(type, sizes));
}

// Every tensor between steps and every result is held as f64, so that nothing rounds; loops run
// chunk by chunk.
class ExactSchedule {
 public:
  ExactSchedule(const Schedule& schedule, const Sizes& sizes, const Tensors& params)
      : schedule_(schedule), sizes_(sizes), params_(params) {
    for (std::size_t i = 0; i < schedule.steps.size();) {
      const int loop = schedule.steps[i].loop;
      if (loop < 0) {
        run(schedule.steps[i++]);
        continue;
      }
      std::size_t end = i;
      while (end < schedule.steps.size() && schedule.steps[end].loop == loop) ++end;
      run_loop(schedule.loops[static_cast<std::size_t>(loop)], i, end);
      i = end;
    }
  }

  // What the steps made: results, and what crosses between them.
  Tensors take() { return std::move(made_); }

 private:
  struct Chunk {
    const Loop& loop;
    std::int64_t first = 0, size = 0, total = 0;
    Tensors made = {};  // for this chunk only
  };

  // Whether anything outside of the chunk's loop reads what is made in it.
  bool leaves(const std::string& name, const Chunk& chunk) const {
    const auto reads = [&](const Step& step) {
      const bool inside =
          step.loop >= 0 && &schedule_.loops[static_cast<std::size_t>(step.loop)] == &chunk.loop;
      return !inside && std::ranges::find(step.inputs, name) != step.inputs.end();
    };
    const auto is_it = [&](const Result& result) {
      return result.name == name;
    };
    return std::ranges::any_of(schedule_.steps, reads) ||
           std::ranges::any_of(schedule_.results, is_it);
  }

  const OwnedTensor& whole(const std::string& name) const {
    const auto made = made_.find(name);
    if (made != made_.end()) return made->second;
    const auto param = params_.find(name);
    if (param == params_.end()) throw InternalError("no step makes " + name);
    return param->second;
  }

  // The chunk's rows of a tensor that has the loop's dimension first.
  static Tensor rows(const Tensor& tensor, const Chunk& chunk) {
    Tensor part = tensor;
    part.shape.at(0) = chunk.size;
    const std::int64_t offset = chunk.first * (tensor.strides.empty() ? 0 : tensor.strides[0]);
    part.data = static_cast<std::byte*>(tensor.data) +
                static_cast<std::size_t>(offset) * size_of(tensor.dtype);
    return part;
  }
  static bool is_chunked(const Type& type, const Chunk* chunk) {
    return chunk != nullptr && !type.dims.empty() && type.dims[0].text() == chunk->loop.dim;
  }

  void run(const Step& step, Chunk* chunk = nullptr) {
    Sizes sizes = sizes_;
    if (chunk != nullptr) sizes[chunk->loop.dim] = chunk->size;
    std::vector<Tensor> inputs, before;
    for (std::size_t i = 0; i < step.inputs.size(); ++i) {
      const std::string& name = step.inputs[i];
      if (chunk != nullptr && chunk->made.contains(name)) {
        inputs.push_back(chunk->made.at(name).tensor());
      } else {
        const Tensor& tensor = whole(name).tensor();
        const bool part = is_chunked(step.program.params()[i].type, chunk);
        inputs.push_back(part ? rows(tensor, *chunk) : tensor);
      }
    }
    for (std::size_t i = 0; i < step.outputs.size(); ++i) {
      before.push_back(place(step.program.results()[i], step.outputs[i], sizes, chunk));
    }
    const auto values =
        reference::evaluate(step.program, sizes, inputs, reference::Mode::exact, before);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const Tensor& tensor = before[i];
      for (std::size_t e = 0; e < values[i].data.size(); ++e) {
        store(tensor.dtype, tensor.data, static_cast<std::int64_t>(e), values[i].data[e]);
      }
    }
  }

  enum class Makers : std::uint8_t { one, every_chunk };

  // A new tensor in `tensors`, zeros; that of the chunks before, where every chunk adds to it.
  Tensor make(Tensors& tensors, const std::string& name, const Type& type, const Sizes& sizes,
              Makers makers) {
    const auto [at, is_new] = tensors.emplace(name, held_tensor(type, sizes));
    if (!is_new && (makers == Makers::one || at->second.tensor().shape != shape_of(type, sizes))) {
      throw InternalError(name + " is stored twice");
    }
    return at->second.tensor();
  }

  // Where a step's result goes; what accumulates starts from zero.
  Tensor place(const Result& result, const std::string& name, const Sizes& sizes, Chunk* chunk) {
    if (chunk == nullptr) return make(made_, name, result.type, sizes, Makers::one);
    if (is_chunked(result.type, chunk) && leaves(name, *chunk)) {
      Sizes all = sizes;
      all[chunk->loop.dim] = chunk->total;
      return rows(make(made_, name, result.type, all, Makers::every_chunk), *chunk);
    }
    if (result.store == Store::accumulate) {
      return make(made_, name, result.type, sizes, Makers::every_chunk);
    }
    if (leaves(name, *chunk) && !is_chunked(result.type, chunk)) {
      throw InternalError(name + " is overwritten by each chunk");
    }
    return make(chunk->made, name, result.type, sizes, Makers::one);
  }

  void run_loop(const Loop& loop, std::size_t begin, std::size_t end) {
    const std::int64_t total = require_extent(dim_of(loop.dim), sizes_);
    ASSERT_GT(loop.size, 0);
    // One empty chunk where there is nothing, so that every result exists.
    for (std::int64_t first = 0; first < std::max<std::int64_t>(total, 1); first += loop.size) {
      Chunk chunk{loop, first, std::min(loop.size, total - first), total};
      if (!loop.first.empty()) {
        OwnedTensor scalar(DType::i64, {});
        store(DType::i64, scalar.tensor().data, 0, static_cast<double>(first));
        chunk.made.emplace(loop.first, std::move(scalar));
      }
      for (std::size_t i = begin; i < end; ++i) run(schedule_.steps[i], &chunk);
    }
  }

  const Schedule& schedule_;
  const Sizes& sizes_;
  const Tensors& params_;
  Tensors made_;
};

// ‖got - want‖ / ‖want‖. What is not finite must be so in both, and of the same kind: infinite
// otherwise.
//
// NOTE: a value that cancels to nothing is as wrong as its terms are: below `least` an element
// errors are not relative.
inline double distance(const double* got, const std::vector<double>& want, double least = 1e-3) {
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (!std::isfinite(want[i]) || !std::isfinite(got[i])) {
      const bool same = std::isnan(want[i]) ? std::isnan(got[i]) : want[i] == got[i];
      if (!same) return INFINITY;
      continue;
    }
    error += (got[i] - want[i]) * (got[i] - want[i]);
    norm += want[i] * want[i];
  }
  const double floor = least * std::sqrt(static_cast<double>(want.size()));
  return error == 0 ? 0 : std::sqrt(error) / std::max(floor, std::sqrt(norm));
}

using Doubles = std::map<std::string, std::vector<double>>;

// How far each value of `truth` moves when the last bits of all inputs do: no arithmetic can be
// closer.
inline std::map<std::string, double> noise(
    const std::function<Doubles(const Tensors& inputs)>& evaluate, const Tensors& inputs,
    const Doubles& truth) {
  Tensors moved;
  std::mt19937_64 random(5);
  for (const auto& [name, tensor] : inputs) {
    OwnedTensor copy = dense_copy(tensor.tensor());
    const bool moves = copy.tensor().dtype == DType::f64;
    for (std::int64_t i = 0; moves && i < copy.tensor().elements(); ++i) {
      copy.as<double>()[i] *= 1 + std::ldexp(random() % 2 == 0 ? 1.0 : -1.0, -51);
    }
    moved.emplace(name, std::move(copy));
  }
  std::map<std::string, double> noise;
  for (const auto& [name, values] : evaluate(moved)) {
    noise[name] = distance(values.data(), truth.at(name), 1e-30);
  }
  return noise;
}

// "y: error 3e-3; z: …" for each value of `want` that `got` does not have to `tolerance`, or to
// what `lax` has for it.
inline std::string differences(const Doubles& want, const Tensors& got, double tolerance,
                               double least = 1e-3, const std::map<std::string, double>& lax = {}) {
  std::string text;
  for (const auto& [name, values] : want) {
    if (!got.contains(name)) {
      text += name + ": no step makes it; ";
      continue;
    }
    const Tensor& tensor = got.at(name).tensor();
    std::vector<double> elements;
    for (std::int64_t i = 0; i < tensor.elements(); ++i) {
      elements.push_back(load(tensor.dtype, tensor.data, i));
    }
    const double error =
        elements.size() == values.size() ? distance(elements.data(), values, least) : INFINITY;
    const double allowed = std::max(tolerance, lax.contains(name) ? 16 * lax.at(name) : 0);
    if (error <= allowed) continue;
    char number[32];
    std::snprintf(number, sizeof number, "%.2e", error);
    text += name + ": error " + number + "; ";
  }
  return text;
}

// The same, with what the inputs' own last bits excuse.
inline std::string differences(const std::function<Doubles(const Tensors& inputs)>& evaluate,
                               const Tensors& inputs, const Doubles& want, const Tensors& got,
                               double tolerance, double least = 1e-3) {
  if (differences(want, got, tolerance, least).empty()) return "";
  return differences(want, got, tolerance, least, noise(evaluate, inputs, want));
}

// Why a step is no kernel; empty: each is one, by a name of its own.
inline std::string not_kernels(const Schedule& schedule) {
  std::set<std::string> names;
  for (const Step& step : schedule.steps) {
    if (!names.insert(step.program.name()).second) return step.program.name() + " twice";
    try {
      check(step.program);
    } catch (const ProgramError& error) {
      return std::string(error.what()) + "\n" + print(step.program);
    }
  }
  return "";
}

// What the block's schedules make of `inputs` in double, and where that differs from the block and
// its gradient.
struct Exact {
  Tensors made;
  std::string differences;
};

inline Tensors drawn(const Program& program, const GradOptions& gradients, const Sizes& sizes) {
  Tensors inputs;
  const Fill fill{.seed = 7, .at = {{"eps", 0.1}, {"rate", 0.25}, {"ignore_index", 1}}};
  draw(joint(program, gradients), sizes, fill, inputs);
  return inputs;
}

inline Exact run_exact(const Program& block, const GradOptions& gradients, const Rewritten& made,
                       const Sizes& sizes, const Tensors& inputs) {
  EXPECT_EQ(not_kernels(made.forward.schedule), "");
  EXPECT_EQ(not_kernels(made.backward->schedule), "");
  const Program whole = joint(block, gradients);
  Tensors all;
  for (const auto& [name, tensor] : inputs) all.emplace(name, dense_copy(tensor.tensor()));
  Exact exact{.made = ExactSchedule(made.forward.schedule, sizes, all).take(), .differences = {}};
  for (const auto& [name, tensor] : exact.made) {
    all.insert_or_assign(name, dense_copy(tensor.tensor()));
  }
  exact.made.merge(ExactSchedule(made.backward->schedule, sizes, all).take());
  const auto truth = [&](const Tensors& at) {
    return evaluate(whole, sizes, at);
  };
  exact.differences = differences(truth, inputs, truth(inputs), exact.made, 1e-10);
  return exact;
}

}  // namespace coda::testing
