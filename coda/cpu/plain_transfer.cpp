// coda/cpu/plain_transfer.cpp: loads, stores and roundings of every dtype, element by element.
//
// One template instance for each dtype; what has no loop of its own goes through core/dtype.h.
#include "coda/cpu/plain_transfer.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "coda/core/error.h"

namespace coda::cpu {
namespace {

using Int = std::int64_t;

template <class From, class To>
void load_as(const void* from, Int step, Int n, void* to) {
  const auto* in = static_cast<const From*>(from);
  auto* out = static_cast<To*>(to);
  if (step == 1) {
    for (Int k = 0; k < n; ++k) out[k] = static_cast<To>(in[k]);
  } else {
    for (Int k = 0; k < n; ++k) out[k] = static_cast<To>(in[k * step]);
  }
}

// A bool tensor may hold any nonzero byte for true.
template <class To>
void load_truth(const void* from, Int step, Int n, void* to) {
  const auto* in = static_cast<const std::uint8_t*>(from);
  for (Int k = 0; k < n; ++k) static_cast<To*>(to)[k] = in[k * step] != 0 ? 1 : 0;
}

template <DType kFrom, class To>
void load_rounded(const void* from, Int step, Int n, void* to) {
  for (Int k = 0; k < n; ++k)
    static_cast<To*>(to)[k] = static_cast<To>(load(kFrom, from, k * step));
}

template <class Real>
Load find_load(DType from) {
  switch (from) {
    case DType::f32:
      return load_as<float, Real>;
    case DType::f64:
      return load_as<double, Real>;
    case DType::bf16:
      return load_rounded<DType::bf16, Real>;
    case DType::f16:
      return load_rounded<DType::f16, Real>;
    case DType::f8e4m3:
      return load_rounded<DType::f8e4m3, Real>;
    case DType::f8e5m2:
      return load_rounded<DType::f8e5m2, Real>;
    case DType::i32:
      return load_as<std::int32_t, Real>;
    case DType::i64:
      return load_as<std::int64_t, Real>;
    case DType::u8:
      return load_as<std::uint8_t, Real>;
    case DType::boolean:
      return load_truth<Real>;
  }
  throw InternalError("no load of this dtype");
}

template <DType kTo, class From, bool kAdd>
void store_rounded(const void* from, Int from_step, Int n, void* to, Int to_step) {
  const auto* in = static_cast<const From*>(from);
  for (Int k = 0; k < n; ++k) {
    double value = static_cast<double>(in[k * from_step]);
    if constexpr (kAdd) value += load(kTo, to, k * to_step);
    store(kTo, to, k * to_step, value);
  }
}

template <class To, class From, bool kAdd>
void store_as(const void* from, Int from_step, Int n, void* to, Int to_step) {
  const auto* in = static_cast<const From*>(from);
  auto* out = static_cast<To*>(to);
  for (Int k = 0; k < n; ++k) {
    From value = in[k * from_step];
    if constexpr (kAdd) value += static_cast<From>(out[k * to_step]);
    out[k * to_step] = static_cast<To>(value);
  }
}

// i64 lanes to a narrower integer: the nearest end where the value does not fit.
template <class To, bool kAdd>
void store_integer(const void* from, Int from_step, Int n, void* to, Int to_step) {
  const auto* in = static_cast<const Int*>(from);
  auto* out = static_cast<To*>(to);
  for (Int k = 0; k < n; ++k) {
    auto value = static_cast<std::uint64_t>(in[k * from_step]);
    if constexpr (kAdd) value += static_cast<std::uint64_t>(static_cast<Int>(out[k * to_step]));
    const Int low = std::numeric_limits<To>::min();
    const Int high = std::numeric_limits<To>::max();
    out[k * to_step] = static_cast<To>(std::clamp(static_cast<Int>(value), low, high));
  }
}

template <class From, bool kAdd>
void store_truth(const void* from, Int from_step, Int n, void* to, Int to_step) {
  const auto* in = static_cast<const From*>(from);
  auto* out = static_cast<std::uint8_t*>(to);
  for (Int k = 0; k < n; ++k) {
    const bool before = kAdd && out[k * to_step] != 0;
    out[k * to_step] = in[k * from_step] != 0 || before ? 1 : 0;
  }
}

template <class Real, bool kAdd>
Put find_real_store(DType to) {
  switch (to) {
    case DType::f32:
      return store_as<float, Real, kAdd>;
    case DType::f64:
      return store_as<double, Real, kAdd>;
    case DType::bf16:
      return store_rounded<DType::bf16, Real, kAdd>;
    case DType::f16:
      return store_rounded<DType::f16, Real, kAdd>;
    case DType::f8e4m3:
      return store_rounded<DType::f8e4m3, Real, kAdd>;
    case DType::f8e5m2:
      return store_rounded<DType::f8e5m2, Real, kAdd>;
    case DType::i32:
      return store_rounded<DType::i32, Real, kAdd>;
    case DType::i64:
      return store_rounded<DType::i64, Real, kAdd>;
    case DType::u8:
      return store_rounded<DType::u8, Real, kAdd>;
    case DType::boolean:
      return store_truth<Real, kAdd>;
  }
  throw InternalError("no store of this dtype");
}

template <bool kAdd>
Put find_integer_store(DType to) {
  switch (to) {
    case DType::i32:
      return store_integer<std::int32_t, kAdd>;
    case DType::i64:
      return store_integer<std::int64_t, kAdd>;
    case DType::u8:
      return store_integer<std::uint8_t, kAdd>;
    case DType::boolean:
      return store_truth<Int, kAdd>;
    default:
      throw InternalError("integers become reals before they are stored as " +
                          std::string(name_of(to)));
  }
}

template <class T, DType kTo>
void round_each(const Loops& loops, const Arg* args) {
  for (Int i = 0; i < loops.n[0]; ++i) {
    for (Int j = 0; j < loops.n[1]; ++j) {
      auto* out = reinterpret_cast<T*>(args[0].data) + i * args[0].step[0] + j * args[0].step[1];
      const auto* in =
          reinterpret_cast<const T*>(args[1].data) + i * args[1].step[0] + j * args[1].step[1];
      for (Int k = 0; k < loops.n[2]; ++k) {
        out[k] = static_cast<T>(round_to(kTo, static_cast<double>(in[k * args[1].step[2]])));
      }
    }
  }
}

template <class T>
Map find_round(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return round_each<T, DType::f32>;
    case DType::f64:
      return round_each<T, DType::f64>;
    case DType::bf16:
      return round_each<T, DType::bf16>;
    case DType::f16:
      return round_each<T, DType::f16>;
    case DType::f8e4m3:
      return round_each<T, DType::f8e4m3>;
    case DType::f8e5m2:
      return round_each<T, DType::f8e5m2>;
    case DType::i32:
      return round_each<T, DType::i32>;
    case DType::i64:
      return round_each<T, DType::i64>;
    case DType::u8:
      return round_each<T, DType::u8>;
    case DType::boolean:
      return round_each<T, DType::boolean>;
  }
  throw InternalError("no rounding to this dtype");
}

// i64 lanes that hold what a narrower integer holds.
template <class To>
void round_integer(const Loops& loops, const Arg* args) {
  for (Int i = 0; i < loops.n[0]; ++i) {
    for (Int j = 0; j < loops.n[1]; ++j) {
      auto* out = reinterpret_cast<Int*>(args[0].data) + i * args[0].step[0] + j * args[0].step[1];
      const auto* in =
          reinterpret_cast<const Int*>(args[1].data) + i * args[1].step[0] + j * args[1].step[1];
      for (Int k = 0; k < loops.n[2]; ++k) {
        out[k] = std::clamp<Int>(in[k * args[1].step[2]], std::numeric_limits<To>::min(),
                                 std::numeric_limits<To>::max());
      }
    }
  }
}

}  // namespace

