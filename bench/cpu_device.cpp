// bench/cpu_device.cpp: the device of libcoda_bench_cpu.so: the CPU, and its unfused rival.
//
// The rival runs a step that is only a product as one call of oneDNN over the whole matrices, with
// oneDNN's own threads, its weight put into the library's order first, as the backend does it too.
// All other steps are the backend's own kernels.
#include <omp.h>

#include <charconv>
#include <oneapi/dnnl/dnnl.hpp>
#include <optional>
#include <utility>

#include "bench/devices.h"
#include "coda/check/bind.h"
#include "coda/core/error.h"
#include "coda/core/flags.h"
#include "coda/cpu/cpu.h"

namespace coda::bench {
namespace {

using dnnl::memory;

// OpenMP's threads on the calling thread, and back.
class Threads {
 public:
  explicit Threads(int count) : before_(omp_get_max_threads()) { omp_set_num_threads(count); }
  ~Threads() { omp_set_num_threads(before_); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int before_;
};

const dnnl::engine& engine() {
  static const dnnl::engine one(dnnl::engine::kind::cpu, 0);
  return one;
}

std::optional<memory::data_type> type_of(DType dtype) {
  if (dtype == DType::bf16) return memory::data_type::bf16;
  if (dtype == DType::f32) return memory::data_type::f32;
  return std::nullopt;
}

// C[m, n] (+)= A[m, k] · B[k, n] of one program; steps are known when it runs.
struct Product {
  bool left_turned = false, right_turned = false;  // stored [k, m]; stored [n, k]
  bool accumulates = false;
  std::int64_t m = 0, n = 0, k = 0;
  memory::data_type left, right, out;
};

std::optional<Product> product_of(const Program& program, const Sizes& sizes) {
  if (program.nodes().size() != 1 || program.results().size() != 1) return std::nullopt;
  const Node& node = program.nodes()[0];
  if (node.op != Op::product || program.params().size() != 2) return std::nullopt;
  const Type& a = program.type(node.args[0]);
  const Type& b = program.type(node.args[1]);
  const Type& c = program.results()[0].type;
  if (a.dims.size() != 2 || b.dims.size() != 2 || c.dims.size() != 2) return std::nullopt;
  const auto contracted = [&](const Dim& dim) {
    return dim == node.attr.axis;
  };
  if (contracted(a.dims[0]) == contracted(a.dims[1])) return std::nullopt;
  if (contracted(b.dims[0]) == contracted(b.dims[1])) return std::nullopt;
  const auto left = type_of(a.dtype), right = type_of(b.dtype), out = type_of(c.dtype);
  if (!left || left != right || !out) return std::nullopt;
  Product product{.left_turned = contracted(a.dims[0]),
                  .right_turned = contracted(b.dims[1]),
                  .accumulates = program.results()[0].store == Store::accumulate,
                  .k = require_extent(node.attr.axis, sizes),
                  .left = *left,
                  .right = *right,
                  .out = *out};
  const Dim& rows = a.dims[product.left_turned ? 1 : 0];
  const Dim& columns = b.dims[product.right_turned ? 0 : 1];
  if (!(c.dims[0] == rows) || !(c.dims[1] == columns)) return std::nullopt;
  product.m = require_extent(rows, sizes);
  product.n = require_extent(columns, sizes);
  const bool empty = product.m == 0 || product.n == 0 || product.k == 0;
  return empty ? std::nullopt : std::optional(product);
}

// The primitive of a product, on dense tensors.
class Whole {
 public:
  Whole(const Product& product, int threads) : threads_(threads), stream_(engine()) {
    const Threads all(threads);
    using Tag = memory::format_tag;
    const memory::dims left{product.m, product.k}, right{product.k, product.n};
    const memory::desc a(left, product.left, product.left_turned ? Tag::ba : Tag::ab);
    const memory::desc b(right, product.right, product.right_turned ? Tag::ba : Tag::ab);
    const memory::desc c({product.m, product.n}, product.out, Tag::ab);
    dnnl::primitive_attr attributes;
    if (product.accumulates) {
      dnnl::post_ops sum;
      sum.append_sum(1.0f);
      attributes.set_post_ops(sum);
    }
    // A left operand stored the other way is turned where the library has no fast kernel for it.
    const memory::desc any_b(right, product.right, Tag::any);
    const auto describe = [&](const memory::desc& from) {
      return dnnl::matmul::primitive_desc(engine(), from, any_b, c, attributes);
    };
    dnnl::matmul::primitive_desc found = describe(a);
    if (std::string(found.impl_info_str()).find("ref") != std::string::npos) {
      found = describe(memory::desc(left, product.left, Tag::ab));
    }
    matmul_ = dnnl::matmul(found);
    a_ = Operand(a, found.src_desc());
    b_ = Operand(b, found.weights_desc());
    c_ = c;
  }

