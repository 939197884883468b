// coda/cuda/launch.cpp: from a plan and addresses to bytes that the driver launches.
#include "coda/cuda/launch.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <iterator>
#include <utility>

#include "coda/core/error.h"
#include "coda/cuda/cache.h"
#include "coda/cuda/nvtx.h"

namespace coda::cuda {
namespace {

constexpr std::int64_t kMostArgument = 32764;    // bytes, since CUDA 12.1
constexpr std::int64_t kFreeShared = 48 * 1024;  // more must be asked for
constexpr int kPortableCluster = 8;
constexpr int kRelaxedCapture = 2;

MapType map_type(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return MapType::f32;
    case DType::f64:
      return MapType::f64;
    case DType::bf16:
      return MapType::bf16;
    case DType::f16:
      return MapType::f16;
    case DType::i32:
      return MapType::i32;
    case DType::i64:
      return MapType::i64;
    case DType::f8e4m3:
    case DType::f8e5m2:
    case DType::u8:
    case DType::boolean:
      return MapType::u8;
  }
  throw InternalError("a tensor map of an unknown dtype");
}

MapSwizzle map_swizzle(int bytes) {
  switch (bytes) {
    case 0:
      return MapSwizzle::none;
    case 32:
      return MapSwizzle::bytes32;
    case 64:
      return MapSwizzle::bytes64;
    case 128:
      return MapSwizzle::bytes128;
    default:
      throw InternalError("a tensor map swizzled by " + std::to_string(bytes) + " bytes");
  }
}

MapPromotion map_promotion(int bytes) {
  switch (bytes) {
    case 0:
      return MapPromotion::none;
    case 64:
      return MapPromotion::bytes64;
    case 128:
      return MapPromotion::bytes128;
    case 256:
      return MapPromotion::bytes256;
    default:
      throw InternalError("a tensor map promoted to " + std::to_string(bytes) + " bytes");
  }
}

std::string text_of(const MapSpec& map) {
  std::string text = (map.workspace ? "a map of the workspace ("
                                    : "a map of tensor " + std::to_string(map.tensor) + " (") +
                     std::string(name_of(map.dtype)) + ", offset " + std::to_string(map.offset);
  for (const MapSpec::Axis& axis : map.axes) {
    text += ", " + std::to_string(axis.extent) + " by " + std::to_string(axis.stride) +
            " in boxes of " + std::to_string(axis.box);
  }
  return text + ", swizzle " + std::to_string(map.swizzle) + ")";
}

void encode(const Driver& driver, const std::string& name, const MapSpec& map, void* address,
            TensorMap& to) {
  constexpr std::size_t kMostAxes = 5;
  const std::size_t rank = map.axes.size();
  if (rank < 1 || rank > kMostAxes) throw InternalError(name + ": " + text_of(map));
  std::array<std::uint64_t, kMostAxes> extents = {}, strides = {};
  std::array<std::uint32_t, kMostAxes> box = {}, steps = {};
  const auto size = static_cast<std::int64_t>(size_of(map.dtype));
  for (std::size_t a = 0; a < rank; ++a) {
    extents[a] = static_cast<std::uint64_t>(map.axes[a].extent);
    box[a] = static_cast<std::uint32_t>(map.axes[a].box);
    steps[a] = 1;
    if (a > 0) strides[a - 1] = static_cast<std::uint64_t>(map.axes[a].stride * size);
  }
  const Result result = driver.call().TensorMapEncodeTiled(
      &to, map_type(map.dtype), static_cast<std::uint32_t>(rank), address, extents.data(),
      strides.data(), box.data(), steps.data(), MapInterleave::none, map_swizzle(map.swizzle),
      map_promotion(map.promotion), MapFill::zero);
  if (result == Result::success) return;
  driver.check(result, "cuTensorMapEncodeTiled of " + text_of(map), name);
}

// While it lives, this thread may allocate and load beside a stream that is being captured.
class BesideCapture {
 public:
  explicit BesideCapture(const Driver& driver) : driver_(driver) {
    driver_.call().ThreadExchangeStreamCaptureMode(&mode_);
  }
  ~BesideCapture() { driver_.call().ThreadExchangeStreamCaptureMode(&mode_); }
  BesideCapture(const BesideCapture&) = delete;
  BesideCapture& operator=(const BesideCapture&) = delete;

