// coda/reference/verify.cpp: runs an executor on fenced tensors and judges what it leaves.
//
// Every trial runs twice, over two poisons: an element that holds the first poison after the first
// run and the second after the second was never written, whatever its value means.
#include "coda/reference/verify.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <optional>
#include <random>

#include "coda/check/bind.h"
#include "coda/core/error.h"
#include "coda/reference/fence.h"
#include "coda/reference/reference.h"
#include "coda/reference/tolerance.h"

namespace coda {
namespace {

using reference::Array;
using reference::Mode;

// All ones is a NaN in every float dtype.
constexpr std::byte kPoisons[] = {std::byte{0xff}, std::byte{0x7f}};

std::vector<Tensor> views(const std::vector<OwnedTensor>& owned) {
  std::vector<Tensor> tensors;
  for (const OwnedTensor& each : owned) tensors.push_back(each.tensor());
  return tensors;
}

std::vector<Tensor> views(const std::vector<Fenced>& fenced) {
  std::vector<Tensor> tensors;
  for (const Fenced& each : fenced) tensors.push_back(each.tensor());
  return tensors;
}

// Dense inputs and earlier contents of the results, and what is to come out.
struct Truth {
  std::vector<OwnedTensor> params, before;
  std::vector<Array> exact, naive;
};

std::vector<OwnedTensor> random_before(const Program& program, const Sizes& sizes,
                                       std::uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::normal_distribution<double> normal;
  std::vector<OwnedTensor> tensors;
  for (const Result& result : program.results()) {
    tensors.emplace_back(result.type.dtype, shape_of(result.type, sizes));
    const Tensor& tensor = tensors.back().tensor();
    for (std::int64_t i = 0; i < tensor.elements(); ++i) {
      store(tensor.dtype, tensor.data, i, normal(generator));
    }
  }
  return tensors;
}

void evaluate_both(const Program& program, const Sizes& sizes, Truth& truth) {
  const std::vector<Tensor> params = views(truth.params), before = views(truth.before);
  truth.exact = reference::evaluate(program, sizes, params, Mode::exact, before);
  truth.naive = reference::evaluate(program, sizes, params, Mode::rounded, before);
}

// Some of the inputs repeat one row: gradients of sums come so.
bool is_broadcast(const Param& param, std::size_t index, std::uint64_t seed) {
  return !param.type.is_scalar() && is_float(param.type.dtype) && (seed + index) % 2 == 0;
}

// The values that the repeated inputs have, as dense tensors.
void repeat_rows(const Program& program, const Sizes& sizes, std::uint64_t seed, Truth& truth) {
  for (std::size_t p = 0; p < truth.params.size(); ++p) {
    const Param& param = program.params()[p];
    if (!is_broadcast(param, p, seed)) continue;
    Fenced row(param.type, sizes, Layouts::broadcast, Fenced::Axes::dims);
    row.put(truth.params[p].tensor());
    const std::vector<std::byte> elements = row.elements();
    if (!elements.empty()) {
      std::memcpy(truth.params[p].tensor().data, elements.data(), elements.size());
    }
  }
}

using Bits = std::vector<std::vector<std::byte>>;  // one for each result

// One set of inputs in one layout: runs executors on it and judges their results.
class Trial {
 public:
  Trial(const Program& program, const Sizes& sizes, const Truth& truth, Layouts layout,
        std::uint64_t seed, std::vector<Errors>& errors)
      : program_(program), sizes_(sizes), truth_(truth), errors_(errors) {
    const bool by_factor = layout == Layouts::padded && seed % 2 != 0;
    const auto axes = by_factor ? Fenced::Axes::factors : Fenced::Axes::dims;
    for (std::size_t p = 0; p < program.params().size(); ++p) {
      const Param& param = program.params()[p];
      const bool strided = layout != Layouts::broadcast || is_broadcast(param, p, seed);
      params_.emplace_back(param.type, sizes, strided ? layout : Layouts::dense, axes);
      params_.back().fill(kPoisons[0]);
      params_.back().put(truth.params[p].tensor());
      inputs_.push_back(params_.back().bytes());
    }
    const Layouts result_layout = layout == Layouts::broadcast ? Layouts::dense : layout;
    for (const Result& result : program.results()) {
      results_.emplace_back(result.type, sizes, result_layout, axes);
    }
  }

