// coda/cpu/gemm.cpp: oneDNN matmul primitives, cached by shape and strides; or our own kernels.
#include "coda/cpu/gemm.h"

#include <omp.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <oneapi/dnnl/dnnl.hpp>
#include <optional>
#include <shared_mutex>
#include <string>
#include <tuple>

#include "coda/core/allocator.h"
#include "coda/core/error.h"
#include "coda/cpu/panel_gemm.h"
#include "coda/cpu/panel_pack.h"
#include "coda/cpu/plain_gemm.h"

namespace coda::cpu {
namespace {

using dnnl::memory;

const dnnl::engine& engine() {
  static const dnnl::engine one(dnnl::engine::kind::cpu, 0);
  return one;
}

dnnl::stream& stream() {
  thread_local dnnl::stream own(engine());
  return own;
}

memory::data_type type_of(DType dtype) {
  return dtype == DType::bf16 ? memory::data_type::bf16 : memory::data_type::f32;
}

memory::desc strided(std::int64_t rows, std::int64_t columns, DType dtype, const MatrixRef& ref) {
  return {{rows, columns}, type_of(dtype), {ref.row_step, ref.column_step}};
}

memory::desc dense(std::int64_t rows, std::int64_t columns, DType dtype) {
  return {{rows, columns}, type_of(dtype), {columns, 1}};
}

// NOTE: execute() takes memories that are not const; oneDNN writes none but the destination.
void* unconst(const std::byte* data) {
  return const_cast<std::byte*>(data);
}

void reorder(const memory::desc& from, const std::byte* data, const memory::desc& to,
             std::byte* result) {
  const memory source(from, engine(), unconst(data));
  const memory target(to, engine(), result);
  dnnl::reorder(source, target).execute(stream(), {{DNNL_ARG_FROM, source}, {DNNL_ARG_TO, target}});
  stream().wait();
}

// Whether our own kernels multiply this dtype, on a packed B.
bool in_panels(DType dtype) {
  return panel_kernel(dtype) != PanelKernel::none;
}

struct Primitive {
  dnnl::matmul matmul;
  memory::desc a, b, c, scratch;
};

}  // namespace

OneThread::OneThread() : before_(omp_get_max_threads()) {
  if (before_ != 1) omp_set_num_threads(1);
}
OneThread::~OneThread() {
  if (before_ != 1) omp_set_num_threads(before_);
}

struct TileGemm::Library {
  // m, n, k, dtype, A's steps, B's steps or -1 (packed), add.
  using Key = std::tuple<std::int64_t, std::int64_t, std::int64_t, DType, std::int64_t,
                         std::int64_t, std::int64_t, std::int64_t, Onto>;
  std::shared_mutex mutex;
  std::map<Key, std::shared_ptr<const Primitive>> primitives;
  std::map<std::tuple<std::int64_t, std::int64_t, DType>, memory::desc> packed;  // by n, k

  static std::optional<dnnl::matmul::primitive_desc> describe(const memory::desc& a,
                                                              const memory::desc& b,
                                                              const memory::desc& c, Onto onto) {
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (onto == Onto::add) {
      dnnl::post_ops sum;
      sum.append_sum(1.0f);
      attributes.set_post_ops(sum);
    }
    try {
      return dnnl::matmul::primitive_desc(engine(), a, b, c, attributes);
    } catch (const dnnl::error&) {
      return std::nullopt;
    }
  }

  // The order of B that the library likes best for this shape.
  memory::desc packed_desc(const TileShape& shape) {
    const std::tuple key(shape.n, shape.k, shape.dtype);
    {
      const std::shared_lock lock(mutex);
      if (const auto found = packed.find(key); found != packed.end()) return found->second;
    }
    const memory::desc any({shape.k, shape.n}, type_of(shape.dtype), memory::format_tag::any);
    const auto described = describe(dense(shape.m, shape.k, shape.dtype), any,
                                    dense(shape.m, shape.n, DType::f32), Onto::fresh);
    const std::unique_lock lock(mutex);
    return packed.emplace(key, described ? described->weights_desc() : memory::desc())
        .first->second;
  }

