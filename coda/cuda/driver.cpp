// coda/cuda/driver.cpp: finds the driver's entry points, the device, and words for its errors.
#include "coda/cuda/driver.h"

#include <dlfcn.h>

#include <array>
#include <atomic>
#include <cstdio>

#include "coda/core/error.h"

namespace coda::cuda {
namespace {

constexpr int kNeeds = 12080;  // CUDA 12.8

// The driver's way to say which version of a name is meant: status is not read.
using GetProcAddress = Result (*)(const char*, void**, int, std::uint64_t, int*);

template <class F>
void find(GetProcAddress lookup, const char* name, F& entry, std::string& missing) {
  void* address = nullptr;
  int status = 0;
  const Result result = lookup(name, &address, kNeeds, 0, &status);
  if (result != Result::success || address == nullptr) missing += std::string(" ") + name;
  entry = reinterpret_cast<F>(address);
}

// The names that `lookup` does not know, each after a space.
std::string find_all(GetProcAddress lookup, EntryPoints& entry) {
  std::string missing;
#define CODA_FIND(NAME) find(lookup, "cu" #NAME, entry.NAME, missing)
  CODA_FIND(DriverGetVersion);
  CODA_FIND(GetErrorName);
  CODA_FIND(GetErrorString);
  CODA_FIND(Init);
  CODA_FIND(DeviceGetCount);
  CODA_FIND(DeviceGet);
  CODA_FIND(DeviceGetName);
  CODA_FIND(DeviceTotalMem);
  CODA_FIND(DeviceGetAttribute);
  CODA_FIND(DevicePrimaryCtxRetain);
  CODA_FIND(CtxSetCurrent);
  CODA_FIND(CtxGetCurrent);
  CODA_FIND(CtxSynchronize);
  CODA_FIND(ModuleLoadData);
  CODA_FIND(ModuleUnload);
  CODA_FIND(ModuleGetFunction);
  CODA_FIND(FuncSetAttribute);
  CODA_FIND(FuncGetAttribute);
  CODA_FIND(LaunchKernelEx);
  CODA_FIND(OccupancyMaxActiveBlocksPerMultiprocessor);
  CODA_FIND(MemGetInfo);
  CODA_FIND(MemAlloc);
  CODA_FIND(MemFree);
  CODA_FIND(MemHostAlloc);
  CODA_FIND(MemFreeHost);
  CODA_FIND(MemcpyHtoD);
  CODA_FIND(MemcpyDtoH);
  CODA_FIND(MemcpyHtoDAsync);
  CODA_FIND(MemcpyDtoHAsync);
  CODA_FIND(MemcpyDtoDAsync);
  CODA_FIND(MemsetD8);
  CODA_FIND(MemsetD8Async);
  CODA_FIND(MemsetD32Async);
  CODA_FIND(MemsetD2D8Async);
  CODA_FIND(StreamCreate);
  CODA_FIND(StreamDestroy);
  CODA_FIND(StreamSynchronize);
  CODA_FIND(StreamWaitEvent);
  CODA_FIND(ThreadExchangeStreamCaptureMode);
  CODA_FIND(StreamIsCapturing);
  CODA_FIND(StreamBeginCapture);
  CODA_FIND(StreamEndCapture);
  CODA_FIND(GraphInstantiateWithFlags);
  CODA_FIND(GraphLaunch);
  CODA_FIND(GraphExecDestroy);
  CODA_FIND(GraphDestroy);
  CODA_FIND(EventCreate);
  CODA_FIND(EventRecord);
  CODA_FIND(EventSynchronize);
  CODA_FIND(EventElapsedTime);
  CODA_FIND(EventDestroy);
  CODA_FIND(TensorMapEncodeTiled);
#undef CODA_FIND
  return missing;
}

std::string name_of(const EntryPoints& entry, Result result) {
  const char* name = nullptr;
  const char* words = nullptr;
  if (entry.GetErrorName != nullptr) entry.GetErrorName(result, &name);
  if (entry.GetErrorString != nullptr) entry.GetErrorString(result, &words);
  if (name == nullptr) return "error " + std::to_string(static_cast<int>(result));
  return std::string(name) + (words == nullptr ? "" : ": " + std::string(words));
}

constexpr const char* kInstall =
    "install NVIDIA's driver 570 or newer (in a container: start it with --gpus all)";

std::string too_old(int version) {
  return "the NVIDIA driver is too old: it runs CUDA " + cuda_version(version) + ", but " +
         cuda_version(kNeeds) + " or newer is needed; " + kInstall;
}

DeviceFacts facts_of(const EntryPoints& entry, int device, int driver) {
  const auto attribute = [&](DeviceAttribute which) {
    int value = 0;
    entry.DeviceGetAttribute(&value, which, device);
    return value;
  };
  std::array<char, 256> name = {};
  entry.DeviceGetName(name.data(), static_cast<int>(name.size()) - 1, device);
  std::size_t memory = 0;
  entry.DeviceTotalMem(&memory, device);
  DeviceFacts facts{.name = name.data(),
                    .target = {.processors = attribute(DeviceAttribute::processors),
                               .shared = attribute(DeviceAttribute::shared_per_block)},
                    .major = attribute(DeviceAttribute::capability_major),
                    .minor = attribute(DeviceAttribute::capability_minor),
                    .memory = static_cast<std::int64_t>(memory),
                    .l2 = attribute(DeviceAttribute::l2_bytes),
                    .clock = attribute(DeviceAttribute::clock_rate),
                    .memory_clock = attribute(DeviceAttribute::memory_clock_rate),
                    .memory_bus = attribute(DeviceAttribute::memory_bus_width),
                    .driver = driver};
  facts.target.architecture = "sm_" + std::to_string(facts.major) + std::to_string(facts.minor) +
                              (facts.major >= 9 ? "a" : "");
  return facts;
}

constexpr int kNotChosen = -1;
std::atomic<int> chosen = kNotChosen;

}  // namespace

// The one attempt of this process to have a device.
struct DriverLoad {
  Driver driver;
  std::optional<std::string> problem;

