// tests/core_test.cpp: rounding against an independent search, errors, flags, tensors and the pool.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "coda/core/dtype.h"
#include "coda/core/error.h"
#include "coda/core/flags.h"
#include "coda/core/pool.h"
#include "coda/core/tensor.h"
#include "coda/program/library.h"

namespace coda {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// ---- dtype ----

// A narrow float by its textbook definition, with pow instead of bits.
struct Definition {
  DType dtype;
  int exponent_bits;
  int mantissa_bits;
  bool has_infinity;
};

constexpr Definition kNarrow[] = {
    {DType::bf16, 8, 7, true},
    {DType::f16, 5, 10, true},
    {DType::f8e4m3, 4, 3, false},
    {DType::f8e5m2, 5, 2, true},
};

double value_of(const Definition& d, int bits) {
  const int mantissa = bits % (1 << d.mantissa_bits);
  const int exponent = (bits >> d.mantissa_bits) % (1 << d.exponent_bits);
  const double sign = bits >> (d.mantissa_bits + d.exponent_bits) != 0 ? -1 : 1;
  const int bias = (1 << (d.exponent_bits - 1)) - 1;
  const double fraction = mantissa / std::pow(2.0, d.mantissa_bits);
  const bool top = exponent == (1 << d.exponent_bits) - 1;
  if (top && d.has_infinity) return mantissa == 0 ? sign * kInfinity : kNan;
  if (top && mantissa == (1 << d.mantissa_bits) - 1) return kNan;
  if (exponent == 0) return sign * fraction * std::pow(2.0, 1 - bias);
  return sign * (1 + fraction) * std::pow(2.0, exponent - bias);
}

double pattern(const Definition& d, int bits) {
  const auto wide = static_cast<std::uint16_t>(bits);
  const auto narrow = static_cast<std::uint8_t>(bits);
  return size_of(d.dtype) == 2 ? load(d.dtype, &wide, 0) : load(d.dtype, &narrow, 0);
}

// All finite values from 0 up, ascending; the pattern of each is its index.
std::vector<double> magnitudes(const Definition& d) {
  std::vector<double> values;
  for (int bits = 0; std::isfinite(value_of(d, bits)); ++bits) values.push_back(value_of(d, bits));
  return values;
}

TEST(Dtype, EveryPatternHasItsTextbookValue) {
  for (const Definition& d : kNarrow) {
    const int patterns = 1 << (1 + d.exponent_bits + d.mantissa_bits);
    for (int bits = 0; bits < patterns; ++bits) {
      const double want = value_of(d, bits);
      const double got = pattern(d, bits);
      if (std::isnan(want)) {
        ASSERT_TRUE(std::isnan(got)) << name_of(d.dtype) << " " << bits;
      } else {
        ASSERT_EQ(got, want) << name_of(d.dtype) << " " << bits;
        ASSERT_EQ(std::signbit(got), std::signbit(want)) << name_of(d.dtype) << " " << bits;
      }
    }
  }
}

TEST(Dtype, EveryValueRoundsToItself) {
  for (const Definition& d : kNarrow) {
    for (const double value : magnitudes(d)) {
      ASSERT_EQ(round_to(d.dtype, value), value) << name_of(d.dtype);
      ASSERT_EQ(round_to(d.dtype, -value), -value) << name_of(d.dtype);
    }
  }
}

// The halfway point of every two neighbours goes to the one with the even pattern, and the doubles
// next to it to the nearer one: subnormals, binade borders and the ends included.
TEST(Dtype, TiesGoToEvenAndTheirNeighboursToTheNearest) {
  for (const Definition& d : kNarrow) {
    const std::vector<double> values = magnitudes(d);
    for (std::size_t i = 0; i + 1 < values.size(); ++i) {
      const double low = values[i];
      const double high = values[i + 1];
      const double middle = low + (high - low) / 2;
      const double even = i % 2 == 0 ? low : high;
      ASSERT_EQ(round_to(d.dtype, middle), even) << name_of(d.dtype) << " " << middle;
      ASSERT_EQ(round_to(d.dtype, -middle), -even) << name_of(d.dtype) << " " << middle;
      ASSERT_EQ(round_to(d.dtype, std::nextafter(middle, 0)), low) << name_of(d.dtype);
      ASSERT_EQ(round_to(d.dtype, std::nextafter(middle, kInfinity)), high) << name_of(d.dtype);
    }
  }
}

TEST(Dtype, OverflowsToInfinityOrForE4m3ToNan) {
  for (const Definition& d : kNarrow) {
    const std::vector<double> values = magnitudes(d);
    const double largest = values.back();
    const double step = largest - values[values.size() - 2];
    const double tie = largest + step / 2;
    EXPECT_EQ(round_to(d.dtype, std::nextafter(tie, 0)), largest) << name_of(d.dtype);
    // The largest e4m3 is even (its odd neighbour is the NaN): its tie stays; the others' goes up.
    const double at_tie = round_to(d.dtype, tie);
    const double past = round_to(d.dtype, std::nextafter(tie, kInfinity));
    const double far = round_to(d.dtype, -1e300);
    if (d.has_infinity) {
      EXPECT_EQ(at_tie, kInfinity);
      EXPECT_EQ(past, kInfinity);
      EXPECT_EQ(far, -kInfinity);
      EXPECT_EQ(round_to(d.dtype, -kInfinity), -kInfinity);
    } else {
      EXPECT_EQ(at_tie, largest);
      EXPECT_TRUE(std::isnan(past));
      EXPECT_TRUE(std::isnan(far));
      EXPECT_TRUE(std::isnan(round_to(d.dtype, kInfinity)));
    }
  }
  EXPECT_EQ(round_to(DType::f8e4m3, 448), 448);
  EXPECT_EQ(round_to(DType::f8e5m2, 57344), 57344);
  EXPECT_EQ(round_to(DType::f16, 65504), 65504);
  EXPECT_EQ(round_to(DType::f32, 1e39), kInfinity);
}

TEST(Dtype, KeepsNanAndTheSignOfZero) {
  for (const DType dtype :
       {DType::f32, DType::f64, DType::bf16, DType::f16, DType::f8e4m3, DType::f8e5m2}) {
    EXPECT_TRUE(std::isnan(round_to(dtype, kNan))) << name_of(dtype);
    EXPECT_TRUE(std::signbit(round_to(dtype, -0.0))) << name_of(dtype);
    EXPECT_TRUE(std::signbit(round_to(dtype, -1e-300)) || dtype == DType::f64) << name_of(dtype);
    EXPECT_EQ(round_to(dtype, 5e-324), dtype == DType::f64 ? 5e-324 : 0) << name_of(dtype);
  }
  // A NaN whose payload sits in the dropped bits only must not turn into an infinity.
  const float low_payload = std::bit_cast<float>(0x7f800001u);
  EXPECT_TRUE(std::isnan(f32_from_bf16(bf16_from_f32(low_payload))));
  EXPECT_TRUE(std::isnan(f32_from_f16(f16_from_f32(low_payload))));
}

TEST(Dtype, RoundsADoubleOnceNotTwice) {
  // Just above the tie between 1 and the next f16: through f32 it would become the tie, and then 1.
  const double above = 1 + std::ldexp(1.0, -11) + std::ldexp(1.0, -40);
  EXPECT_EQ(round_to(DType::f16, above), 1 + std::ldexp(1.0, -10));
  const double above_bf16 = 1 + std::ldexp(1.0, -8) + std::ldexp(1.0, -40);
  EXPECT_EQ(round_to(DType::bf16, above_bf16), 1 + std::ldexp(1.0, -7));
}

TEST(Dtype, BulkConversionsAgreeWithRoundTo) {
  std::mt19937 random(7);
  for (int i = 0; i < 200000; ++i) {
    const float value = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (std::isnan(value)) continue;
    ASSERT_EQ(f32_from_bf16(bf16_from_f32(value)), round_to(DType::bf16, value)) << value;
    ASSERT_EQ(f32_from_f16(f16_from_f32(value)), round_to(DType::f16, value)) << value;
  }
}

TEST(Dtype, IntegersTruncateAndSaturate) {
  EXPECT_EQ(round_to(DType::i32, 2.9), 2);
  EXPECT_EQ(round_to(DType::i32, -2.9), -2);
  EXPECT_EQ(round_to(DType::i32, 1e10), 2147483647);
  EXPECT_EQ(round_to(DType::i32, -1e10), -2147483648.0);
  EXPECT_EQ(round_to(DType::u8, 300), 255);
  EXPECT_EQ(round_to(DType::u8, -1), 0);
  EXPECT_EQ(round_to(DType::u8, kNan), 0);
  EXPECT_EQ(round_to(DType::boolean, -0.5), 1);
  EXPECT_EQ(round_to(DType::boolean, 0), 0);
  std::int64_t wide = 0;
  store(DType::i64, &wide, 0, 1e30);
  EXPECT_EQ(wide, std::numeric_limits<std::int64_t>::max());
  store(DType::i64, &wide, 0, std::ldexp(1.0, 63));
  EXPECT_EQ(wide, std::numeric_limits<std::int64_t>::max());
  store(DType::i64, &wide, 0, -kInfinity);
  EXPECT_EQ(wide, std::numeric_limits<std::int64_t>::min());
  wide = 9007199254740993;
  EXPECT_EQ(load_integer(DType::i64, &wide, 0), 9007199254740993);
}

TEST(Dtype, StoresWhatRoundToSaysAtAnyAddress) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16, DType::f8e4m3,
                            DType::f8e5m2, DType::i32, DType::i64, DType::u8, DType::boolean}) {
    EXPECT_EQ(dtype_from(name_of(dtype)), dtype);
    unsigned char memory[64] = {};
    for (const double value : {0.0, 1.0, 3.3, 100.7}) {
      store(dtype, memory + 1, 2, value);
      EXPECT_EQ(load(dtype, memory + 1, 2), round_to(dtype, value)) << name_of(dtype);
    }
    EXPECT_EQ(is_integer(dtype), dtype == DType::i32 || dtype == DType::i64 || dtype == DType::u8);
    EXPECT_EQ(is_float(dtype), !is_integer(dtype) && dtype != DType::boolean);
  }
  EXPECT_EQ(dtype_from("float"), std::nullopt);
}

