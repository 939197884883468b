// coda/cuda/driver.h: the CUDA driver, loaded when it is first asked for, and the device.
//
// Nothing of CUDA is needed to build: the few entry points that we call are declared here, as the
// driver's ABI has them. One binary so runs on machines with and without a GPU. A
// process has one device, of those that CUDA_VISIBLE_DEVICES shows the first unless use_device()
// says another, through its primary context, which PyTorch shares.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "coda/cuda/plan.h"

namespace coda::cuda {

// ---- the driver's types ----

using DevicePointer = std::uint64_t;
using Context = struct ContextObject*;
using Module = struct ModuleObject*;
using Function = struct FunctionObject*;
using Stream = struct StreamObject*;  // null: the default stream
using Event = struct EventObject*;
using Graph = struct GraphObject*;
using GraphExec = struct GraphExecObject*;

// What every entry point returns. The values that we tell apart; others occur.
enum class Result : int {
  success = 0,
  invalid_value = 1,
  out_of_memory = 2,
  no_device = 100,
  invalid_image = 200,
  no_binary_for_gpu = 209,
  unsupported_ptx = 222,
  not_found = 500,
  not_ready = 600,
  illegal_address = 700,
  launch_out_of_resources = 701,
  launch_timeout = 702,
  hardware_stack = 714,
  illegal_instruction = 715,
  misaligned_address = 716,
  launch_failed = 719,
  system_driver_mismatch = 803,
  capture_unsupported = 900,
};

// What TMA reads. The driver fills it.
struct alignas(64) TensorMap {
  std::uint64_t words[16];
};

enum class DeviceAttribute : int {
  clock_rate = 13,  // kHz
  processors = 16,
  memory_clock_rate = 36,  // kHz
  memory_bus_width = 37,   // bits
  l2_bytes = 38,
  capability_major = 75,
  capability_minor = 76,
  shared_per_block = 97,  // what a block may ask for
};

enum class FunctionAttribute : int {
  shared_bytes = 1,
  local_bytes = 3,
  registers = 4,
  max_dynamic_shared = 8,
  non_portable_cluster = 14,
};

struct LaunchAttribute {
  enum class Kind : int {
    cluster = 4,          // number[0…2]: blocks of a cluster along x, y, z
    early_dependent = 6,  // number[0] = 1: the kernel may start before the one before it ends
  };
  Kind kind = Kind::cluster;
  int padding = 0;
  std::uint32_t number[16] = {};
};

struct LaunchConfig {
  std::uint32_t grid[3] = {1, 1, 1};
  std::uint32_t block[3] = {1, 1, 1};
  std::uint32_t shared = 0;
  Stream stream = nullptr;
  LaunchAttribute* attributes = nullptr;
  std::uint32_t attribute_count = 0;
};

enum class MapType : int {
  u8 = 0,
  u16 = 1,
  u32 = 2,
  i32 = 3,
  u64 = 4,
  i64 = 5,
  f16 = 6,
  f32 = 7,
  f64 = 8,
  bf16 = 9,
};
enum class MapInterleave : int { none = 0 };
enum class MapSwizzle : int { none = 0, bytes32 = 1, bytes64 = 2, bytes128 = 3 };
enum class MapPromotion : int { none = 0, bytes64 = 1, bytes128 = 2, bytes256 = 3 };
enum class MapFill : int { zero = 0 };

// ---- the driver ----

// The entry points, named as in CUDA's documentation of the driver, without the "cu". Versions of
// one name (…_v2) are those of CUDA 12.8.
struct EntryPoints {
  Result (*DriverGetVersion)(int*);
  Result (*GetErrorName)(Result, const char**);
  Result (*GetErrorString)(Result, const char**);
  Result (*Init)(unsigned);

  Result (*DeviceGetCount)(int*);
  Result (*DeviceGet)(int*, int);
  Result (*DeviceGetName)(char*, int, int);
  Result (*DeviceTotalMem)(std::size_t*, int);
  Result (*DeviceGetAttribute)(int*, DeviceAttribute, int);
  Result (*DevicePrimaryCtxRetain)(Context*, int);
  Result (*CtxSetCurrent)(Context);
  Result (*CtxGetCurrent)(Context*);
  Result (*CtxSynchronize)();

  Result (*ModuleLoadData)(Module*, const void*);
  Result (*ModuleUnload)(Module);
  Result (*ModuleGetFunction)(Function*, Module, const char*);
  Result (*FuncSetAttribute)(Function, FunctionAttribute, int);
  Result (*FuncGetAttribute)(int*, FunctionAttribute, Function);
  Result (*LaunchKernelEx)(const LaunchConfig*, Function, void**, void**);
  Result (*OccupancyMaxActiveBlocksPerMultiprocessor)(int*, Function, int, std::size_t);

