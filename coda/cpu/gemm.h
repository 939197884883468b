// coda/cpu/gemm.h: the library product of one tile: C[m, n] (+)= A[m, k] · B[k, n].
//
// bf16 and f32 operands go through oneDNN with f32 accumulators; f64, and what oneDNN refuses on
// this machine, through plain loops. On a packed B our own kernels multiply where the machine has
// one (panel_gemm.h). Primitives are made once for each shape and shared by threads; each call
// brings its own scratch. NOTE: oneDNN must see one OpenMP thread, when a primitive is made and
// when it runs: hold a OneThread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "coda/core/dtype.h"

namespace coda::cpu {

// OpenMP of the calling thread set to one thread, and back.
class OneThread {
 public:
  OneThread();
  ~OneThread();
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

// An operand in memory, steps in elements, one of the two 1.
struct MatrixRef {
  const std::byte* data = nullptr;
  std::int64_t row_step = 0;
  std::int64_t column_step = 0;
  bool packed = false;  // B only: what pack() made
};

struct TileShape {
  std::int64_t m = 0, n = 0, k = 0;
  DType dtype = DType::f32;  // of A and B: f32, bf16 or f64; C is f64 for f64, else f32
};

enum class Onto : std::uint8_t { fresh, add };

class TileGemm {
 public:
  TileGemm();
  ~TileGemm();

  // Does oneDNN multiply this dtype here?
  bool in_library(DType dtype) const;
  // B[k, n] in the order that suits the kernel, for A of about `m` rows. 0: there is no such order.
  std::size_t packed_bytes(const TileShape& shape) const;
  void pack(const TileShape& shape, const MatrixRef& b, std::byte* to) const;

  // Is there more than the library's reference loops for it? NOTE: on a packed B, rows of A run
  // along memory.
  bool is_fast(const TileShape& shape, const MatrixRef& a, const MatrixRef& b) const;
  // A[m, k] with k along memory.
  void turn(std::int64_t m, std::int64_t k, DType dtype, const MatrixRef& a, std::byte* to) const;

  // C is dense. Scratch that is too small is replaced by memory of its own.
  void multiply(const TileShape& shape, const MatrixRef& a, const MatrixRef& b, std::byte* c,
                Onto onto, std::span<std::byte> scratch) const;
  std::size_t scratch_bytes(const TileShape& shape, const MatrixRef& a, const MatrixRef& b) const;

 private:
  struct Library;
  std::unique_ptr<Library> library_;
};

}  // namespace coda::cpu