// ---- error ----

TEST(Error, SaysPlaceStatementTypesRuleAndFix) {
  const Diagnostic diagnostic{.where = {"a.coda", 3, 7},
                              .statement = "h = x @ w",
                              .message = "no shared dimension",
                              .types = {"x: bf16[M, K]", "w: bf16[N, L]"},
                              .rule = "@ contracts a shared name",
                              .fix = "rename one"};
  const std::string want =
      "a.coda:3:7: error: no shared dimension\n"
      "    h = x @ w\n"
      "      x: bf16[M, K]\n"
      "      w: bf16[N, L]\n"
      "  rule: @ contracts a shared name\n"
      "  fix: rename one";
  EXPECT_EQ(to_string(diagnostic), want);
  EXPECT_EQ(std::string(ProgramError(diagnostic).what()), want);
  const ProgramError both({diagnostic, {.message = "second"}});
  EXPECT_EQ(std::string(both.what()), want + "\nerror: second");
  EXPECT_EQ(both.diagnostics().size(), 2u);
  EXPECT_EQ(std::string(ProgramError("no file x", "name one").what()),
            "error: no file x\n  fix: name one");
}

TEST(Error, SuggestsOnlyWhatIsNear) {
  const std::vector<std::string> names = {"sum", "rsqrt", "sqrt", "rmsnorm", "x", "residual"};
  EXPECT_EQ(nearest("rmsnrom", names), "rmsnorm");
  EXPECT_EQ(nearest("sqr", names), "sqrt");
  EXPECT_EQ(nearest("Sum", names), "sum");
  EXPECT_EQ(nearest("residul", names), "residual");
  EXPECT_EQ(nearest("softmax", names), "");
  EXPECT_EQ(nearest("y", names), "");
  EXPECT_EQ(nearest("anything", {}), "");
}

