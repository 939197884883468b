// coda/cpu/backend.cpp: compile and run: spaces cut into tiles, tiles shared out to threads.
//
// A run has two parts with a barrier between them: operands that need it are packed, then every
// tile of every space is multiplied, evaluated and stored by one worker. Nothing that a tile
// computes depends on who computes it or when.
#include <algorithm>
#include <optional>
#include <sstream>

#include "coda/check/bind.h"
#include "coda/core/error.h"
#include "coda/core/flags.h"
#include "coda/core/pool.h"
#include "coda/cpu/attention.h"
#include "coda/cpu/cpu.h"
#include "coda/cpu/execute.h"
#include "coda/cpu/frame.h"
#include "coda/cpu/isa.h"
#include "coda/cpu/lower.h"
#include "coda/cpu/lowering.h"
#include "coda/cpu/products.h"
#include "coda/cpu/scatter.h"

namespace coda::cpu {
namespace {

constexpr std::int64_t kGemmColumns = 256;
constexpr std::int64_t kGemmRows = 256;
constexpr std::int64_t kAccumulatorBytes = 512 * 1024;  // of all accumulators of a tile
constexpr std::int64_t kStreamColumns = 4096;
constexpr std::int64_t kVectorColumns = 16384;   // of a program without rows
constexpr std::int64_t kStreamElements = 65536;  // of a tile
// So many tiles keep a few threads even; below, tiles shrink.
constexpr std::int64_t kWantedTiles = 8;
// Smaller kernels stay on the calling thread.
constexpr std::int64_t kParallelElements = 8192;

std::size_t round_up(std::size_t n) {
  return (n + 63) / 64 * 64;
}

struct CompiledSpace {
  Cut rows, columns;
  TileProgram main, tail;  // tail: the last tile of a period, where it is narrower
  std::unique_ptr<Products> products;
  std::int64_t tiles() const { return rows.tiles() * columns.tiles(); }
};

struct Compiled {
  Checked checked;
  Sizes sizes;
  int threads = 1;
  TileGemm gemm;
  std::vector<CompiledSpace> spaces;
  std::size_t shared_bytes = 0;  // of packed operands
  std::size_t worker_bytes = 0;
  std::vector<std::string> notes;

