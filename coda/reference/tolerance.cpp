// coda/reference/tolerance.cpp: error ≤ 1.05 · naive + slack by norm, ≤ 2 · naive + slack by
// element.
//
// The naive sequence earns the bound. The slack is what it cannot earn: on-chip sums run in f32 and
// in any order, and where a result has few elements both errors are noise.
#include "coda/reference/tolerance.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "coda/check/bind.h"
#include "coda/core/error.h"

namespace coda {
namespace {

using reference::Array;

constexpr double kNormFactor = 1.05, kWorstFactor = 2;
constexpr double kNoise = 3;        // deviations of a ratio of two errors of few elements
constexpr double kOverflow = 0.05;  // how far below its dtype's largest number a value may overflow
constexpr double kBoundary = 1e-3;  // share of comparisons of floats that rounding may turn over

// The largest relative error of one rounding, and the least normal number; f16 and narrower: the
// least number, as their subnormals are in use.
struct Precision {
  double roundoff = 0, least = 0;
};

Precision precision(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return {0x1p-53, 0x1p-1022};
    case DType::f32:
      return {0x1p-24, 0x1p-126};
    case DType::bf16:
      return {0x1p-8, 0x1p-126};
    case DType::f16:
      return {0x1p-11, 0x1p-24};
    case DType::f8e4m3:
      return {0x1p-4, 0x1p-9};
    case DType::f8e5m2:
      return {0x1p-3, 0x1p-16};
    case DType::i32:
    case DType::i64:
    case DType::u8:
    case DType::boolean:
      return {0, 0};
  }
  throw InternalError("no such dtype");
}

std::int64_t longest_sum(const Program& program, const Sizes& sizes) {
  std::int64_t longest = 1;
  for (const Node& node : program.nodes()) {
    switch (class_of(node.op)) {
      case OpClass::product:
      case OpClass::reduce:
        longest = std::max(longest, require_extent(node.attr.axis, sizes));
        break;
      case OpClass::block_reduce:
        longest = std::max(longest, node.attr.block);
        break;
      case OpClass::indexed:
      case OpClass::opaque:
        for (const Value v : node.args) {
          const Type& type = program.type(v);
          if (!type.is_scalar()) longest = std::max(longest, require_extent(type.dims[0], sizes));
        }
        break;
      case OpClass::leaf:
      case OpClass::unary:
      case OpClass::binary:
      case OpClass::compare:
      case OpClass::select:
      case OpClass::cast:
      case OpClass::layout:
        break;
    }
  }
  return longest;
}

bool depends_on_floats(const Program& program, Value v) {
  if (is_float(program.type(v).dtype)) return true;
  if (program.is_param(v)) return false;
  const std::vector<Value>& args = program.node(v).args;
  return std::ranges::any_of(args, [&](Value arg) { return depends_on_floats(program, arg); });
}

bool same_kind(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return a == b;  // infinities with their sign
}

bool differ_in_kind(double a, double b) {
  return !(std::isfinite(a) && std::isfinite(b)) && !same_kind(a, b);
}

// Whether `got` may stand where one of the three is not finite.
bool kind_fits(DType dtype, double truth, double naive, double got) {
  const double stored = round_to(dtype, truth);
  if (same_kind(got, stored) || same_kind(got, naive)) return true;
  if (std::isfinite(stored) && !std::isfinite(naive)) {
    // No worse than the naive sequence, which broke: finite, then infinite, then NaN.
    return !std::isnan(got) || std::isnan(naive);
  }
  // One side of the dtype's largest number or the other.
  const bool near = !std::isfinite(round_to(dtype, truth * (1 + kOverflow)));
  if (std::isfinite(got)) return near && std::isfinite(naive);
  return near && std::isinf(got) && std::signbit(got) == std::signbit(truth);
}

std::string number(double x) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", x);
  return text;
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 != 0 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

// a / b where both may be 0 or infinite.
double ratio(double a, double b) {
  if (a == 0) return 0;
  return b == 0 ? std::numeric_limits<double>::infinity() : a / b;
}

}  // namespace

std::string place(const Result& result, const Array& array, std::size_t index) {
  std::string text;
  for (std::size_t f = array.extents.size(); f-- > 0;) {
    const auto extent = static_cast<std::size_t>(array.extents[f]);
    text = std::to_string(index % extent) + (text.empty() ? "" : ", ") + text;
    index /= extent;
  }
  return result.name + "[" + text + "]";
}

Errors::Errors(const Program& program, const Sizes& sizes, const Result& result) : result_(result) {
  const auto length = static_cast<double>(longest_sum(program, sizes));
  const bool f64 = program.type(result.value).dtype == DType::f64;
  // In f64 the naive sequence is the truth itself and earns nothing.
  const double on_chip = f64 ? 64 * precision(DType::f64).roundoff : precision(DType::f32).roundoff;
  slack_ = on_chip * (8 + std::sqrt(length));
  roundoff_ = precision(result.type.dtype).roundoff;
  least_ = precision(result.type.dtype).least * std::sqrt(length);  // a sum's terms underflow each
  from_floats_ = depends_on_floats(program, result.value);
}

void Errors::fail(const std::string& why) {
  if (why_.empty()) why_ = why;
}

