// coda/cuda/variants.h: a program of one set of sizes on the device: a launcher for the tensors
// that are expected, and one for each other layout of tensors that comes.
//
// A run that was seen before (same addresses, same strides) is a look into a table and the launch.
// Else the tensors' layouts choose a variant, made at the first run that needs it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "coda/backend/backend.h"
#include "coda/cuda/launch.h"

namespace coda::cuda {

// Memory for variants that need more than the caller's scratch: for each stream, whose work is done
// in order, one block. Blocks that became too small stay, as calls prepared before point at them.
class Workspaces {
 public:
  explicit Workspaces(Memory memory) : memory_(std::move(memory)) {}
  void* get(coda::Stream stream, std::int64_t bytes, const std::string& program);

 private:
  struct Block {
    MemoryBlock memory;
    std::int64_t bytes = 0;
  };
  Memory memory_;
  std::mutex mutex_;
  std::map<void*, std::vector<Block>> blocks_;  // by stream, the largest last
};

// Thread-safe.
class Variants {
 public:
  // The launcher for canonical layouts (choose.h) of parameters, then results.
  using Make = std::function<std::shared_ptr<const Launcher>(const std::vector<Layout>& layouts)>;

  // Makes the one for `expected` (canonical) at once; its workspace is the scratch that callers
  // give.
  Variants(Program program, Sizes sizes, std::vector<Layout> expected, Make make,
           std::shared_ptr<Workspaces> workspaces);

  const Plan& plan() const { return expected_->plan(); }  // for the expected layouts
  void run(std::span<const Tensor> params, std::span<const Tensor> results,
           std::span<std::byte> scratch, coda::Stream stream);

 private:
  std::shared_ptr<const Prepared> prepare(std::span<const Tensor> params,
                                          std::span<const Tensor> results,
                                          std::span<std::byte> scratch, coda::Stream stream);
  std::shared_ptr<const Launcher> launcher_for(std::span<const Tensor> params,
                                               std::span<const Tensor> results);
  std::shared_ptr<const Launcher> variant(const std::vector<Layout>& layouts);

  Program program_;
  Sizes sizes_;
  Make make_;
  std::shared_ptr<Workspaces> workspaces_;
  std::mutex mutex_;
  std::vector<std::pair<std::vector<Layout>, std::shared_ptr<const Launcher>>> variants_;
  struct Seen {
    CallKey key;  // of the layouts as they came
    std::shared_ptr<const Launcher> launcher;
  };
  static constexpr std::size_t kMostSeen = 64;
  std::mutex seen_mutex_;
  std::vector<Seen> seen_;
  PreparedCalls calls_;
  // NOTE: last, as it is made by what stands above.
  std::shared_ptr<const Launcher> expected_;
};

// The canonical layouts that a backend is asked to compile for.
std::vector<Layout> expected_layouts(const Backend::Request& request, const Sizes& sizes);
// Compiles all beside one another.
std::vector<Kernel> compile_beside(std::span<const Backend::Request> requests,
                                   const std::function<Kernel(const Backend::Request&)>& compile);

// What backends hand out.
Kernel kernel_of(std::shared_ptr<Variants> variants);
// Dtypes of parameters, then results.
std::vector<DType> dtypes_of(const Program& program);

}  // namespace coda::cuda
