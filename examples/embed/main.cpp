// examples/embed/main.cpp: a program's text, compiled and run on this program's own memory.
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "coda/backend/execute.h"
#include "coda/check/bind.h"
#include "coda/check/check.h"
#include "coda/cpu/cpu.h"
#include "coda/cuda/choose.h"
#include "coda/program/text.h"
#include "coda/rewrite/retype.h"
#include "coda/rewrite/rewrite.h"

namespace {

constexpr const char* kText = R"(coda 1

# The sum of squares of each block of a row goes along, for a norm that follows.
program gate(x: bf16[M, K], w: bf16[N, K], b: bf16[N])
    -> (y: bf16[M, N], ss: f32[M, blocks(N)]) {
  h = x @ w + b
  y = h * sigmoid(h)
  ss = block_sum(y * y, N)
}

block normed(x: bf16[M, K], w: bf16[N, K], b: bf16[N], v: bf16[D, N]) -> (z: bf16[M, D]) {
  h = x @ w + b
  y = h * sigmoid(h)
  z = (y * rsqrt(sum(y * y, N) / size(N) + 1e-5)) @ v
}
)";

// No tile of a product holds a whole row.
constexpr const char* kWrong = R"(program gate(x: f32[M, K], w: f32[N, K]) -> (ss: f32[M]) {
  h = x @ w
  ss = sum(h * h, N)
}
)";

constexpr int M = 3, N = 4, K = 5, D = 2;

std::vector<float> numbers(int count, int step) {
  std::vector<float> made;
  for (int i = 0; i < count; ++i) made.push_back(0.25f * static_cast<float>(i * step % 7 - 3));
  return made;
}

void print(const char* name, const std::vector<float>& values) {
  std::printf("%s", name);
  for (const float value : values) std::printf(" %.5f", value);
  std::printf("\n");
}

// Host memory of the library's tensors and scratch, counted.
struct Counted {
  std::atomic<std::size_t> blocks = 0, held = 0;  // held: bytes
};

void* take(void* context, std::size_t bytes, std::size_t alignment) {
  auto* counted = static_cast<Counted*>(context);
  ++counted->blocks;
  counted->held += bytes;
  return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

void give_back(void* context, void* memory, std::size_t bytes, std::size_t) {
  static_cast<Counted*>(context)->held -= bytes;
  std::free(memory);
}

}  // namespace

int main() {
  static Counted counted;
  coda::set_allocator({take, give_back, &counted});
  try {
    std::vector<float> x = numbers(M * K, 3), w = numbers(N * K, 2), b = numbers(N, 1);
    std::vector<float> y(M * N), ss(M), v = numbers(D * N, 5), z(M * D);
    const auto tensor = [](std::vector<float>& data, std::vector<std::int64_t> shape) {
      return coda::dense(data.data(), coda::DType::f32, std::move(shape));
    };
    const std::array params = {tensor(x, {M, K}), tensor(w, {N, K}), tensor(b, {N})};
    const std::array results = {tensor(y, {M, N}), tensor(ss, {M, 1})};

    // One kernel: parse (here with f32 for bf16, as our tensors are), check, bind sizes to the
    // tensors' shapes, compile, run.
    const coda::Module module = coda::parse(kText, "gate.coda");
    const auto in_f32 = [&](const char* name) {
      return coda::retype(module.find(name), coda::DType::bf16, coda::DType::f32);
    };
    const coda::Checked gate = coda::check(in_f32("gate"));
    const coda::Sizes sizes = coda::bind(gate.program(), params, results);
    const auto cpu = coda::cpu::backend();
    const coda::Kernel kernel = cpu->compile(gate, sizes);
    const auto scratch = coda::allocate_block(kernel.scratch_bytes(), "scratch");
    kernel.run(params, results, {scratch.get(), kernel.scratch_bytes()});
    print("y", y);
    print("ss", ss);

    // A block is cut into kernels first.
    const coda::Schedule schedule = coda::rewrite(in_f32("normed")).forward.schedule;
    const coda::Executable normed(schedule, *cpu, {{"M", M}, {"N", N}, {"K", K}, {"D", D}});
    const auto more = coda::allocate_block(normed.scratch_bytes(), "scratch");
    const std::array inputs = {params[0], params[1], params[2], tensor(v, {D, N})};
    normed.run(inputs, std::array{tensor(z, {M, D})}, {more.get(), normed.scratch_bytes()});
    std::printf("normed: %zu kernels\n", schedule.steps.size());
    print("z", z);

    // The kernel as CUDA for an H200, which need not be there.
    const coda::Sizes large = {{"M", 4096}, {"N", 4096}, {"K", 4096}};
    const coda::Checked narrow = coda::check(module.find("gate"));
    const coda::cuda::Plan plan = coda::cuda::choose_plan(
        narrow, large, coda::cuda::dense_layouts(narrow.program(), large), coda::cuda::Target{});
    std::printf("cuda: %s, kernel %s\n", plan.path.c_str(), plan.launches[0].entry.c_str());

    // A mistake is an exception whose text says how to fix the line.
    coda::check(coda::parse(kWrong, "wrong.coda").find("gate"));
  } catch (const coda::ProgramError& error) {
    std::printf("%s\n", error.what());
  }
  std::printf("%zu blocks taken, %zu bytes still held\n", counted.blocks.load(),
              counted.held.load());
}