void Errors::add(const Array& exact, const Array& naive, std::span<const std::byte> got) {
  const DType dtype = result_.type.dtype;
  std::vector<double> values(exact.data.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = load(dtype, got.data(), static_cast<std::int64_t>(i));
    if (dtype == DType::boolean && std::to_integer<int>(got[i]) > 1) {
      fail(place(result_, exact, i) + " holds the byte " +
           std::to_string(std::to_integer<int>(got[i])) + ", which is no bool");
    }
  }
  if (is_float(dtype)) {
    add_floats(exact, naive, values);
  } else {
    add_discrete(exact, naive, values);
  }
}

void Errors::add_discrete(const Array& exact, const Array& naive, std::span<const double> got) {
  double differ = 0, naive_differ = 0;
  std::string first;
  for (std::size_t i = 0; i < got.size(); ++i) {
    naive_differ += naive.data[i] != exact.data[i] ? 1 : 0;
    if (got[i] == exact.data[i]) continue;
    if (differ++ == 0) {
      first = place(result_, exact, i) + " is " + number(got[i]) + ", the truth is " +
              number(exact.data[i]);
    }
  }
  const auto elements = static_cast<double>(std::max<std::size_t>(got.size(), 1));
  const double allowed = from_floats_ ? naive_differ + std::floor(kBoundary * elements) : 0;
  if (differ > allowed) fail(number(differ) + " elements differ, the first: " + first);
  compared_ += static_cast<double>(got.size());
  errors_.push_back(differ / elements);
  naive_errors_.push_back(naive_differ / elements);
}

void Errors::add_floats(const Array& exact, const Array& naive, std::span<const double> got) {
  const DType dtype = result_.type.dtype;
  double norm = 0, error = 0, naive_error = 0, largest = 0, worst = 0, naive_worst = 0;
  double compared = 0, kinds = 0, naive_kinds = 0;  // that are not the truth's
  std::size_t worst_at = 0;
  std::string misfit;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double truth = exact.data[i], stored = round_to(dtype, truth), plain = naive.data[i];
    if (!std::isfinite(stored) || !std::isfinite(plain) || !std::isfinite(got[i])) {
      kinds += differ_in_kind(got[i], stored) ? 1 : 0;
      naive_kinds += differ_in_kind(plain, stored) ? 1 : 0;
      if (misfit.empty() && !kind_fits(dtype, truth, plain, got[i])) {
        misfit = place(result_, exact, i) + " is " + number(got[i]) + ", the truth is " +
                 number(truth) + ", the naive sequence has " + number(plain);
      }
      continue;
    }
    const double off = std::abs(got[i] - truth), naive_off = std::abs(plain - truth);
    norm += truth * truth;
    error += off * off;
    naive_error += naive_off * naive_off;
    largest = std::max(largest, std::abs(truth));
    naive_worst = std::max(naive_worst, naive_off);
    compared += 1;
    if (off > worst) {
      worst = off;
      worst_at = i;
    }
  }
  // What few elements survive an overflow are sums that happened to cancel, and the signs of the
  // infinite ones hang on which terms overflowed: only how many kinds are wrong counts.
  if (2 * compared < static_cast<double>(got.size())) {
    kinds_ += kinds;
    naive_kinds_ += naive_kinds;
    if (misfit_.empty()) misfit_ = misfit;
    return;
  }
  if (!misfit.empty()) fail(misfit);
  compared_ += compared;
  norm = std::sqrt(norm);
  const auto above_least = [&](double x, double count) {
    return std::max(0.0, x - least_ * std::sqrt(count));
  };
  errors_.push_back(ratio(above_least(std::sqrt(error), compared), norm));
  naive_errors_.push_back(ratio(std::sqrt(naive_error), norm));
  const double relative = ratio(above_least(worst, 1), largest);
  naive_worst_ = std::max(naive_worst_, ratio(naive_worst, largest));
  if (relative > worst_) {
    worst_ = relative;
    worst_place_ = place(result_, exact, worst_at) + " is " + number(got[worst_at]) +
                   ", the truth is " + number(exact.data[worst_at]) + ", the naive sequence has " +
                   number(naive.data[worst_at]);
  }
}

Verdict Errors::verdict() const {
  Verdict verdict{.result = result_.name,
                  .error = median(errors_),
                  .naive_error = median(naive_errors_),
                  .worst_ratio = ratio(worst_, naive_worst_),
                  .why = why_};
  const double kinds_allowed = naive_kinds_ + kNoise * std::sqrt(naive_kinds_ + 1);
  if (why_.empty() && kinds_ > kinds_allowed) verdict.why = misfit_;
  if (verdict.why.empty() && is_float(result_.type.dtype) && !errors_.empty()) {
    const double few = 1 / std::sqrt(std::max(compared_, 1.0)), noise = kNoise * few;
    const double slack = slack_ + roundoff_ * few;
    const double bound = (kNormFactor + noise) * verdict.naive_error + slack;
    const double worst_bound = kWorstFactor * (1 + noise) * naive_worst_ + slack;
    if (!(verdict.error <= bound)) {
      verdict.why = "error " + number(verdict.error) + " by norm, allowed " + number(bound) +
                    " (naive " + number(verdict.naive_error) + "); the worst: " + worst_place_;
    } else if (!(worst_ <= worst_bound)) {
      verdict.why = worst_place_ + ": error " + number(worst_) + " of the largest, allowed " +
                    number(worst_bound);
    }
  }
  verdict.compared = static_cast<std::int64_t>(compared_);
  verdict.passed = verdict.why.empty();
  return verdict;
}

}  // namespace coda