  DriverLoad() { problem = load(); }

  static const DriverLoad& once() {
    static const DriverLoad load;
    return load;
  }

  std::optional<std::string> load() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      return std::string("no NVIDIA driver: libcuda.so.1 was not found; ") + kInstall;
    }
    // The version first: by names that every driver has, so that an old one is called old.
    const auto version_of = reinterpret_cast<decltype(EntryPoints::DriverGetVersion)>(
        dlsym(library, "cuDriverGetVersion"));
    int version = 0;
    if (version_of == nullptr || version_of(&version) != Result::success) {
      return std::string("libcuda.so.1 is no working driver (a stub?); ") + kInstall;
    }
    if (version < kNeeds) return too_old(version);
    const auto lookup = reinterpret_cast<GetProcAddress>(dlsym(library, "cuGetProcAddress_v2"));
    if (lookup == nullptr) return too_old(version);

    EntryPoints& entry = driver.entry_;
    const std::string missing = find_all(lookup, entry);
    if (!missing.empty()) return "the NVIDIA driver lacks" + missing + "; " + kInstall;

    Result result = entry.Init(0);
    int count = 0;
    if (result == Result::success) result = entry.DeviceGetCount(&count);
    if (result == Result::no_device || (result == Result::success && count == 0)) {
      return "no NVIDIA GPU: the driver is there, but sees no device (is CUDA_VISIBLE_DEVICES "
             "empty? in a container: start it with --gpus all)";
    }
    if (result == Result::system_driver_mismatch) {
      return std::string(
                 "the NVIDIA driver's library and kernel module differ in version: "
                 "reboot, or ") +
             kInstall;
    }
    if (result != Result::success) return "cuInit failed: " + name_of(entry, result);

