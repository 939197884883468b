// bench/cuda_device.cpp: the device of libcoda_bench.so: a GPU.
#include "bench/devices.h"
#include "coda/core/error.h"
#include "coda/cuda/choose.h"
#include "coda/cuda/cuda.h"
#include "coda/cuda/gemm.h"
#include "coda/cuda/stream.h"

namespace coda::bench {

std::unique_ptr<Backend> device_backend(const Wanted& wanted) {
  if (wanted.device == "cuda") return cuda::backend({.plan = {.tile = wanted.tile}});
  throw ProgramError("`" + wanted.device + "` is no device of this library",
                     "give \"cuda\", \"reference\" or \"\"; \"cpu\" is libcoda_bench_cpu.so's");
}

std::vector<std::string> candidate_tiles(const Checked& program, const Sizes& sizes) {
  const std::vector<cuda::Layout> layouts = cuda::canonical_layouts(
      program.program(), sizes, cuda::dense_layouts(program.program(), sizes));
  std::vector<std::string> tiles, reasons;
  for (const cuda::GemmTile& tile : cuda::gemm_tiles(program, sizes, layouts, {}, reasons)) {
    tiles.push_back(tile.text());
  }
  for (const cuda::StreamTile& tile : cuda::stream_tiles(program, sizes, layouts, {})) {
    tiles.push_back(tile.text());
  }
  // NOTE: "": of what has one way to run, that one.
  if (program.kind() != KernelKind::stream) tiles.push_back("general");
  if (tiles.empty()) tiles.push_back("");
  return tiles;
}

}  // namespace coda::bench