  void run(const Tensor& a, const Tensor& b, const Tensor& c) {
    const Threads all(threads_);
    const memory out(c_, engine(), c.data);
    matmul_.execute(stream_, {{DNNL_ARG_SRC, a_.given(a.data, stream_)},
                              {DNNL_ARG_WEIGHTS, b_.given(b.data, stream_)},
                              {DNNL_ARG_DST, out}});
    stream_.wait();
  }

 private:
  struct Operand {
    Operand() = default;
    Operand(const memory::desc& lies, const memory::desc& wanted) : from(lies) {
      if (wanted == lies) return;
      memory target(wanted, engine());
      order = dnnl::reorder(memory(lies, engine(), nullptr), target);
      packed = target;
    }
    memory given(void* data, dnnl::stream& stream) {
      memory source(from, engine(), data);
      if (!packed) return source;
      order.execute(stream, source, *packed);
      return *packed;
    }
    memory::desc from;
    std::optional<memory> packed;
    dnnl::reorder order;
  };
  int threads_;
  dnnl::stream stream_;
  dnnl::matmul matmul_;
  Operand a_, b_;
  memory::desc c_;
};

bool is_dense(const Tensor& tensor) {
  std::int64_t stride = 1;
  for (std::size_t d = tensor.shape.size(); d-- > 0;) {
    if (tensor.strides[d] != stride) return false;
    stride *= tensor.shape[d];
  }
  return true;
}

// NOTE: its kernels keep packed weights of their own: one run at a time.
class WholeProducts : public Backend {
 public:
  WholeProducts(std::unique_ptr<Backend> own, int threads)
      : own_(std::move(own)), threads_(threads) {}

  std::string_view name() const override { return "cpu"; }
  std::optional<std::string> refusal(const Checked& program, const Sizes& sizes) const override {
    return own_->refusal(program, sizes);
  }
  Kernel compile(const Checked& program, const Sizes& given) const override {
    const Sizes sizes = bind_sizes(program.program(), given);
    const std::optional<Product> product = product_of(program.program(), sizes);
    if (!product) return own_->compile(program, sizes);
    const bool swapped = program.program().nodes()[0].args[0].id != 0;
    const auto whole = std::make_shared<Whole>(*product, threads_);
    return Kernel(
        [whole, swapped](std::span<const Tensor> params, std::span<const Tensor> results,
                         std::span<std::byte>) {
          if (!is_dense(params[0]) || !is_dense(params[1]) || !is_dense(results[0])) {
            throw Unsupported("whole products take dense tensors", "");
          }
          whole->run(params[swapped ? 1 : 0], params[swapped ? 0 : 1], results[0]);
        },
        0, "one call of oneDNN");
  }

 private:
  std::unique_ptr<Backend> own_;
  int threads_;
};

// "128x256" → rows, columns.
cpu::Options options_of(const Wanted& wanted) {
  cpu::Options options{.threads = wanted.threads};
  if (wanted.tile.empty()) return options;
  const char* const end = wanted.tile.data() + wanted.tile.size();
  const auto rows = std::from_chars(wanted.tile.data(), end, options.tile_rows);
  const bool cross = rows.ec == std::errc() && rows.ptr != end && *rows.ptr == 'x';
  const auto columns = std::from_chars(rows.ptr + (cross ? 1 : 0), end, options.tile_columns);
  if (!cross || columns.ec != std::errc() || columns.ptr != end) {
    throw ProgramError("`" + wanted.tile + "` is no tile", "give rows and columns, like 128x256");
  }
  return options;
}

}  // namespace

std::unique_ptr<Backend> device_backend(const Wanted& wanted) {
  if (wanted.device != "cpu") {
    throw ProgramError("`" + wanted.device + "` is no device of this library",
                       "give \"cpu\", \"reference\" or \"\"; \"cuda\" is libcoda_bench.so's");
  }
  std::unique_ptr<Backend> own = cpu::backend(options_of(wanted));
  if (!wanted.whole_products) return own;
  const int threads = wanted.threads > 0 ? wanted.threads : flags::threads();
  return std::make_unique<WholeProducts>(std::move(own), threads);
}

std::vector<std::string> candidate_tiles(const Checked&, const Sizes&) {
  return {""};
}

}  // namespace coda::bench
