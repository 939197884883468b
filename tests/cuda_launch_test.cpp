// tests/cuda_launch_test.cpp: what leaves for the GPU, as far as none is needed: arguments of
// kernels, keys of calls, layouts, memory, guard zones.
#include "coda/cuda/launch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "coda/backend/execute.h"
#include "coda/backend/guarded.h"
#include "coda/core/error.h"
#include "coda/cuda/choose.h"
#include "coda/cuda/cuda.h"
#include "coda/program/builder.h"
#include "coda/program/text.h"
#include "coda/reference/reference.h"

namespace coda {
namespace {

void* at(std::uintptr_t address) {
  return reinterpret_cast<void*>(address);
}

// ---- arguments ----

std::uint64_t word_at(const cuda::Argument& argument, std::int64_t offset) {
  std::uint64_t word = 0;
  std::memcpy(&word, argument[0].bytes + offset, sizeof word);
  return word;
}

TEST(Argument, HoldsMapsThenWords) {
  using Kind = cuda::Word::Kind;
  cuda::Launch launch;
  launch.maps = {{.tensor = 1, .offset = 6, .dtype = DType::bf16, .axes = {{8}, {4, 8}}},
                 {.tensor = 0, .offset = 0, .dtype = DType::f32, .axes = {{8}, {4, 8}}}};
  launch.words = {{Kind::number, 0, -3},
                  {Kind::pointer, 0, 5},
                  {Kind::pointer, 1, 5},
                  {Kind::workspace, 0, 24},
                  {Kind::table, 1, 0}};
  const cuda::Addresses addresses{.tensors = {at(0x1000), at(0x2000)},
                                  .dtypes = {DType::f32, DType::bf16},
                                  .workspace = at(0x3000),
                                  .tables = {at(0x4000), at(0x5000)}};
  std::vector<void*> mapped;
  const cuda::Argument argument = cuda::argument_of(
      launch, addresses, [&](const cuda::MapSpec& map, void* address, cuda::TensorMap& to) {
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(&to) % 64, 0u);
        EXPECT_EQ(map.tensor, launch.maps[mapped.size()].tensor);
        mapped.push_back(address);
        for (std::uint64_t& word : to.words) word = 100 * mapped.size() + (&word - to.words);
      });
  EXPECT_EQ(mapped, (std::vector<void*>{at(0x2000 + 6 * 2), at(0x1000)}));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(argument[0].bytes) % 64, 0u);
  EXPECT_EQ(cuda::words_offset(launch), 256);
  EXPECT_EQ(cuda::argument_bytes(launch), 256 + 40);
  // The compiler pads the struct to the alignment of its maps, and the driver reads it all.
  EXPECT_EQ(argument.size() * sizeof argument[0], 320u);
  EXPECT_EQ(word_at(argument, 0), 100u);
  EXPECT_EQ(word_at(argument, 120), 115u);
  EXPECT_EQ(word_at(argument, 128), 200u);
  EXPECT_EQ(static_cast<std::int64_t>(word_at(argument, 256)), -3);
  EXPECT_EQ(word_at(argument, 264), 0x1000u + 5 * 4);
  EXPECT_EQ(word_at(argument, 272), 0x2000u + 5 * 2);
  EXPECT_EQ(word_at(argument, 280), 0x3000u + 24);
  EXPECT_EQ(word_at(argument, 288), 0x5000u);
}

TEST(Argument, IsAlwaysThereToPointAt) {
  EXPECT_EQ(cuda::argument_of({}, {}, nullptr).size(), 1u);
}

// ---- calls ----

Tensor view(std::uintptr_t address, std::vector<std::int64_t> shape,
            std::vector<std::int64_t> strides) {
  return {.data = at(address),
          .dtype = DType::bf16,
          .shape = std::move(shape),
          .strides = std::move(strides)};
}