    // From now on no other.
    int none = kNotChosen;
    chosen.compare_exchange_strong(none, 0);
    if (chosen >= count) {
      return "device " + std::to_string(chosen) + " was asked for, but this process sees " +
             std::to_string(count);
    }
    int device = 0;
    result = entry.DeviceGet(&device, chosen);
    if (result != Result::success) return "cuDeviceGet failed: " + name_of(entry, result);
    driver.facts_ = facts_of(entry, device, version);
    const DeviceFacts& facts = driver.facts_;
    if (facts.major != 9) {
      return "the GPU " + facts.name + " has compute capability " + std::to_string(facts.major) +
             "." + std::to_string(facts.minor) +
             ", but the kernels are made for 9.0 (H100, H200, GH200); choose another with "
             "CUDA_VISIBLE_DEVICES, or run on the CPU with --device cpu";
    }
    result = entry.DevicePrimaryCtxRetain(&driver.context_, device);
    if (result != Result::success) {
      return "cuDevicePrimaryCtxRetain failed on " + facts.name + ": " + name_of(entry, result);
    }
    return std::nullopt;
  }
};

void Driver::use_device(int ordinal) {
  int before = kNotChosen;
  if (chosen.compare_exchange_strong(before, ordinal) || before == ordinal) return;
  throw Unsupported("this process runs kernels on GPU " + std::to_string(before) +
                        ", and was asked for GPU " + std::to_string(ordinal),
                    "start one process for each GPU, as torchrun does");
}

const Driver& Driver::get() {
  const DriverLoad& load = DriverLoad::once();
  if (load.problem) throw Unsupported("the device cuda is not available: " + *load.problem, "");
  load.driver.make_current();
  return load.driver;
}

std::optional<std::string> Driver::problem() {
  return DriverLoad::once().problem;
}

void Driver::make_current() const {
  Context current = nullptr;
  if (entry_.CtxGetCurrent(&current) == Result::success && current == context_) return;
  check(entry_.CtxSetCurrent(context_), "cuCtxSetCurrent", "");
}

void Driver::check(Result result, std::string_view call, std::string_view program) const {
  if (result == Result::success) return;
  std::string text = program.empty() ? "" : "program " + std::string(program) + ": ";
  text += std::string(call) + " failed on " + facts_.name + ": " + name_of(entry_, result);
  switch (result) {
    case Result::out_of_memory: {
      std::size_t free = 0;
      std::size_t total = 0;
      if (entry_.MemGetInfo(&free, &total) == Result::success) {
        text += "; " + readable_bytes(static_cast<std::int64_t>(free)) + " of " +
                readable_bytes(static_cast<std::int64_t>(total)) + " are free";
      }
      throw Unsupported(
          text, "give smaller sizes, or free memory of the GPU: nvidia-smi shows who has it");
    }
    case Result::invalid_image:
    case Result::no_binary_for_gpu:
    case Result::unsupported_ptx:
      throw Unsupported(text + "; the kernel was compiled for another GPU than " +
                            facts_.target.architecture + ", or by a newer CUDA than the driver's " +
                            cuda_version(facts_.driver),
                        "update the driver, or set CODA_NVRTC to a libnvrtc of that version");
    case Result::launch_out_of_resources:
      throw InternalError(text +
                          "; the kernel asks for more registers or shared memory than a "
                          "processor has");
    case Result::illegal_address:
    case Result::misaligned_address:
    case Result::illegal_instruction:
    case Result::hardware_stack:
    case Result::launch_failed:
    case Result::launch_timeout:
      throw InternalError(text +
                          "; a kernel that was launched before faulted, and nothing more "
                          "runs in this process: find it with compute-sanitizer");
    default:
      throw InternalError(text);
  }
}

DevicePointer Driver::allocate(std::int64_t bytes, std::string_view program) const {
  if (bytes == 0) return 0;
  make_current();
  DevicePointer memory = 0;
  const Result result = entry_.MemAlloc(&memory, static_cast<std::size_t>(bytes));
  check(result, "cuMemAlloc of " + readable_bytes(bytes), program);
  return memory;
}

void Driver::release(DevicePointer memory) const noexcept {
  if (memory == 0) return;
  entry_.CtxSetCurrent(context_);
  entry_.MemFree(memory);
}

std::string cuda_version(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string readable_bytes(std::int64_t bytes) {
  constexpr std::array<const char*, 5> units = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  double amount = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (amount >= 1024 && unit + 1 < units.size()) {
    amount /= 1024;
    ++unit;
  }
  std::array<char, 32> text = {};
  std::snprintf(text.data(), text.size(), unit == 0 ? "%.0f %s" : "%.1f %s", amount, units[unit]);
  return text.data();
}

}  // namespace coda::cuda
