// tests/fuzz/judge_files.cpp: .npy and .safetensors files of any bytes.
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <string>

#include "coda/core/error.h"
#include "coda/core/npy.h"
#include "coda/core/safetensors.h"
#include "tests/fuzz/judges.h"

namespace coda::testing {
namespace {

// A file without a name in any folder, which the library reads by its path as any other.
class MemoryFile {
 public:
  explicit MemoryFile(Bytes bytes) : descriptor_(memfd_create("fuzz", MFD_CLOEXEC)) {
    const auto size = static_cast<ssize_t>(bytes.size());
    if (descriptor_ < 0 || write(descriptor_, bytes.data(), bytes.size()) != size) {
      throw std::runtime_error("no memory for a file");
    }
  }
  ~MemoryFile() { close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_;
};

// A path of this process's own for what is written.
std::string written_path(const std::string& ending) {
  return (std::filesystem::temp_directory_path() / ("coda-fuzz-" + std::to_string(getpid())))
             .string() +
         ending;
}

void require_same(const Tensor& a, const Tensor& b, std::size_t bytes) {
  const bool same = a.dtype == b.dtype && a.shape == b.shape &&
                    (bytes == 0 || std::memcmp(a.data, b.data, bytes) == 0);
  if (!same) throw std::logic_error(to_string(a) + " is read again as " + to_string(b));
}

// How often each byte occurs: a transposed array has the same counts.
using Counts = std::array<std::size_t, 256>;
void count(Bytes bytes, Counts& counts) {
  for (const std::uint8_t byte : bytes) ++counts[byte];
}
Bytes bytes_of(const OwnedTensor& tensor) {
  return {tensor.as<std::uint8_t>(), tensor.bytes()};
}

// The tensors hold the end of the file, all of it behind a header, but for truth values, which
// become 0 or 1.
void require_end_of_file(Bytes file, std::size_t data, const Counts& got) {
  Counts end{};
  count(file.last(data), end);
  if (end != got) throw std::logic_error("what was read is not what the file holds");
}

void require_named(const ProgramError& error, const std::string& path) {
  if (std::string(error.what()).find(path) == std::string::npos) {
    throw std::logic_error(std::string("a refusal does not name the file: ") + error.what());
  }
}

}  // namespace

void judge_safetensors(Bytes bytes) {
  const MemoryFile file(bytes);
  Safetensors got;
  try {
    got = read_safetensors(file.path());
  } catch (const ProgramError& error) {
    return require_named(error, file.path());
  }
  std::map<std::string, Tensor> views;
  Counts counts{};
  std::size_t data = 0;
  bool has_truth_values = false;
  for (const auto& [name, tensor] : got.tensors) {
    views[name] = tensor.tensor();
    count(bytes_of(tensor), counts);
    data += tensor.bytes();
    has_truth_values = has_truth_values || tensor.tensor().dtype == DType::boolean;
  }
  if (!has_truth_values) require_end_of_file(bytes, data, counts);
  const std::string path = written_path(".safetensors");
  write_safetensors(path, views, got.metadata);
  const Safetensors again = read_safetensors(path);
  std::filesystem::remove(path);
  if (again.metadata != got.metadata || again.tensors.size() != got.tensors.size()) {
    throw std::logic_error("a written file lacks a tensor or a text");
  }
  for (const auto& [name, tensor] : got.tensors) {
    require_same(tensor.tensor(), again.tensors.at(name).tensor(), tensor.bytes());
  }
}

void judge_npy(Bytes bytes) {
  const MemoryFile file(bytes);
  OwnedTensor got;
  try {
    got = read_npy(file.path());
  } catch (const ProgramError& error) {
    return require_named(error, file.path());
  }
  Counts counts{};
  count(bytes_of(got), counts);
  if (got.tensor().dtype != DType::boolean) require_end_of_file(bytes, got.bytes(), counts);
  const std::string path = written_path(".npy");
  write_npy(path, got.tensor());
  const OwnedTensor again = read_npy(path);
  std::filesystem::remove(path);
  require_same(got.tensor(), again.tensor(), got.bytes());
}

}  // namespace coda::testing