// ---- flags ----

class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Variable() { unsetenv(name_); }

 private:
  const char* name_;
};

TEST(Flags, ReadsThreadsAndRefusesWhatIsNone) {
  EXPECT_GE(flags::threads(), 1);
  {
    const Variable set("CODA_THREADS", "3");
    EXPECT_EQ(flags::threads(), 3);
  }
  for (const char* bad : {"0", "-2", "two", "3x", "99999999999", " 2"}) {
    const Variable set("CODA_THREADS", bad);
    EXPECT_THROW(flags::threads(), ProgramError) << bad;
  }
  const Variable isa("CODA_ISA", "avx2");
  EXPECT_EQ(flags::isa(), "avx2");
}

TEST(Flags, ColoursNoPipe) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  EXPECT_FALSE(flags::color(ends[1]));
  close(ends[0]);
  close(ends[1]);
}

// ---- tensor ----

TEST(TensorView, KnowsItsSizeAndDensity) {
  float memory[24] = {};
  const Tensor whole = dense(memory, DType::f32, {2, 3, 4});
  EXPECT_EQ(whole.elements(), 24);
  EXPECT_EQ(whole.strides, (std::vector<std::int64_t>{12, 4, 1}));
  EXPECT_TRUE(whole.is_dense());
  EXPECT_EQ(to_string(whole), "f32[2, 3, 4]");
  EXPECT_EQ(dense(memory, DType::f32, {}).elements(), 1);
  EXPECT_TRUE(dense(memory, DType::f32, {0, 5}).is_dense());
  Tensor one_row{memory, DType::f32, {1, 4}, {999, 1}};
  EXPECT_TRUE(one_row.is_dense());
  Tensor padded{memory, DType::bf16, {3, 4}, {8, 1}};
  EXPECT_FALSE(padded.is_dense());
  EXPECT_EQ(to_string(padded), "bf16[3, 4] strides [8, 1]");
}

