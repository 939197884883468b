// coda/model/optimizer.cpp: runs adamw.coda and grad_norm.coda over the whole arena.
#include "coda/model/optimizer.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "coda/core/error.h"
#include "coda/model/model.h"

namespace coda {
namespace {

std::int64_t partials(std::int64_t rows) {
  return (rows + kBlock - 1) / kBlock;
}

}  // namespace

double scheduled_rate(double rate, std::int64_t step, std::int64_t steps) {
  const std::int64_t warm_up = std::min<std::int64_t>(100, std::max<std::int64_t>(steps / 10, 1));
  if (step < warm_up) return rate * static_cast<double>(step + 1) / static_cast<double>(warm_up);
  const double rest = static_cast<double>(std::max<std::int64_t>(steps - warm_up, 1));
  const double done = std::min(static_cast<double>(step - warm_up) / rest, 1.0);
  constexpr double kLeast = 0.05;
  return rate * (kLeast + (1 - kLeast) * 0.5 * (1 + std::cos(std::numbers::pi * done)));
}

AdamW::AdamW(const ArenaLayout& layout, const Backend& backend, DType model_dtype,
             const OptimizerOptions& options)
    : AdamW(layout, backend, statistic_dtype(model_dtype), model_dtype, options) {}

AdamW::AdamW(const ArenaLayout& layout, const Backend& backend, DType dtype, DType model_dtype,
             const OptimizerOptions& options)
    : options_(options),
      rounds_(dtype != model_dtype),
      square_sums_(standard_program("grad_norm.coda", "square_sums", dtype), backend,
                   {{"M", layout.rows}, {"N", kArenaColumns}}),
      clip_(standard_program("grad_norm.coda", "clip", dtype), backend,
            {{"P", partials(layout.rows)}}),
      first_{Arena(layout, dtype), Arena(layout, dtype)},
      second_{Arena(layout, dtype), Arena(layout, dtype)},
      next_(layout, dtype),
      partial_(dtype, {partials(layout.rows)}),
      rows_(layout.rows),
      limit_(dtype, options.clip),
      norm_(dtype, 0),
      grad_scale_(dtype, 1),
      rate_(dtype, 0),
      beta1_(dtype, options.beta1),
      beta2_(dtype, options.beta2),
      eps_(dtype, options.eps),
      decay_(dtype, 0),
      bias1_(dtype, 1),
      bias2_(dtype, 1) {
  const Program adamw = rounds_ ? standard_program("adamw.coda", "adamw_master", DType::bf16)
                                : standard_program("adamw.coda", "adamw", dtype);
  const auto part = [&](std::int64_t first, std::int64_t rows, double decay) {
    parts_.push_back(
        {first, rows, decay, CompiledBlock(adamw, backend, {{"M", rows}, {"N", kArenaColumns}})});
    scratch_.reserve(parts_.back().program.scratch_bytes());
  };
  part(0, layout.decayed_rows, options.weight_decay);
  part(layout.decayed_rows, layout.rows - layout.decayed_rows, 0);
  scratch_.reserve(square_sums_.scratch_bytes());
  scratch_.reserve(clip_.scratch_bytes());
}

double AdamW::step(Arena& weights, const Arena& gradients, double rate, Arena* rounded,
                   Timings* timings) {
  if (rounds_ != (rounded != nullptr)) throw InternalError("AdamW for another dtype");
  ++steps_;
  const auto scratch = scratch_.span();
  square_sums_.run({{"grad", gradients.rows(0, rows_)}, {"ss", partial_.tensor()}}, scratch,
                   timings);
  clip_.run({{"ss", partial_.tensor()},
             {"limit", limit_.tensor()},
             {"norm", norm_.tensor()},
             {"grad_scale", grad_scale_.tensor()}},
            scratch, timings);
  rate_.set(rate);
  bias1_.set(1 - std::pow(options_.beta1, static_cast<double>(steps_)));
  bias2_.set(1 - std::pow(options_.beta2, static_cast<double>(steps_)));
  for (const Part& part : parts_) {
    decay_.set(part.weight_decay);
    const auto rows = [&](const Arena& arena) {
      return arena.rows(part.first, part.rows);
    };
    TensorMap tensors{{"grad", rows(gradients)},
                      {"m", rows(first_[0])},
                      {"v", rows(second_[0])},
                      {"lr", rate_.tensor()},
                      {"beta1", beta1_.tensor()},
                      {"beta2", beta2_.tensor()},
                      {"eps", eps_.tensor()},
                      {"weight_decay", decay_.tensor()},
                      {"bias1", bias1_.tensor()},
                      {"bias2", bias2_.tensor()},
                      {"grad_scale", grad_scale_.tensor()},
                      {"new_m", rows(first_[1])},
                      {"new_v", rows(second_[1])}};
    tensors[rounds_ ? "master" : "param"] = rows(weights);
    tensors[rounds_ ? "new_master" : "new_param"] = rows(next_);
    if (rounds_) tensors["new_param"] = rows(*rounded);
    part.program.run(tensors, scratch, timings);
  }
  std::swap(weights, next_);
  std::swap(first_[0], first_[1]);
  std::swap(second_[0], second_[1]);
  return norm_.value();
}

}  // namespace coda