  std::shared_ptr<const Primitive> find(const TileShape& shape, const MatrixRef& a,
                                        const MatrixRef& b, Onto onto) {
    const Key key(shape.m, shape.n, shape.k, shape.dtype, a.row_step, a.column_step,
                  b.packed ? -1 : b.row_step, b.packed ? -1 : b.column_step, onto);
    {
      const std::shared_lock lock(mutex);
      if (const auto found = primitives.find(key); found != primitives.end()) return found->second;
    }
    const auto described =
        describe(strided(shape.m, shape.k, shape.dtype, a),
                 b.packed ? packed_desc(shape) : strided(shape.k, shape.n, shape.dtype, b),
                 dense(shape.m, shape.n, DType::f32), onto);
    if (!described) throw InternalError("oneDNN refuses a product that it was asked about before");
    auto primitive = std::make_shared<Primitive>(
        Primitive{dnnl::matmul(*described), described->src_desc(), described->weights_desc(),
                  described->dst_desc(), described->scratchpad_desc()});
    const std::unique_lock lock(mutex);
    return primitives.emplace(key, std::move(primitive)).first->second;
  }
};

TileGemm::TileGemm() : library_(std::make_unique<Library>()) {}
TileGemm::~TileGemm() = default;

bool TileGemm::in_library(DType dtype) const {
  if (dtype != DType::bf16 && dtype != DType::f32) return false;
  static const bool bf16 = [] {
    const OneThread one;
    return Library::describe(dense(64, 64, DType::bf16), dense(64, 64, DType::bf16),
                             dense(64, 64, DType::f32), Onto::add)
        .has_value();
  }();
  return dtype == DType::f32 || bf16;
}

std::size_t TileGemm::packed_bytes(const TileShape& shape) const {
  if (!in_library(shape.dtype)) return 0;
  if (in_panels(shape.dtype)) return panel_bytes(shape.dtype, shape.k, shape.n);
  const OneThread one;
  return library_->packed_desc(shape).get_size();
}

void TileGemm::pack(const TileShape& shape, const MatrixRef& b, std::byte* to) const {
  if (in_panels(shape.dtype)) return pack_panels(shape.dtype, shape.k, shape.n, b, to);
  reorder(strided(shape.k, shape.n, shape.dtype, b), b.data, library_->packed_desc(shape), to);
}

void TileGemm::turn(std::int64_t m, std::int64_t k, DType dtype, const MatrixRef& a,
                    std::byte* to) const {
  if (a.row_step == 1) return turn_left(dtype, m, k, a.data, a.column_step, to);
  reorder(strided(m, k, dtype, a), a.data, dense(m, k, dtype), to);
}

bool TileGemm::is_fast(const TileShape& shape, const MatrixRef& a, const MatrixRef& b) const {
  if (b.packed && in_panels(shape.dtype)) return a.column_step == 1;
  const OneThread one;
  const auto described = Library::describe(
      strided(shape.m, shape.k, shape.dtype, a),
      b.packed ? library_->packed_desc(shape) : strided(shape.k, shape.n, shape.dtype, b),
      dense(shape.m, shape.n, DType::f32), Onto::add);
  return described && std::string(described->impl_info_str()).find("ref") == std::string::npos;
}

std::size_t TileGemm::scratch_bytes(const TileShape& shape, const MatrixRef& a,
                                    const MatrixRef& b) const {
  if (!in_library(shape.dtype)) return 0;
  if (b.packed && in_panels(shape.dtype)) return panel_scratch(shape);
  const OneThread one;
  return std::max(library_->find(shape, a, b, Onto::fresh)->scratch.get_size(),
                  library_->find(shape, a, b, Onto::add)->scratch.get_size());
}

void TileGemm::multiply(const TileShape& shape, const MatrixRef& a, const MatrixRef& b,
                        std::byte* c, Onto onto, std::span<std::byte> scratch) const {
  if (shape.m == 0 || shape.n == 0) return;
  if (shape.k == 0) {
    const std::size_t bytes = shape.dtype == DType::f64 ? 8 : 4;
    if (onto == Onto::fresh) std::fill_n(c, shape.m * shape.n * std::int64_t(bytes), std::byte{0});
    return;
  }
  if (!in_library(shape.dtype)) return plain_multiply(shape, a, b, c, onto);
  if (b.packed && in_panels(shape.dtype)) {
    return multiply_panels(panel_kernel(shape.dtype), shape, a, b.data, reinterpret_cast<float*>(c),
                           onto, scratch);
  }
  const std::shared_ptr<const Primitive> primitive = library_->find(shape, a, b, onto);
  const memory left(primitive->a, engine(), unconst(a.data));
  const memory right(primitive->b, engine(), unconst(b.data));
  const memory out(primitive->c, engine(), c);
  HostBlock own;
  std::byte* space = scratch.data();
  if (primitive->scratch.get_size() > scratch.size()) {
    own = allocate_block(primitive->scratch.get_size(), "a product's scratch");
    space = own.get();
  }
  const memory scratchpad(primitive->scratch, engine(), space);
  primitive->matmul.execute(stream(), {{DNNL_ARG_SRC, left},
                                       {DNNL_ARG_WEIGHTS, right},
                                       {DNNL_ARG_DST, out},
                                       {DNNL_ARG_SCRATCHPAD, scratchpad}});
  stream().wait();
}

}  // namespace coda::cpu