TEST(TensorView, CopiesAnyStridesRowMajor) {
  std::vector<float> memory(24);
  std::iota(memory.begin(), memory.end(), 0.0f);
  const Tensor views[] = {
      {memory.data(), DType::f32, {4, 3, 2}, {1, 4, 12}},     // transposed
      {memory.data(), DType::f32, {3, 2}, {8, 3}},            // padded, strided
      {memory.data() + 5, DType::f32, {2, 3, 2}, {0, 2, 0}},  // broadcast
      {memory.data() + 23, DType::f32, {4}, {-2}},            // backwards
      {memory.data() + 7, DType::f32, {}, {}},
      {memory.data(), DType::f32, {3, 0, 2}, {1, 1, 1}},
  };
  for (const Tensor& view : views) {
    const OwnedTensor copy = dense_copy(view);
    EXPECT_TRUE(copy.tensor().is_dense());
    EXPECT_EQ(copy.tensor().shape, view.shape);
    for (std::int64_t i = 0; i < view.elements(); ++i) {
      std::int64_t rest = i;
      std::int64_t offset = 0;
      for (std::size_t d = view.shape.size(); d-- > 0;) {
        offset += rest % view.shape[d] * view.strides[d];
        rest /= view.shape[d];
      }
      ASSERT_EQ(copy.as<float>()[i], static_cast<const float*>(view.data)[offset]);
    }
  }
}

TEST(TensorView, OwnsAlignedZeroedMemory) {
  OwnedTensor first(DType::bf16, {3, 5});
  EXPECT_EQ(first.bytes(), 30u);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first.tensor().data) % 64, 0u);
  for (int i = 0; i < 15; ++i) EXPECT_EQ(first.as<std::uint16_t>()[i], 0);
  const void* data = first.tensor().data;
  const OwnedTensor second = std::move(first);
  EXPECT_EQ(second.tensor().data, data);
  EXPECT_NE(OwnedTensor(DType::f32, {0, 4}).tensor().data, nullptr);
  EXPECT_EQ(OwnedTensor(DType::f64, {}).bytes(), 8u);
  EXPECT_THROW(OwnedTensor(DType::f32, {std::int64_t{1} << 40, std::int64_t{1} << 40}),
               ProgramError);
  EXPECT_EQ(bytes_of(DType::f32, {std::int64_t{1} << 61, 0}), 0);
  EXPECT_EQ(bytes_of(DType::f32, {std::int64_t{1} << 61}), std::nullopt);
  EXPECT_EQ(bytes_of(DType::f32, {0, std::int64_t{1} << 61, 4}), std::nullopt)
      << "its strides overflow";
}