 private:
  const Driver& driver_;
  int mode_ = kRelaxedCapture;  // afterwards the one before
};

std::uint64_t hash_of(const CallKey& key) {
  std::uint64_t hash = key.size();
  for (const std::int64_t part : key) {
    hash = (std::rotl(hash, 5) ^ static_cast<std::uint64_t>(part)) * 0x9e3779b97f4a7c15u;
  }
  return hash;
}

}  // namespace

// ---- a kernel's argument ----

std::int64_t words_offset(const Launch& launch) {
  return kMapBytes * static_cast<std::int64_t>(launch.maps.size());
}

std::int64_t argument_bytes(const Launch& launch) {
  return words_offset(launch) + 8 * static_cast<std::int64_t>(launch.words.size());
}

std::uint64_t word_of(const Word& word, const Addresses& addresses) {
  const auto at = static_cast<std::size_t>(word.tensor);
  const auto plus = [](const void* base, std::int64_t bytes) {
    return reinterpret_cast<std::uint64_t>(base) + static_cast<std::uint64_t>(bytes);
  };
  switch (word.kind) {
    case Word::Kind::number:
      return static_cast<std::uint64_t>(word.value);
    case Word::Kind::pointer:
      return plus(addresses.tensors.at(at),
                  word.value * static_cast<std::int64_t>(size_of(addresses.dtypes.at(at))));
    case Word::Kind::workspace:
      return plus(addresses.workspace, word.value);
    case Word::Kind::table:
      return plus(addresses.tables.at(at), word.value);
  }
  throw InternalError("a word of an unknown kind");
}

Argument argument_of(
    const Launch& launch, const Addresses& addresses,
    const std::function<void(const MapSpec& map, void* address, TensorMap& to)>& encode) {
  constexpr auto kLine = static_cast<std::int64_t>(sizeof(ArgumentLine));
  // NOTE: whole lines: the driver reads the struct's padding too.
  const std::int64_t lines =
      std::max<std::int64_t>((argument_bytes(launch) + kLine - 1) / kLine, 1);
  Argument argument(static_cast<std::size_t>(lines));
  std::byte* to = argument.front().bytes;
  for (const MapSpec& map : launch.maps) {
    const std::int64_t offset = map.offset * static_cast<std::int64_t>(size_of(map.dtype));
    std::byte* first =
        map.workspace
            ? static_cast<std::byte*>(addresses.workspace) + *map.workspace
            : static_cast<std::byte*>(addresses.tensors.at(static_cast<std::size_t>(map.tensor)));
    TensorMap encoded = {};
    encode(map, first + offset, encoded);
    std::memcpy(to, &encoded, sizeof encoded);
    to += kMapBytes;
  }
  for (const Word& word : launch.words) {
    const std::uint64_t bits = word_of(word, addresses);
    std::memcpy(to, &bits, sizeof bits);
    to += sizeof bits;
  }
  return argument;
}

// ---- kernels on the device ----

LoadedPage::LoadedPage(std::string name, const std::string& cubin) : name_(std::move(name)) {
  const Driver& driver = Driver::get();
  driver.check(driver.call().ModuleLoadData(&module_, cubin.data()), "cuModuleLoadData", name_);
}

LoadedPage::~LoadedPage() {
  try {
    Driver::get().call().ModuleUnload(module_);
  } catch (...) {
    // The process ends, and the driver went first, with its kernels.
  }
}

