// tests/random_block.h: small random blocks over every kind of op, for properties that hold for all
// blocks.
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "coda/program/builder.h"

namespace coda::testing {

// Names of two blocks (N), of heads (H*E = P) and small ones.
inline const Sizes kRandomSizes = {{"M", 3}, {"N", 70}, {"H", 2}, {"E", 4},
                                   {"K", 5}, {"P", 8},  {"B", 2}, {"S", 3}};

class RandomBlock {
 public:
  explicit RandomBlock(std::uint64_t seed)
      : random_(seed), builder_("random" + std::to_string(seed), Program::Kind::block) {}
  // The same with each choice from a byte; the block ends where they do.
  explicit RandomBlock(std::span<const std::uint8_t> choices)
      : choices_(choices), builder_("chosen", Program::Kind::block) {}

  // A block of about `nodes` nodes; what nobody reads is a result.
  Program make(int nodes) && {
    const Dim m = dim_of("M"), n = dim_of("N"), k = dim_of("K"), h = dim_of("H"), e = dim_of("E"),
              b = dim_of("B"), s = dim_of("S");
    const std::vector<std::vector<Dim>> shapes = {
        {m, n}, {n, k}, {m, h * e}, {h * e, n}, {n}, {b * s, n}, {m}, {e}, {}, {s, k}};
    for (const auto& dims : shapes) {
      const DType dtype = one_of(3) == 0 ? DType::f32 : DType::bf16;
      values_.push_back(builder_.param("x" + std::to_string(values_.size()), {dtype, dims}));
    }
    ids_ = builder_.param("ids", {DType::i64, {m}});
    seed_ = builder_.param("seed", {DType::i64, {}});
    for (int tries = 0; made_ < nodes && tries < 40 * nodes && goes_on(); ++tries) {
      try {
        add();
      } catch (const ProgramError&) {  // ill-typed: another one
      }
    }
    int results = 0;
    for (std::size_t i = shapes.size(); i < values_.size(); ++i) {
      const bool unused =
          use_counts(builder_.so_far())[static_cast<std::size_t>(values_[i].id)] == 0;
      if (!unused && one_of(5) != 0) continue;
      Type type = builder_.type(values_[i]);
      if (is_float(type.dtype)) type.dtype = one_of(2) == 0 ? DType::f32 : DType::bf16;
      if (type.dims.size() == 2 && one_of(4) == 0) std::swap(type.dims[0], type.dims[1]);
      const Store store = one_of(6) == 0 ? Store::accumulate : Store::overwrite;
      builder_.result("r" + std::to_string(results++), type, values_[i], store);
    }
    return std::move(builder_).finish();
  }

 private:
  bool goes_on() const { return !choices_ || !choices_->empty(); }
  std::size_t one_of(std::size_t count) {
    if (choices_) {
      if (choices_->empty()) return 0;
      const std::uint8_t choice = choices_->front();
      choices_ = choices_->subspan(1);
      return choice % count;
    }
    return std::uniform_int_distribution<std::size_t>(0, count - 1)(random_);
  }
  template <class T>
  const T& pick(const std::vector<T>& from) {
    return from[one_of(from.size())];
  }
  // Recent values more often, so that chains grow.
  Value value() {
    const std::size_t last = std::min<std::size_t>(values_.size(), 6);
    return one_of(2) == 0 ? pick(values_) : values_[values_.size() - 1 - one_of(last)];
  }
  std::optional<Dim> axis_of(Value v) {
    const Type& type = builder_.type(v);
    if (type.dims.empty()) return std::nullopt;
    const Dim& dim = pick(type.dims);
    return one_of(2) == 0 ? dim : dim_of(pick(dim.factors));
  }
  void keep(Value v) {
    const Type& type = builder_.type(v);
    std::int64_t elements = 1;
    for (const Dim& dim : type.dims) elements *= extent(dim, kRandomSizes).value_or(1);
    if (elements > 20000) return;
    values_.push_back(v);
    ++made_;
  }
  void keep(Op op, std::vector<Value> args, Attr attr = {}) {
    keep(builder_.op(op, std::move(args), std::move(attr)));
  }

  void add() {
    const Dim h = dim_of("H"), e = dim_of("E"), half{{Factor::quotient(e, 2)}};
    switch (one_of(16)) {
      case 0:
      case 1:
        return keep(pick(std::vector{Op::neg, Op::abs, Op::tanh, Op::sigmoid, Op::erf}), {value()});
      case 2:
      case 3:
      case 4:
        return keep(pick(std::vector{Op::add, Op::sub, Op::mul, Op::maximum, Op::minimum}),
                    {value(), value()});
      case 5:
        return keep(Op::where,
                    {builder_.op(Op::lt, {value(), builder_.constant(0.25)}), value(), value()});
      case 6:
      case 7:
      case 8: {
        const Value a = value(), b = value();
        for (const Factor& factor : factors_of(builder_.type(a))) {
          if (!has_factor(builder_.type(b), factor)) continue;
          const Value product = builder_.op(Op::product, {a, b}, {.axis = dim_of(factor)});
          return keep(Op::tanh, {product});
        }
        return;
      }
      case 9:
      case 10: {
        const Value v = value();
        const auto axis = axis_of(v);
        const Op op = pick(std::vector{Op::sum, Op::reduce_max, Op::logsumexp, Op::sum});
        if (axis) keep(Op::tanh, {builder_.op(op, {v}, {.axis = *axis})});
        return;
      }
      case 11: {
        const Value v = value();
        const auto axis = axis_of(v);
        const Op op = pick(std::vector{Op::block_sum, Op::block_max, Op::block_logsumexp});
        if (axis) keep(op, {v}, {.axis = *axis, .block = one_of(2) == 0 ? 64 : 32});
        return;
      }
      case 12: {
        const auto pieces = builder_.ops(Op::split, {value()}, {.axis = e, .dims = {half, half}});
        for (const Value piece : pieces) keep(piece);
        return keep(Op::join, {pieces[1], pieces[0]}, {.axis = e, .dims = {half, half}});
      }
      case 13: {
        const Value v = value();
        std::vector<Dim> dims = builder_.type(v).dims;
        for (Dim& dim : dims) {
          if (dim == h * e) {
            dim = dim_of("P");
          } else if (dim == dim_of("P")) {
            dim = h * e;
          }
        }
        if (dims != builder_.type(v).dims) return keep(Op::as, {v}, {.dims = dims});
        dims.push_back(dim_of("K"));
        return keep(Op::spread, {v}, {.dims = dims});
      }
      case 14: {
        const Value v = value();
        if (one_of(3) == 0) return keep(Op::scatter_sum, {v, ids_}, {.axis = dim_of("N")});
        return keep(one_of(2) == 0 ? Op::gather : Op::pick, {v, ids_});
      }
      default: {
        const Value v = value();
        if (one_of(2) == 0) return keep(Op::cast, {v}, {.dtype = DType::bf16});
        return keep(Op::mul,
                    {v, builder_.op(Op::uniform, {seed_}, {.dims = builder_.type(v).dims})});
      }
    }
  }

  std::mt19937_64 random_;
  std::optional<std::span<const std::uint8_t>> choices_;  // none: random
  Builder builder_;
  std::vector<Value> values_;
  Value ids_, seed_;
  int made_ = 0;
};

}  // namespace coda::testing