// ---- pool ----

TEST(Pool, RunsEveryTaskOnceForAnyThreadCount) {
  for (const int threads : {0, 1, 2, 3, 8}) {
    for (const std::int64_t tasks : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<std::size_t>(tasks));
      parallel_for(tasks, threads,
                   [&](std::int64_t task, int) { ++runs[static_cast<std::size_t>(task)]; });
      for (const auto& count : runs) ASSERT_EQ(count, 1);
    }
  }
}

TEST(Pool, NeverRunsTwoTasksUnderOneWorker) {
  constexpr int kThreads = 5;
  std::atomic<bool> busy[kThreads] = {};
  std::atomic<int> clashes{0};
  std::atomic<int> out_of_range{0};
  for (int repeat = 0; repeat < 200; ++repeat) {
    parallel_for(20, kThreads, [&](std::int64_t, int worker) {
      if (worker < 0 || worker >= kThreads) {
        ++out_of_range;
        return;
      }
      if (busy[worker].exchange(true)) ++clashes;
      std::this_thread::yield();
      busy[worker] = false;
    });
  }
  EXPECT_EQ(clashes, 0);
  EXPECT_EQ(out_of_range, 0);
}

TEST(Pool, UsesSeveralThreads) {
  // Each task waits for the other: only two threads can finish this.
  std::atomic<int> arrived{0};
  parallel_for(2, 2, [&](std::int64_t, int) {
    ++arrived;
    while (arrived < 2) std::this_thread::yield();
  });
  EXPECT_EQ(arrived, 2);
}

TEST(Pool, RethrowsTheLowestTasksExceptionAndWorksAgain) {
  for (const int threads : {1, 4}) {
    for (int repeat = 0; repeat < 50; ++repeat) {
      std::string caught;
      try {
        parallel_for(100, threads, [](std::int64_t task, int) {
          // The lowest is the slowest to throw.
          if (task == 17) std::this_thread::sleep_for(std::chrono::microseconds(300));
          if (task >= 17) throw std::runtime_error(std::to_string(task));
        });
      } catch (const std::runtime_error& error) {
        caught = error.what();
      }
      ASSERT_EQ(caught, "17");
    }
    std::atomic<int> runs{0};
    parallel_for(10, threads, [&](std::int64_t, int) { ++runs; });
    EXPECT_EQ(runs, 10);
  }
}

TEST(Pool, RunsNestedCallsInline) {
  std::atomic<int> runs{0};
  std::atomic<int> elsewhere{0};
  parallel_for(4, 4, [&](std::int64_t, int) {
    const std::thread::id here = std::this_thread::get_id();
    parallel_for(8, 4, [&](std::int64_t, int worker) {
      ++runs;
      if (std::this_thread::get_id() != here || worker != 0) ++elsewhere;
    });
  });
  EXPECT_EQ(runs, 32);
  EXPECT_EQ(elsewhere, 0);
}

TEST(Pool, ServesSeveralCallingThreads) {
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < 4; ++c) {
    callers.emplace_back([&] {
      for (int repeat = 0; repeat < 200; ++repeat) {
        std::vector<int> runs(16);
        parallel_for(16, 3,
                     [&](std::int64_t task, int) { ++runs[static_cast<std::size_t>(task)]; });
        if (std::count(runs.begin(), runs.end(), 1) != 16) ++wrong;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Pool, WorksInAForkedChild) {
  parallel_for(4, 2, [](std::int64_t, int) {});
  const pid_t child = fork();
  if (child == 0) {
    std::atomic<int> runs{0};
    parallel_for(6, 2, [&](std::int64_t, int) { ++runs; });
    _exit(runs == 6 ? 0 : 1);
  }
  int status = 1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

// ---- library ----

TEST(Library, FindsEveryEmbeddedFileAndNoOther) {
  for (const std::string_view file : embedded_programs()) {
    ASSERT_TRUE(embedded_program(file).has_value()) << file;
    EXPECT_FALSE(embedded_program(file)->empty()) << file;
  }
  EXPECT_EQ(embedded_program("no such.coda"), std::nullopt);
}

}  // namespace
}  // namespace coda