Function LoadedPage::function(const Launch& launch) const {
  const Driver& driver = Driver::get();
  const std::lock_guard lock(mutex_);
  Known& known = functions_[launch.entry];
  if (known.function == nullptr) {
    driver.check(driver.call().ModuleGetFunction(&known.function, module_, launch.entry.c_str()),
                 "cuModuleGetFunction of " + launch.entry, name_);
  }
  const auto set = [&](FunctionAttribute attribute, std::int64_t value, const char* what) {
    driver.check(
        driver.call().FuncSetAttribute(known.function, attribute, static_cast<int>(value)),
        "cuFuncSetAttribute of " + launch.entry + ", " + what + " " + std::to_string(value), name_);
  };
  if (launch.shared > std::max(known.shared, kFreeShared)) {
    set(FunctionAttribute::max_dynamic_shared, launch.shared, "dynamic shared memory");
  }
  known.shared = std::max(known.shared, launch.shared);
  if (launch.cluster > kPortableCluster) {
    set(FunctionAttribute::non_portable_cluster, 1, "clusters of more than 8 blocks");
  }
  return known.function;
}

struct Pages::Entry {
  std::mutex mutex;
  std::shared_ptr<const LoadedPage> page;  // null until somebody has compiled it
};

std::shared_ptr<const LoadedPage> Pages::load(const Plan& plan, const Target& target,
                                              std::vector<std::string>& notes) {
  if (plan.launches.empty()) return nullptr;
  const BesideCapture allowed(Driver::get());
  std::shared_ptr<Entry> entry;
  {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<Entry>& known = entries_[plan.page];
    if (!known) known = std::make_shared<Entry>();
    entry = known;
  }
  const std::lock_guard lock(entry->mutex);
  if (!entry->page) {
    const Cached cached = Cache::process().get(plan.name, plan.page, device_files(),
                                               {.architecture = target.architecture});
    if (!cached.note.empty()) notes.push_back(cached.note);
    entry->page = std::make_shared<const LoadedPage>(plan.name, cached.kernel->cubin);
  }
  return entry->page;
}

MemoryBlock allocate_block(const Memory& memory, std::int64_t bytes, const std::string& program) {
  const BesideCapture allowed(Driver::get());
  void* block = nullptr;
  try {
    block = memory.allocate(static_cast<std::size_t>(bytes));
  } catch (const Unsupported& error) {
    throw Unsupported("program " + program + ": " + error.what(), error.fix());
  }
  return {block, [release = memory.release](void* gone) {
            try {
              release(gone);
            } catch (...) {
              // As above: the driver went first, with its memory.
            }
          }};
}

Launcher::Launcher(Plan plan, std::vector<DType> dtypes, std::shared_ptr<const LoadedPage> page,
                   const Memory& memory)
    : plan_(std::move(plan)), dtypes_(std::move(dtypes)), page_(std::move(page)) {
  for (const Launch& launch : plan_.launches) {
    if (argument_bytes(launch) <= kMostArgument) continue;
    throw Unsupported("program " + plan_.name + ": kernel " + launch.entry + " takes " +
                          std::to_string(argument_bytes(launch)) +
                          " bytes of arguments, and the GPU " + std::to_string(kMostArgument) +
                          " at most",
                      "split the program");
  }
  if (plan_.launches.empty()) return;
  const BesideCapture allowed(Driver::get());
  for (const Launch& launch : plan_.launches) functions_.push_back(page_->function(launch));
  for (const std::vector<std::uint32_t>& table : plan_.tables) {
    const std::size_t bytes = table.size() * sizeof table[0];
    tables_.push_back(allocate_block(memory, static_cast<std::int64_t>(bytes), plan_.name));
    memory.copy_in(tables_.back().get(), table.data(), bytes);
  }
}

std::vector<Argument> Launcher::bind(std::span<void* const> tensors, void* workspace) const {
  std::vector<Argument> arguments;
  if (plan_.launches.empty()) return arguments;
  const Driver& driver = Driver::get();
  Addresses addresses{
      .tensors = {tensors.begin(), tensors.end()}, .dtypes = dtypes_, .workspace = workspace};
  for (const MemoryBlock& table : tables_) addresses.tables.push_back(table.get());
  for (const Launch& launch : plan_.launches) {
    arguments.push_back(
        argument_of(launch, addresses, [&](const MapSpec& map, void* address, TensorMap& to) {
          encode(driver, plan_.name, map, address, to);
        }));
  }
  return arguments;
}

