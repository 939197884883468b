// coda/cuda/plan.h: a Checked program for one GPU: the page of CUDA, and how to launch it.
//
// A pure function of (program, sizes, memory layouts, target), which any thread may call: nothing
// here touches a device. The page knows names only; every number that may change between two calls
// of one program (extents, strides, pointers) is an argument, so that one compiled page serves many
// sizes.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "coda/check/check.h"
#include "coda/core/tensor.h"

namespace coda::cuda {

// What kernels are made for.
struct Target {
  std::string architecture = "sm_90a";
  int processors = 132;          // streaming multiprocessors
  std::int64_t shared = 232448;  // bytes of shared memory that a block may ask for
  bool exclusive = true;         // no other kernels, as of collectives, hold processors meanwhile
  bool operator==(const Target&) const = default;
};

// How a tensor lies in memory: strides in elements of each factor of its type (factors_of order),
// and the largest power of two, at most 128, that divides the address of its first element.
struct Layout {
  std::vector<std::int64_t> strides;
  std::int64_t alignment = 128;
  bool operator==(const Layout&) const = default;
};

// Of every parameter, then of every result: dense in the declared order.
std::vector<Layout> dense_layouts(const Program& program, const Sizes& sizes);
// Of the tensors of a call.
std::vector<Layout> layouts_of(const Program& program, const Sizes& sizes,
                               std::span<const Tensor> params, std::span<const Tensor> results);

// From one row of so many bytes to the next, where that may be chosen: rows that the copy engine
// can read, wide ones from a line of the cache on. Rows too narrow to be worth it stay dense.
std::int64_t aligned_pitch(std::int64_t bytes);

// A tensor map of the copy engine (TMA). Axes innermost first; axis 0 has stride 1.
struct MapSpec {
  struct Axis {
    std::int64_t extent = 1;  // elements
    std::int64_t stride = 0;  // elements; unused for axis 0
    std::int64_t box = 1;
    bool operator==(const Axis&) const = default;
  };
  int tensor = 0;           // a parameter; results follow the parameters
  std::int64_t offset = 0;  // elements from the tensor's first one
  DType dtype = DType::bf16;
  std::vector<Axis> axes;  // 2 … 5
  int swizzle = 128;       // bytes; 0: none
  int promotion = 256;     // bytes that L2 fetches at once; 0: none
  // Bytes: the map is of the workspace from there on, not of the tensor.
  std::optional<std::int64_t> workspace = {};
};

// One 8-byte word of a kernel's argument.
struct Word {
  enum class Kind : std::uint8_t {
    number,     // value
    pointer,    // of tensor `tensor`'s first element, plus `value` elements
    workspace,  // plus `value` bytes
    table,      // device memory that holds tables[tensor]
  };
  Kind kind = Kind::number;
  int tensor = 0;
  std::int64_t value = 0;
};

// One kernel launch. The kernel `entry` takes one `const __grid_constant__` struct: the tensor maps
// (128 bytes each, 64-byte aligned), then the words.
struct Launch {
  std::string entry;
  std::vector<MapSpec> maps;
  std::vector<Word> words;
  std::array<std::int64_t, 3> grid = {1, 1, 1};
  int block = 128;          // threads
  std::int64_t shared = 0;  // bytes of dynamic shared memory
  int cluster = 1;          // blocks of a cluster, along x
  int zeroed = -1;          // a word that points to four bytes that are 0 when it starts; -1: none
};

// How a kernel runs, for people: coda explain.
struct Plan {
  std::string name;  // of the program
  std::string path;  // "gemm 128x192", "stream", "general"
  std::string page;  // CUDA C++; the files of coda/device may be included by their names
  std::vector<Launch> launches;  // in order, on one stream; none: nothing to do
  // What the host computes once: the order of tiles.
  std::vector<std::vector<std::uint32_t>> tables;
  std::int64_t workspace = 0;      // bytes
  std::vector<std::string> notes;  // candidates refused, and why; slow paths taken, and why
};

// The names under which pages include the files of coda/device, and their texts.
struct DeviceFile {
  std::string name;
  std::string text;
};
std::span<const DeviceFile> device_files();

}  // namespace coda::cuda