  Result (*MemGetInfo)(std::size_t*, std::size_t*);
  Result (*MemAlloc)(DevicePointer*, std::size_t);
  Result (*MemFree)(DevicePointer);
  Result (*MemHostAlloc)(void**, std::size_t, unsigned);
  Result (*MemFreeHost)(void*);
  Result (*MemcpyHtoD)(DevicePointer, const void*, std::size_t);
  Result (*MemcpyDtoH)(void*, DevicePointer, std::size_t);
  Result (*MemcpyHtoDAsync)(DevicePointer, const void*, std::size_t, Stream);
  Result (*MemcpyDtoHAsync)(void*, DevicePointer, std::size_t, Stream);
  Result (*MemcpyDtoDAsync)(DevicePointer, DevicePointer, std::size_t, Stream);
  Result (*MemsetD8)(DevicePointer, unsigned char, std::size_t);
  Result (*MemsetD8Async)(DevicePointer, unsigned char, std::size_t, Stream);
  Result (*MemsetD32Async)(DevicePointer, unsigned, std::size_t, Stream);
  // The pointer, the pitch, the byte, the width and the height.
  Result (*MemsetD2D8Async)(DevicePointer, std::size_t, unsigned char, std::size_t, std::size_t,
                            Stream);

  Result (*StreamCreate)(Stream*, unsigned);
  Result (*StreamDestroy)(Stream);
  Result (*StreamSynchronize)(Stream);
  Result (*StreamWaitEvent)(Stream, Event, unsigned);
  Result (*ThreadExchangeStreamCaptureMode)(int*);  // 2: this thread may allocate meanwhile
  Result (*StreamIsCapturing)(Stream, int*);
  Result (*StreamBeginCapture)(Stream, int);
  Result (*StreamEndCapture)(Stream, Graph*);
  Result (*GraphInstantiateWithFlags)(GraphExec*, Graph, unsigned long long);
  Result (*GraphLaunch)(GraphExec, Stream);
  Result (*GraphExecDestroy)(GraphExec);
  Result (*GraphDestroy)(Graph);
  Result (*EventCreate)(Event*, unsigned);
  Result (*EventRecord)(Event, Stream);
  Result (*EventSynchronize)(Event);
  Result (*EventElapsedTime)(float*, Event, Event);  // ms
  Result (*EventDestroy)(Event);

  Result (*TensorMapEncodeTiled)(TensorMap*, MapType, std::uint32_t rank, void* address,
                                 const std::uint64_t* extents, const std::uint64_t* byte_strides,
                                 const std::uint32_t* box, const std::uint32_t* steps,
                                 MapInterleave, MapSwizzle, MapPromotion, MapFill);
};

// What is known of the device.
struct DeviceFacts {
  std::string name;
  Target target;
  int major = 0, minor = 0;       // compute capability
  std::int64_t memory = 0;        // bytes
  std::int64_t l2 = 0;            // bytes
  std::int64_t clock = 0;         // kHz, at most
  std::int64_t memory_clock = 0;  // kHz
  std::int64_t memory_bus = 0;    // bits
  int driver = 0;                 // the newest CUDA that the driver runs: 13000 is 13.0
};

// The loaded driver with the primary context of the device. One for the process, never unloaded.
class Driver {
 public:
  // The number of the process's device, before it is first used; later only the same again. Throws
  // Unsupported for another.
  static void use_device(int ordinal);

  // Loads it at the first call. The primary context is current on the calling thread afterwards.
  // Throws Unsupported with problem() where there is one.
  static const Driver& get();

  // Why this process has no device, and what to install; nullopt where it has one.
  static std::optional<std::string> problem();

  const EntryPoints& call() const { return entry_; }
  const DeviceFacts& device() const { return facts_; }

  // Makes the primary context current on the calling thread.
  void make_current() const;

  // Nothing where `result` is success. Else an error that names the program and the call, e.g.
  // "cuLaunchKernelEx": Unsupported where the device lacks memory or cannot run the kernel, else
  // InternalError.
  void check(Result result, std::string_view call, std::string_view program) const;

  // Device memory, 256-byte aligned; null where bytes is 0. Throws Unsupported with the bytes that
  // were asked for and those that are free.
  DevicePointer allocate(std::int64_t bytes, std::string_view program) const;
  void release(DevicePointer memory) const noexcept;

 private:
  friend struct DriverLoad;
  Driver() = default;

  EntryPoints entry_ = {};
  DeviceFacts facts_;
  Context context_ = nullptr;
};

// "13.0" of 13000.
std::string cuda_version(int version);

// "1.5 GiB".
std::string readable_bytes(std::int64_t bytes);

}  // namespace coda::cuda
