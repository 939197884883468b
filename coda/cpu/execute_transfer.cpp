// coda/cpu/execute_transfer.cpp: the statements that read and write tensors, or count positions.
#include <algorithm>
#include <cstring>

#include "coda/cpu/execute.h"
#include "coda/cpu/plain_transfer.h"

namespace coda::cpu {
namespace {

// body(offset in the tensor, offset in the buffer) for every run of the innermost axis.
template <class Body>
void for_each_run(const std::vector<BoundAccess::Axis>& axes, std::size_t level, std::int64_t at,
                  std::int64_t dense, const Body& body) {
  if (level + 1 >= axes.size()) return body(at, dense);
  for (std::int64_t i = 0; i < axes[level].n; ++i) {
    for_each_run(axes, level + 1, at + i * axes[level].stride, dense + i * axes[level].dense, body);
  }
}

struct Innermost {
  std::int64_t n = 1, stride = 1;
};
Innermost innermost(const BoundAccess& access) {
  if (access.axes.empty()) return {};
  return {access.axes.back().n, access.axes.back().stride};
}

struct Reader {
  Reader(const BoundAccess& access, DType dtype, Lane lane)
      : access(access), dtype(dtype), lane(lane), load(load_run(dtype, lane)) {}
  void operator()(std::int64_t offset, std::int64_t step, std::int64_t n, std::byte* to) const {
    const std::byte* from = access.data + offset * access.bytes;
    if (access.aligned) {
      load(from, step, n, to);
    } else {
      load_unaligned(dtype, lane, from, step, n, to);
    }
  }
  const BoundAccess& access;
  DType dtype;
  Lane lane;
  Load load;
};

void round_in_place(const std::vector<Map>& rounds, std::byte* data, std::int64_t n) {
  for (const Map round : rounds) {
    const Arg args[2] = {{data, {0, 0, 1}}, {data, {0, 0, 1}}};
    round(Loops{{1, 1, n}}, args);
  }
}

}  // namespace

void TileWorker::load(const Statement& statement, std::int64_t row, std::int64_t rows) {
  const BoundAccess& from = bound(statement.access);
  const std::int64_t column = accesses_[static_cast<std::size_t>(statement.access)].column;
  const auto buffer = static_cast<std::size_t>(statement.slots[0].buffer);
  const bool by_row = statement.per_row;
  if (statement.may_alias && from.packed && from.aligned && (!by_row || from.run(row) >= rows)) {
    pointers_[buffer] = from.data + (column + from.at_row(row)) * from.bytes;
    if (by_row) row_steps_[buffer] = from.row_stride;
    return;
  }
  const auto lane = static_cast<std::int64_t>(lane_bytes(statement.lane));
  const Reader read(from, program_->accesses[static_cast<std::size_t>(statement.access)].dtype,
                    statement.lane);
  std::byte* to = data(statement.slots[0]);
  const Innermost inner = innermost(from);
  const std::int64_t end = row + rows;
  while (row < end) {
    const std::int64_t count = std::min(end - row, from.run(row));
    const std::int64_t at = column + from.at_row(row);
    if (from.elements == 1) {
      read(at, from.row_stride, count, to);
    } else if (from.packed && (count == 1 || from.row_stride == from.elements)) {
      read(at, 1, count * from.elements, to);
    } else {
      for (std::int64_t r = 0; r < count; ++r) {
        for_each_run(from.axes, 0, at + r * from.row_stride, r * from.elements,
                     [&](std::int64_t offset, std::int64_t dense) {
                       read(offset, inner.stride, inner.n, to + dense * lane);
                     });
      }
    }
    to += count * from.elements * lane;
    row += count;
  }
}

void TileWorker::load_join(const Statement& statement, std::int64_t row, std::int64_t rows) {
  const auto lane = static_cast<std::int64_t>(lane_bytes(statement.lane));
  std::byte* to = data(statement.slots[0]);
  for (std::int64_t r = row; r < row + rows; ++r) {
    const std::int64_t index = statement.joined.at(r);
    for (const Statement::Piece& piece : statement.pieces) {
      if (index < piece.first || index >= piece.first + piece.count) continue;
      const BoundAccess& from = bound(piece.access);
      std::int64_t at = accesses_[static_cast<std::size_t>(piece.access)].column + from.at_row(r);
      at += from.along(index - piece.first);
      const Reader read(from, program_->accesses[static_cast<std::size_t>(piece.access)].dtype,
                        statement.lane);
      const Innermost inner = innermost(from);
      for_each_run(from.axes, 0, at, 0, [&](std::int64_t offset, std::int64_t dense) {
        read(offset, inner.stride, inner.n, to + dense * lane);
      });
      round_in_place(piece.rounds, to, from.elements);
      to += from.elements * lane;
    }
  }
}

void TileWorker::load_block(const Statement& statement, std::int64_t row, std::int64_t rows) {
  const auto lane = static_cast<std::int64_t>(lane_bytes(statement.lane));
  const BoundAccess& from = bound(statement.access);
  const Reader read(from, program_->accesses[static_cast<std::size_t>(statement.access)].dtype,
                    statement.lane);
  const std::int64_t kept = statement.n[1];
  std::byte* block = data(statement.slots[1]);
  Arg out = arg(statement.slots[0]);
  out.step[1] = 0;
  out.step[2] = 1;
  for (std::int64_t r = row; r < row + rows; ++r) {
    const std::int64_t index = statement.joined.at(r);
    const std::int64_t first = index * statement.block;
    const std::int64_t count = std::min(statement.block, statement.period - first);
    const std::int64_t at =
        accesses_[static_cast<std::size_t>(statement.access)].column + from.at_row(r);
    // Elements of the block one by one: axis 0 of the access, whose stride along() has.
    for (std::int64_t j = 0; j < count; ++j) {
      const std::int64_t element = at + from.along(first + j);
      if (from.axes.empty()) {
        read(element, 1, 1, block + j * lane);
        continue;
      }
      const Innermost inner = innermost(from);
      for_each_run(from.axes, 0, element, j * kept, [&](std::int64_t offset, std::int64_t dense) {
        read(offset, inner.stride, inner.n, block + dense * lane);
      });
    }
    round_in_place(statement.rounds, block, count * kept);
    const Arg in{block, {0, kept, 1}};
    statement.reduce(Loops{{1, count, kept}}, out, in, Begin::fresh);
    out.data += out.step[0] * lane;
  }
}

void TileWorker::store(const Statement& statement, std::int64_t row, std::int64_t rows) {
  const BoundAccess& to = bound(statement.access);
  const auto access = static_cast<std::size_t>(statement.access);
  if (!accesses_[access].owns && statement.mask < 0) return;
  const auto buffer = static_cast<std::size_t>(statement.slots[0].buffer);
  const std::byte* from = data(statement.slots[0]);
  const std::int64_t column = accesses_[access].column;
  if (statement.may_alias && statement.per_row && to.elements > 0 &&
      from == to.data + (to.at_row(row) + column) * to.bytes) {
    return;  // made in its place
  }
  const auto lane = static_cast<std::int64_t>(lane_bytes(statement.lane));
  const std::int64_t row_step = statement.slots[0].by_row ? row_steps_[buffer] : 0;
  const Put put = store_run(program_->accesses[access].dtype, statement.lane, statement.store);
  const auto write = [&](const std::byte* in, std::int64_t in_step, std::int64_t n,
                         std::int64_t offset, std::int64_t step) {
    std::byte* out = to.data + offset * to.bytes;
    if (to.aligned) {
      put(in, in_step, n, out, step);
    } else {
      store_unaligned(program_->accesses[access].dtype, statement.lane, statement.store, in,
                      in_step, n, out, step);
    }
  };
  const auto stored = [&](std::int64_t r) {
    if (!to.owns_row(r)) return false;
    if (statement.mask < 0) return true;
    const auto mask = static_cast<std::size_t>(statement.mask);
    const std::int64_t at = (r - row) * row_steps_[mask];
    return program_->buffers[mask].lane == Lane::f64
               ? reinterpret_cast<const double*>(pointers_[mask])[at] != 0
               : reinterpret_cast<const float*>(pointers_[mask])[at] != 0;
  };
  const bool each_row = !to.all_rows() || statement.mask >= 0;
  const Innermost inner = innermost(to);
  const std::int64_t end = row + rows;
  for (std::int64_t r = row; r < end;) {
    const std::int64_t count = each_row ? 1 : std::min(end - r, to.run(r));
    const std::int64_t at = column + to.at_row(r);
    const std::byte* in = from + (r - row) * row_step * lane;
    r += count;
    if (each_row && !stored(r - 1)) continue;
    if (to.elements == 1) {
      write(in, row_step, count, at, to.row_stride);
    } else if (to.packed &&
               (count == 1 || (to.row_stride == to.elements && row_step == to.elements))) {
      write(in, 1, count * to.elements, at, 1);
    } else {
      for (std::int64_t i = 0; i < count; ++i) {
        for_each_run(to.axes, 0, at + i * to.row_stride, 0,
                     [&](std::int64_t offset, std::int64_t dense) {
                       write(in + (i * row_step + dense) * lane, 1, inner.n, offset, inner.stride);
                     });
      }
    }
  }
}

void TileWorker::position(const Statement& statement, std::int64_t row, std::int64_t rows) {
  const BoundAccess& from = bound(statement.access);
  const std::int64_t column = accesses_[static_cast<std::size_t>(statement.access)].column;
  auto* to = reinterpret_cast<std::int64_t*>(data(statement.slots[0]));
  const Innermost inner = innermost(from);
  for (std::int64_t r = 0; r < rows; ++r, to += from.elements) {
    for_each_run(from.axes, 0, column + from.at_row(row + r), 0,
                 [&](std::int64_t offset, std::int64_t dense) {
                   for (std::int64_t k = 0; k < inner.n; ++k)
                     to[dense + k] = offset + k * inner.stride;
                 });
  }
}

void TileWorker::uniform(const Statement& statement, std::int64_t row, std::int64_t rows) {
  const BoundAccess& from = bound(statement.access);
  const std::int64_t column = accesses_[static_cast<std::size_t>(statement.access)].column;
  const auto lane = static_cast<std::int64_t>(lane_bytes(statement.lane));
  std::byte* to = data(statement.slots[0]);
  std::uint64_t seed = 0;
  std::memcpy(&seed, data(statement.slots[1]), sizeof seed);
  const Innermost inner = innermost(from);
  const auto draw = [&](std::int64_t first, std::int64_t n, std::byte* out) {
    uniform_run(seed, static_cast<std::uint64_t>(first), n, statement.lane, out);
  };
  for (std::int64_t r = 0; r < rows; ++r, to += from.elements * lane) {
    for_each_run(from.axes, 0, column + from.at_row(row + r), 0,
                 [&](std::int64_t offset, std::int64_t dense) {
                   if (inner.stride == 1 || inner.n == 1) {
                     return draw(offset, inner.n, to + dense * lane);
                   }
                   for (std::int64_t k = 0; k < inner.n; ++k) {
                     draw(offset + k * inner.stride, 1, to + (dense + k) * lane);
                   }
                 });
  }
}

void TileWorker::gather(const Statement& statement, std::int64_t row, std::int64_t rows) {
  const BoundAccess& from = bound(statement.access);
  const std::int64_t column = accesses_[static_cast<std::size_t>(statement.access)].column;
  const auto lane = static_cast<std::int64_t>(lane_bytes(statement.lane));
  const Reader read(from, program_->accesses[static_cast<std::size_t>(statement.access)].dtype,
                    statement.lane);
  const Arg ids = arg(statement.slots[1]);
  std::byte* to = data(statement.slots[0]);
  const Innermost inner = innermost(from);
  const std::int64_t out_step = statement.slots[0].by_row ? statement.ids * from.elements : 0;
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t at = column + from.at_row(row + r);
    for (std::int64_t i = 0; i < statement.ids; ++i) {
      std::int64_t id = 0;
      std::memcpy(&id, ids.data + (r * ids.step[0] + i) * 8, sizeof id);
      std::byte* out = to + (r * out_step + i * from.elements) * lane;
      if (id < 0 || id >= from.table_rows()) {
        std::memset(out, 0, static_cast<std::size_t>(from.elements * lane));
        continue;
      }
      for_each_run(from.axes, 0, at + from.along(id), 0,
                   [&](std::int64_t offset, std::int64_t dense) {
                     read(offset, inner.stride, inner.n, out + dense * lane);
                   });
    }
  }
}

}  // namespace coda::cpu