  void judge(const Executor& executor, std::span<const Executor> same_bits) {
    const Bits first = run(executor, kPoisons[0]);
    const Bits second = run(executor, kPoisons[1]);
    for (std::size_t r = 0; r < first.size(); ++r) {
      require_written(r, first[r], second[r]);
      require_equal(r, first[r], second[r], "a second run gives other bits");
    }
    for (const Executor& other : same_bits) {
      const Bits bits = run(other, kPoisons[0]);
      for (std::size_t r = 0; r < first.size(); ++r) {
        require_equal(r, first[r], bits[r], "an executor that must give the same bits does not");
      }
    }
    for (std::size_t r = 0; r < first.size(); ++r) {
      errors_[r].add(truth_.exact[r], truth_.naive[r], first[r]);
    }
  }

 private:
  Bits run(const Executor& executor, std::byte poison) {
    for (std::size_t r = 0; r < results_.size(); ++r) {
      results_[r].fill(poison);
      if (program_.results()[r].store == Store::accumulate) {
        results_[r].put(truth_.before[r].tensor());
      }
    }
    executor(program_, sizes_, views(params_), views(results_));
    for (std::size_t p = 0; p < params_.size(); ++p) {
      if (params_[p].bytes() == inputs_[p]) continue;
      for (Errors& each : errors_) each.fail("changed its input " + program_.params()[p].name);
    }
    Bits bits;
    for (std::size_t r = 0; r < results_.size(); ++r) {
      if (const auto trespass = results_[r].trespass(poison)) errors_[r].fail(*trespass);
      bits.push_back(results_[r].elements());
    }
    return bits;
  }

  std::string place(std::size_t r, std::size_t byte) const {
    const std::size_t index = byte / size_of(results_[r].tensor().dtype);
    return coda::place(program_.results()[r], truth_.exact[r], index);
  }

  void require_written(std::size_t r, const std::vector<std::byte>& first,
                       const std::vector<std::byte>& second) {
    if (program_.results()[r].store == Store::accumulate) return;
    const std::size_t size = size_of(results_[r].tensor().dtype);
    std::size_t count = 0, where = 0;
    for (std::size_t i = 0; i < first.size(); i += size) {
      const auto all = [&](const std::vector<std::byte>& bytes, std::byte poison) {
        return std::all_of(bytes.begin() + static_cast<std::ptrdiff_t>(i),
                           bytes.begin() + static_cast<std::ptrdiff_t>(i + size),
                           [&](std::byte each) { return each == poison; });
      };
      if (!all(first, kPoisons[0]) || !all(second, kPoisons[1])) continue;
      if (count++ == 0) where = i;
    }
    if (count > 0) {
      errors_[r].fail("left " + std::to_string(count) + " elements unwritten, the first " +
                      place(r, where));
    }
  }

  void require_equal(std::size_t r, const std::vector<std::byte>& first,
                     const std::vector<std::byte>& other, const std::string& what) {
    const auto differ = std::ranges::mismatch(first, other);
    if (differ.in1 == first.end()) return;
    const auto byte = static_cast<std::size_t>(differ.in1 - first.begin());
    const DType dtype = results_[r].tensor().dtype;
    const auto index = static_cast<std::int64_t>(byte / size_of(dtype));
    char values[64];
    std::snprintf(values, sizeof values, "%.9g, then %.9g", load(dtype, first.data(), index),
                  load(dtype, other.data(), index));
    errors_[r].fail(what + ": " + place(r, byte) + " is " + values);
  }