TEST(CallKey, TellsApartWhatArgumentsDependOn) {
  const auto key = [](const Tensor& x, const Tensor& y, std::uintptr_t workspace) {
    cuda::CallKey made;
    cuda::set_key(made, std::span(&x, 1), std::span(&y, 1), at(workspace));
    return made;
  };
  const Tensor x = view(0x1000, {2, 3}, {3, 1}), y = view(0x2000, {2, 3}, {3, 1});
  const cuda::CallKey first = key(x, y, 0x10);
  EXPECT_EQ(first, key(x, y, 0x10));
  EXPECT_NE(first, key(x, y, 0x20));
  EXPECT_NE(first, key(y, x, 0x10));
  EXPECT_NE(first, key(view(0x1002, {2, 3}, {3, 1}), y, 0x10));
  EXPECT_NE(first, key(x, view(0x2000, {2, 3}, {8, 1}), 0x10));
  EXPECT_NE(first, key(view(0x1000, {3, 2}, {3, 1}), y, 0x10));
}

TEST(CallKey, OfALayoutForgetsTheAddressButNotItsAlignment) {
  const auto key = [](const Tensor& x) {
    cuda::CallKey made;
    cuda::set_layout_key(made, std::span(&x, 1), {});
    return made;
  };
  const cuda::CallKey first = key(view(0x1000, {2, 3}, {3, 1}));
  EXPECT_EQ(first, key(view(0x2010, {2, 3}, {3, 1})));
  EXPECT_NE(first, key(view(0x2008, {2, 3}, {3, 1})));
  EXPECT_NE(key(view(0x2004, {2, 3}, {3, 1})), key(view(0x2008, {2, 3}, {3, 1})));
  EXPECT_NE(first, key(view(0x1000, {2, 3}, {4, 1})));
}

TEST(PreparedCalls, KeepsTheLastOnes) {
  cuda::PreparedCalls calls;
  const auto insert = [&](std::int64_t i) {
    calls.insert({i, i + 1}, std::make_shared<cuda::Prepared>());
  };
  const auto known = [&](std::int64_t i) {
    return calls.find({i, i + 1}) != nullptr;
  };
  const std::int64_t capacity = cuda::PreparedCalls::kCapacity;
  for (std::int64_t i = 0; i < capacity; ++i) insert(i);
  EXPECT_TRUE(known(0));  // used again: 1 is the oldest now
  insert(capacity);
  EXPECT_TRUE(known(0));
  EXPECT_FALSE(known(1));
  for (std::int64_t i = 2; i <= capacity; ++i) EXPECT_TRUE(known(i)) << i;
  EXPECT_FALSE(known(capacity + 1));
}