  explicit Compiled(const Checked& from) : checked(from) {}
};

struct Wanted {
  std::int64_t rows, columns;
};

Wanted wanted_tile(const Frame& frame, const Options& options, Lane real) {
  Wanted wanted{};
  const auto accumulators = static_cast<std::int64_t>(frame.space().accumulators.size());
  if (accumulators > 0) {
    const auto bytes = static_cast<std::int64_t>(lane_bytes(real)) * accumulators;
    wanted.columns = std::max<std::int64_t>(std::min(kGemmColumns, frame.columns()), 1);
    wanted.rows = std::clamp<std::int64_t>(kAccumulatorBytes / bytes / wanted.columns / 64 * 64, 64,
                                           kGemmRows);
    const auto tiles = [&] {
      return (frame.rows() + wanted.rows - 1) / wanted.rows *
             ((frame.columns() + wanted.columns - 1) / wanted.columns);
    };
    while (tiles() < kWantedTiles && wanted.rows > 64 && frame.rows() > 64) wanted.rows /= 2;
    if (frame.rows() < 64) {
      // A few rows only read the weight once: wide tiles, a few for the threads.
      wanted.columns =
          std::clamp<std::int64_t>(frame.columns() / 4 / 64 * 64, wanted.columns, 1024);
    } else if (tiles() < kWantedTiles && wanted.columns == kGemmColumns) {
      wanted.columns /= 2;
    }
  } else {
    wanted.columns = frame.rows() == 1 ? kVectorColumns : kStreamColumns;
    const std::int64_t width = std::clamp<std::int64_t>(frame.columns(), 1, wanted.columns);
    wanted.rows = std::clamp<std::int64_t>(kStreamElements / width / 64 * 64, 64, 4096);
    while (wanted.rows > 64 && frame.rows() < kWantedTiles * wanted.rows) wanted.rows /= 2;
  }
  if (options.tile_rows > 0) wanted.rows = options.tile_rows;
  if (options.tile_columns > 0) wanted.columns = options.tile_columns;
  return wanted;
}

void lower_space(const Frame& frame, Lane real, CompiledSpace& space) {
  const std::int64_t rows = std::min(space.rows.size, space.rows.period);
  const std::int64_t width = std::min(space.columns.size, space.columns.period);
  space.main = lower(frame, width, rows, real);
  if (space.columns.tail() != width) space.tail = lower(frame, space.columns.tail(), rows, real);
}

CompiledSpace compile_space(const Frame& frame, const Options& options, Compiled& compiled) {
  const Lane real = real_lane(frame.program());
  CompiledSpace space;
  const Wanted wanted = wanted_tile(frame, options, real);
  space.columns = frame.cut_columns(wanted.columns, compiled.notes);
  space.rows = frame.cut_rows(wanted.rows);
  try {
    lower_space(frame, real, space);
  } catch (const NeedsFullWidth&) {
    compiled.notes.push_back("full width: picks of different ids meet");
    space.columns = {frame.columns(), frame.columns(), std::max<std::int64_t>(frame.columns(), 1)};
    space.rows = frame.cut_rows(64);
    lower_space(frame, real, space);
  }
  std::int64_t scratch = std::max(space.main.scratch, space.tail.scratch);
  if (!frame.space().accumulators.empty()) {
    const OneThread one;
    space.products =
        std::make_unique<Products>(frame, space.rows, space.columns, real, compiled.gemm,
                                   compiled.shared_bytes, compiled.notes);
    compiled.shared_bytes = space.products->shared_end();
  }
  const std::size_t products = space.products ? space.products->worker_bytes() : 0;
  compiled.worker_bytes =
      std::max(compiled.worker_bytes, round_up(static_cast<std::size_t>(scratch)) + products);
  return space;
}

std::string note_of(const Compiled& compiled) {
  std::ostringstream note;
  for (const CompiledSpace& space : compiled.spaces) {
    note << (&space == &compiled.spaces[0] ? "" : ", ") << space.tiles() << " tiles of "
         << space.rows.size << " × " << space.columns.size;
  }
  note << "; " << compiled.threads << (compiled.threads == 1 ? " thread; " : " threads; ")
       << vector_target();
  for (const std::string& each : compiled.notes) note << "; " << each;
  return note.str();
}

// ---- one run ----

// The addresses of a tensor, from the first byte to past the last.
std::pair<std::uintptr_t, std::uintptr_t> memory_of(const Tensor& tensor) {
  std::int64_t low = 0, high = 0;
  for (std::size_t d = 0; d < tensor.shape.size(); ++d) {
    if (tensor.shape[d] == 0) return {0, 0};
    const std::int64_t reach = (tensor.shape[d] - 1) * tensor.strides[d];
    (reach < 0 ? low : high) += reach;
  }
  const auto bytes = static_cast<std::int64_t>(size_of(tensor.dtype));
  const auto data = reinterpret_cast<std::uintptr_t>(tensor.data);
  return {data + static_cast<std::uintptr_t>(low * bytes),
          data + static_cast<std::uintptr_t>((high + 1) * bytes)};
}

bool overlap(const Tensor& a, const Tensor& b) {
  const auto [a_begin, a_end] = memory_of(a);
  const auto [b_begin, b_end] = memory_of(b);
  return a_begin < b_end && b_begin < a_end;
}

class Run {
 public:
  Run(const Compiled& compiled, std::span<const Tensor> params, std::span<const Tensor> results,
      std::span<std::byte> scratch)
      : compiled_(compiled), scratch_(scratch.data()) {
    bind_tensors(params, results);
    std::int64_t work = 0;
    for (const CompiledSpace& space : compiled.spaces) {
      programs_.emplace_back(space.main, tensors_, space.rows.extent);
      programs_.emplace_back(space.tail, tensors_, space.rows.extent);
      products_.emplace_back();
      if (space.products) products_.back().emplace(*space.products, tensors_, scratch_);
      work += std::max<std::int64_t>(space.rows.extent, 1) *
              std::max<std::int64_t>(space.columns.extent, 1) * (space.products ? 16 : 1);
    }
    threads_ = work < kParallelElements ? 1 : compiled.threads;
  }

  void operator()() {
    pack();
    std::int64_t tiles = 0;
    for (const CompiledSpace& space : compiled_.spaces) tiles += space.tiles();
    // TileWorkers belong to the worker number: no two tasks run under one at a time.
    std::vector<std::vector<std::optional<TileWorker>>> workers(static_cast<std::size_t>(threads_));
    for (auto& own : workers) own.resize(programs_.size());
    parallel_for(tiles, threads_, [&](std::int64_t task, int worker) {
      std::size_t s = 0;
      while (task >= compiled_.spaces[s].tiles()) task -= compiled_.spaces[s++].tiles();
      run_tile(s, task, worker, workers[static_cast<std::size_t>(worker)]);
    });
  }

