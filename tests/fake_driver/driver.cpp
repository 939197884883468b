// tests/fake_driver/driver.cpp: a libcuda.so.1 whose device is the host's memory, and whose kernels
// are only written down.
//
// With it the whole way from a program to its launches runs where there is no GPU. Entry points
// that nothing here needs succeed and do nothing.
#include "tests/fake_driver/driver.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string_view>

namespace {

using coda::testing::FakeDriver;

FakeDriver fake;
std::mutex mutex;
thread_local void* current = nullptr;

constexpr int kOutOfMemory = 2;
constexpr int kIllegalAddress = 700;

struct Config {  // CUlaunchConfig
  unsigned grid[3], block[3], shared;
  void* stream;
  void* attributes;
  unsigned attribute_count;
};

int version(int* to) {
  *to = 13000;
  return 0;
}
int name_of(int, const char** to) {
  *to = "FAKE";
  return 0;
}
int succeed() {
  return 0;
}
int count(int* to) {
  *to = 2;
  return 0;
}
int attribute(int* to, int which, int) {
  const std::map<int, int> known = {{75, 9}, {76, 0}, {16, 132}, {97, 232448}};
  const auto found = known.find(which);
  *to = found == known.end() ? 1 : found->second;
  return 0;
}
int retain(void** to, int) {
  *to = &fake;
  return 0;
}
int set_current(void* context) {
  current = context;
  return 0;
}
int get_current(void** to) {
  *to = current;
  return 0;
}
int load(void** to, const void* image) {
  const std::lock_guard lock(mutex);
  ++fake.modules;
  *to = const_cast<void*>(image);
  return 0;
}
int function(void** to, void*, const char* name) {
  static std::set<std::string> names;  // functions live as long as the process
  const std::lock_guard lock(mutex);
  *to = const_cast<char*>(names.insert(name).first->c_str());
  return 0;
}
int launch(const Config* config, void* kernel, void** parameters, void**) {
  const std::lock_guard lock(mutex);
  if (current != &fake) return 201;
  if (fake.fail_launches) return kIllegalAddress;
  FakeDriver::Launch made;
  made.kernel = static_cast<const char*>(kernel);
  made.stream = config->stream;
  made.grid = config->grid[0];
  std::memcpy(made.argument.data(), parameters[0], 64);  // the shortest that there is
  fake.launches.push_back(made);
  return 0;
}
int allocate(void** to, std::size_t bytes) {
  const std::lock_guard lock(mutex);
  if (bytes > (std::size_t{1} << 40)) return kOutOfMemory;
  ++fake.allocations;
  *to = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  return 0;
}
int release(void* memory) {
  const std::lock_guard lock(mutex);
  --fake.allocations;
  std::free(memory);
  return 0;
}
int free_memory(std::size_t* now, std::size_t* all) {
  *now = *all = std::size_t{1} << 37;
  return 0;
}
int copy(void* to, const void* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
  return 0;
}
int fill(void* to, unsigned char value, std::size_t bytes, void*) {
  std::memset(to, value, bytes);
  return 0;
}
int fill_words(unsigned* to, unsigned value, std::size_t words, void*) {
  for (std::size_t i = 0; i < words; ++i) to[i] = value;
  return 0;
}
int fill_rows(char* to, std::size_t pitch, unsigned char value, std::size_t width,
              std::size_t height, void*) {
  for (std::size_t i = 0; i < height; ++i) std::memset(to + i * pitch, value, width);
  return 0;
}
int encode(void* map, int, unsigned, void* address) {
  const std::lock_guard lock(mutex);
  ++fake.maps;
  std::memset(map, 0, 128);
  std::memcpy(map, &address, sizeof address);
  return 0;
}
int exchange_mode(int* mode) {
  *mode = 0;
  return 0;
}

}  // namespace

extern "C" {

int cuDriverGetVersion(int* to) {
  return version(to);
}

int cuGetProcAddress_v2(const char* name, void** to, int, unsigned long long, int* status) {
  const auto entry = [](auto* function) {
    return reinterpret_cast<void*>(function);
  };
  static const std::map<std::string_view, void*> known = {
      {"cuDriverGetVersion", entry(version)},
      {"cuGetErrorName", entry(name_of)},
      {"cuGetErrorString", entry(name_of)},
      {"cuDeviceGetCount", entry(count)},
      {"cuDeviceGetAttribute", entry(attribute)},
      {"cuDevicePrimaryCtxRetain", entry(retain)},
      {"cuCtxSetCurrent", entry(set_current)},
      {"cuCtxGetCurrent", entry(get_current)},
      {"cuModuleLoadData", entry(load)},
      {"cuModuleGetFunction", entry(function)},
      {"cuLaunchKernelEx", entry(launch)},
      {"cuMemAlloc", entry(allocate)},
      {"cuMemFree", entry(release)},
      {"cuMemGetInfo", entry(free_memory)},
      {"cuMemcpyHtoD", entry(copy)},
      {"cuMemcpyDtoH", entry(copy)},
      {"cuMemsetD8Async", entry(fill)},
      {"cuMemsetD32Async", entry(fill_words)},
      {"cuMemsetD2D8Async", entry(fill_rows)},
      {"cuTensorMapEncodeTiled", entry(encode)},
      {"cuThreadExchangeStreamCaptureMode", entry(exchange_mode)},
  };
  const auto found = known.find(name);
  *to = found == known.end() ? entry(succeed) : found->second;
  *status = 0;
  return 0;
}

FakeDriver* coda_fake_driver() {
  return &fake;
}

}  // extern "C"