Load plain_load(DType from, Lane to) {
  switch (to) {
    case Lane::f32:
      return find_load<float>(from);
    case Lane::f64:
      return find_load<double>(from);
    case Lane::i64:
      return find_load<Int>(from);
  }
  throw InternalError("no such lane");
}

Put plain_store(DType to, Lane from, Store store) {
  const bool add = store == Store::accumulate;
  switch (from) {
    case Lane::f32:
      return add ? find_real_store<float, true>(to) : find_real_store<float, false>(to);
    case Lane::f64:
      return add ? find_real_store<double, true>(to) : find_real_store<double, false>(to);
    case Lane::i64:
      return add ? find_integer_store<true>(to) : find_integer_store<false>(to);
  }
  throw InternalError("no such lane");
}

Map plain_round(DType dtype, Lane lane) {
  if (lane == Lane::f32) return find_round<float>(dtype);
  if (lane == Lane::f64) return find_round<double>(dtype);
  if (dtype == DType::i32) return round_integer<std::int32_t>;
  if (dtype == DType::u8) return round_integer<std::uint8_t>;
  return round_integer<Int>;
}

void load_unaligned(DType from, Lane to, const std::byte* data, std::int64_t step, std::int64_t n,
                    std::byte* lanes) {
  const auto bytes = static_cast<Int>(size_of(from));
  const auto lane = static_cast<Int>(lane_bytes(to));
  const Load load = load_run(from, to);
  for (Int k = 0; k < n; ++k) {
    alignas(8) std::byte element[8];
    std::memcpy(element, data + k * step * bytes, static_cast<std::size_t>(bytes));
    load(element, 1, 1, lanes + k * lane);
  }
}

void store_unaligned(DType to, Lane from, Store store, const std::byte* lanes,
                     std::int64_t lane_step, std::int64_t n, std::byte* data, std::int64_t step) {
  const auto bytes = static_cast<Int>(size_of(to));
  const auto lane = static_cast<Int>(lane_bytes(from));
  const Put put = store_run(to, from, store);
  for (Int k = 0; k < n; ++k) {
    alignas(8) std::byte element[8];
    std::byte* target = data + k * step * bytes;
    std::memcpy(element, target, static_cast<std::size_t>(bytes));
    put(lanes + k * lane_step * lane, 1, 1, element, 1);
    std::memcpy(target, element, static_cast<std::size_t>(bytes));
  }
}

bool is_aligned(const void* data, DType dtype) {
  return reinterpret_cast<std::uintptr_t>(data) % size_of(dtype) == 0;
}

}  // namespace coda::cpu