void Launcher::launch(std::span<const Argument> arguments, coda::Stream stream) const {
  if (plan_.launches.empty()) return;
  const Driver& driver = Driver::get();
  for (std::size_t i = 0; i < plan_.launches.size(); ++i) {
    const Launch& launch = plan_.launches[i];
    if (std::ranges::min(launch.grid) == 0) continue;
    LaunchAttribute cluster;
    cluster.number[0] = static_cast<std::uint32_t>(launch.cluster);
    cluster.number[1] = cluster.number[2] = 1;
    LaunchConfig config;
    for (std::size_t d = 0; d < 3; ++d) {
      config.grid[d] = static_cast<std::uint32_t>(launch.grid[d]);
    }
    config.block[0] = static_cast<std::uint32_t>(launch.block);
    config.shared = static_cast<std::uint32_t>(launch.shared);
    config.stream = static_cast<Stream>(stream.handle);
    if (launch.cluster > 1) {
      config.attributes = &cluster;
      config.attribute_count = 1;
    }
    const ProfilerRange range(launch.entry.c_str());
    if (launch.zeroed >= 0) {
      DevicePointer at = 0;
      std::memcpy(&at, arguments[i].front().bytes + words_offset(launch) + 8 * launch.zeroed,
                  sizeof at);
      driver.check(driver.call().MemsetD32Async(at, 0, 1, config.stream),
                   "cuMemsetD32Async before " + launch.entry, plan_.name);
    }
    // NOTE: the driver copies the argument before it returns, and writes none of it.
    void* parameter = const_cast<std::byte*>(arguments[i].front().bytes);
    const Result result = driver.call().LaunchKernelEx(&config, functions_[i], &parameter, nullptr);
    if (result != Result::success) {
      driver.check(result, "cuLaunchKernelEx of " + launch.entry, plan_.name);
    }
  }
}

// ---- arguments of the last calls ----

namespace {

void add_to_key(CallKey& key, const Tensor& tensor, std::int64_t place) {
  key.push_back(place);
  key.push_back(static_cast<std::int64_t>(tensor.shape.size()));
  key.insert(key.end(), tensor.shape.begin(), tensor.shape.end());
  key.insert(key.end(), tensor.strides.begin(), tensor.strides.end());
}

}  // namespace

void set_key(CallKey& key, std::span<const Tensor> params, std::span<const Tensor> results,
             const void* workspace) {
  key.clear();
  key.push_back(reinterpret_cast<std::int64_t>(workspace));
  for (const auto tensors : {params, results}) {
    for (const Tensor& tensor : tensors) {
      add_to_key(key, tensor, reinterpret_cast<std::int64_t>(tensor.data));
    }
  }
}

void set_layout_key(CallKey& key, std::span<const Tensor> params, std::span<const Tensor> results) {
  constexpr std::uintptr_t kAligned = 16;
  key.clear();
  for (const auto tensors : {params, results}) {
    for (const Tensor& tensor : tensors) {
      const std::uintptr_t address = reinterpret_cast<std::uintptr_t>(tensor.data) | kAligned;
      add_to_key(key, tensor, static_cast<std::int64_t>(address & (~address + 1)));
    }
  }
}

std::shared_ptr<const Prepared> PreparedCalls::find(const CallKey& key) {
  const std::uint64_t hash = hash_of(key);
  const std::lock_guard lock(mutex_);
  const auto place = places_.find(hash);
  if (place == places_.end() || place->second->key != key) return nullptr;
  entries_.splice(entries_.begin(), entries_, place->second);
  return entries_.front().prepared;
}

void PreparedCalls::insert(const CallKey& key, std::shared_ptr<const Prepared> prepared) {
  std::list<Entry> gone;  // freed after the lock
  std::list<Entry> fresh;
  fresh.push_back({hash_of(key), key, std::move(prepared)});
  const std::lock_guard lock(mutex_);
  const auto [place, is_new] = places_.try_emplace(fresh.front().hash, fresh.begin());
  if (!is_new) {
    gone.splice(gone.begin(), entries_, place->second);
    place->second = fresh.begin();
  }
  entries_.splice(entries_.begin(), fresh);
  if (entries_.size() <= kCapacity) return;
  places_.erase(entries_.back().hash);
  gone.splice(gone.begin(), entries_, std::prev(entries_.end()));
}

}  // namespace coda::cuda