TEST(PreparedCalls, GivesEachThreadItsOwn) {
  cuda::PreparedCalls calls;
  std::vector<std::thread> threads;
  for (std::int64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&calls, t] {
      for (std::int64_t i = 0; i < 2000; ++i) {
        const cuda::CallKey key = {t, i % 100};
        const auto found = calls.find(key);
        if (found) {
          // How many launches were bound says who made it.
          ASSERT_EQ(found->arguments.size(), static_cast<std::size_t>(t + 1));
          continue;
        }
        auto made = std::make_shared<cuda::Prepared>();
        made->arguments.resize(static_cast<std::size_t>(t + 1));
        calls.insert(key, std::move(made));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// ---- layouts ----

Program scaled() {
  return parse(
             "coda 1\nprogram scaled(x: bf16[M, N], s: f32) -> (y: bf16[M, N]) {\n"
             "  y = bf16(x * s)\n}\n",
             "test.coda")
      .find("");
}

std::vector<cuda::Layout> canonical(const Program& program, const Sizes& sizes,
                                    std::vector<Tensor> params, std::vector<Tensor> results) {
  return cuda::canonical_layouts(program, sizes, cuda::layouts_of(program, sizes, params, results));
}

TEST(Layouts, OfACallAreItsStridesAndAlignment) {
  const Program program = scaled();
  const Sizes sizes{{"M", 4}, {"N", 6}};
  const std::vector<Tensor> params = {view(0x1008, {4, 6}, {1, 4}), view(0x2080, {}, {})};
  const std::vector<Tensor> results = {view(0x3000, {4, 6}, {10, 1})};
  const auto layouts = cuda::layouts_of(program, sizes, params, results);
  ASSERT_EQ(layouts.size(), 3u);
  EXPECT_EQ(layouts[0], (cuda::Layout{{1, 4}, 8}));
  EXPECT_EQ(layouts[1], (cuda::Layout{{}, 128}));
  EXPECT_EQ(layouts[2], (cuda::Layout{{10, 1}, 128}));
  EXPECT_THROW(cuda::layouts_of(program, sizes, results, results), InternalError);
  const auto dense = cuda::dense_layouts(program, sizes);
  EXPECT_EQ(dense[0], (cuda::Layout{{6, 1}, 128}));
}

TEST(Layouts, ThatNoPlannerTellsApartAreOne) {
  const Program program = scaled();
  const auto of = [&](const Sizes& sizes, const Tensor& x) {
    return canonical(program, sizes, {x, view(0x2000, {}, {})}, {x});
  };
  const Sizes sizes{{"M", 4}, {"N", 6}};
  const auto dense = canonical_layouts(program, sizes, cuda::dense_layouts(program, sizes));
  EXPECT_EQ(of(sizes, view(0x1000, {4, 6}, {6, 1})), dense);
  EXPECT_EQ(of(sizes, view(0x1010, {4, 6}, {6, 1})), dense);  // 16 bytes are enough
  EXPECT_NE(of(sizes, view(0x1008, {4, 6}, {6, 1})), dense);
  EXPECT_NE(of(sizes, view(0x1000, {4, 6}, {8, 1})), dense);

  const Sizes row{{"M", 1}, {"N", 6}}, empty{{"M", 0}, {"N", 6}};
  EXPECT_EQ(of(row, view(0x1000, {1, 6}, {77, 1})),
            canonical_layouts(program, row, cuda::dense_layouts(program, row)));
  EXPECT_EQ(of(empty, view(0x1002, {0, 6}, {9, 2})),
            canonical_layouts(program, empty, cuda::dense_layouts(program, empty)));
}

// ---- memory ----

TEST(ByteRows, AreAsFewAsTheStridesAllow) {
  using Rows = std::vector<ByteRows>;
  const auto rows = [](std::vector<std::int64_t> shape, std::vector<std::int64_t> strides) {
    return byte_rows(view(0x1000, std::move(shape), std::move(strides)));
  };
  EXPECT_EQ(rows({}, {}), (Rows{{0, 2, 1, 0}}));
  EXPECT_EQ(rows({3, 4}, {4, 1}), (Rows{{0, 24, 1, 0}}));
  EXPECT_EQ(rows({3, 4}, {1, 3}), (Rows{{0, 24, 1, 0}}));     // transposed
  EXPECT_EQ(rows({3, 4}, {10, 1}), (Rows{{0, 8, 3, 20}}));    // gaps between rows
  EXPECT_EQ(rows({3, 4}, {8, 2}), (Rows{{0, 2, 12, 4}}));     // every other element
  EXPECT_EQ(rows({3, 4}, {-4, 1}), (Rows{{-16, 24, 1, 0}}));  // backwards
  EXPECT_EQ(rows({1, 4}, {99, 1}), (Rows{{0, 8, 1, 0}}));
  EXPECT_EQ(rows({2, 3, 4}, {100, 10, 1}), (Rows{{0, 8, 3, 20}, {200, 8, 3, 20}}));
  EXPECT_EQ(rows({0, 4}, {4, 1}), Rows{});
}

TEST(HostMemory, ZeroesElementsAndNoGaps) {
  const OwnedTensor all(DType::i32, {4, 6});
  std::fill_n(all.as<std::int32_t>(), 24, 7);
  Tensor inner = all.tensor();
  inner.data = all.as<std::int32_t>() + 1;
  inner.shape = {4, 3};
  host_memory().zero(inner, {});
  for (int i = 0; i < 24; ++i) {
    const bool is_inner = i % 6 >= 1 && i % 6 < 4;
    EXPECT_EQ(all.as<std::int32_t>()[i], is_inner ? 0 : 7) << i;
  }
}

TEST(HostMemory, AllocatesAndWrites) {
  const Memory memory = host_memory();
  for (const std::size_t bytes : {0, 1, 64, 1000}) {
    void* block = memory.allocate(bytes);
    ASSERT_NE(block, nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % 64, 0u);
    memory.release(block);
  }
  std::int64_t value = 0;
  memory.write(&value, -5, {});
  EXPECT_EQ(value, -5);
}

// ---- streams ----

TEST(Kernel, GetsTheCallersStream) {
  void* seen = nullptr;
  const Kernel kernel([&](auto, auto, auto, Stream stream) { seen = stream.handle; }, 0, "");
  kernel.run({}, {}, {}, {at(0x77)});
  EXPECT_EQ(seen, at(0x77));
  kernel.run({}, {}, {});
  EXPECT_EQ(seen, nullptr);
  bool ran = false;
  const Kernel on_host([&](auto, auto, auto) { ran = true; }, 0, "");
  on_host.run({}, {}, {}, {at(0x77)});
  EXPECT_TRUE(ran);
}

// The reference, as if its memory were elsewhere: whatever is not done through it is not counted.
class Elsewhere final : public Backend {
 public:
  std::string_view name() const override { return "elsewhere"; }
  std::optional<std::string> refusal(const Checked&, const Sizes&) const override { return {}; }
  Kernel compile(const Checked& checked, const Sizes& sizes) const override {
    auto inner = std::make_shared<Kernel>(reference::backend()->compile(checked, sizes));
    return Kernel(
        [this, inner](auto params, auto results, auto scratch, Stream stream) {
          log += "run " + std::to_string(reinterpret_cast<std::uintptr_t>(stream.handle)) + "; ";
          inner->run(params, results, scratch);
        },
        0, "");
  }
  Memory memory() const override {
    Memory memory = host_memory();
    memory.zero = [this](const Tensor& tensor, Stream stream) {
      log += "zero " + std::to_string(reinterpret_cast<std::uintptr_t>(stream.handle)) + "; ";
      host_memory().zero(tensor, stream);
    };
    memory.write = [this](void* to, std::int64_t value, Stream stream) {
      log += "write " + std::to_string(value) + " " +
             std::to_string(reinterpret_cast<std::uintptr_t>(stream.handle)) + "; ";
      host_memory().write(to, value, stream);
    };
    return memory;
  }

  mutable std::string log;
};

TEST(Executable, DoesEverythingInTheStreamsOrder) {
  // In chunks of N: s += first + the sum of x over the chunk.
  Builder b("add_up", Program::Kind::program);
  const Type vector{DType::f32, {dim_of("M")}};
  const Expr x{&b, b.param("x", {DType::f32, {dim_of("N"), dim_of("M")}})};
  const Expr first{&b, b.param("first", {DType::i64, {}})};
  b.result("s", vector, (reduce(Op::sum, x, dim_of("N")) + cast(first, DType::f32)).value,
           Store::accumulate);
  Schedule schedule;
  schedule.name = "looped";
  schedule.params = {{"x", {DType::f32, {dim_of("N"), dim_of("M")}}}};
  schedule.results = {{"s", vector, {}}};
  schedule.loops = {{"N", 2, "first"}};
  schedule.steps = {{std::move(b).finish(), {"x", "first"}, {"s"}, 0}};
  const Elsewhere backend;
  const Executable executable(schedule, backend, {{"M", 1}, {"N", 3}});
  const OwnedTensor in(DType::f32, {3, 1}), out(DType::f32, {1});
  std::fill_n(in.as<float>(), 3, 1.0f);
  out.as<float>()[0] = -1;
  std::vector<std::byte> scratch(executable.scratch_bytes() + 64);
  const std::vector<Tensor> params = {in.tensor()}, results = {out.tensor()};
  executable.run(params, results, scratch, {at(9)});
  EXPECT_EQ(backend.log, "zero 9; write 0 9; run 9; write 2 9; run 9; ");
  EXPECT_EQ(out.as<float>()[0], 3 + 2);
}

// ---- guard zones ----

// A padded matrix on the host, 2 × 3 in rows of 5, with a misaligned base.
struct Padded {
  OwnedTensor owned{DType::i32, {16}};
  Tensor tensor;
  Padded() {
    for (int i = 0; i < 16; ++i) owned.as<std::int32_t>()[i] = i;
    tensor = {owned.as<std::int32_t>() + 3, DType::i32, {2, 3}, {5, 1}};
  }
};

std::string fault(const GuardedRun& run) {
  const Padded x, y;
  try {
    run_guarded(host_memory(), "test", std::span(&x.tensor, 1), std::span(&y.tensor, 1), 100, run);
    return "";
  } catch (const InternalError& error) {
    return error.what();
  }
}

TEST(Guarded, KeepsStridesGapsAndMisalignment) {
  const Padded x, y;
  run_guarded(host_memory(), "test", std::span(&x.tensor, 1), std::span(&y.tensor, 1), 100,
              [&](auto params, auto results, std::span<std::byte> scratch) {
                ASSERT_EQ(params.size(), 1u);
                ASSERT_EQ(results.size(), 1u);
                EXPECT_NE(params[0].data, x.tensor.data);
                EXPECT_EQ(params[0].strides, x.tensor.strides);
                const auto offset = [](const void* data) {
                  return reinterpret_cast<std::uintptr_t>(data) % 256;
                };
                EXPECT_EQ(offset(params[0].data), offset(x.tensor.data));
                EXPECT_EQ(offset(results[0].data), offset(y.tensor.data));
                EXPECT_EQ(offset(scratch.data()), 0u);
                ASSERT_EQ(scratch.size(), 100u);
                for (const std::byte each : scratch) EXPECT_EQ(each, std::byte{0xff});
                const auto* from = static_cast<const std::int32_t*>(params[0].data);
                auto* to = static_cast<std::int32_t*>(results[0].data);
                for (int i = 0; i < 8; ++i) EXPECT_EQ(from[i], i + 3);
                to[0] = 100;
                to[5] = 105;
                to[3] = 103;  // a gap: comes back too, for the caller to judge
              });
  EXPECT_EQ(y.owned.as<std::int32_t>()[3], 100);
  EXPECT_EQ(y.owned.as<std::int32_t>()[8], 105);
  EXPECT_EQ(y.owned.as<std::int32_t>()[6], 103);
  EXPECT_EQ(y.owned.as<std::int32_t>()[4], 4);
  EXPECT_EQ(y.owned.as<std::int32_t>()[11], 11);
}

TEST(Guarded, NamesWhatAStrayWriteHit) {
  using Bytes = std::span<std::byte>;
  const auto words = [](const Tensor& tensor) {
    return static_cast<std::int32_t*>(tensor.data);
  };
  EXPECT_EQ(fault([](auto, auto, Bytes) {}), "");
  EXPECT_EQ(fault([](auto, auto, Bytes scratch) { std::ranges::fill(scratch, std::byte{0}); }), "");
  EXPECT_EQ(fault([&](auto, auto results, Bytes) { words(results[0])[8] = 0; }),
            "test wrote 0 bytes past the end of result 0");
  EXPECT_EQ(fault([&](auto, auto results, Bytes) { words(results[0])[-1] = 0; }),
            "test wrote 4 bytes before the begin of result 0");
  EXPECT_EQ(fault([&](auto, auto results, Bytes) { words(results[0])[-100] = 0; }),
            "test wrote 400 bytes before the begin of result 0");
  EXPECT_EQ(fault([&](auto params, auto, Bytes) { words(params[0])[5] = 0; }),
            "test wrote into parameter 0, byte 20");
  EXPECT_EQ(fault([](auto, auto, Bytes scratch) { scratch.data()[101] = std::byte{0}; }),
            "test wrote 1 bytes past the end of scratch");
}

// ---- the backend ----

TEST(CudaBackend, SaysWhatIsMissing) {
  const auto problem = cuda::Driver::problem();
  if (!problem) GTEST_SKIP() << "there is a GPU";
  EXPECT_NE(problem->find("install"), std::string::npos) << *problem;
  try {
    cuda::backend();
    FAIL() << "made a backend without a driver";
  } catch (const Unsupported& error) {
    EXPECT_NE(std::string(error.what()).find(*problem), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace coda
