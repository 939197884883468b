// tests/rewritten_block.h: what rewriting makes of a block, forward and backward, against the
// block, in double.
#pragma once

#include <cstdint>
#include <ctime>
#include <string>

#include "coda/rewrite/grad.h"
#include "coda/rewrite/rewrite.h"
#include "tests/exact_schedule.h"

namespace coda::testing {

inline double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

inline std::size_t nodes_of(const Schedule& schedule) {
  std::size_t nodes = 0;
  for (const Step& step : schedule.steps) nodes += step.program.nodes().size();
  return nodes;
}

// What one block took.
struct Work {
  double seconds = 0;  // of rewrite alone
  std::size_t nodes = 0, scheduled = 0;
};

inline GradOptions known(GradOptions gradients, const Program& program) {
  std::erase_if(gradients.wrt,
                [&](const std::string& name) { return program.find_param(name) < 0; });
  return gradients;
}

// Why the block's rewriting is wrong, alone or with its gradient; empty: it is right. `seed` is
// that of the inputs, and chooses the options.
inline std::string wrong(const Program& program, const Sizes& sizes, const GradOptions& gradients,
                         std::uint64_t seed, Work* work = nullptr) {
  constexpr double kTolerance = 1e-10;
  try {
    // Options change where numbers are kept, never what they are.
    RewriteOptions options{.delay_f16 = seed % 2 == 0};
    if (seed % 4 == 1) options.memory = 0;
    const double before = thread_seconds();
    const Rewritten both = rewrite(program, gradients, options);
    const double seconds = thread_seconds() - before;
    if (work != nullptr) {
      *work = {seconds, program.nodes().size(),
               nodes_of(both.forward.schedule) + nodes_of(both.backward->schedule)};
    }
    for (const Partition* half : {&both.forward, &*both.backward}) {
      if (std::string why = not_kernels(half->schedule); !why.empty()) return why;
    }

    const Fill fill{.seed = seed, .at = {{"eps", 0.1}, {"rate", 0.3}, {"s", 0.7}}};
    Tensors tensors;
    draw(program, sizes, fill, tensors);
    const auto evaluated = [&](const Tensors& inputs) {
      return evaluate(program, sizes, inputs);
    };
    const Doubles want = evaluated(tensors);
    const auto compare = [&](const std::string& what, const Tensors& got) {
      const std::string why = differences(evaluated, tensors, want, got, kTolerance);
      return why.empty() ? why : what + ": " + why;
    };
    if (seed % 4 == 0) {
      const Schedule alone = rewrite(program, options).forward.schedule;
      if (std::string why = not_kernels(alone); !why.empty()) return why;
      const Tensors made = ExactSchedule(alone, sizes, tensors).take();
      if (std::string why = compare("forward", made); !why.empty()) return why;
    }
    Tensors made = ExactSchedule(both.forward.schedule, sizes, tensors).take();
    if (std::string why = compare("forward of a training step", made); !why.empty()) return why;

    const Program gradient = grad(program, gradients);
    draw(gradient, sizes, {.seed = seed + 1}, tensors);
    const auto differentiated = [&](const Tensors& inputs) {
      return evaluate(gradient, sizes, inputs);
    };
    const Doubles slopes = differentiated(tensors);
    // Backward reads parameters, upstream gradients, results and saved values: by name.
    Tensors all;
    for (const Param& param : both.backward->schedule.params) {
      const Tensors& from = tensors.contains(param.name) ? tensors : made;
      if (!from.contains(param.name)) return "forward does not make " + param.name;
      all.emplace(param.name, dense_copy(from.at(param.name).tensor()));
    }
    const Tensors got = ExactSchedule(both.backward->schedule, sizes, all).take();
    const std::string why = differences(differentiated, tensors, slopes, got, kTolerance);
    if (!why.empty()) return "backward: " + why;
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace coda::testing