  const Program& program_;
  const Sizes& sizes_;
  const Truth& truth_;
  std::vector<Errors>& errors_;
  std::vector<Fenced> params_, results_;
  std::vector<std::vector<std::byte>> inputs_;  // the bytes before any run
};

std::vector<Errors> no_errors(const Program& program, const Sizes& sizes) {
  std::vector<Errors> errors;
  for (const Result& result : program.results()) errors.emplace_back(program, sizes, result);
  return errors;
}

}  // namespace

std::vector<Verdict> verify(const Program& program, const Sizes& sizes, const Executor& executor,
                            const VerifyOptions& options) {
  std::vector<Verdict> verdicts;
  const int all = static_cast<int>(options.inputs.size()) * options.seeds;
  int done = 0;
  for (const Inputs inputs : options.inputs) {
    std::vector<std::vector<Errors>> errors(options.layouts.size(), no_errors(program, sizes));
    for (int s = 0; s < options.seeds; ++s) {
      if (options.progress) options.progress(done++, all);
      const std::uint64_t seed = options.seed + static_cast<std::uint64_t>(s);
      std::optional<Truth> shared;  // by all layouts that do not change values
      for (std::size_t l = 0; l < options.layouts.size(); ++l) {
        const bool changes = options.layouts[l] == Layouts::broadcast;
        std::optional<Truth> own;
        std::optional<Truth>& truth = changes ? own : shared;
        if (!truth) {
          truth = Truth{.params = random_inputs(program, sizes, seed, inputs),
                        .before = random_before(program, sizes, seed),
                        .exact = {},
                        .naive = {}};
          if (changes) repeat_rows(program, sizes, seed, *truth);
          evaluate_both(program, sizes, *truth);
        }
        Trial(program, sizes, *truth, options.layouts[l], seed, errors[l])
            .judge(executor, options.same_bits);
      }
    }
    for (std::size_t l = 0; l < options.layouts.size(); ++l) {
      for (const Errors& each : errors[l]) {
        verdicts.push_back(each.verdict());
        verdicts.back().inputs = inputs;
        verdicts.back().layout = options.layouts[l];
      }
    }
  }
  return verdicts;
}

std::string_view name_of(Inputs inputs) {
  switch (inputs) {
    case Inputs::normal:
      return "normal";
    case Inputs::outliers:
      return "outliers";
    case Inputs::tiny:
      return "tiny";
    case Inputs::huge:
      return "huge";
  }
  throw InternalError("no such inputs");
}

std::string_view name_of(Layouts layout) {
  switch (layout) {
    case Layouts::dense:
      return "dense";
    case Layouts::padded:
      return "padded";
    case Layouts::transposed:
      return "transposed";
    case Layouts::broadcast:
      return "broadcast";
  }
  throw InternalError("no such layout");
}

std::string table(std::span<const Verdict> verdicts) {
  std::size_t width = 6;
  for (const Verdict& each : verdicts) width = std::max(width, each.result.size());
  const auto row = [&](std::string_view result, std::string_view inputs, std::string_view layout,
                       std::string_view error, std::string_view naive, std::string_view worst,
                       std::string_view verdict) {
    std::string line(result);
    line.resize(width + 2, ' ');
    const auto column = [&](std::string_view text, std::size_t size) {
      line += text;
      line.append(size > text.size() ? size - text.size() : 1, ' ');
    };
    column(inputs, 10);
    column(layout, 12);
    column(error, 11);
    column(naive, 11);
    column(worst, 11);
    return line + std::string(verdict) + "\n";
  };
  const auto number = [](const char* format, double value) {
    char text[32];
    std::snprintf(text, sizeof text, format, value);
    return std::string(text);
  };
  std::string text = row("result", "inputs", "layout", "error", "naive", "worst/naive", "verdict");
  for (const Verdict& each : verdicts) {
    text += row(each.result, name_of(each.inputs), name_of(each.layout), number("%.2e", each.error),
                number("%.2e", each.naive_error), number("%.2f", each.worst_ratio),
                each.passed ? "ok" : "FAILED");
    if (!each.passed) text += "  " + each.why + "\n";
  }
  return text;
}

}  // namespace coda
