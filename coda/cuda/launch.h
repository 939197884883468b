// coda/cuda/launch.h: plans on the device: kernels loaded, arguments filled in, launched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "coda/backend/memory.h"
#include "coda/cuda/driver.h"
#include "coda/cuda/plan.h"

namespace coda::cuda {

// ---- a kernel's argument ----

// 64-byte aligned, as tensor maps must be.
struct alignas(64) ArgumentLine {
  std::byte bytes[64] = {};
};
using Argument = std::vector<ArgumentLine>;

inline constexpr std::int64_t kMapBytes = 128;
// Where the words start, and where the struct ends.
std::int64_t words_offset(const Launch& launch);
std::int64_t argument_bytes(const Launch& launch);

// What stands behind a plan's names in one call.
struct Addresses {
  std::vector<void*> tensors;  // parameters, then results: of the first elements
  std::vector<DType> dtypes;   // of each
  void* workspace = nullptr;
  std::vector<void*> tables;
};

std::uint64_t word_of(const Word& word, const Addresses& addresses);
// `encode` fills the 128 bytes of a map of the tensor that starts at `address`.
Argument argument_of(
    const Launch& launch, const Addresses& addresses,
    const std::function<void(const MapSpec& map, void* address, TensorMap& to)>& encode);

// ---- kernels on the device ----

// The kernels of one page.
class LoadedPage {
 public:
  LoadedPage(std::string name, const std::string& cubin);
  ~LoadedPage();
  LoadedPage(const LoadedPage&) = delete;
  LoadedPage& operator=(const LoadedPage&) = delete;

  // Ready for a launch with so much dynamic shared memory and such clusters.
  Function function(const Launch& launch) const;

 private:
  struct Known {
    Function function = nullptr;
    std::int64_t shared = 0;  // the most that was asked for
  };
  std::string name_;
  Module module_ = nullptr;
  mutable std::mutex mutex_;
  mutable std::map<std::string, Known> functions_;
};

// Pages compiled and loaded once for all plans that share one. Thread-safe; different pages
// compile beside one another.
class Pages {
 public:
  // Null where the plan has no launches. `notes` gets what a person should know of the cache.
  std::shared_ptr<const LoadedPage> load(const Plan& plan, const Target& target,
                                         std::vector<std::string>& notes);

 private:
  struct Entry;
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Entry>> entries_;  // by the page's text
};

// Memory of a device, given back with its owner.
using MemoryBlock = std::unique_ptr<void, std::function<void(void*)>>;
// Beside streams that are being captured too. Errors name the program.
MemoryBlock allocate_block(const Memory& memory, std::int64_t bytes, const std::string& program);

// A plan that can be launched. Immutable.
class Launcher {
 public:
  // `page` is the plan's, null where it has no launches; its tables go to `memory`. `dtypes` as in
  // Addresses.
  Launcher(Plan plan, std::vector<DType> dtypes, std::shared_ptr<const LoadedPage> page,
           const Memory& memory);

  const Plan& plan() const { return plan_; }

  // The arguments of each launch, for tensors at these addresses.
  std::vector<Argument> bind(std::span<void* const> tensors, void* workspace) const;
  // In order, without waiting.
  void launch(std::span<const Argument> arguments, coda::Stream stream) const;

 private:
  Plan plan_;
  std::vector<DType> dtypes_;
  std::shared_ptr<const LoadedPage> page_;
  std::vector<Function> functions_;  // one for each launch
  std::vector<MemoryBlock> tables_;
};

// ---- arguments of the last calls ----

// What tells one call of a kernel from another: every tensor's address, shape and strides, and the
// workspace. Of one kernel all keys have the same parts in the same order.
using CallKey = std::vector<std::int64_t>;
void set_key(CallKey& key, std::span<const Tensor> params, std::span<const Tensor> results,
             const void* workspace);
// The same without addresses: how far each is aligned, up to 16 bytes, in their place.
void set_layout_key(CallKey& key, std::span<const Tensor> params, std::span<const Tensor> results);

// A call with everything filled in.
struct Prepared {
  std::shared_ptr<const Launcher> launcher;
  std::vector<Argument> arguments;
};

// The calls used last, at most kCapacity. Thread-safe; the lock is held for a look only.
class PreparedCalls {
 public:
  static constexpr std::size_t kCapacity = 256;

  std::shared_ptr<const Prepared> find(const CallKey& key);
  void insert(const CallKey& key, std::shared_ptr<const Prepared> prepared);

 private:
  struct Entry {
    std::uint64_t hash = 0;
    CallKey key;
    std::shared_ptr<const Prepared> prepared;
  };
  std::mutex mutex_;
  std::list<Entry> entries_;  // the last used first
  // By hash; of two keys that share one the later stays.
  std::unordered_map<std::uint64_t, std::list<Entry>::iterator> places_;
};

}  // namespace coda::cuda