 private:
  void bind_tensors(std::span<const Tensor> params, std::span<const Tensor> results) {
    const Program& program = compiled_.checked.program();
    if (params.size() != program.params().size() || results.size() != program.results().size()) {
      throw InternalError("a kernel runs with one tensor for each parameter and result");
    }
    const auto add = [&](const Type& type, const Tensor& tensor) {
      tensors_.push_back({static_cast<std::byte*>(tensor.data), tensor.dtype,
                          factor_strides(type, tensor, compiled_.sizes), false});
    };
    for (std::size_t p = 0; p < params.size(); ++p) add(program.params()[p].type, params[p]);
    for (std::size_t r = 0; r < results.size(); ++r) {
      add(program.results()[r].type, results[r]);
      tensors_.back().alone = std::ranges::none_of(
          params, [&](const Tensor& param) { return overlap(param, results[r]); });
    }
  }

  std::byte* worker_scratch(int worker) const {
    return scratch_ + compiled_.shared_bytes +
           static_cast<std::size_t>(worker) * compiled_.worker_bytes;
  }

  void pack() {
    std::int64_t tasks = 0;
    for (const auto& products : products_) tasks += products ? products->pack_tasks() : 0;
    if (tasks == 0) return;
    parallel_for(tasks, threads_, [&](std::int64_t task, int worker) {
      const OneThread one;
      for (const auto& products : products_) {
        const std::int64_t own = products ? products->pack_tasks() : 0;
        if (task < own) return products->pack(task, worker_scratch(worker));
        task -= own;
      }
    });
  }

  void run_tile(std::size_t s, std::int64_t tile, int worker,
                std::vector<std::optional<TileWorker>>& workers) {
    const CompiledSpace& space = compiled_.spaces[s];
    const std::int64_t row_tile = tile / space.columns.tiles();
    const std::int64_t column_tile = tile % space.columns.tiles();
    const bool tail = space.columns.count(column_tile) != space.main.width;
    const std::size_t index = 2 * s + (tail ? 1 : 0);
    if (!workers[index]) workers[index].emplace(programs_[index], worker_scratch(worker));
    TileWorker& own = *workers[index];
    if (products_[s]) {
      const OneThread one;
      std::byte* scratch =
          worker_scratch(worker) +
          round_up(static_cast<std::size_t>(std::max(space.main.scratch, space.tail.scratch)));
      for (std::size_t a = 0; a < space.main.accumulators.size(); ++a) {
        products_[s]->multiply(a, row_tile, column_tile, own.accumulator(a), scratch);
      }
    }
    own.run(space.rows.first(row_tile), space.rows.count(row_tile),
            space.columns.first(column_tile));
  }

  const Compiled& compiled_;
  std::byte* scratch_;
  int threads_ = 1;
  std::vector<BoundTensor> tensors_;
  std::vector<BoundProgram> programs_;  // main and tail of each space
  std::vector<std::optional<Products::Bound>> products_;
};

class Cpu : public Backend {
 public:
  explicit Cpu(const Options& options) : options_(options) {}

  std::string_view name() const override { return "cpu"; }

  std::optional<std::string> refusal(const Checked& program, const Sizes& sizes) const override {
    try {
      compile(program, sizes);
      return std::nullopt;
    } catch (const Unsupported& error) {
      return error.what();
    }
  }

  Kernel compile(const Checked& checked, const Sizes& given) const override {
    const int threads = options_.threads > 0 ? options_.threads : flags::threads();
    const Sizes sizes = bind_sizes(checked.program(), given);
    if (checked.kind() == KernelKind::opaque) return compile_attention(checked, sizes, threads);
    if (is_scatter(checked)) return compile_scatter(checked, sizes, threads);
    auto compiled = std::make_shared<Compiled>(checked);
    compiled->sizes = sizes;
    compiled->threads = threads;
    for (std::size_t s = 0; s < checked.spaces().size(); ++s) {
      const Frame frame(compiled->checked, s, compiled->sizes);
      compiled->spaces.push_back(compile_space(frame, options_, *compiled));
    }
    const std::size_t bytes =
        compiled->shared_bytes + static_cast<std::size_t>(threads) * compiled->worker_bytes + 64;
    std::string note = note_of(*compiled);
    return Kernel([compiled = std::shared_ptr<const Compiled>(std::move(compiled))](
                      std::span<const Tensor> params, std::span<const Tensor> results,
                      std::span<std::byte> scratch) { Run(*compiled, params, results, scratch)(); },
                  bytes, std::move(note));
  }

 private:
  Options options_;
};

}  // namespace

std::unique_ptr<Backend> backend(const Options& options) {
  cap_isa();
  return std::make_unique<Cpu>(options);
}

}  // namespace coda::cpu
